"""The copy law on every model: other dtypes and devices, linearised networks, kept engines before and after changes."""

from __future__ import annotations

import pytest
import torch

from copies.law import EQUAL, RAW, WRONG, Cell, cells, changes_of, judged, kept, kernels, linearized
from copies.models import CASES

QUICK = ("lambda_over_self", "ia3_by_hook_over_the_parameter", "gradient_hook_that_masks", "plain_tensor")
FEWEST = 60


def holds(found: list[Cell]) -> None:
    broken = [cell for cell in found if cell.verdict in (WRONG, RAW)]
    assert not broken, "\n".join(map(str, broken))


def test_there_are_models_and_changes_enough() -> None:
    assert len(CASES) >= FEWEST
    assert len({change for case in CASES.values() for change in changes_of(case, "", None)}) >= 20


@pytest.mark.parametrize("name", QUICK)
def test_a_copy_is_the_model_or_is_refused(name: str) -> None:
    case = CASES[name]
    found = [kernels(case, "dtype=float64"), *linearized(case, changes_of(case, "linearize", 1))]
    found += kept(case, "kept dtype=float64", changes_of(case, "kept dtype=float64", 2))
    holds(found)
    assert sum(cell.verdict == EQUAL for cell in found) > 1


@pytest.mark.guard
@pytest.mark.parametrize("name", CASES)
def test_every_model_by_every_entry(name: str) -> None:
    holds(cells(CASES[name], 1))


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_every_model_by_every_entry_after_every_change(name: str) -> None:
    found = cells(CASES[name])
    holds(found)
    native = [cell for cell in found if cell.entry.startswith(("native", "kept native"))]
    assert all(cell.verdict == EQUAL for cell in native if not cell.change), native


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_copies_on_a_gpu(name: str) -> None:
    holds([kernels(CASES[name], "device=cuda")])


def test_the_judge_sees_wrong_numbers() -> None:
    right = torch.eye(3)
    assert judged(lambda: [(right, right)], torch.float64)[0] == EQUAL
    assert judged(lambda: [(right * 1.001, right)], torch.float32)[0] == WRONG
    assert judged(lambda: [(right * 0, right)], torch.float32)[0] == WRONG
    assert judged(lambda: [(right, right * 0)], torch.float32)[0] == WRONG
    assert judged(lambda: [(right * float("nan"), right)], torch.float32)[0] == WRONG
    assert judged(lambda: [(1 / 0, right)], torch.float32)[0] == RAW
