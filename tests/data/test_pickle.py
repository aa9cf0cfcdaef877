"""The restricted unpickler: reads batches, refuses everything that could run."""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import os
import pickle
import struct
import subprocess
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.real_data import python2_batch
from ntkscope.core.errors import DataCorrupt, UnsafeData
from ntkscope.data import _pickle


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


def marking(code: str) -> Callable[[Path, int], bytes]:
    """A pickle, by protocol, whose loading makes the file `marker`; `code` names the way."""

    def make(marker: Path, protocol: int) -> bytes:
        touch = f"touch {marker}"
        python = f"open({str(marker)!r}, 'w').close()"
        evil: Any = {
            "os.system": lambda: Call(os.system, touch),
            "eval": lambda: Call(builtins.eval, python),
            "exec": lambda: Call(builtins.exec, python),
            "subprocess": lambda: Call(subprocess.check_call, ["touch", str(marker)]),
            "inside a batch": lambda: {b"data": np.zeros((2, 3072), np.uint8), b"labels": [Call(os.system, touch)]},
            "inside an object array": lambda: np.array([Call(os.system, touch), None], dtype=object),
            "as a key": lambda: {(Call(os.system, touch),): 1},
        }[code]()
        return pickle.dumps(evil, protocol=protocol)

    return make


WAYS = ["os.system", "eval", "exec", "subprocess", "inside a batch", "inside an object array", "as a key"]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("way", WAYS)
def test_malicious_pickle_runs_nothing(tmp_path: Path, way: str, protocol: int) -> None:
    marker = tmp_path / "ran"
    path = tmp_path / "data_batch_1"
    path.write_bytes(marking(way)(marker, protocol))
    with pytest.raises(UnsafeData, match="was refused and nothing in it ran") as caught:
        _pickle.load(path)
    assert str(path) in str(caught.value)
    assert not marker.exists()


@pytest.mark.parametrize("way", WAYS)
def test_these_pickles_are_malicious_indeed(tmp_path: Path, way: str) -> None:
    """Canary: an ordinary unpickler runs every one of them."""
    marker = tmp_path / "ran"
    pickle.loads(marking(way)(marker, 2))  # noqa: S301 - our own file, in a folder of our own
    assert marker.exists()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (b"(S'touch MARKER'\nios\nsystem\n.", "instruction INST"),
        (b"(cos\nsystem\nS'touch MARKER'\no.", "os.system is requested at byte 1"),
        (b"(I1\nI2\no.", "instruction OBJ"),
        (b"\x80\x02cbuiltins\nobject\n)\x81.", "builtins.object is requested"),
        (b"\x80\x02cnumpy\nndarray\n)\x81.", "instruction NEWOBJ"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.", "os.system was requested"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.", "builtins.eval was requested"),
        (b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93.", "numpy.ndarray.dumps was requested"),
        (b"cnumpy\nload\n(S'x'\ntR.", "numpy.load is requested"),
        (b"cnumpy.core.multiarray\nfromfile\n.", "numpy.core.multiarray.fromfile is requested"),
        (b"cntkscope.data._pickle\nload\n.", "ntkscope.data._pickle.load is requested"),
        (b"P12\n.", "instruction PERSID"),
        (b"I1\nQ.", "instruction BINPERSID"),
        (b"\x80\x02\x82\xf0.", "instruction EXT1"),
        (b"c_codecs\nencode\n(Vabc\nVrot13\ntR.", "expected 'latin1'"),
        (b"c_codecs\nencode\n(tR.", "expected 'latin1'"),
        (b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.", "array of type 'O8'"),
        (b"cnumpy\ndtype\n(S'V8'\nI0\nI1\ntR.", "array of type 'V8'"),
        (b"cnumpy\ndtype\n(S'u1,O'\nI0\nI1\ntR.", "array of type 'u1,O'"),
        (b"cnumpy\ndtype\n(S'u1'\ntR(I3\nS'|'\n(S'u1'\ntN(dI-1\nI-1\nI63\ntb.", "expected a plain number type"),
        (b"cnumpy\ndtype\n(S'u1'\ntR.", "a Type is left over"),
        (b"cnumpy.core.multiarray\n_reconstruct\n(I1\nI2\nI3\ntR.", "expected a plain ndarray"),
        (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nI2\nI3\ntR(dS'x'\nI1\nsb.",
            "expected shape, type and bytes",
        ),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "requests 2,147,483,647 memory cells"),
    ],
)
def test_other_ways_out_are_shut(tmp_path: Path, program: bytes, said: str) -> None:
    marker = tmp_path / "ran"
    copyreg.add_extension("os", "system", 0xF0)
    try:
        with pytest.raises(UnsafeData) as caught:
            _pickle.loads(program.replace(b"touch MARKER", b"touch " + str(marker).encode()))
    finally:
        copyreg.remove_extension("os", "system", 0xF0)
    assert said in str(caught.value)
    assert not marker.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\nndarray\n(dS'x'\nI1\nsb.",  # BUILD: attributes on the stand-in of the class
        b"cnumpy\nndarray\n(N(dS'x'\nI1\nstb.",
        b"c_codecs\nencode\n(N(dV__call__\nI1\nstb.",
        b"cnumpy\nndarray\n(tR.",  # calling it
    ],
)
def test_stand_ins_cannot_be_changed_or_called(program: bytes) -> None:
    with pytest.raises(DataCorrupt, match=r"AttributeError|TypeError"):
        _pickle.loads(program)
    assert _pickle.loads(b"c_codecs\nencode\n(Vabc\nVlatin1\ntR.") == b"abc"


def test_raw_bytes_must_fill_the_shape() -> None:
    whole = python2_batch([1, 2], np.zeros((2, 3072), np.uint8))
    assert whole.count(struct.pack("<i", 3072)) == 1
    with pytest.raises(DataCorrupt, match=r"shape \(2, 3073\) and type uint8 with 6,144 bytes"):
        _pickle.loads(whole.replace(struct.pack("<i", 3072), struct.pack("<i", 3073)))


def test_batch_of_python_2() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 3072), np.uint8)
    found = _pickle.loads(python2_batch(list(range(300)), pixels))
    assert sorted(found) == [b"batch_label", b"data", b"filenames", b"labels"]
    assert np.array_equal(found[b"data"], pixels)
    assert found[b"labels"] == list(range(300))
    assert found[b"filenames"][7] == b"0007.png"
    ordinary = pickle.loads(python2_batch([3], pixels[:1]), encoding="bytes")  # noqa: S301 - canary: a real pickle
    assert np.array_equal(ordinary[b"data"], pixels[:1])


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("dtype", ["u1", "i8", ">i4", "f4", "f8", "?"])
def test_arrays_of_numbers(protocol: int, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    for value in (array, np.asfortranarray(array)):
        found = _pickle.loads(pickle.dumps({"a": [value, (value,)]}, protocol=protocol))
        for copy in (found["a"][0], found["a"][1][0]):
            assert copy.dtype == array.dtype
            assert np.array_equal(copy, array)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(min_size=1),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(value=PLAIN, protocol=st.sampled_from([0, 1, 2, 3, 4]))
def test_plain_data_round_trip(value: object, protocol: int) -> None:
    assert _pickle.loads(pickle.dumps(value, protocol=protocol)) == value


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_never_gets_past_our_errors(content: bytes) -> None:
    with contextlib.suppress(UnsafeData, DataCorrupt):
        _pickle.loads(content)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_batches_never_get_past_our_errors(data: st.DataObject) -> None:
    content = bytearray(python2_batch([1, 2, 3], np.zeros((3, 4), np.uint8)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UnsafeData, DataCorrupt):
        _pickle.loads(bytes(content))


def test_shared_and_cyclic_structures_end() -> None:
    loop: list[Any] = [np.arange(2)]
    loop.append(loop)
    found = _pickle.loads(pickle.dumps(loop, protocol=4))
    assert found[1] is found
    wide: Any = [np.arange(2)]
    for _ in range(60):
        wide = [wide, wide]
    assert len(_pickle.loads(pickle.dumps(wide, protocol=4))) == 2
    with pytest.raises(DataCorrupt, match="nested more than 200 levels deep"):
        _pickle.loads(b"(" * 20_000 + b"N" + b"t" * 20_000 + b".")


def test_other_classes_are_refused() -> None:
    for value in (OrderedDict(a=1), {1, 2}, 1j, np.float64(1.0)):
        with pytest.raises(UnsafeData, match="expected nothing but NumPy arrays"):
            _pickle.loads(pickle.dumps(value, protocol=2))
