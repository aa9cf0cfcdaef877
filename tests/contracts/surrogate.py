"""The suite every surrogate inherits: say how one is made, and these tests hold it to the contract.

    class TestKernelGLM(ClassifierContract):
        def make(self, **options):
            return KernelGLM(**options)

`ClassifierContract` is for estimators with classes, `RegressorContract` for those with float targets; both include
`SurrogateContract`. `not_for_kernels` names the checks of scikit-learn that fail, each with its reason.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from ntkscope.core import NtkscopeError, UsageError
from ntkscope.linalg import DenseGram, FactoredGram, OperatorGram, as_gram

N, TEST, CLASSES = 48, 17, 3


def blobs(n: int = N, classes: int = CLASSES, seed: int = 0, noise: float = 0.8) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, 4) around one centre a class, all classes present, and their classes."""
    random = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return random.normal(size=(classes, 4))[y] * 2 + noise * random.normal(size=(n, 4)), y


def radial(a: np.ndarray, b: np.ndarray, *, shared: float = 0.5) -> np.ndarray:
    """A kernel shaped as a normalised tangent kernel: ones on the diagonal, one large eigenvalue, then fast decay."""
    squares = ((a[:, None] - b[None]) ** 2).sum(-1)
    return shared + (1 - shared) * np.exp(-squares / 8)


def problem(classes: int = CLASSES, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training kernel, labels, test kernel."""
    x, y = blobs(N + TEST, classes, seed)
    return radial(x[:N], x[:N]), y[:N], radial(x[N:], x[:N])


class SurrogateContract:
    """Inherit one of the two suites below and name the `estimator`, or write `make`."""

    estimator: ClassVar[type]
    not_for_kernels: ClassVar[dict[str, str]] = {}
    tolerance: ClassVar[float] = 1e-6
    searched: ClassVar[Mapping[str, Any]] = {"alpha": 1e-2, "C": 0.5, "k": 3, "tol": 1e-6}  # of these, what it has

    def make(self, **options: Any) -> Any:
        return self.estimator(**options)

    def targets(self, y: np.ndarray) -> np.ndarray:
        return y

    def test_scikit_learns_own_checks(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = check_estimator(self.make(), on_fail=None, on_skip=None)
        failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
        unexpected = {name: error for name, error in failed.items() if name not in self.not_for_kernels}
        assert not unexpected, "\n".join(f"{name}: {error!r}" for name, error in unexpected.items())
        assert set(self.not_for_kernels) <= set(failed), "a check declared to fail passes: take it off the list"
        assert sum(r["status"] == "passed" for r in results) > 30

    @pytest.mark.parametrize("kind", ["tensor", "dense", "factored", "operator", "list"])
    def test_every_kind_of_kernel_gives_one_answer(self, kind: str) -> None:
        x, y = blobs()
        K, K_test, y = x @ x.T, x[:TEST] @ x.T, self.targets(y)
        left = torch.from_numpy(x)
        square = torch.from_numpy(K)
        made = {
            "tensor": (square, torch.from_numpy(K_test)),
            "dense": (as_gram(K), as_gram(K_test, symmetric=False)),
            "factored": (FactoredGram(left), FactoredGram(left[:TEST], left)),
            "operator": (
                OperatorGram(K.shape, lambda v: square @ v, dtype=torch.float64, symmetric=True),
                OperatorGram(K_test.shape, lambda v: square[:TEST] @ v, dtype=torch.float64),
            ),
            "list": (K.tolist(), K_test.tolist()),
        }[kind]
        expected = self.quiet_fit(K, y).logits(K_test)
        found = self.quiet_fit(made[0], y).logits(made[1])
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=0, atol=self.tolerance * (1 + np.abs(expected).max()))

    def test_single_precision_kernels_are_taken_as_they_are(self) -> None:
        K, y, K_test = problem()
        y = self.targets(y)
        wide = self.quiet_fit(K, y).logits(K_test)
        narrow = self.quiet_fit(K.astype(np.float32), y).logits(K_test.astype(np.float32))
        assert narrow.dtype == np.float64
        assert np.corrcoef(wide.ravel(), narrow.ravel())[0, 1] > 0.999  # float32 entries of an ill-conditioned matrix

    def test_scores_are_linear_in_the_kernel_where_coefficients_are_promised(self) -> None:
        K, y, K_test = problem()
        fitted = self.quiet_fit(K, self.targets(y))
        if not hasattr(fitted, "coef_"):
            pytest.skip("not linear in the kernel")
        scores = fitted.logits(K_test)
        assert fitted.coef_.shape == (scores.shape[1], N)
        assert fitted.intercept_.shape == (scores.shape[1],)
        assert fitted.coef_.dtype == np.float64
        np.testing.assert_allclose(K_test @ fitted.coef_.T + fitted.intercept_, scores, rtol=1e-12, atol=1e-12)

    def test_clone_pickle_and_parameters(self) -> None:
        K, y, K_test = problem()
        estimator = self.make()
        copy = clone(estimator).set_params(**estimator.get_params())
        assert copy.get_params() == estimator.get_params()
        fitted = self.quiet_fit(K, self.targets(y), copy)
        again = pickle.loads(pickle.dumps(fitted))  # noqa: S301
        assert np.array_equal(again.logits(K_test), fitted.logits(K_test))

    def test_pipeline_and_cross_validation(self) -> None:
        K, y, _ = problem()
        y = self.targets(y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert make_pipeline(FunctionTransformer(), self.make()).fit(K, y).predict(K).shape[0] == N
            scores = cross_val_score(self.make(), K, y, cv=3, error_score="raise")
            searched = {name: [value] for name, value in self.searched.items() if name in self.make().get_params()}
            assert searched, f"set `searched`: none of {', '.join(self.searched)} is a parameter"
            search = GridSearchCV(self.make(), searched, cv=3, error_score="raise").fit(K, y)
        assert np.isfinite(scores).all()
        assert search.predict(K).shape[0] == N

    # -- bad input --------------------------------------------------------------------------------------------------

    def refuses(self, K: Any, y: Any, *words: str) -> None:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            self.make().fit(K, y)
        assert isinstance(caught.value, NtkscopeError)
        for word in ("got", *words):
            assert word in str(caught.value)

    def test_refuses_labels_that_do_not_match_the_rows(self) -> None:
        K, y, _ = problem()
        self.refuses(K, self.targets(y)[:-1], "48", "expected")
        self.refuses(K[:2, :2], self.targets(y), "2 rows")  # fewer rows than classes

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_refuses_kernels_that_are_not_finite(self, value: float) -> None:
        K, y, _ = problem()
        K[3, 4] = K[4, 3] = value
        for bad in (K, torch.from_numpy(K), DenseGram(torch.from_numpy(K), symmetric=True)):
            with pytest.raises(ValueError, match="NaN") as caught:
                self.make().fit(bad, self.targets(y))
            assert isinstance(caught.value, NtkscopeError)

    def test_refuses_kernels_that_are_not_square_and_symmetric(self) -> None:
        K, y, K_test = problem()
        self.refuses(K_test, self.targets(y)[:TEST], "square")
        K[0, 1] += 0.1
        with pytest.raises(ValueError, match="not symmetric"):
            self.make().fit(K, self.targets(y))

    def test_refuses_test_kernels_with_other_columns(self) -> None:
        K, y, K_test = problem()
        fitted = self.quiet_fit(K, self.targets(y))
        for bad in (K_test[:, :-1], torch.from_numpy(K_test[:, :-1]), as_gram(K_test[:, :-1])):
            with pytest.raises(UsageError, match=f"fitted on {N} training points; expected"):
                fitted.predict(bad)

    def test_singular_kernels_have_an_answer(self) -> None:
        x, y = blobs()
        x[1] = x[0]
        K = x @ x.T  # rank 4, and a row twice
        fitted = self.quiet_fit(K, self.targets(y))
        assert np.isfinite(fitted.logits(K)).all()

    def quiet_fit(self, K: Any, y: Any, estimator: BaseEstimator | None = None) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return (self.make() if estimator is None else estimator).fit(K, y)


class ClassifierContract(SurrogateContract):
    """For estimators with classes."""

    accuracy: ClassVar[float] = 0.8

    def test_is_a_classifier_that_learns(self) -> None:
        K, y, K_test = problem()
        fitted = self.quiet_fit(K, y)
        assert is_classifier(fitted)
        _, labels = blobs(N + TEST)
        assert fitted.score(K_test, labels[N:]) >= self.accuracy  # chance is 1/3

    @pytest.mark.parametrize("classes", [2, 3, 5])
    def test_shapes(self, classes: int) -> None:
        K, y, K_test = problem(classes)
        fitted = self.quiet_fit(K, y)
        logits, probabilities, decision = (
            f(K_test) for f in (fitted.logits, fitted.predict_proba, fitted.decision_function)
        )
        assert logits.shape == probabilities.shape == (TEST, classes)
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
        np.testing.assert_allclose(
            np.log(probabilities) - np.log(probabilities[:, :1]), logits - logits[:, :1], atol=1e-6
        )
        expected = logits[:, 1] - logits[:, 0] if classes == 2 else logits
        np.testing.assert_array_equal(decision, expected)

    def test_labels_may_be_anything(self) -> None:
        K, y, K_test = problem()
        names = np.array(["zebra", "ant", "mole"])
        order = np.argsort(np.argsort(names))
        by_name, by_number = self.quiet_fit(K, names[y]), self.quiet_fit(K, order[y])
        assert by_name.classes_.tolist() == sorted(names)
        assert by_name.predict(K_test).tolist() == np.sort(names)[by_number.predict(K_test)].tolist()
        assert self.quiet_fit(K, torch.from_numpy(y)).classes_.tolist() == [0, 1, 2]

    def test_refuses_a_single_class(self) -> None:
        K, y, _ = problem()
        with pytest.raises(ValueError, match="at least two classes") as caught:
            self.make().fit(K, np.zeros_like(y))
        assert isinstance(caught.value, NtkscopeError)


class RegressorContract(SurrogateContract):
    """For estimators with float targets, of one output or several."""

    def targets(self, y: np.ndarray) -> np.ndarray:
        return y.astype(np.float64)

    def test_several_outputs_are_each_its_own_regression(self) -> None:
        K, y, K_test = problem()
        both = np.stack([y, np.sin(np.arange(N))], axis=1)
        together = self.quiet_fit(K, both)
        assert together.predict(K_test).shape == (TEST, 2)
        for k in range(2):
            alone = self.quiet_fit(K, both[:, k])
            assert alone.predict(K_test).shape == (TEST,)
            assert alone.logits(K_test).shape == (TEST, 1)
            np.testing.assert_allclose(together.predict(K_test)[:, k], alone.predict(K_test), rtol=1e-6, atol=1e-6)
