"""Schedules: which steps fall due."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ntkscope.core import UsageError
from ntkscope.tracking import Every, LogSpaced, OnPlateau
from ntkscope.tracking.schedules import agenda
from ntkscope.training.moments import snapshot_steps


def due(when: Any, total: int | None, steps: int, losses: Any = None, after: int = 0) -> list[int]:
    plan = agenda(when, total, after)
    return [s for s in range(after + 1, steps + 1) if plan.due(s, None if losses is None else losses[s - 1])]


@settings(max_examples=50)
@given(count=st.integers(1, 20), total=st.integers(1, 300), after=st.integers(0, 299))
def test_the_steps_are_those_of_snapshots(count: int, total: int, after: int) -> None:
    for when in (LogSpaced(count), Every(count)):
        expected = [step for step in snapshot_steps(when, total) if step > after]
        assert due(when, total, total, after=min(after, total)) == expected


def test_lists_and_strides_without_a_total() -> None:
    assert due(3, None, 10) == [3, 6, 9]
    assert due([4, 2, 0], None, 10) == [2, 4]
    assert due([4, 2], 6, 6) == [2, 4, 6]
    skipping = agenda([2, 3, 7], None)  # some steps are never reported
    assert [skipping.due(step, None) for step in (1, 5, 6, 9)] == [False, True, False, True]


def test_plateaus_are_found_once_each() -> None:
    losses = [1.0] * 10 + [0.5] * 30 + [0.1] * 20
    # averages of ten: 1, 0.5, 0.5 (a plateau begins), 0.5, 0.1 (falls), 0.1 (another one)
    assert due(OnPlateau(10, 0.01), None, 60, losses) == [30, 60]
    assert due(OnPlateau(10, 0.01), None, 60, [torch.tensor(loss) for loss in losses]) == [30, 60]
    assert due(OnPlateau(10), 55, 55, [math.exp(-step / 20) for step in range(55)]) == [55]
    assert due(OnPlateau(2), None, 6, [1.0, 1.0, math.nan, math.nan, math.nan, math.nan]) == [4]


def test_refusals() -> None:
    for when, words in (
        (LogSpaced(5), "pass total="),
        (Every(2, "epoch"), "Every\\(steps of an epoch\\)"),
        ("often", "expected Every"),
        ([1, -2], "expected Every"),
        (True, "expected Every"),
    ):
        with pytest.raises(UsageError, match=words):
            agenda(when, None)


def test_steps_without_a_loss_are_left_out_with_one_warning() -> None:
    plan = agenda(OnPlateau(2), 9)
    with pytest.warns(RuntimeWarning, match="no loss at step 1") as warned:
        assert [step for step in range(1, 10) if plan.due(step, None if step % 2 else 1.0)] == [8, 9]
    assert len(warned) == 1
