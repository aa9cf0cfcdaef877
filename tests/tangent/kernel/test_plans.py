"""Plans stay inside any budget, foresee the time of every round, and take the schedule with less of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from ntkscope.core.errors import MemoryBudgetError
from ntkscope.kernels import kernel
from ntkscope.tangent.blocks.features import accumulate
from ntkscope.tangent.kernel import tiles
from ntkscope.tangent.kernel.plan import (
    BLOCK_SECONDS,
    SPEEDS,
    Footprint,
    Plan,
    cut_for,
    make_plan,
    planned,
    roomy,
    seconds,
    sides,
)
from oracles.against import smallest_budget
from strategies.architectures import few


def gpu(**more: Any) -> Footprint:
    """What ResNet-18 takes in bfloat16, about."""
    costs = {"capture_cost": 7.2e9, "forming_cost": 5.6e9, "again_cost": 3.9e9}
    large = {"feature": 55_000_000, "passing": 60_000_000, "itemsize": 4, "pair_cost": 3.9e7, "cuda": True}
    return Footprint(**{**large, "kept": 8_200_000, "formed": 12_000_000, "check": 90_000_000, **costs, **more})


def test_the_schedule_with_less_work_is_taken_and_said() -> None:
    each, memory = gpu(), 128 * 2**30
    plan = planned(8192, None, each, memory, 1, 1)
    assert plan.layered
    assert plan.gain > 1
    assert "layers" in str(plan)
    blocks = planned(8192, None, each, memory, 1, 1, "blocks")
    assert not blocks.layered
    assert "blocks" in str(blocks)
    assert seconds(8192, None, each, plan) < seconds(8192, None, each, blocks)
    assert not planned(64, None, each, memory, 1, 1).layered  # one block of all: nothing to gain
    assert cut_for(50_000, None, each, memory, 1).forming
    assert cut_for(50_000, None, each, memory, 1).size > 1.5 * cut_for(50_000, None, each, memory, 1, 1, "blocks").size
    assert not planned(8192, None, gpu(formed=0), memory, 1, 1).layered  # nothing can be formed later
    assert not planned(8192, None, gpu(cuda=False), memory, 1, 1).layered


@given(st.integers(1, 60), st.one_of(st.none(), st.integers(1, 60)), st.integers(1, 60), st.booleans())
def test_seconds_are_those_of_every_round(n: int, m: int | None, size: int, layered: bool) -> None:
    """The closed form beside the tiles one by one."""
    each = gpu(capture_cost=0.0, forming_cost=5.0, again_cost=2.0, pair_cost=0.0)
    plan = Plan(size, 1, 0, 1, size, 1 << 60) if layered else Plan(size, 1, 0)
    others, ran, late = n if m is None else m, 0, 0
    for at in range(0, n, size):
        here, rest = min(size, n - at), max(0, n - at - size) if m is None else others
        ran += here + rest
        if layered and at and m is None:
            ran -= here  # columns of the tile before
        elif layered and at:
            odd = (at // size) % 2  # columns begin where they ended
            ran -= others - (-(-others // size) - 1) * size if odd else min(size, others)
        late += here * (-(-rest // size) + (m is None)) + rest  # in every tile: rows and columns, or its own
    forming = ran * 3.0 + late * 2.0 if layered else ran * 5.0
    expected = ran * BLOCK_SECONDS + forming / SPEEDS["float32"].forming
    assert seconds(n, m, each, plan) == pytest.approx(expected, rel=1e-12)


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
    assert plan.resident >= 512  # no sample is run twice
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


@given(st.integers(0, 2000), st.integers(1, 2000))
def test_sides_are_whole_multiples_or_all_there_is(fitting: int, most: int) -> None:
    found = list(sides(most, lambda side: side <= fitting))
    assert found == sorted(found, reverse=True)
    assert [side for side in found if side < most and side % (64 if side > 64 else 8 if side > 8 else 1)] == []
    assert (found or [0])[0] in (most, *range(fitting - 63, fitting + 1))
    assert (found or [1])[-1] == 1


# As measured on an H200: bytes and multiply-adds a sample, exact and bf16.
RESNET18 = Footprint(
    113898784, 86769440, 4, pair_cost=7.16e7, cuda=True, worker=134087544, kept=18871584, formed=23592960, least=1382400,
    caching=50003744, check=89391696, capture_cost=7.24e9, forming_cost=4.22e9, again_cost=2.66e9, longest=4096,
)  # fmt: skip
RESNET18_BF16 = replace(
    RESNET18,
    feature=56949392,
    passing=49643096,
    kept=9435792,
    formed=11796480,
    least=691200,
    caching=31260248,
    made_of="16 bit",
)
VIT = Footprint(
    214434848, 93970384, 4, pair_cost=8.08e7, cuda=True, worker=64353144, kept=60205088, formed=5898240, least=1320960,
    caching=82173904, check=42902096, capture_cost=4.52e9, forming_cost=3.48e9, again_cost=3.45e9, longest=4096,
)  # fmt: skip
LENET = Footprint(
    122416, 914576, 4, pair_cost=5.9e4, cuda=True, worker=740472, kept=95120, formed=96000, least=96000, caching=914576,
    check=493648, capture_cost=5.5e6, forming_cost=3.6e6, again_cost=2.4e6, longest=4096,
)  # fmt: skip
NETWORKS = {"resnet18": RESNET18, "resnet18 bf16": RESNET18_BF16, "vit": VIT, "lenet": LENET}
MEMORIES = [2**30 * gib for gib in (12, 16, 20, 24, 32, 40, 48, 64, 80, 100, 112, 128)]


def predicted(n: int, each: Footprint, memory: int, stored: bool) -> float:
    """The work of a plan, in memory or for a store."""
    if stored:
        cut = cut_for(n, None, each, memory, 1)
        return seconds(n, None, each, Plan(cut.size, cut.block, cut.workspace, 1, cut.size, cut.forming))
    return seconds(n, None, each, planned(n, None, each, memory, 1, 1))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_more_memory_is_no_slower_and_no_number_of_samples_slower_than_the_next_round_one(
    network: str, stored: bool
) -> None:
    each = NETWORKS[network]
    for n in (2000, 5462, 8200, 16384, 30001, 50000):
        times = [predicted(n, each, memory, stored) for memory in MEMORIES]
        slower = [later / min(times[: k + 1]) for k, later in enumerate(times)]
        assert max(slower) <= 1.05, (n, dict(zip(MEMORIES, slower)))
        for memory in MEMORIES[::3]:
            round_one = -(-n // 1024) * 1024
            assert predicted(n, each, memory, stored) <= 1.01 * predicted(round_one, each, memory, stored), (n, memory)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("network", NETWORKS)
def test_sides_on_a_gpu_are_multiples_of_64(network: str, memory: int) -> None:
    each = NETWORKS[network]
    for n in (2000, 5462, 16384, 50000):
        plan, cut = planned(n, None, each, memory, 1, 1), cut_for(n, None, each, memory, 1)
        sides = plan.resident, plan.block, cut.size, cut.block
        assert [side for side in sides if side < n and side % (64 if side > 64 else 8 if side > 8 else 1)] == []


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
    left = each.left_to_form(rows, columns, block, workspace, available)
    assert each.cache(rows, columns, block, left, workspace) <= available
    assert left in (more, (rows + columns) * formed)  # all that is left, or all that is needed
    assert each.cache(rows, columns, block, 0, workspace) >= block * passing


footprints = st.builds(
    Footprint,
    cuda=st.booleans(),
    itemsize=st.sampled_from([4, 8]),
    pairs=st.sampled_from([1, 9, 10**4, 10**6]),
    pair_cost=st.floats(1, 1e12),
    longest=st.sampled_from([0, 100, 512, 1024]),
    **{name: st.floats(0, 30).map(lambda power: int(2**power)) for name in ("feature", "passing", "worker", "kept")},
    **{name: st.floats(-1, 28).map(lambda power: int(2**power)) for name in ("formed", "check")},
    **{name: st.floats(0, 1e12) for name in ("capture_cost", "forming_cost")},
)


sizes_of_sets = st.floats(0, 16).map(lambda power: int(2**power))


@settings(few, max_examples=30)
@given(
    each=footprints,
    n=sizes_of_sets,
    m=st.none() | sizes_of_sets,
    threads=st.sampled_from([1, 4, 16]),
    again=st.floats(0, 1),
    scarce=st.floats(1, 2),
    power=st.floats(22, 40),
)
@example(gpu(feature=10**8, passing=10**8), 10, 30, 4, 0.5, 1.0, 30.0)
@example(gpu(kept=10**9, passing=10**9), 500, None, 1, 0.5, 1.5, 36.0)
@example(gpu(feature=600_000_000, kept=3_000_000, formed=100_000), 60_000, 5, 1, 0.5, 1.0, 36.0)
def test_plans_of_any_network_stay_inside_any_budget(
    each: Footprint, n: int, m: int | None, threads: int, again: float, scarce: float, power: float
) -> None:
    """Also at and just above the least budget that is stated, where little fits."""
    each = replace(each, again_cost=again * each.forming_cost)
    result = n * (m or n) * each.pairs * each.itemsize
    for schedule in ("auto", "blocks", "layers"):

        def held(memory: int, schedule: str = schedule) -> float:
            plan = planned(n, m, each, memory, 1, threads, schedule)
            assert 1 <= plan.block <= max(n, m or n)
            return plan.held(each, min(n, m or n), m) + result

        def needed(memory: int, schedule: str = schedule) -> float:
            return cut_for(n, m, each, memory, threads, 1, schedule).needs(each)

        for call in (held, needed):
            smallest = smallest_budget(call)
            for memory in (smallest, int(scarce * smallest), max(smallest, int(2**power))):
                assert call(memory) <= each.slack * memory


@settings(deadline=None, max_examples=60)
@given(
    n=sizes_of_sets,
    m=st.none() | sizes_of_sets,
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
        first = seconds(side, None if m is None else most, each, usual)
        assert seconds(side, None if m is None else most, each.sharing(extra), made) <= first


def test_room_for_heads_is_made_where_it_costs_little() -> None:
    each = gpu(caching=50_000_000)
    usual = planned(2_048, None, each, 2**36, 1, 1, "auto")
    made = roomy(2_048, None, each, 2**36, 1, 1, "auto", 40_000_000)
    assert made.held(each, 2_048, None) + made.block * 40_000_000 <= each.slack * 2**36
    assert usual.held(each, 2_048, None) + usual.block * 40_000_000 > each.slack * 2**36


def test_few_samples_stay_with_one_thread() -> None:
    each = Footprint(feature=1000, passing=1000, itemsize=4)
    assert make_plan(31, None, each, 2**30, threads=2).workers == 1
    assert make_plan(32, None, each, 2**30, threads=2).workers == 2
    assert make_plan(100, None, each, 2**30, threads=64).workers == 6
    assert make_plan(400, None, each, 2**30, threads=64).workers == 16


def test_a_budget_with_room_for_one_block_has_one_worker() -> None:
    each = Footprint(feature=324 * 2**20, passing=700 * 2**20, itemsize=4)
    plan = make_plan(256, None, each, int(1.3 * 2**30), threads=16)
    assert (plan.workers, plan.resident, plan.block) == (1, 1, 1)


def test_several_workers_never_make_the_other_side_pass_more_often() -> None:
    each = Footprint(feature=2**20, passing=2**20, itemsize=4)
    for memory in range(100 * 2**20, 700 * 2**20, 2**21):
        plans = [make_plan(100, 5000, each, memory, threads=threads) for threads in (1, 4)]
        one, four = (-(-100 // plan.resident) for plan in plans)
        assert four <= one


def test_samples_that_stay_are_multiplied_in_wide_products_inside_the_room_of_a_block(monkeypatch: Any) -> None:
    """The numbers are those of a kernel with all the room, and the wider product takes no more than the block it stands for."""
    sides = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model, x = nn.Sequential(*sides, nn.Linear(32, 3)), torch.randn(50, 1, 8, 8)
    widths: list[int] = []

    def noted(total: Any, left: Any, right: Any, **how: Any) -> float:
        widths.append(len(right))
        return accumulate(total, left, right, **how)

    monkeypatch.setattr(tiles, "accumulate", noted)
    little = kernel("trntk0", model, x, memory=6 * 2**20)
    plan, each = little.meta["plan"], little.meta["footprint"]
    assert max(widths) == min(each.wide(plan.resident, plan.block), plan.resident // 4) > plan.block
    assert plan.resident < len(x)
    torch.testing.assert_close(little.dense(), kernel("trntk0", model, x).dense(), rtol=1e-5, atol=1e-5)
    for resident, block in ((1, 1), (100, 3), (5000, 53)):
        wide = each.wide(resident, block)
        assert wide == block or each.tile(resident, wide) <= block * each.passing
    assert replace(each, cuda=True).wide(100, 8) == 8
