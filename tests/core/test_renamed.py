"""Old keywords: accepted with a warning, checked under their new names, refused beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.base import clone

import ntkscope as ns
from ntkscope.core import Part, UsageError

X, Y = torch.eye(4, 3, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
S = ns.surrogates
MADE: list[tuple[Callable[..., Any], str, str, Any]] = [
    (S.ConjugateLeastSquares, "ridge", "alpha", 0.5),
    (S.ConjugateLeastSquares, "rtol", "tol", 0.5),
    (S.KernelRidge, "rtol", "tol", 1e-3),
    (S.MinimumNormClassifier, "rtol", "tol", 1e-3),
    (S.RecursiveFeatureMachine, "ridge", "alpha", 0.5),
    (ns.infinite.Relu, "normalise", "normalize", True),
    (ns.explain.ProbeProtocol, "standardise", "standardize", False),
]


@pytest.mark.parametrize(("make", "old", "new", "value"), MADE)
def test_the_old_word_is_the_new_one(make: Callable[..., Any], old: str, new: str, value: Any) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old}= is now {new}=") as caught:
        made = make(**{old: value})
    assert caught[0].filename == __file__
    assert getattr(made, new) == value
    assert getattr(clone(made) if hasattr(made, "get_params") else made, new) == value
    with pytest.raises(UsageError, match=f"got {old}= and {new}="):
        make(**{old: value, new: value})


def test_functions_and_methods() -> None:
    def linear() -> torch.nn.Module:
        return torch.nn.Linear(3, 1, dtype=torch.float64)

    calls: dict[str, Callable[..., Any]] = {
        "solve": lambda **o: ns.linearize(linear()).solve(Part(X, Y), **o),
        "retrain_last_layer": lambda **o: ns.retrain_last_layer(linear(), Part(X, Y), **o),
        "kernel_regression": lambda **o: ns.infinite.kernel_regression(X @ X.T, Y, X @ X.T, **o),
    }
    for call in calls.values():
        with pytest.warns(DeprecationWarning, match="ridge= is now alpha="):
            call(ridge=0.5)
        with pytest.warns(DeprecationWarning, match="ridge="), pytest.raises(UsageError, match="got alpha=-1"):
            call(ridge=-1.0)
