"""Gradients formed layer by layer: the numbers of the other schedule and of the oracle, and the same checks."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import NumericalError, UsageError
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.tangent.blocks import backward, features
from ntkscope.tangent.blocks.deferred import Deferral
from ntkscope.tangent.blocks.features import DenseFeature
from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.blocks.products import ranges
from ntkscope.tangent.certify import comparison as check
from ntkscope.tangent.certify.comparison import Pending
from ntkscope.tangent.certify.fallback import Fallback
from ntkscope.tangent.kernel import by_layers as layers
from ntkscope.tangent.kernel import tiles
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.kernel.plan import Cut, Footprint, Plan
from ntkscope.tangent.kernel.schedule import ROOMY, _forming, cut_for, layers_cut, layers_plan, planned, roomy, work
from ntkscope.tangent.kernel.store_source import FeatureTiles, TangentRecipe
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.parameter_blocks import ParameterBlock
from ntkscope.tangent.trace.terms import Outer
from oracles.against import expected, smallest_budget
from oracles.closeness import assert_kernel_close
from oracles.unchanged import assert_unchanged, state
from strategies.architectures import convolutional_networks, sequence_networks, vector_networks
from strategies.layers import Conv1D
from strategies.networks import Case, Net, noise, randomize
from strategies.schedules import everything_deferred, planned_as

SAME = 1e-12
N = 13
FAMILIES = {
    "vectors": vector_networks(),
    "sequences": sequence_networks(),
    "tokens": sequence_networks(tokens=True),
    "convolutions": convolutional_networks(),
}
KERNELS = ["trntk0", "pntk", "entk", "trntk"]
quick = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    derandomize=True,
    max_examples=3,
    phases=[Phase.explicit, Phase.generate],
)


def convolutional() -> Case:
    first = [nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3)]
    second = [nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=2), nn.Flatten(), nn.Linear(256, 3)]
    return randomize(nn.Sequential(*first, *second)), noise(N, 2, 6, 6)


def attention() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.inner(x)
        q, k, v = m.q(h), m.k(h), m.v(h)
        return m.head(m.inner(torch.softmax(q @ k.transpose(1, 2), -1) @ v).mean(1))  # one weight is used twice

    parts = {name: nn.Linear(8, 8) for name in ("inner", "q", "k", "v")}
    return randomize(Net(run, **parts, head=nn.Linear(8, 3))), noise(N, 5, 8)


CASES: list[Callable[[], Case]] = [convolutional, attention]
everywhere = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


@everywhere
@pytest.mark.parametrize("name", ["trntk0", "entk"])
def test_the_same_kernel(case: Callable[[], Case], name: str) -> None:
    model, x = case()
    before = state(model)
    for other in (None, x[:5] + 0.5, torch.cat([x, x + 1])):
        blocks = ns.kernel(name, model, x, other, schedule="blocks")
        for rows, columns, block, forming in ((N, 30, 4, 2**30), (6, 7, 3, 20_000)):
            with everything_deferred(), planned_as(rows, columns, block, forming):
                found = ns.kernel(name, model, x, other)
            assert found.meta["plan"].layered
            assert_kernel_close(found.dense(), blocks.dense(), SAME)
            for mine, theirs in (
                (found.row_diagonal, blocks.row_diagonal),
                (found.column_diagonal, blocks.column_diagonal),
            ):
                if theirs is not None:
                    assert mine is not None
                    assert_kernel_close(mine[None], theirs[None], SAME)
            if other is None:
                assert torch.equal(found.dense(), found.dense().T)
    assert_unchanged(model, before)


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@quick
def test_random_architectures(family: str, data: st.DataObject) -> None:
    agrees(family, data)


@pytest.mark.guard
@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(quick, max_examples=25)
def test_more_random_architectures(family: str, data: st.DataObject) -> None:
    agrees(family, data)


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(quick, derandomize=False, max_examples=160)
def test_many_random_architectures(family: str, data: st.DataObject) -> None:
    agrees(family, data)


def agrees(family: str, data: st.DataObject) -> None:
    """A network drawn at random: layer by layer against the other schedule to rounding, and against the oracle."""
    drawn = data.draw(FAMILIES[family], label="architecture")
    name = data.draw(st.sampled_from(KERNELS[:3]), label="kernel")
    x, n = drawn.x, len(drawn.x)
    x2 = x.flip(0)[: max(1, n - 1)] if data.draw(st.booleans(), label="two sets") else None
    rows, columns, block = (data.draw(st.integers(1, n), label=label) for label in ("rows", "columns", "block"))
    forming = data.draw(st.sampled_from([1, 4000, 2**30]), label="forming")
    blocks = ns.kernel(name, drawn.model, x, x2, schedule="blocks").dense()
    with everything_deferred(), planned_as(rows, columns, block, forming):
        found = ns.kernel(name, drawn.model, x, x2)
    assert_kernel_close(found.dense(), blocks, SAME)
    assert_kernel_close(found.dense(), expected(name, drawn.model, x, x2), 1e-10)
    assert found.certificate.checked == found.certificate.blocks > 0


def test_any_memory() -> None:
    model, x = convolutional()
    whole = ns.kernel("trntk0", model, x, schedule="blocks").dense()

    def layered(memory: int) -> Any:
        return ns.kernel("trntk0", model, x, schedule="layers", memory=memory)

    smallest = smallest_budget(layered)
    for memory in (smallest, int(1.2 * smallest), 3 * smallest):
        assert_kernel_close(layered(memory).dense(), whole, SAME)


def test_a_model_that_writes_to_a_tensor_of_its_own_in_every_pass() -> None:
    """What a layer was given lies in a buffer that the next block overwrites: factors must be copies."""

    def run(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            m.room[: len(x)].copy_(x)
        return m.head(torch.tanh(m.a(m.room[: len(x)])).flatten(1))

    model = randomize(Net(run, a=nn.Linear(6, 6), head=nn.Linear(42, 3)))
    model.room = torch.zeros(N, 7, 6, dtype=torch.float64)
    x = noise(N, 7, 6)
    certified = {"certify": False}
    blocks = ns.kernel("trntk0", model, x, schedule="blocks", **certified).dense()
    with everything_deferred(), planned_as(N, N, 4, 2**30):
        found = ns.kernel("trntk0", model, x, **certified)
    assert_kernel_close(found.dense(), blocks, SAME)


# -- formed again and again ----------------------------------------------------------------------------------------------


def kinds() -> dict[str, Case]:
    """Layers whose gradients are formed where they are multiplied, and some that must be copied there."""

    def tied(m: Any, x: Tensor) -> Tensor:
        return m.head(torch.tanh(m.a(torch.tanh(m.a(x)))).mean(1))

    flat, image, sequence = nn.Flatten(), noise(N, 4, 5, 5), noise(N, 4, 6)
    return {
        "linear": (Net(lambda m, x: m.head(torch.tanh(m.a(x)).mean(1)), a=nn.Linear(6, 9), head=nn.Linear(9, 3)), sequence),
        "tied": (Net(tied, a=nn.Linear(6, 6), head=nn.Linear(6, 3)), sequence),
        "transposed": (Net(lambda m, x: m.head(torch.tanh(m.a(x)).mean(1)), a=Conv1D(9, 6), head=Conv1D(3, 9)), sequence),
        "convolution": (nn.Sequential(nn.Conv2d(4, 5, 3), nn.Tanh(), flat, nn.Linear(45, 3)), image),
        "grouped": (nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Tanh(), flat, nn.Linear(54, 3)), image),
        "upward": (nn.Sequential(nn.ConvTranspose2d(4, 3, 2), nn.Tanh(), flat, nn.Linear(108, 3)), image),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "precision"), [*product(kinds(), ["exact", "bf16"]), ("convolution", "fp16"), ("tied", "fp16")]
)
def test_gradients_of_several_blocks_are_those_of_each(kind: str, precision: str) -> None:
    """Written in their places, whatever of the shelf is asked for: the same bits; and the kernel of the other schedule."""
    model, x = kinds()[kind]
    model, dtype = randomize(model), torch.float64 if precision == "exact" else torch.float32
    model, x = model.to(dtype), x.to(dtype)
    block = 3
    with everything_deferred():
        engine = Engine(
            Subject(model), Batch((x,), {}), Heads(), full=False, precision=Precision(precision, dtype), certify=False
        )
        late = engine.deferral.pieces
        assert late
        cache = layers.FactorCache(N)
        for at in ranges(0, N, block):
            cache.put(engine, Batch((x,), {}), at, check=False)
        for piece in late:
            each = [
                engine.feature(engine.capture(Batch((x[at.start : at.stop],), {})), piece) for at in ranges(0, N, block)
            ]
            for span in (range(N), range(3, 9), range(6, 9), range(9, N)):
                found = cache.feature(engine, piece, span)
                parts = each[span.start // block : -(-span.stop // block)]
                assert isinstance(found, features.DenseFeature)
                assert torch.equal(found.values, torch.cat([part.values for part in parts]))
                assert found.values.dtype == engine.precision.storage
                if precision == "fp16":
                    scales = [part.scale for part in parts if part.scale is not None]
                    assert found.scale is not None
                    assert torch.equal(found.scale, torch.cat(scales))
        right = None if precision == "exact" else x[:5] + 0.5
        asked = {"precision": precision, "certify": False}
        blocks = ns.kernel("trntk0", model, x, right, schedule="blocks", **asked).dense()
        with planned_as(N, 7, block, 2**30):
            layered = ns.kernel("trntk0", model, x, right, **asked)
        assert layered.meta["plan"].layered
        assert_kernel_close(layered.dense(), blocks, SAME if precision == "exact" else 1e-5)


@pytest.mark.parametrize("inside", [False, True], ids=["", "heads side by side"])
@pytest.mark.parametrize("kind", kinds())
def test_some_rows_are_those_of_the_whole_gradient(kind: str, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = kinds()[kind]
    model = randomize(model)
    monkeypatch.setattr(backward, "SIDE_BY_SIDE", ("cpu",) if inside else ())
    with everything_deferred():
        how: dict[str, Any] = {"full": False, "precision": Precision("exact", torch.float64), "certify": False}
        engine = Engine(Subject(model), Batch((x,), {}), Heads(), **how)
    block = engine.capture(Batch((x,), {}))
    divided = {piece.name for piece in engine.deferral.divided}
    assert divided == (set() if kind == "grouped" else {piece.name for piece in engine.deferral.pieces})
    for piece in engine.deferral.divided:
        whole = block.feature(piece, engine.precision)
        assert isinstance(whole, DenseFeature)
        rows = whole.values.unflatten(2, (piece.stop - piece.start, -1))
        for start, stop in ((0, 1), (1, 3), (piece.stop - 2, piece.stop), (0, piece.stop)):
            part = block.feature(piece.part(start, stop), engine.precision)
            assert isinstance(part, DenseFeature)
            assert_kernel_close(part.values.flatten(1), rows[:, :, start:stop].flatten(1), 1e-14)


@given(
    rows=st.integers(1, 60),
    each=st.integers(1, 50),
    samples=st.integers(1, 100),
    forming=st.integers(0, 10**6),
    least=st.integers(1, 70),
    start=st.integers(0, 5),
)
def test_parts_are_all_rows_once_and_fit(
    rows: int, each: int, samples: int, forming: int, least: int, start: int
) -> None:
    piece = ParameterBlock("weight", start, start + rows, rows * each, ((0, 0),), "direct", 1, 1, each, rows)
    deferral = SimpleNamespace(least_rows=lambda piece: min(rows, least))
    maker: Any = SimpleNamespace(width=3, precision=Precision("exact", torch.float64), deferral=deferral)
    found = layers.parts(maker, piece, samples, forming)
    assert [row for part in found for row in range(part.start, part.stop)] == list(range(start, start + rows))
    assert all(part.numbers == (part.stop - part.start) * each for part in found)
    if len(found) > 1:
        assert max(part.numbers for part in found) * 3 * 8 * samples <= forming
        assert found[0].stop - found[0].start >= min(least, rows) / 2  # as many in each
    else:
        assert found == [piece]


def test_a_wrong_part_of_a_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = convolutional()
    true = ns.kernel("trntk0", model, x).dense()
    part = Outer.part

    def spoiled(term: Outer, start: int, stop: int) -> Outer:
        made = part(term, start, stop)
        return made if start == 0 else replace(made, cotangents=lambda value: made.cotangents(value) * 1.01)

    monkeypatch.setattr(Outer, "part", spoiled)
    with everything_deferred(), planned_as(N, N, 4, 20_000):
        found = ns.kernel("trntk0", model, x)
        assert found.certificate.fell_back
        assert_kernel_close(found.dense(), true, 1e-10)
        wrong = ns.kernel("trntk0", model, x, certify=False)
    assert float((wrong.dense() - true).abs().max()) > 1e-6 * float(true.abs().max())


@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    n=st.integers(1, 100),
    m=st.one_of(st.none(), st.integers(1, 100)),
    block=st.integers(1, 30),
    numbers=st.integers(1, 50),
    room=st.integers(1, 100_000),
    late=st.booleans(),
)
def test_spans_meet_every_pair_once_inside_their_room(
    n: int, m: int | None, block: int, numbers: int, room: int, late: bool
) -> None:
    piece = ParameterBlock("weight", 0, 1, numbers, ((0, 0),), "direct")
    deferral = Deferral(frozenset([piece] if late else []), 0, 0, 0.0)
    maker: Any = SimpleNamespace(width=3, precision=Precision("exact", torch.float64), deferral=deferral)
    rows = layers.FactorCache(n)
    columns = rows if m is None else layers.FactorCache(m)
    met = torch.zeros(n, m or n, dtype=torch.int64)
    formed: list[int] = []
    for left, others in layers.Layered(maker, rows, columns, block, room, 2**21)._spans(piece):
        assert left.start % block == 0  # whole blocks: others are not there
        formed += left
        for right in others:
            same = m is None and left == right
            assert right.start % block == 0
            assert same or m is not None or left.stop <= right.start  # above the diagonal
            met[left.start : left.stop, right.start : right.stop] += 1
            if late:
                both = (len(left) + len(right) * (not same)) * numbers * 3 * 8
                assert both <= max(room, 2 * block * numbers * 3 * 8)
    assert formed == list(range(n))  # rows once
    assert bool((met.triu() if m is None else met).eq(torch.ones_like(met).triu() if m is None else 1).all())
    assert int(met.max()) == 1


# -- stores --------------------------------------------------------------------------------------------------------------


def source(model: nn.Module, x1: Tensor, x2: Tensor | None, cut: Cut, *, full: bool = False) -> FeatureTiles:
    names = frozenset(name for name, _ in model.named_parameters())
    recipe = TangentRecipe(model, None, None, names, Heads(), full, "exact")
    left, right = Batch((x1,), {}), None if x2 is None else Batch((x2,), {})
    maker = recipe.make(left, Fallback())
    return FeatureTiles(recipe, left, right, cut, maker, memory=2**30, labels={}, fingerprint={})


def assembled(tiles: FeatureTiles, order: list[tuple[int, int]]) -> Tensor:
    whole = torch.full((tiles.grid.n, tiles.grid.m), torch.nan, dtype=tiles.dtype)
    for i, j in order:
        made = tiles.tile(i, j)
        whole[tiles.grid.rows(i), tiles.grid.columns(j)] = made.values
        if tiles.grid.symmetric:
            whole[tiles.grid.columns(j), tiles.grid.rows(i)] = made.values.T
    return whole


@pytest.mark.parametrize("full", [False, True], ids=["trntk0", "entk"])
def test_tiles_have_the_same_bits_in_any_order_and_process(full: bool) -> None:
    model, x = convolutional()
    with everything_deferred():
        for right in (None, x[:8] + 1):
            tiles = source(model, x, right, Cut(5, 2, 2**21, forming=20_000), full=full)
            sent, order = pickle.dumps(tiles), list(tiles.grid)
            found = assembled(tiles, order)
            whole = ns.kernel("entk" if full else "trntk0", model, x, right, schedule="blocks").dense()
            assert_kernel_close(found, whole, SAME)
            assert torch.equal(assembled(pickle.loads(sent), order[::-1]), found)  # noqa: S301 - made above


def test_a_path_that_depends_on_the_input() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.head((m.a(torch.tanh(h)) if bool((x[:, 0] > 50).any()) else torch.tanh(h)).flatten(1))

    model, x = randomize(Net(run, a=nn.Linear(4, 4), head=nn.Linear(12, 2))), noise(12, 3, 4)
    x[8, 0] = 99.0
    with everything_deferred():
        tiles = source(model, x, None, Cut(3, 1, 2**21, forming=1000))
        order = list(tiles.grid)
        found = assembled(tiles, order)
        again = assembled(source(model, x, None, Cut(3, 1, 2**21, forming=1000)), order[::-1])
    assert torch.equal(found, again)
    one_by_one = torch.cat([expected("trntk0", model, x[i : i + 1], x[i : i + 1]) for i in range(len(x))])[:, 0]
    assert_kernel_close(found.diagonal()[None], one_by_one[None], 1e-10)


def test_a_store_says_how_it_was_cut_and_resumes(tmp_path: Any) -> None:
    model, x = convolutional()
    whole = ns.kernel("trntk0", model, x, schedule="blocks").dense()
    for at in range(2):
        found = ns.kernel("trntk0", model, x, store=tmp_path / "kernel", schedule="layers", memory="64MiB")
        assert found.meta["run"]["computed"] == (len(list(found.tiles())) if at == 0 else 0)
        assert_kernel_close(found.dense(), whole, SAME)
    cut = Cut(5, 2, 2**21, 0, 7)
    assert Cut.from_json(cut.to_json(), "here") == cut
    assert "layer by layer" in str(cut)
    assert "layer" not in str(Cut(5, 2, 2**21))


# -- checks --------------------------------------------------------------------------------------------------------------


def test_every_block_and_some_entries_are_checked() -> None:
    model, x = convolutional()
    with everything_deferred(), planned_as(6, 6, 2, 2**30):
        found = ns.kernel("trntk0", model, x)
    certificate = found.certificate
    # rows of the first tile, columns of the others; the last columns are the rows of the next tile
    assert certificate.checked == certificate.blocks == 3 + (1 + 3) + 1


def test_a_wrong_gradient_that_is_formed_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = convolutional()
    true = ns.kernel("trntk0", model, x).dense()
    kept = layers.kept_factors

    def spoiled(backward_pass: Any, deferred: Any) -> Any:
        made = kept(backward_pass, deferred)
        for value in made.arrived.values():
            value[0] *= 1.01
        return made

    monkeypatch.setattr(layers, "kept_factors", spoiled)
    with everything_deferred(), planned_as(N, N, 4, 2**30):
        found = ns.kernel("trntk0", model, x)
        assert found.certificate.fell_back  # those parameters took a slower method, and the numbers are right
        assert_kernel_close(found.dense(), true, 1e-10)
        wrong = ns.kernel("trntk0", model, x, certify=False)
    assert float((wrong.dense() - true).abs().max()) > 1e-6 * float(true.abs().max())  # what the check found


def test_a_wrong_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = convolutional()

    def wrong(total: Tensor, left: Any, right: Any, **how: Any) -> None:
        features.accumulate(total, left, right, **how)
        total += 1e-3 * total.abs().max()

    monkeypatch.setattr(layers, "accumulate", wrong)
    with everything_deferred(), planned_as(N, N, 4, 2**30), pytest.raises(NumericalError, match="an entry"):
        ns.kernel("trntk0", model, x)


# -- the plan ------------------------------------------------------------------------------------------------------------


def gpu(**more: Any) -> Footprint:
    """What ResNet-18 takes in bfloat16, about."""
    costs = {"capture_cost": 7.2e9, "forming_cost": 5.6e9, "again_cost": 3.9e9}
    large = {"feature": 55_000_000, "passing": 60_000_000, "itemsize": 4, "pair_cost": 3.9e7, "cuda": True}
    return Footprint(**{**large, "kept": 8_200_000, "formed": 12_000_000, "check": 90_000_000, **costs, **more})


@pytest.mark.parametrize("memory", [2**34, 2**36, 2**37])
@pytest.mark.parametrize(("n", "m"), [(500, None), (50_000, None), (10_000, 50_000), (3_000, 200)])
def test_a_plan_stays_inside_its_budget(memory: int, n: int, m: int | None) -> None:
    each = gpu()
    result = n * (m or n) * 4
    if result < 0.5 * memory:
        plan = layers_plan(n, m, each, memory)
        columns = 0 if m is None and plan.resident == n else plan.columns
        held = each.cache(plan.resident, columns, plan.block, plan.forming, plan.workspace)
        assert held + result <= each.slack * memory
        assert plan.forming >= min(2 * plan.block * each.formed, (plan.resident + columns) * each.formed)
    cut = layers_cut(n, m, each, memory)
    assert cut.needs(each) <= each.slack * memory
    assert cut.workers(each, memory, 8) == 1


@pytest.mark.parametrize(
    "each", [gpu(), gpu(cuda=False), gpu(kept=10**9, passing=10**9), gpu(passing=3, formed=7, kept=9)]
)
def test_the_smallest_budget_that_is_stated_is_enough(each: Footprint) -> None:
    for n, m in ((10, None), (10, 30), (1, None)):
        memory = smallest_budget(lambda memory: layers_plan(n, m, each, memory))  # noqa: B023
        assert layers_plan(n, m, each, memory).resident >= 1
        memory = smallest_budget(lambda memory: layers_cut(n, m, each, memory))  # noqa: B023
        assert layers_cut(n, m, each, memory).needs(each) <= each.slack * memory


def test_the_schedule_with_less_work_is_taken_and_said() -> None:
    each, memory = gpu(), 128 * 2**30
    plan = planned(8192, None, each, memory, 1, 1)
    assert plan.layered
    assert plan.gain > 1
    assert "layers" in str(plan)
    blocks = planned(8192, None, each, memory, 1, 1, "blocks")
    assert not blocks.layered
    assert "blocks" in str(blocks)
    assert work(8192, None, each, plan) < work(8192, None, each, blocks)
    assert not planned(64, None, each, memory, 1, 1).layered  # one block of all: nothing to gain
    assert cut_for(50_000, None, each, memory, 1).forming
    assert cut_for(50_000, None, each, memory, 1).size > 1.5 * cut_for(50_000, None, each, memory, 1, 1, "blocks").size
    assert not planned(8192, None, gpu(formed=0), memory, 1, 1).layered  # nothing can be formed later
    assert not planned(8192, None, gpu(cuda=False), memory, 1, 1).layered


def test_work_is_counted_as_it_is_done() -> None:
    each = gpu(capture_cost=1.0, forming_cost=0.0, again_cost=0.0, pair_cost=0.0, cuda=False)
    assert work(4, None, each, Plan(2, 1, 0)) == 4.0 * (4 + 2)
    assert work(4, None, each, Plan(2, 1, 0, 1, 2, 1)) == 4.0 * (2 + 2)  # the columns are the rows of the next tile
    assert work(4, 3, each, Plan(2, 1, 0)) == 4.0 * (4 + 2 * 3)
    short, long = (work(4, None, gpu(capture_cost=1.0), Plan(4, block, 0)) for block in (2, 4))
    assert short > long  # launches


@given(st.integers(1, 60), st.one_of(st.none(), st.integers(1, 60)), st.integers(1, 60), st.booleans())
def test_work_is_that_of_every_round(n: int, m: int | None, size: int, layered: bool) -> None:
    """The closed form beside the rounds one by one."""
    each = gpu(capture_cost=1.0, forming_cost=5.0, again_cost=2.0, pair_cost=0.0, cuda=False)
    plan = Plan(size, 1, 0, 1, size, 1) if layered else Plan(size, 1, 0)
    others, total = n if m is None else m, 0.0
    for at in range(0, n, size):
        here, rest = min(size, n - at), max(0, n - at - size) if m is None else others
        once = 3.0 if layered else 5.0
        ran = here + rest
        if layered and at and m is None:
            ran -= here  # columns of the tile before
        elif layered and at:
            odd = (at // size) % 2  # columns begin where they ended
            ran -= others - (-(-others // size) - 1) * size if odd else min(size, others)
        total += ran * (4.0 * 1.0 + 3.0 * once)
        if layered:
            total += 3.0 * 2.0 * (here + rest + here * max(1, -(-rest // size)))
    assert work(n, m, each, plan) == pytest.approx(total)


def everything(n: int, m: int | None, each: Footprint, plan: Plan) -> bool:
    """Whether no sample is run twice."""
    return plan.resident >= n and (m is None or plan.columns >= m)


@pytest.mark.parametrize("passing", [100, 300])
def test_shorter_blocks_where_all_factors_fit_beside_them(passing: int) -> None:
    """A transformer of which 512 samples fit only if blocks and the gradients of a layer take less than usual."""
    mib = 2**20
    each = Footprint(
        650 * mib, passing * mib, 4, pair_cost=3.7e8, cuda=True, worker=2**30, kept=117 * mib, formed=18 * mib,
        check=835 * mib, capture_cost=5.4e10, forming_cost=2.2e10, again_cost=2.2e10,
    )  # fmt: skip
    memory = 100 * 2**30
    plan = planned(512, None, each, memory, 1, 1)
    assert plan.layered
    assert everything(512, None, each, plan)
    assert plan.held(each, 512, None) + 512**2 * 4 <= each.slack * memory
    assert 16 <= plan.block < 256
    roomy = planned(64, None, each, memory, 1, 1, "layers")
    assert roomy.block == 64  # nothing is gained by shorter ones


@pytest.mark.parametrize("longest", [256, 512, 1024])
def test_longer_blocks_are_taken_whichever_schedule_they_lead_to(longest: int) -> None:
    """A small network: both schedules hold everything, and the longest blocks that are asked for are used."""
    kib = 2**10
    each = Footprint(
        120 * kib, 884 * kib, 4, pair_cost=5.9e4, cuda=True, worker=733 * kib, kept=93 * kib, formed=94 * kib,
        check=482 * kib, capture_cost=5.5e6, forming_cost=3.6e6, again_cost=2.4e6, longest=longest,
    )  # fmt: skip
    plan = planned(2048, None, each, 100 * 2**30, 1, 1)
    assert plan.block == longest
    assert plan.resident == 2048


@settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    n=st.integers(1, 3000),
    m=st.one_of(st.none(), st.integers(1, 3000)),
    sizes=st.tuples(*[st.integers(1, 10**8)] * 4),
    memory=st.integers(2**28, 2**37),
    longest=st.sampled_from([0, 512, 1024]),
)
def test_plans_stay_inside_any_budget(
    n: int, m: int | None, sizes: tuple[int, int, int, int], memory: int, longest: int
) -> None:
    kept, passing, formed, feature = sizes
    each = gpu(kept=kept, passing=passing, formed=formed, feature=feature, check=kept // 3, longest=longest)
    result = n * (m or n) * each.pairs * each.itemsize
    try:
        plan = planned(n, m, each, memory, 1, 1)
    except MemoryBudgetError:
        return
    assert plan.held(each, min(n, m or n), m) + result <= each.slack * memory
    assert 1 <= plan.block <= max(n, m or n)
    try:
        cut = cut_for(n, m, each, memory, 1)
    except MemoryBudgetError:
        return
    assert cut.needs(each) <= each.slack * memory


@given(st.integers(-3, 2000), st.integers(1, 2000), st.booleans())
def test_blocks_are_whole_multiples_on_a_gpu(block: int, most: int, cuda: bool) -> None:
    block = min(block, most)  # as all callers do
    found = gpu(cuda=cuda).whole(block, most)
    if not cuda or block == most:
        assert found == max(1, block)
        return
    assert 1 <= found <= max(1, block)
    part = 64 if block >= 64 else 8 if block >= 8 else 1
    assert found % part == 0
    assert block < found + part or block < 1  # no shorter than it must be


sizes = st.integers(0, 40).flatmap(lambda power: st.integers(0, 2**power))


@given(
    st.integers(1, 500), st.integers(0, 500), st.integers(1, 300),
    st.tuples(sizes, sizes, st.integers(1, 10**9), sizes, sizes), st.integers(0, 10**12), st.integers(1, 10**12),
)  # fmt: skip
def test_what_is_left_for_gradients_fits_to_the_byte(
    rows: int, columns: int, block: int, parts: tuple[int, ...], workspace: int, more: int
) -> None:
    kept, passing, formed, check, worker = parts
    each = gpu(kept=kept, passing=passing, formed=formed, check=check, worker=worker, pairs=9)
    available = each.cache(rows, columns, block, 0, workspace) + more
    left = _forming(each, rows, columns, block, workspace, available)
    assert each.cache(rows, columns, block, left, workspace) <= available
    assert left in (more, (rows + columns) * formed)  # all that is left, or all that is needed
    assert each.cache(rows, columns, block, 0, workspace) >= block * passing


footprints = st.builds(
    Footprint,
    cuda=st.just(True),
    itemsize=st.sampled_from([4, 8]),
    pairs=st.sampled_from([1, 9, 10**4, 10**6]),
    pair_cost=st.floats(1, 1e12),
    longest=st.sampled_from([0, 100, 512, 1024]),
    **{name: st.floats(0, 30).map(lambda power: int(2**power)) for name in ("feature", "passing", "worker", "kept")},
    **{name: st.floats(-1, 28).map(lambda power: int(2**power)) for name in ("formed", "check")},
    **{name: st.floats(0, 1e12) for name in ("capture_cost", "forming_cost")},
)


@settings(quick, max_examples=25)
@given(
    each=footprints,
    n=st.floats(0, 13).map(lambda power: int(2**power)),
    m=st.one_of(st.none(), st.floats(0, 13).map(lambda power: int(2**power))),
    threads=st.sampled_from([1, 4]),
    again=st.floats(0, 1),
    scarce=st.floats(1, 2),
    power=st.floats(22, 40),
)
def test_plans_of_any_network_stay_inside_any_budget(
    each: Footprint, n: int, m: int | None, threads: int, again: float, scarce: float, power: float
) -> None:
    """Also just above the least budget that is stated, where little fits."""
    each = replace(each, again_cost=again * each.forming_cost)
    result = n * (m or n) * each.pairs * each.itemsize
    for schedule in ("auto", "blocks", "layers"):

        def plan(memory: int, schedule: str = schedule) -> Plan:
            return planned(n, m, each, memory, 1, threads, schedule)

        def cut(memory: int, schedule: str = schedule) -> Cut:
            return cut_for(n, m, each, memory, threads, 1, schedule)

        for memory in (int(2**power), int(scarce * smallest_budget(plan)), smallest_budget(plan)):
            with contextlib.suppress(MemoryBudgetError):
                made = plan(memory)
                assert made.held(each, min(n, m or n), m) + result <= each.slack * memory
        for memory in (int(2**power), int(scarce * smallest_budget(cut)), smallest_budget(cut)):
            with contextlib.suppress(MemoryBudgetError):
                assert cut(memory).needs(each) <= each.slack * memory


@pytest.mark.parametrize(
    "each", [gpu(pairs=10**6, feature=1, passing=1), gpu(feature=10**8, passing=10**8), gpu(cuda=False)]
)
def test_a_plan_for_the_smallest_budget_keeps_it(each: Footprint) -> None:
    for n, m in ((1, None), (10, 30)):
        memory = smallest_budget(lambda memory: planned(n, m, each, memory, 1, 4, "blocks"))  # noqa: B023
        held = planned(n, m, each, memory, 1, 4, "blocks").held(each, min(n, m or n), m)
        assert held + n * (m or n) * each.pairs * each.itemsize <= each.slack * memory


@settings(deadline=None, max_examples=60)
@given(
    n=st.floats(0, 13).map(lambda power: int(2**power)),
    m=st.one_of(st.none(), st.floats(0, 13).map(lambda power: int(2**power))),
    power=st.floats(30, 38),
    extra=st.integers(0, 10**8),
    caching=st.integers(1, 6 * 10**7),
)
def test_room_for_heads_that_share_a_pass(n: int, m: int | None, power: float, extra: int, caching: int) -> None:
    """It is there besides the rest, or the plan is the one without."""
    each, memory = gpu(caching=caching), int(2**power)
    result = n * (m or n) * each.itemsize
    try:
        usual = planned(n, m, each, memory, 1, 1, "auto")
    except MemoryBudgetError:
        with pytest.raises(MemoryBudgetError):
            roomy(n, m, each, memory, 1, 1, "auto", extra)
        return
    made = roomy(n, m, each, memory, 1, 1, "auto", extra)
    held = made.held(each, min(n, m or n), m) + result
    assert held <= each.slack * memory
    if made != usual:
        assert held + made.block * extra <= each.slack * memory
        side, most = min(n, m or n), max(n, m or n)
        first, second = (work(side, None if m is None else most, each, plan) for plan in (usual, made))
        assert second <= ROOMY * first


def test_room_for_heads_is_made_where_it_costs_little() -> None:
    each = gpu(caching=50_000_000)
    usual = planned(2_048, None, each, 2**36, 1, 1, "auto")
    made = roomy(2_048, None, each, 2**36, 1, 1, "auto", 40_000_000)
    assert made.held(each, 2_048, None) + made.block * 40_000_000 <= each.slack * 2**36
    assert usual.held(each, 2_048, None) + usual.block * 40_000_000 > each.slack * 2**36


@pytest.mark.parametrize(("n", "m", "memory"), [(5, 1_000, 2**32), (60_000, 5, 2**36), (1, 30_000, 2**36)])
@pytest.mark.parametrize("schedule", ["auto", "layers"])
def test_few_samples_beside_many_stay_inside_the_budget(n: int, m: int, memory: int, schedule: str) -> None:
    each = gpu(feature=600_000_000, passing=30_000_000, kept=3_000_000, formed=100_000, check=1_000_000)
    plan = planned(n, m, each, memory, 1, 1, schedule)  # blocks are longer than the shorter side
    assert plan.held(each, min(n, m), m) + n * m * each.itemsize <= each.slack * memory


def test_refusals() -> None:
    model, x = convolutional()
    with pytest.raises(UsageError, match="schedule='sideways'"):
        ns.kernel("trntk0", model, x, schedule="sideways")
    with pytest.raises(UsageError, match="per_layer"):
        ns.kernel("trntk0", model, x, schedule="layers", per_layer=True)
    with pytest.raises(MemoryBudgetError, match="smallest"):
        ns.kernel("trntk0", model, x, schedule="layers", memory=1000)


def test_factors_are_kept_where_they_are_smaller() -> None:
    model = randomize(
        nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(512, 3))
    )
    subject = Subject(model)
    engine = Engine(
        subject, Batch((noise(5, 16, 8, 8),), {}), Heads(), full=False, precision=Precision("exact", torch.float64)
    )
    late = {piece.name for piece in engine.deferral.pieces}
    assert late == {"0.weight", "2.weight"}
    each = engine.footprint
    assert each.kept < each.feature
    assert each.formed == 3 * model[2].weight.numel() * 8
    assert each.again_cost == 3 * (36 * model[0].weight.numel() + 16 * model[2].weight.numel())


def test_few_sums_wait_however_many_blocks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = convolutional()
    numbers: dict[int, int] = {}
    waiting: list[int] = []
    add, compare = Pending.add, Pending.compare

    def added(pending: Pending, *args: Any) -> None:
        add(pending, *args)
        numbers[id(pending)] = pending.numbers
        waiting.append(sum(numbers.values()))

    def compared(pending: Pending) -> None:
        waiting.append(pending.numbers)
        compare(pending)

    monkeypatch.setattr(Pending, "add", added)
    monkeypatch.setattr(Pending, "compare", compared)
    monkeypatch.setattr(check, "PENDING", {"cpu": 80_000})
    with everything_deferred(), planned_as(N, N, 1, 1):
        found = ns.kernel("trntk0", model, x)
    assert found.meta["plan"].layered
    assert found.certificate.checked == N
    largest = 11 * max(
        p.numel() for p in model.parameters()
    )  # one parameter's: of eight draws, ours, theirs, their difference
    assert 0 < max(waiting) <= 80_000 + largest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_numbers_are_made_longer_a_few_at_a_time(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = (DenseFeature(noise(n, 2, 30_000).to(dtype)) for n in (48, 32))
    workspace = 2**21
    product, held = Precision.product, []

    def noted(precision: Precision, a: Tensor, b: Tensor) -> Tensor:
        held.append(4 * (a.numel() + b.numel()))
        return product(precision, a, b)

    monkeypatch.setattr(Precision, "product", noted)
    total = torch.zeros(48, 32, dtype=torch.float64)
    precision = Precision("bf16" if dtype == torch.bfloat16 else "fp16", torch.float32)
    features.accumulate(total, left, right, full=False, precision=precision, workspace=workspace)
    assert max(held) <= workspace
    assert_kernel_close(
        total, left.values.double().flatten(1) @ right.values.double().flatten(1).T, 2e-5
    )  # float32 sums of 60,000 terms


class Tokens(nn.Module):
    """Two layers at each of many places, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))).mean(1)


def tokens() -> Case:
    return randomize(Tokens()), noise(N, 40, 4)


@pytest.mark.parametrize("case", [convolutional, tokens])
@pytest.mark.parametrize("precision", ["exact", "bf16", "fp16"])
@pytest.mark.parametrize("two", [False, True])
def test_gradients_are_formed_in_room_that_is_kept(
    case: Callable[[], Case], precision: str, two: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = case()
    model, x = model.float(), x.float()
    other = x[:5] + 0.5 if two else None
    asked: dict[str, Any] = {"precision": precision}
    true = ns.kernel("trntk0", model, x, other, **asked).dense()
    placed, inside = layers._placed, []

    def noted(room: Tensor | None, *args: Any) -> Tensor:
        found = placed(room, *args)
        inside.append(room is not None and room.data_ptr() == found.data_ptr())
        return found

    monkeypatch.setattr(tiles, "ROOMY", ("cpu",))
    monkeypatch.setattr(layers, "_placed", noted)
    for block, forming in ((2, 2**30), (2, 200_000), (N, 2**30)):
        with everything_deferred(), planned_as(N, 5, block, forming):
            found = ns.kernel("trntk0", model, x, other, **asked)
        assert found.meta["plan"].layered
        assert_kernel_close(found.dense(), true, 1e-5)
        assert not found.certificate.fell_back  # what is checked later is not what was overwritten
    assert all(inside)
    assert bool(inside) == (precision != "fp16")
