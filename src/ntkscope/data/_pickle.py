"""A pickle reader that can build arrays, bytes, strings, numbers, lists, tuples and dicts, and nothing else.

A pickle is a program: it may call whatever it can import. Here it can import nothing. The five names that pickled
NumPy arrays need are answered by inert stand-ins of our own, which record a shape, a type code and raw bytes; the
arrays are made from these afterwards. Before the program runs, every instruction is compared with a list of those
needed; one that calls classes, uses the extension registry or persistent ids ends the reading there.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from ntkscope.core.errors import DataCorrupt, UnsafeData
from ntkscope.core.files.pickles import instructions
from ntkscope.data._files import read_file

INSTRUCTIONS = re.compile(
    r"PROTO|FRAME|STOP|MARK|POP|POP_MARK|DUP|(LONG_)?(BIN)?(PUT|GET)|MEMOIZE"
    r"|NONE|NEWTRUE|NEWFALSE|INT|BININT[12]?|LONG1?|(BIN)?FLOAT"
    r"|STRING|(SHORT_)?BINSTRING|(SHORT_)?BINBYTES8?|UNICODE|(SHORT_)?BINUNICODE8?"
    r"|(EMPTY_)?(LIST|TUPLE|DICT)|TUPLE[123]|APPENDS?|SETITEMS?|GLOBAL|STACK_GLOBAL|REDUCE|BUILD"
)
TYPE_CODE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")  # booleans, integers, floats: no object type among them


def _text(value: Any) -> str:
    """Python 2 pickles write these as byte strings, Python 3 pickles as text."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _ArrayType:
    """Stands for `numpy.ndarray` as an argument; cannot be called."""

    __slots__ = ()


class _Type:
    """Stands for a `numpy.dtype`: a type code and a byte order."""

    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1]) if isinstance(state, tuple) and len(state) == 8 else ""
        if order not in ("<", ">", "|", "=") or tuple(state[2:5]) != (None, None, None):
            raise UnsafeData(f"got an array type with the state {state!r:.80}; expected a plain number type")
        self.code = order + self.code.lstrip("<>|=")


class _Array:
    """Stands for an array until reading is finished."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[1], tuple)):
            raise UnsafeData(f"got an array with the state {state!r:.80}; expected shape, type and bytes")
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, _Type) or not isinstance(raw, bytes):
            raise UnsafeData("got an array of Python objects; expected one of numbers")
        dtype = np.dtype(kind.code)
        if not all(isinstance(n, int) and n >= 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(raw):
            raise DataCorrupt(f"got an array of shape {shape} and type {dtype} with {len(raw):,} bytes")
        self.array = np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")


class _Reconstruct:
    """Stands for `numpy.core.multiarray._reconstruct`."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> _Array:
        if len(arguments) != 3 or not isinstance(arguments[0], _ArrayType):
            raise UnsafeData(f"got an array with the arguments {arguments!r:.80}; expected a plain ndarray")
        return _Array()


class _MakeType:
    """Stands for the class `numpy.dtype`."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> _Type:
        code = _text(arguments[0]) if arguments else ""
        if not TYPE_CODE.fullmatch(code):
            raise UnsafeData(f"got an array of type {code!r}; expected booleans, integers or floats")
        return _Type(code)


class _Encode:
    """Stands for `_codecs.encode`, with which Python 3 writes bytes in the protocols of Python 2.

    A text is encoded once in a pickle that Python wrote; `room` is how many bytes all of them together may give.
    """

    __slots__ = ("room",)

    def __init__(self) -> None:
        self.room = [0]

    def __call__(self, *arguments: Any) -> bytes:
        if len(arguments) != 2 or not isinstance(arguments[0], str) or _text(arguments[1]) not in ("latin1", "latin-1"):
            raise UnsafeData(f"text was to be encoded as {arguments[1:]!r:.80}; expected 'latin1'")
        self.room[0] -= len(arguments[0])
        if self.room[0] < 0:
            raise UnsafeData("texts were to be encoded again and again, to more bytes than the file has")
        return arguments[0].encode("latin1")


STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy", "ndarray"): _ArrayType,
    ("numpy", "dtype"): _MakeType,
    ("_codecs", "encode"): _Encode,
}


class _Reader(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._room = [len(content)]

    def find_class(self, module: str, name: str) -> Any:
        stand_in = STAND_INS.get((module, name))
        if stand_in is None:
            raise UnsafeData(f"{module}.{name} was requested; expected nothing but NumPy arrays of numbers")
        made = stand_in()  # a fresh one: the program can change no object but its own
        if isinstance(made, _Encode):
            made.room = self._room  # shared by all of them
        return made

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafeData("got a persistent id; expected nothing but NumPy arrays of numbers")


def _check_instructions(content: bytes) -> None:
    for name, argument, position in instructions(content):
        if not INSTRUCTIONS.fullmatch(name):
            raise UnsafeData(f"the instruction {name} at byte {position} is not one that plain data need")
        if name == "GLOBAL" and tuple(str(argument).split(" ", 1)) not in STAND_INS:
            raise UnsafeData(
                f"{str(argument).replace(' ', '.')} is requested at byte {position};"
                " expected nothing but NumPy arrays of numbers"
            )
        if name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(content):
            raise UnsafeData(f"the instruction {name} at byte {position} requests {argument:,} memory cells")


def _finish(value: Any, done: dict[int, Any]) -> Any:
    """Put the arrays in place of their stand-ins; `done` keeps shared and cyclic structures finite."""
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, _Array):
        return value.array
    if isinstance(value, list):
        done[id(value)] = value
        value[:] = [_finish(item, done) for item in value]
    elif isinstance(value, dict):
        done[id(value)] = value
        value.update({key: _finish(item, done) for key, item in value.items()})
    elif isinstance(value, tuple):
        return done.setdefault(id(value), tuple(_finish(item, done) for item in value))
    elif value is not None and not isinstance(value, (bool, int, float, str, bytes)):
        raise UnsafeData(f"a {type(value).__name__.lstrip('_')} is left over; expected arrays, bytes, lists and dicts")
    return value


def loads(content: bytes, what: str = "pickle") -> Any:
    """The data in a pickle; `UnsafeData`, before anything runs, when it is more than data.

    Strings written by Python 2 are returned as bytes.

    >>> loads(pickle.dumps({b"data": np.arange(3)}, protocol=4))
    {b'data': array([0, 1, 2])}
    >>> loads(b"cos\\nsystem\\n(S'echo'\\ntR.")
    Traceback (most recent call last):
    ...
    ntkscope.core.errors.UnsafeData: pickle was refused and nothing in it ran: os.system is requested at byte 0; ...
    """
    try:
        _check_instructions(content)
        return _finish(_Reader(content).load(), {})
    except UnsafeData as error:
        raise UnsafeData(
            f"{what} was refused and nothing in it ran: {error};"
            " fetch the file from its authors, and do not load it by other means"
        ) from None
    except DataCorrupt as error:
        raise DataCorrupt(f"{what} is damaged: {error}; fetch it again") from None
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,  # UnicodeDecodeError too
        TypeError,
        AttributeError,
        LookupError,
        OverflowError,
        RecursionError,
    ) as error:
        raise DataCorrupt(
            f"{what} is not a complete pickle ({len(content):,} bytes; {type(error).__name__}: {error}); fetch it again"
        ) from error


def load(path: Path) -> Any:
    """The data in a pickle file; see `loads`."""
    return loads(read_file(path), str(path))
