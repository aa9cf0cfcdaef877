"""Gradients formed layer by layer: the numbers of the other schedule and of the oracle, and the same checks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import NtkscopeError, NumericalError, UsageError
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.tangent.blocks import backward, features
from ntkscope.tangent.blocks.deferred import Deferral
from ntkscope.tangent.blocks.features import DenseFeature
from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.certify import comparison as check
from ntkscope.tangent.certify.comparison import Pending
from ntkscope.tangent.certify.fallback import Fallback
from ntkscope.tangent.kernel import by_layers as layers
from ntkscope.tangent.kernel import tiles
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.kernel.plan import Cut
from ntkscope.tangent.kernel.store_source import FeatureTiles, TangentRecipe
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.parameter_blocks import ParameterBlock
from ntkscope.tangent.trace.terms import Outer
from oracles.against import expected, smallest_budget
from oracles.closeness import assert_kernel_close
from oracles.unchanged import assert_unchanged, state
from strategies.architectures import FAMILIES, few, many
from strategies.layers import Conv1D
from strategies.networks import Case, Net, noise, randomize
from strategies.schedules import everything_deferred, planned_as
from zoo.catalogue import CASES

SAME = 1e-12
N = 13


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


@pytest.mark.parametrize(("case", "name"), [(convolutional, "trntk0"), (attention, "entk")])
def test_the_same_kernel(case: Callable[[], Case], name: str) -> None:
    model, x = case()
    before = state(model)
    for other in (None, x[:5] + 0.5, torch.cat([x, x + 1])):
        blocks = ns.kernel(name, model, x, other, schedule="blocks")
        plans = ((N, 30, 4, 2**30, 1), (6, 7, 3, 20_000, 1), (N, 30, 4, 2**30, 2), (6, 7, 3, 20_000, 3))
        for rows, columns, block, forming, passes in plans:
            with everything_deferred(), planned_as(rows, columns, block, forming, passes):
                found = ns.kernel(name, model, x, other)
            assert found.coverage.samples_run % passes == 0
            assert found.coverage.methods.keys() == blocks.coverage.methods.keys()
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


@pytest.mark.parametrize("passes", [2, 3, 9])
def test_no_parameter_is_left_out_of_all_passes(passes: int) -> None:
    def run(m: Any, x: Tensor) -> Tensor:  # no rule knows the second use of the first layer
        return m.head(torch.tanh(m.inner(torch.tanh(m.first(x) + m.first.weight.sin().sum(1)))))

    parts = {"first": nn.Linear(4, 6, bias=False), "inner": nn.Linear(6, 6), "head": nn.Linear(6, 3)}
    model, x = randomize(Net(run, **parts)), noise(N, 4)
    with everything_deferred(), planned_as(N, N, 5, 2**30, passes):
        found = ns.kernel("trntk0", model, x)
    assert found.coverage.methods["first.weight"] == "func"
    assert found.coverage.methods.keys() == dict(model.named_parameters()).keys()
    assert_kernel_close(found.dense(), expected("trntk0", model, x), 1e-10)


ZOO = sorted(name for name, case in CASES.items() if case.expect != "refused" and not case.options)
SOME = [name for k, name in enumerate(ZOO) if k % 8 == 0 or name.startswith("with_reentry")]


@pytest.mark.guard
@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("name", SOME)
def test_every_kind_of_network_in_passes(name: str) -> None:
    """A network cut at any layer gives the kernel it gives whole."""
    model, x = CASES[name].make()
    try:
        whole = ns.kernel("trntk0", model, x, schedule="blocks")
    except (NtkscopeError, IndexError):
        return
    kernel, (model, x) = whole.dense().double(), CASES[name].make()
    with everything_deferred(), planned_as(len(kernel), len(kernel), 3, 2**30, 3):
        found = ns.kernel("trntk0", model, x)
    assert found.coverage.methods.keys() == whole.coverage.methods.keys()
    short = whole.dense().dtype != torch.float64 or name.startswith("islands")  # float32 somewhere inside
    assert_kernel_close(found.dense().double(), kernel, 5e-2 if short else 1e-10)


def test_passes_go_no_deeper_than_their_layers() -> None:
    model, x = convolutional()
    ran, flops = [], []
    for passes in (1, 2, 4):
        with everything_deferred(), planned_as(N, N, N, 2**30, passes):
            found = ns.kernel("trntk0", model, x)
        ran.append(found.coverage.samples_run)
        flops.append(found.coverage.flops["capture"])
    assert ran[:2] == [N, 2 * N]
    assert flops[0] < flops[1] < 1.7 * flops[0] < flops[2] < 3 * flops[0]


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@few
def test_random_architectures(family: str, data: st.DataObject) -> None:
    agrees(family, data)


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@many
def test_many_random_architectures(family: str, data: st.DataObject) -> None:
    agrees(family, data)


def agrees(family: str, data: st.DataObject) -> None:
    """A network drawn at random: layer by layer against the other schedule to rounding, and against the oracle."""
    drawn = data.draw(FAMILIES[family], label="architecture")
    name = data.draw(st.sampled_from(["trntk0", "pntk", "entk"]), label="kernel")
    x, n = drawn.x, len(drawn.x)
    x2 = x.flip(0)[: max(1, n - 1)] if data.draw(st.booleans(), label="two sets") else None
    rows, columns, block = (data.draw(st.integers(1, n), label=label) for label in ("rows", "columns", "block"))
    forming = data.draw(st.sampled_from([1, 4000, 2**30]), label="forming")
    passes = data.draw(st.integers(1, 4), label="passes")
    blocks = ns.kernel(name, drawn.model, x, x2, schedule="blocks").dense()
    with everything_deferred(), planned_as(rows, columns, block, forming, passes):
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


@pytest.mark.parametrize("inside", [False, True], ids=["", "heads side by side"])
@pytest.mark.parametrize(
    ("kind", "precision"), [*product(kinds(), ["exact", "bf16"]), ("convolution", "fp16"), ("tied", "fp16")]
)
def test_every_kind_of_layer_is_formed_late(
    kind: str, precision: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of the parameter, or some at a time; of all samples, or of some; of the other schedule the same kernel."""
    model, x = kinds()[kind]
    model, dtype = randomize(model), torch.float64 if precision == "exact" else torch.float32
    model, x = model.to(dtype), x.to(dtype)
    monkeypatch.setattr(backward, "SIDE_BY_SIDE", ("cpu",) if inside else ())
    how: dict[str, Any] = {"precision": Precision(precision, dtype), "certify": False}
    with everything_deferred():
        late = Engine(Subject(model), Batch((x,), {}), Heads(), full=False, **how).deferral
        assert late.pieces
        assert late.divided == (set() if kind == "grouped" else late.pieces)
        for right, forming in product((None, x[:5] + 0.5), (2**30, 4000)):
            blocks = ns.kernel("trntk0", model, x, right, schedule="blocks", precision=precision, certify=False)
            with planned_as(N, 7, 3, forming):
                layered = ns.kernel("trntk0", model, x, right, precision=precision, certify=False)
            assert layered.meta["plan"].layered
            assert_kernel_close(layered.dense(), blocks.dense(), SAME if precision == "exact" else 1e-5)


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


@pytest.mark.parametrize("full", [False, True], ids=["trntk0", "entk of two sets"])
def test_tiles_have_the_same_bits_in_any_order_and_process(full: bool) -> None:
    model, x = convolutional()
    right = x[:8] + 1 if full else None
    with everything_deferred():
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


def wrong_part(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Outer.part

    def spoiled(term: Outer, start: int, stop: int) -> Outer:
        made = part(term, start, stop)
        return made if start == 0 else replace(made, cotangents=lambda value: made.cotangents(value) * 1.01)

    monkeypatch.setattr(Outer, "part", spoiled)


def wrong_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = layers.kept_factors

    def spoiled(*args: Any) -> Any:
        made = kept(*args)
        for value in made.arrived.values():
            value[0] *= 1.01
        return made

    monkeypatch.setattr(layers, "kept_factors", spoiled)


@pytest.mark.parametrize(("spoil", "forming"), [(wrong_part, 20_000), (wrong_factors, 2**30)])
def test_a_wrong_gradient_that_is_formed_late_is_found(
    spoil: Callable[[pytest.MonkeyPatch], None], forming: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = convolutional()
    true = ns.kernel("trntk0", model, x).dense()
    spoil(monkeypatch)
    with everything_deferred(), planned_as(N, N, 4, forming):
        found = ns.kernel("trntk0", model, x)
        assert found.certificate.fell_back  # those parameters took a slower method, and the numbers are right
        assert_kernel_close(found.dense(), true, 1e-10)
        wrong = ns.kernel("trntk0", model, x, certify=False)
    assert float((wrong.dense() - true).abs().max()) > 1e-6 * float(true.abs().max())  # what the check found


def test_a_wrong_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = convolutional()

    def wrong(total: Tensor, left: Any, right: Any, **how: Any) -> float:
        flops = features.accumulate(total, left, right, **how)
        total += 1e-3 * total.abs().max()
        return flops

    monkeypatch.setattr(layers, "accumulate", wrong)
    with everything_deferred(), planned_as(N, N, 4, 2**30), pytest.raises(NumericalError, match="an entry"):
        ns.kernel("trntk0", model, x)


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


def tokens() -> Case:
    """Two layers at each of many places, and their mean."""
    parts = {"first": nn.Linear(4, 6), "second": nn.Linear(6, 3)}
    return randomize(Net(lambda m, x: m.second(torch.tanh(m.first(x))).mean(1), **parts)), noise(N, 40, 4)


@pytest.mark.parametrize(
    ("case", "precision", "two"),
    [(convolutional, "exact", True), (tokens, "bf16", False), (tokens, "exact", True), (tokens, "fp16", False)],
)
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
