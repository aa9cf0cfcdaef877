"""Functions checked by their annotations stay the functions they were."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

import ntkscope as ns
from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg.spectra.spectrum import effective_rank

BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (ns.linalg.effective_rank, {"A": torch.eye(3), "of": "no such"}, UsageError, "one of 'kernel', 'features'"),
    (ns.linalg.top_eigenpairs, {"K": torch.eye(3), "k": 1, "seed": "x"}, UsageError, "got seed='x'"),
    (ns.linalg.top_eigenpairs, {"K": torch.eye(3), "k": True}, UsageError, "got k=True"),
    (ns.linalg.jacobi, {"K": ns.linalg.as_gram(torch.eye(3)), "ridge": -1.0}, UsageError, "got ridge=-1.0"),
    (ns.linalg.psd_health, {"K": np.full((2, 2), 1e200)}, NumericalError, "rescale"),
    (ns.linalg.cholesky_solve, {"K": np.full((2, 2), 1.7e308), "Y": [1.0, 1.0]}, NumericalError, "rescale"),
    (ns.linalg.entropy_rank, {"values": torch.tensor([1.0, torch.inf])}, NumericalError, "first at"),
    (ns.linalg.nearest_psd, {"K": torch.ones(3)}, UsageError, "2 axes"),
    (ns.linalg.spiked.spike_threshold, {"shape": (3, 4, 5)}, UsageError, "2 values"),
    (ns.measures.change.relative_change, {"K0": np.eye(3), "K1": np.eye(3), "centred": "no"}, UsageError, "True or"),
    (ns.infinite.Dense, {"W_std": float("nan")}, UsageError, "got W_std=nan"),
    (ns.training.Every, {"count": 2.5}, UsageError, "got count=2.5"),
    (ns.models.build, {"name": "mlp", "in_features": 2, "widths": "x"}, UsageError, "a whole number ≥ 1 or a list"),
    (ns.models.build, {"name": "mlp", "in_features": 2, "widths": (3, 0)}, UsageError, r"got widths\[1\]=0"),
    (ns.models.build, {"name": "small_cnn", "hidden": 3}, UsageError, "got hidden=3; expected a list"),
    (ns.models.read_weights, {"path": b"x"}, UsageError, "expected a path"),
    (ns.data.one_vs_rest, {"data": 3, "positive": 0}, UsageError, "expected a Part or a Split"),
]


@pytest.mark.wrong_type
@pytest.mark.parametrize(("function", "arguments", "error", "words"), BAD)
def test_what_an_annotation_excludes_is_refused(function: Any, arguments: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        function(**arguments)


def test_one_function_wherever_it_is_imported_from() -> None:
    assert effective_rank is ns.linalg.effective_rank
    assert pickle.loads(pickle.dumps(effective_rank)) is effective_rank  # noqa: S301
    assert ns.measures.MEASURES["pearson"].func is ns.measures.prediction.pearson
    assert list(inspect.signature(effective_rank).parameters) == ["A", "of"]
    assert ">>>" in (effective_rank.__doc__ or "")


def test_what_means_something_is_taken() -> None:
    """Infinity where a limit says so, arrays as lists, whole floats as counts, numbers of NumPy."""
    widths = [
        ns.models.build("mlp", in_features=2, widths=w).layer1.out_features for w in (np.array([4]), [4.0], np.int64(4))
    ]
    assert widths == [4, 4, 4]


def test_an_estimator_is_checked_when_it_is_fitted() -> None:
    """As scikit-learn has it: made and cloned with anything, the parameters as they were given."""
    ridge = clone(ns.surrogates.KernelRidge(alpha="x", rank=2.5))
    assert ridge.get_params()["alpha"] == "x"
    with pytest.raises(UsageError, match="got alpha='x'"):
        ridge.fit(np.eye(3), np.arange(3.0))
    with pytest.raises(UsageError, match=r"got rank=2.5"):
        ridge.set_params(alpha=1.0).fit(np.eye(3), np.arange(3.0))
    given = np.float64(0.5)
    fitted = ridge.set_params(alpha=given, rank=2).fit(np.eye(3), np.arange(3.0))
    assert fitted.alpha is given


def test_numbers_are_those_of_the_function_itself() -> None:
    A = np.random.default_rng(0).normal(size=(9, 5))
    itself = inspect.unwrap(effective_rank)
    assert effective_rank(A) == itself(A) == effective_rank(A.tolist())
