"""Bad stores of kernels and features: refused before anything of their size is set aside."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.gram import features
from doors.bounds import GONE, NODES, bounded, put, refused, state
from ntkscope.core import Certificate
from ntkscope.core.errors import StoreError
from ntkscope.storage import KernelStore, fill, open_kernel
from ntkscope.storage._zarr import CHECKED, attributes_checksum
from ntkscope.storage.certified import add_certificate, read_certificate
from ntkscope.storage.feature_store import FeatureStore
from oracles.tiles import Products

WHOLE: tuple[Any, ...] = (GONE, None, 0, -1, "8", [], True, 2.0, 1 << 60, 10**400)
TEXT: tuple[Any, ...] = (3, [], {}, True)
MAPPING: tuple[Any, ...] = (GONE, None, 3, [], "x")
ANSWERS: tuple[Any, ...] = (
    3, "x", [], {}, {"items": 3}, {"items": [0], "values": ["zz"], "dtype": "float32", "machine": "a"},
    {"items": ["a"], "values": [], "dtype": "", "machine": ""}, {"items": [0], "values": [3], "dtype": 1, "machine": 2},
)  # fmt: skip
SHARED = {
    "kind": (GONE, None, 3, "", "somebody else's"),
    "schema": (GONE, None, 0, 1, 3, 99, "2", True, 2.5, 10**400),
    "dtype": (GONE, None, 3, "float8", "object", "float64 ", []),
    "labels": MAPPING,
    "labels/meta": (3, [], "x"),
    "labels/name": TEXT,
    "fingerprint": (*MAPPING, {"model": 3}, {"model": None}),
    "answers": ANSWERS,
}
KERNEL: dict[str, tuple[Any, ...]] = {
    **SHARED,
    "grid": MAPPING,
    "grid/n": (*WHOLE, 9, 1 << 48),
    "grid/m": (*WHOLE, 9, 1 << 48),
    "grid/size": (*WHOLE[:-1],),
    "grid/symmetric": (GONE, None, 1, "true", []),
    "labels/outputs": (0, -1, "2", [], True, 3, 1 << 60),
    "labels/rows": TEXT,
}
FEATURES: dict[str, tuple[Any, ...]] = {
    **SHARED,
    "n": (*WHOLE, 1 << 48),
    "width": (*WHOLE, 1 << 48),
    "rows": (*WHOLE, 9, 1 << 48),
    "labels/groups": (0, -1, "2", [], True, 3, 1 << 60),
}
RAW = {
    "empty": b"",
    "half": b'{"attributes": {',
    "null": b"null",
    "list": b"[1]",
    "no attributes": b"{}",
    "attributes a list": b'{"attributes": []}',
    "zeros": b"\0" * 100,
    "latin1": b'{"attributes": "\xe9"}',
    "NaN": b'{"attributes": {"kind": "ntkscope kernel", "schema": NaN}}',
    "nested": b"[" * 100_000,
    "nested mappings": b'{"attributes":' * 3000 + b"1" + b"}" * 3000,
    "gigabytes of values": b"[" + b"{}," * 5_000_000 + b"{}]",
    "half a surrogate": rb'{"attributes": {"kind": "\ud800"}}',
}
NODES = {name: node for name, node in NODES.items() if name != "link to nothing"} | {
    "link outside": lambda path: path.symlink_to(path.parents[1] / "thesis.tex")
}


def source(n: int = 8) -> Products:
    return Products(features(n, 3), size=3, labels={"name": "linear", "outputs": 2, "meta": {}})


def crossed() -> Products:
    return Products(features(8, 3), features(6, 3, seed=1), size=3, labels={"name": "linear"})


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    kernel = KernelStore.prepare(folder / "kernel", source())
    fill(kernel, source())
    cross = KernelStore.prepare(folder / "cross", crossed())
    fill(cross, crossed())
    values = features(8, 4)
    kept = FeatureStore.prepare(
        folder / "features",
        n=8,
        width=4,
        rows=4,
        dtype=values.dtype,
        labels={"name": "p", "meta": {}},
        fingerprint={"model": "a"},
    )
    for k in kept.missing():
        kept.write(k, values[kept.span(k)])
    return folder


@pytest.fixture
def copies(stores: Path, tmp_path: Path) -> Path:
    shutil.copytree(stores, tmp_path, dirs_exist_ok=True)
    (tmp_path / "thesis.tex").write_text("years of work")
    return tmp_path


def changed(place: Path, path: str, new: Any) -> None:
    """Other attributes, with the checksum of somebody who wants them believed."""
    document = json.loads((place / "zarr.json").read_text())
    attributes = put(document["attributes"], path, new)
    attributes[CHECKED] = attributes_checksum(attributes)
    (place / "zarr.json").write_text(json.dumps({**document, "attributes": attributes}))


@pytest.mark.parametrize(("kind", "path"), [("kernel", p) for p in KERNEL] + [("features", p) for p in FEATURES])
def test_attributes_that_do_not_fit(copies: Path, kind: str, path: str) -> None:
    place = copies / kind
    good = (place / "zarr.json").read_bytes()
    before = state(copies)
    for value in (KERNEL if kind == "kernel" else FEATURES)[path]:
        changed(place, path, value)
        refused(lambda: open_kernel(place))
        (place / "zarr.json").write_bytes(good)
    assert state(copies) == before
    open_kernel(place)


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("kind", ["kernel", "features"])
def test_documents_that_are_no_store(copies: Path, kind: str, name: str) -> None:
    (copies / kind / "zarr.json").write_bytes(RAW[name])
    refused(lambda: open_kernel(copies / kind))
    refused(lambda: KernelStore.prepare(copies / kind, source()))


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("kind", ["kernel", "features"])
def test_something_else_in_place_of_the_document(copies: Path, kind: str, name: str) -> None:
    (copies / kind / "zarr.json").unlink()
    NODES[name](copies / kind / "zarr.json")
    before = state(copies)
    refused(lambda: open_kernel(copies / kind))
    assert state(copies) == before


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("chunk", ["kernel/values/c/0/1", "kernel/row_diagonal/c/0", "features/features/c/0/0"])
def test_something_else_in_place_of_a_chunk(copies: Path, name: str, chunk: str) -> None:
    (copies / chunk).unlink()
    node = NODES[name]
    if name == "link outside":  # as long as the chunk, so that its size says nothing
        (copies / "thesis.tex").write_bytes(b"x" * (stores_size(chunk)))
        (copies / chunk).symlink_to(copies / "thesis.tex")
    else:
        node(copies / chunk)
    secret = (copies / "thesis.tex").read_bytes()
    refused(lambda: open_kernel(copies / chunk.partition("/")[0]).dense())
    if chunk.startswith("kernel") and name != "folder":
        dead = name == "link to itself" and "values" in chunk  # as good as absent, so nobody is warned
        with bounded(), nullcontext() if dead else pytest.warns(RuntimeWarning, match="computed again"):
            assert fill(KernelStore.open(copies / "kernel"), source()) == 1
        assert open_kernel(copies / "kernel").dense().isfinite().all()
    assert (copies / "thesis.tex").read_bytes() == secret


def stores_size(chunk: str) -> int:
    return {"values": 9 * 8, "row_diagonal": 3 * 8, "features": 16 * 8}[chunk.split("/")[1]] + 4


CLAIMS: dict[str, tuple[str, dict[str, Any]]] = {
    "a kernel of 2^40 rows": ("kernel", {"grid": {"n": 1 << 40, "m": 1 << 40, "size": 1 << 30, "symmetric": True}}),
    "a kernel of one column": ("cross", {"grid": {"n": 1 << 44, "m": 1, "size": 1 << 30, "symmetric": False}}),
    "a kernel of many tiles": ("cross", {"grid": {"n": 1 << 24, "m": 1, "size": 1, "symmetric": False}}),
    "features of 2^48 inputs": ("features", {"n": 1 << 48, "rows": 1 << 30, "width": 1}),
    "features in many chunks": ("features", {"n": 1 << 24, "rows": 1, "width": 1}),
    "wide features": ("features", {"width": 1 << 31, "rows": 1}),
}


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize("partial", [False, True])
def test_small_folders_that_claim_gigabytes(copies: Path, name: str, partial: bool) -> None:
    kind, attributes = CLAIMS[name]
    for key, value in attributes.items():
        changed(copies / kind, key, value)
    changed(copies / kind, "labels", {"name": "a", "meta": {}})

    def opened() -> None:
        gram = open_kernel(copies / kind, partial=partial)
        assert max(gram.shape) <= 1 << 25, gram.shape
        raise StoreError("opened, and claims nothing that would be set aside at once")

    refused(opened)


@pytest.mark.parametrize(
    "data", [b"", b"[", b"[]", b"3", b"[" * 100_000, b'{"worst": "x"}', b'{"checked": -1}', b'{"fell_back": [3]}',
             b'{"worst": NaN}', b'{"seconds": [1]}', b'{"against": {}}']
)  # fmt: skip
def test_a_certificate_that_nobody_wrote_says_nothing(copies: Path, data: bytes) -> None:
    (copies / "kernel" / "certificate.json").write_bytes(data)
    with bounded():
        gram = open_kernel(copies / "kernel")
        assert gram.certificate is None
        assert read_certificate(KernelStore.open(copies / "kernel").folder) is None


def test_a_damaged_certificate_says_nothing(copies: Path) -> None:
    path, store = copies / "kernel" / "certificate.json", KernelStore.open(copies / "kernel")
    add_certificate(store.folder, Certificate(worst=1.25e-7, tolerance=1e-5, checked=31, blocks=57, against="autograd"))
    written, before = path.read_bytes(), read_certificate(store.folder)
    assert before is not None
    for place in range(len(written)):
        path.write_bytes(written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :])
        assert read_certificate(store.folder) in (None, before), place
    path.write_text(json.dumps(before.to_json()))  # as versions before 0.2 wrote it
    assert read_certificate(store.folder) == before


@pytest.mark.parametrize("kind", ["kernel", "cross"])
@pytest.mark.parametrize("which", ["all of it", "one piece", "the column's"])
def test_a_lost_diagonal_is_repaired_by_filling_again(copies: Path, kind: str, which: str) -> None:
    place, made = copies / kind, source() if kind == "kernel" else crossed()
    name = "column_diagonal" if which == "the column's" and kind == "cross" else "row_diagonal"
    before = KernelStore.open(place)
    rows, columns = before.row_diagonal(), before.column_diagonal()
    if which == "one piece":
        (place / name / "c" / "1").unlink()
    else:
        shutil.rmtree(place / name)
    store = KernelStore.prepare(place, made)
    with pytest.warns(RuntimeWarning, match="computed again"):
        assert fill(store, made) >= 1
    assert torch.equal(store.row_diagonal(), rows)
    assert torch.equal(store.column_diagonal(), columns)
    assert fill(store, made) == 0
