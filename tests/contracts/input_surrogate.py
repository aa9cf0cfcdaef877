"""The suite of surrogates that are fitted on inputs and make their own kernel: say how one is made.

    class TestRecursiveFeatureMachine(InputRegressorContract):
        def make(self, **options):
            return RecursiveFeatureMachine(**options)

scikit-learn's own checks all hold; kinds of inputs, copies, pipelines and grid search, bad input.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from contracts.surrogate import TEST, N, blobs
from ntkscope.core import NtkscopeError, UsageError


class InputSurrogateContract:
    """Inherit one of the two suites below and name the `estimator`, or write `make`."""

    estimator: ClassVar[type]
    searched: ClassVar[Mapping[str, Any]]  # parameters and values for a grid search
    quick: ClassVar[Mapping[str, Any]] = {}  # options with which a fit is quick

    def make(self, **options: Any) -> Any:
        return self.estimator(**options)

    def targets(self, y: np.ndarray) -> np.ndarray:
        return y

    def problem(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, y = blobs(N + TEST)
        return x[:N], self.targets(y)[:N], x[N:]

    @pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.guard)])
    def test_scikit_learns_own_checks(self, quick: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = check_estimator(self.make(**(self.quick if quick else {})), on_fail=None, on_skip=None)
        failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
        assert not failed, "\n".join(f"{name}: {error!r}" for name, error in failed.items())
        assert sum(r["status"] == "passed" for r in results) > 30

    @pytest.mark.parametrize("kind", ["tensor", "single", "list", "view"])
    def test_every_kind_of_input_gives_one_answer(self, kind: str) -> None:
        x, y, x_test = self.problem()
        x, x_test = x.astype(np.float32).astype(np.float64), x_test.astype(np.float32).astype(np.float64)
        change = {
            "tensor": torch.from_numpy,
            "single": lambda a: a.astype(np.float32),
            "list": lambda a: a.tolist(),
            "view": lambda a: torch.from_numpy(np.asfortranarray(a)).requires_grad_(),
        }[kind]
        expected = self.make().fit(x, y).logits(x_test)
        found = self.make().fit(change(x), y).logits(change(x_test))
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)

    def test_clone_pickle_and_parameters(self) -> None:
        x, y, x_test = self.problem()
        estimator = self.make()
        copy = clone(estimator).set_params(**estimator.get_params())
        assert copy.get_params() == estimator.get_params()
        fitted = copy.fit(x, y)
        again = pickle.loads(pickle.dumps(fitted))  # noqa: S301
        assert np.array_equal(again.logits(x_test), fitted.logits(x_test))

    def test_pipeline_and_cross_validation(self) -> None:
        x, y, _ = self.problem()
        make = partial(self.make, **self.quick)
        assert make_pipeline(StandardScaler(), make()).fit(x, y).predict(x).shape[0] == N
        assert np.isfinite(cross_val_score(make(), x, y, cv=3, error_score="raise")).all()
        searched = {name: [value] for name, value in self.searched.items()}
        search = GridSearchCV(make(), searched, cv=3, error_score="raise").fit(x, y)
        assert search.predict(x).shape[0] == N

    # -- bad input --------------------------------------------------------------------------------------------------

    def refuses(self, x: Any, y: Any, *words: str) -> None:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            self.make().fit(x, y)
        assert isinstance(caught.value, NtkscopeError)
        for word in ("got", "expected", *words):
            assert word in str(caught.value)

    def test_refuses_targets_that_do_not_match_the_rows(self) -> None:
        x, y, _ = self.problem()
        self.refuses(x, y[:-1], "48")
        self.refuses(x[:2], y, "2 rows")

    def test_refuses_tensors_that_are_no_finite_matrix(self) -> None:
        x, y, _ = self.problem()
        images = torch.from_numpy(x).reshape(N, 2, 2)
        self.refuses(images, y, "flatten")
        bad = torch.from_numpy(x.copy())
        bad[3, 1] = torch.nan
        self.refuses(bad, y, "NaN", "the first at (3, 1)")

    def test_refuses_test_inputs_with_other_features(self) -> None:
        x, y, x_test = self.problem()
        fitted = self.make().fit(x, y)
        with pytest.raises(UsageError, match="got inputs with 3 features"):
            fitted.predict(torch.from_numpy(x_test[:, :3]))
        with pytest.raises(ValueError, match="3 features"):
            fitted.predict(x_test[:, :3])

    def test_refuses_a_single_point(self) -> None:
        x, y, _ = self.problem()
        with pytest.raises(ValueError, match="expected at least"):
            self.make().fit(x[:1], y[:1])


class InputClassifierContract(InputSurrogateContract):
    """For estimators with classes."""

    def test_is_a_classifier_that_learns(self) -> None:
        x, y, x_test = self.problem()
        fitted = self.make().fit(x, y)
        assert is_classifier(fitted)
        assert fitted.score(x_test, blobs(N + TEST)[1][N:]) >= 0.8  # chance is 1/3

    def test_labels_may_be_anything(self) -> None:
        x, y, x_test = self.problem()
        names = np.array(["zebra", "ant", "mole"])
        by_name = self.make().fit(x, names[y])
        assert by_name.classes_.tolist() == sorted(names)
        by_number = self.make().fit(torch.from_numpy(x), torch.from_numpy(np.argsort(np.argsort(names))[y]))
        assert by_name.predict(x_test).tolist() == np.sort(names)[by_number.predict(x_test)].tolist()

    def test_refuses_a_single_class(self) -> None:
        x, y, _ = self.problem()
        self.refuses(x, np.zeros_like(y), "at least two classes")


class InputRegressorContract(InputSurrogateContract):
    """For estimators with float targets, of one output or several."""

    def targets(self, y: np.ndarray) -> np.ndarray:
        return y.astype(np.float64)

    def test_is_a_regressor_that_learns(self) -> None:
        x, y, x_test = self.problem()
        fitted = self.make().fit(x, y)
        assert is_regressor(fitted)
        assert fitted.score(x_test, self.targets(blobs(N + TEST)[1])[N:]) > 0.5

    def test_shapes_follow_the_targets(self) -> None:
        x, y, x_test = self.problem()
        assert self.make().fit(x, y).predict(x_test).shape == (TEST,)
        assert self.make().fit(x, np.stack([y, y], 1)).predict(x_test).shape == (TEST, 2)

    def test_class_names_are_no_targets(self) -> None:
        x, y, _ = self.problem()
        self.refuses(x, np.array(["a", "b", "c"])[y.astype(int)], "numbers")
