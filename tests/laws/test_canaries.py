"""The laws can fail: functions written without care break them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from laws.laws import LAWS, scale
from laws.table import Case, labels, matrix, positive, vector
from ntkscope.core import UsageError


def _ratio(a: Any, b: Any, power: Any = 1.0) -> float:
    """A measure written without care: squares overflow, sizes and NaN go unseen, a wrong power is a raw error."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    n = min(len(a), len(b))
    return float((a[:n] ** 2).sum() / (b[:n] ** 2).sum() * power + a[0])


def _careful(a: Any, b: Any, power: Any = 1.0) -> float:
    raise UsageError("got something; expected something else")


CARELESS = Case(_ratio, {"a": vector(degree=0), "b": vector(), "power": positive(1.0)}, name="careless", items={})


@pytest.mark.parametrize("law", ["order", "wrong types", "not finite", "sizes", "degenerate"])
def test_canary_a_careless_function_breaks_the_law(law: str) -> None:
    assert list(LAWS[law](CARELESS, 0))


def test_canary_a_careless_function_breaks_the_law_of_scale() -> None:
    assert any("RuntimeWarning" in broken for broken in scale(CARELESS, 0, 200))
    assert list(scale(Case(lambda A: np.linalg.norm(A) ** 2, {"A": matrix(degree=1)}), 0, -30))


def test_canary_labels_by_their_size() -> None:
    greedy = Case(lambda y: np.eye(int(max(y)) + 1)[y].sum(), {"y": labels()}, name="greedy")
    assert any("MemoryError" in broken for broken in LAWS["labels"](greedy, 0))


def test_canary_what_refuses_everything_is_no_function() -> None:
    assert list(LAWS["valid"](Case(_careful, CARELESS.arguments, name="careful"), 0))


def test_canary_what_changes_its_argument_is_found() -> None:
    def sorts(a: Any) -> float:
        a.sort()
        return float(a[0])

    assert any("changed its argument" in broken for broken in LAWS["valid"](Case(sorts, {"a": vector()}), 0))
