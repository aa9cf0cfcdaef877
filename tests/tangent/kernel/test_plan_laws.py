"""Law 2 as the planner predicts it, for real networks on a GPU: more memory is never slower, nor are fewer samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from benchmarks.gpu.cases import footprint
from benchmarks.gpu.grid import MORE, NEXT, PRECISIONS, ROUND, predicted, slower
from benchmarks.gpu.roofline import NAMES

from ntkscope.core.errors import MemoryBudgetError
from ntkscope.tangent.kernel import plan as planner
from ntkscope.tangent.kernel.plan import Footprint, cut_for, planned, roomy, seconds

pytestmark = pytest.mark.guard

NUMBERS = (256, 1000, 1025, 2000, 2047, 2048, 2049, 5461, 10_001, 16_384, 30_001, 50_000)
ALL = sorted({*NUMBERS, *(-(-n // ROUND) * ROUND for n in NUMBERS)})
BUDGETS = range(8, 137, 2)  # GiB
TESTS = 3000  # of the second of two sets
WHERE = ("in memory", "long blocks", "heads share passes", "in a store", "two sets")
EXTRA = 60_000_000  # bytes a sample of heads that share passes


def cells(each: Footprint, where: str, budgets: range = BUDGETS) -> dict[tuple[int, int], float | None]:
    each = replace(each, longest=4096 if where == "long blocks" else 0)
    m, budgets = (TESTS, budgets[::3]) if where == "two sets" else (None, budgets)
    if where == "heads share passes":
        return {(n, gib): shared(each, n, gib << 30) for n in ALL for gib in budgets}
    return {(n, gib): predicted(each, n, gib << 30, where == "in a store", m) for n in ALL for gib in budgets}


def shared(each: Footprint, n: int, memory: int) -> float | None:
    """Predicted seconds where heads share passes if there is room for it."""
    try:
        plan = roomy(n, None, each, memory, 1, 1, "auto", EXTRA)
    except MemoryBudgetError:
        return None
    room = each.slack * memory - each.result(n, None)
    return seconds(n, None, each.sharing(EXTRA) if plan.held(each.sharing(EXTRA), n, None) <= room else each, plan)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_more_memory_and_fewer_samples_are_never_predicted_to_be_slower(name: str, precision: str, where: str) -> None:
    found = slower(cells(footprint(name, precision), where))
    assert found["more memory"] <= MORE
    assert found["next round number"] <= NEXT


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_sides_and_blocks_are_multiples_of_64_and_fit(name: str, precision: str) -> None:
    each = footprint(name, precision)
    for n, gib in ((n, gib) for n in NUMBERS for gib in BUDGETS[::4]):
        available = each.slack * (gib << 30)
        cut = cut_for(n, None, each, gib << 30, 1)
        assert cut.needs(each) <= available
        sides = [cut.size, cut.block]
        for m in (None, TESTS):
            try:
                plan = planned(n, m, each, gib << 30, 1, 1)
            except MemoryBudgetError:  # the result alone
                assert each.result(n, m) > 0.9 * available
                continue
            assert plan.held(each, min(n, m or n), m) + each.result(n, m) <= available
            sides += [plan.resident, plan.block, plan.columns]
        assert [side for side in sides if side > 64 and side % 64 and side not in (n, TESTS)] == []


@pytest.fixture
def blocks_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A planner that does not see what short blocks cost."""
    monkeypatch.setattr(planner, "seconds", lambda n, m, each, plan: seconds(n, m, each, replace(plan, block=1)))
    planned.cache_clear()
    yield
    planned.cache_clear()


def test_a_planner_with_a_wrong_idea_of_time_breaks_the_law(blocks_cost_nothing: None) -> None:
    found = slower(cells(footprint("resnet18", "exact"), "in memory", range(8, 137, 8)))
    assert found["more memory"] > MORE
    assert found["next round number"] > NEXT
