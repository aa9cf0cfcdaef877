"""Compiled code: its bytes without lines and comments, the names it looks up, and the names it changes."""

from __future__ import annotations

import collections
import dis
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

MUTATORS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "popleft",
    "remove", "setdefault", "update", "__setitem__",
}  # fmt: skip
CONTAINERS = (list, dict, set, bytearray, collections.deque)  # that code may change in place
VARIABLES = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"}
FIELDS = {"LOAD_ATTR", "LOAD_METHOD"}
BEFORE_STORE = 5  # instructions before `container[key] = value` in which the container was loaded


@dataclass(frozen=True)
class Written:
    """Names that code writes while it runs: it assigns the `stored`, and changes the containers `mutated` in place."""

    stored: frozenset[str] = frozenset()
    mutated: frozenset[str] = frozenset()

    def __or__(self, other: Written) -> Written:
        return Written(self.stored | other.stored, self.mutated | other.mutated)

    def holds(self, name: str, value: Any) -> bool:
        """Whether this value under this name is state."""
        return name in self.stored or (name in self.mutated and isinstance(value, CONTAINERS))


@dataclass(frozen=True)
class Facts:
    """What a function's code does with names; of code nested in it too.

    `chains`: a global name and the attributes read from it, such as ("helpers", "scale"). `attributes`: all it reads.
    `variables`, `fields`: which globals and closure variables, and which attributes, it writes. `imports`: modules it
    imports itself, each with its level (dots) and the names taken from it.
    """

    chains: tuple[tuple[str, ...], ...]
    attributes: frozenset[str]
    variables: Written
    fields: Written
    imports: tuple[tuple[int, str, tuple[str, ...]], ...] = ()


@functools.lru_cache(maxsize=4096)
def facts(code: CodeType) -> Facts:
    """What this code does with names.

    >>> def count(x):
    ...     global calls
    ...     calls = calls + 1
    ...     return math.sqrt(x)
    >>> facts(count.__code__).chains, sorted(facts(count.__code__).variables.stored)
    ((('calls',), ('math', 'sqrt')), ['calls'])
    """
    chains: dict[tuple[str, ...], None] = {}
    attributes: set[str] = set()
    stored: dict[bool, set[str]] = {False: set(), True: set()}  # by whether it is an attribute
    mutated: dict[bool, set[str]] = {False: set(), True: set()}
    imports: dict[tuple[int, str, tuple[str, ...]], None] = {}
    for nested in _nested(code):
        chain: list[str] = []
        recent: list[tuple[bool, str]] = []  # what the instructions before have loaded
        constants: list[Any] = [0, None]
        for step in dis.get_instructions(nested):
            name = step.argval if isinstance(step.argval, str) else ""
            if step.opname in FIELDS:
                attributes.add(name)
                if name in MUTATORS and recent and recent[-1][1]:
                    mutated[recent[-1][0]].add(recent[-1][1])
                chain = [*chain, name] if chain else []
            else:
                if chain:
                    chains[tuple(chain)] = None
                chain = [name] if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") else []
            if step.opname == "IMPORT_NAME":
                imports[(int(constants[-2] or 0), name, tuple(constants[-1] or ()))] = None
            constants.append(step.argval if step.opname == "LOAD_CONST" else None)
            if step.opname == "STORE_GLOBAL" or (step.opname == "STORE_DEREF" and name in nested.co_freevars):
                stored[False].add(name)
            if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
                stored[True].add(name)
            if step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
                for field, loaded in recent[-BEFORE_STORE:]:
                    mutated[field].add(loaded)
            recent.append((step.opname in FIELDS, name if step.opname in VARIABLES | FIELDS else ""))
        if chain:
            chains[tuple(chain)] = None
    variables, fields = (Written(frozenset(stored[field]), frozenset(mutated[field] - {""})) for field in (False, True))
    return Facts(tuple(chains), frozenset(attributes), variables, fields, tuple(imports))


@functools.lru_cache(maxsize=4096)
def code_digest(code: CodeType, documented: bool = False) -> bytes:
    """A hash of what the code does: file, lines and comments are left out, and the docstring if it is `documented`.

    It is taken from the compiled code, so Python's version matters.
    """
    hasher = hashlib.sha256()
    _hash(hasher, code, documented)
    return hasher.digest()


def _hash(hasher: hashlib._Hash, code: CodeType, documented: bool) -> None:
    arguments = code.co_argcount + code.co_kwonlyargcount
    shape = (
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_names, code.co_freevars,
        code.co_varnames[:arguments],
    )  # fmt: skip
    hasher.update(code.co_code + code.co_exceptiontable + repr(shape).encode())
    for number, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            _hash(hasher, constant, False)
        elif not (number == 0 and documented):
            hasher.update(_text(constant).encode() + b"\0")


def _text(constant: object) -> str:
    """A constant as a string; the items of a set are sorted, since their order changes from process to process."""
    if isinstance(constant, frozenset):
        return f"set {sorted(map(_text, constant))}"
    if isinstance(constant, tuple):
        return f"tuple {list(map(_text, constant))}"
    return f"{type(constant).__name__} {constant!r}"


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
