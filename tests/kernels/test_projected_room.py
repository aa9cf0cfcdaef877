"""What is held while gradients are projected follows from the budget, and changes nothing but the rounding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core.errors import MemoryBudgetError, StoreError
from ntkscope.kernels import _projected_store, _projecting, _sketching
from ntkscope.kernels._sketching import Room
from ntkscope.linalg.sketches.sparse import SparseSketch
from ntkscope.storage._zarr import attributes_checksum
from ntkscope.storage.feature_store import FeatureStore
from ntkscope.tangent.blocks import backward
from ntkscope.tangent.blocks.execution import ExecutionMode
from ntkscope.tangent.kernel import engine
from oracles import against
from oracles.closeness import relative_error
from strategies.modes import harvested

pytestmark = pytest.mark.guard  # minutes in all

MIB = 2**20
both = pytest.mark.parametrize("kind", ["sparse", "kronecker"])


def lenet(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ns.models.build("lenet").eval().to(dtype), torch.randn(5, 1, 28, 28, dtype=dtype)


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[Room]:
    """The rooms of all blocks that are projected."""
    found: list[Room] = []
    made = _sketching.project_block

    def project_block(engine: Any, backward_pass: Any, sketch: Any, room: Room, *rest: Any) -> Tensor:
        found.append(room)
        return made(engine, backward_pass, sketch, room, *rest)

    monkeypatch.setattr(_projecting, "project_block", project_block)
    monkeypatch.setattr(_projected_store, "project_block", project_block)
    return found


def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_sketching.HELD, "cpu", _sketching.HELD["cuda"])
    monkeypatch.setitem(_sketching.INNER, "cpu", _sketching.INNER["cuda"])


def test_a_large_budget_holds_as_much_as_is_useful(rooms: list[Room], monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = lenet()
    ns.kernel("proj-trntk", model, x, kind="kronecker", dim=256)
    as_on_cuda(monkeypatch)
    ns.kernel("proj-trntk", model, x, kind="kronecker", dim=256, memory="110GiB")
    assert [(room.held, room.inner) for room in rooms] == [(1 << 23, 1024), (1 << 28, 4096)]


@both
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.guard
def test_a_small_budget_holds_less_of_the_same_projection(
    kind: str, dtype: torch.dtype, error: float, rooms: list[Room], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = lenet(dtype)
    options: dict[str, Any] = {"kind": kind, "dim": 4096, "normalize": False}
    whole: Any = ns.kernel("proj-trntk", model, x, **options)
    as_on_cuda(monkeypatch)
    for memory in (64 * MIB, "2GiB"):
        rooms.clear()
        found: Any = ns.kernel("proj-trntk", model, x, memory=memory, **options)
        assert all(room.held < _sketching.HELD["cuda"] for room in rooms)
        assert relative_error(found.left, whole.left) <= error
    assert rooms[0].held > 1 << 23


@both
def test_an_impossible_budget_says_which_one_works(
    kind: str, rooms: list[Room], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_on_cuda(monkeypatch)
    model, x = lenet()
    options: dict[str, Any] = {"kind": kind, "dim": 4096, "normalize": False}

    def call(memory: int) -> Any:
        return ns.kernel("proj-trntk", model, x, memory=memory, **options)

    least = against.smallest_budget(call)
    assert least < 64 * MIB
    found = call(least)
    assert {room.block for room in rooms} == {1}
    assert relative_error(found.left, call(1 << 31).left) <= 1e-5
    with pytest.raises(MemoryBudgetError):
        call(int(least * 0.95))


@pytest.mark.parametrize("kind", ["rademacher", "sparse", "kronecker"])
def test_another_budget_goes_on_with_the_same_bits(kind: str, rooms: list[Room], tmp_path: Path) -> None:
    model, x = lenet()
    options: dict[str, Any] = {"kind": kind, "dim": 1024, "store": tmp_path}
    ns.kernel("proj-trntk", model, x, memory="96MiB", **options)
    store = FeatureStore.open(tmp_path)
    before = store.read(0).clone()
    store.drop(0)
    ns.kernel("proj-trntk", model, x, memory="2GiB", **options)
    assert torch.equal(store.read(0), before)
    assert rooms[0][1:] == rooms[1][1:]  # all but the block, which is the store's


@pytest.mark.parametrize("kind", ["rademacher", "sparse", "kronecker"])
def test_a_budget_too_small_for_a_store_begun_with_more(kind: str, tmp_path: Path) -> None:
    model, x = lenet()
    options: dict[str, Any] = {"kind": kind, "dim": 1024, "store": tmp_path}
    ns.kernel("proj-trntk", model, x, **options)
    store = FeatureStore.open(tmp_path)
    before = store.read(0).clone()
    store.drop(0)
    with pytest.raises(MemoryBudgetError, match="begun with chunks") as refusal:
        ns.kernel("proj-trntk", model, x, memory="24MiB", **options)
    least = max(against.stated_sizes(str(refusal.value)))
    ns.kernel("proj-trntk", model, x, memory=least, **options)
    assert torch.equal(store.read(0), before)


def test_a_store_that_does_not_say_its_steps_is_refused(tmp_path: Path) -> None:
    model, x = lenet()
    options: dict[str, Any] = {"kind": "sparse", "dim": 64, "store": tmp_path}
    ns.kernel("proj-trntk", model, x, **options)
    said = tmp_path / "zarr.json"
    document = json.loads(said.read_text().replace('"inner"', '"outer"'))
    document["attributes"]["checksum"] = attributes_checksum(document["attributes"])
    said.write_text(json.dumps(document))
    with pytest.raises(StoreError, match="in what steps"):
        ns.kernel("proj-trntk", model, x, **options)


@both
def test_places_and_signs_are_drawn_once_where_they_fit(
    kind: str, rooms: list[Room], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several blocks, with the same bits as drawn for each; where they do not fit, some are."""
    monkeypatch.setitem(_projecting.BLOCK, "cpu", 2)
    model, x = lenet()
    options: dict[str, Any] = {"kind": kind, "dim": 256, "normalize": False}
    drawn: list[str] = []
    parts = SparseSketch.parts

    def noted(self: SparseSketch, *args: Any) -> Any:
        drawn.append(self.name)
        return parts(self, *args)

    monkeypatch.setattr(SparseSketch, "parts", noted)
    found = {}
    for share in (1 / 16, 1e-4, 0.0):
        drawn.clear()
        monkeypatch.setattr(_projecting, "TABLES", share)
        gram: Any = ns.kernel("proj-trntk", model, x, memory="1GiB", **options)
        found[share] = gram.left, len(drawn)
    (kept, once), (some, between), (none, often) = (found[share] for share in found)
    assert torch.equal(kept, none)
    assert torch.equal(some, none)
    assert often == 3 * once
    assert once < between < often


@both
@pytest.mark.parametrize(
    "mode",
    [ExecutionMode(together=16), ExecutionMode(channels_last=True, together=2), ExecutionMode(flipped=True)],
    ids=str,
)
def test_blocks_are_projected_whichever_way_they_are_run(
    kind: str, mode: ExecutionMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_projecting.BLOCK, "cpu", 2)
    model, x = lenet(torch.float64)
    options: dict[str, Any] = {"kind": kind, "dim": 256, "normalize": False}
    plain: Any = ns.kernel("proj-trntk", model, x, **options)
    used: list[ExecutionMode] = []
    made = engine.capture

    def noted(*args: Any) -> Any:
        used.extend(each for each in args if isinstance(each, ExecutionMode))
        return made(*args)

    monkeypatch.setattr(engine, "capture", noted)
    with harvested(mode):
        found: Any = ns.kernel("proj-trntk", model, x, **options)
    assert set(used) == {mode}
    assert found.meta["certificate"].checked == 3
    assert relative_error(found.left, plain.left) <= 1e-12


def test_a_way_whose_gradients_are_others_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block is projected again as the model itself runs."""
    model, x = lenet(torch.float64)
    options: dict[str, Any] = {"kind": "sparse", "dim": 256, "normalize": False}
    plain: Any = ns.kernel("proj-trntk", model, x, **options)
    made = backward.cotangents

    def wrong(*args: Any, several: bool = False) -> Any:
        found = made(*args, several=several)
        return [None if each is None else 1.1 * each for each in found] if several else found

    monkeypatch.setattr(backward, "cotangents", wrong)
    with harvested(ExecutionMode(together=16)):
        found: Any = ns.kernel("proj-trntk", model, x, **options)
    assert relative_error(found.left, plain.left) <= 1e-12
