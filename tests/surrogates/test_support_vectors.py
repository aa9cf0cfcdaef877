"""Both solvers of KernelSVM and KernelSVR against scikit-learn's four machines and against plain objectives."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import NumericalWarning, OperatorGram, as_gram
from ntkscope.surrogates import KernelSVM, KernelSVR
from ntkscope.surrogates.solvers.margin_newton import Formed, Products
from ntkscope.surrogates.solvers.margins import Margins, classes_apart, tube
from ntkscope.surrogates.support_vectors import fit_margins

LOSSES = {
    "hinge": lambda r, _: np.maximum(0, r),  # of the shortfall 1 - y f
    "squared_hinge": lambda r, _: np.maximum(0, r) ** 2,
    "epsilon_insensitive": lambda r, e: np.maximum(0, np.abs(r) - e),
    "squared_epsilon_insensitive": lambda r, e: np.maximum(0, np.abs(r) - e) ** 2,
}


def features(n: int, p: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, signs with some noise, and targets."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, p))
    score = np.sin(2 * x[:, 0]) + 0.5 * random.normal(size=n)
    return x, np.where(score > np.median(score), 1, -1), score


def objective(model: Any, K: np.ndarray, y: np.ndarray, weights: np.ndarray | float = 1.0) -> float:
    """As the docstrings have it, of a machine with one function; written out."""
    coef, b = model.coef_, model.intercept_
    coef, b = (coef[1] - coef[0], b[1] - b[0]) if len(coef) == 2 else (coef[0], b[0])
    scores = K @ coef + b
    r = 1 - y * scores if "hinge" in model.loss else y - scores
    norm = coef @ K @ coef + (b**2 if model.intercept == "penalised" else 0.0)
    losses = LOSSES[model.loss](r, getattr(model, "epsilon", 0.0))
    return float(norm / 2 + model.C * (weights * losses).sum())


def linear_objective(w: np.ndarray, b: float, x: np.ndarray, y: np.ndarray, C: float, loss: str, e: float) -> float:
    r = 1 - y * (x @ w + b) if "hinge" in loss else y - (x @ w + b)
    return float((w @ w + b**2) / 2 + C * LOSSES[loss](r, e).sum())


@pytest.mark.parametrize("C", [1e-3, 1.0, 1e3])
def test_squared_hinge_with_a_penalised_intercept_is_linear_svc(C: float) -> None:
    x, y, _ = features(90, 12)
    K = x @ x.T
    found = KernelSVM(C, loss="squared_hinge", intercept="penalised", tol=1e-9).fit(K, y)
    peer = LinearSVC(C=C, dual=False, tol=1e-12, max_iter=100_000).fit(x, y)
    theirs = linear_objective(peer.coef_[0], float(peer.intercept_[0]), x, y, C, found.loss, 0.0)
    assert found.converged_
    assert found.solver_ == "newton"
    assert objective(found, K, y) == pytest.approx(theirs, rel=1e-8)
    assert found.objective_[0] == pytest.approx(theirs, rel=1e-8)
    np.testing.assert_allclose(found.decision_function(K), peer.decision_function(x), atol=1e-4)


@pytest.mark.parametrize("loss", ["epsilon_insensitive", "squared_epsilon_insensitive"])
def test_regression_with_a_penalised_intercept_is_linear_svr(loss: str) -> None:
    x, _, y = features(60, 5)
    K = x @ x.T
    found = KernelSVR(0.5, epsilon=0.2, loss=loss, intercept="penalised", tol=1e-9).fit(K, y)
    peer = LinearSVR(C=0.5, epsilon=0.2, loss=loss, dual=True, tol=1e-10, max_iter=1_000_000).fit(x, y)
    theirs = linear_objective(peer.coef_, float(peer.intercept_[0]), x, y, 0.5, loss, 0.2)
    assert found.converged_
    assert objective(found, K, y) == pytest.approx(theirs, rel=1e-7)
    np.testing.assert_allclose(found.predict(K), peer.predict(x), atol=1e-3)


def radial(x: np.ndarray, width: float = 2.0) -> np.ndarray:
    return np.exp(-np.square(x[:, None] - x).sum(-1) / width)


@pytest.mark.parametrize("C", [0.03, 1.0, 100.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_newton_finds_what_svc_and_svr_find(C: float, weighted: bool) -> None:
    x, y, targets = features(80, 3)
    K = radial(x)
    weights = np.random.default_rng(1).integers(0, 3, 80).astype(float) if weighted else np.ones(80)
    svm = KernelSVM(C, solver="newton", tol=1e-8).fit(K, y, weights)
    kept = np.flatnonzero(weights)  # libsvm misplaces the support vectors where a weight is 0
    svc = SVC(C=C, kernel="precomputed", tol=1e-9).fit(K[np.ix_(kept, kept)], y[kept], weights[kept])
    svr = KernelSVR(C, solver="newton", tol=1e-8).fit(K, targets, weights)
    peer = SVR(C=C, kernel="precomputed", tol=1e-9).fit(K[np.ix_(kept, kept)], targets[kept], weights[kept])
    for found, theirs, aims in ((svm, svc, y), (svr, peer, targets)):
        assert found.converged_
        assert found.n_iter_ <= 40
        coef = np.zeros(80)
        coef[kept[theirs.support_]] = theirs.dual_coef_[0]
        ours = found.coef_[-1] - (found.coef_[0] if found is svm else 0)
        np.testing.assert_allclose(K @ ours, K @ coef, atol=1e-3 * (1 + np.abs(K @ coef).max()))
        assert not found.coef_[:, weights == 0].any()
        assert len(found.support_) <= len(theirs.support_) + 2
        written = SimpleNamespace(
            coef_=coef[None], intercept_=theirs.intercept_, loss=found.loss, intercept="free", C=C, epsilon=0.1
        )
        assert objective(found, K, aims, weights) <= objective(written, K, aims, weights) * (1 + 1e-7)
    smo = KernelSVM(C, solver="smo").fit(K, y, weights)
    assert objective(smo, K, y, weights) == pytest.approx(svm.objective_[0], rel=2e-6)
    if C <= 1:  # SVR needs many steps beyond
        both = KernelSVR(C, solver="smo", tol=1e-7).fit(K, targets, weights)
        assert objective(both, K, targets, weights) == pytest.approx(svr.objective_[0], rel=2e-7)
        assert both.objective_[0] == pytest.approx(svr.objective_[0], rel=2e-7)


def test_the_smallest_machines_by_hand() -> None:
    """Two points of opposite sign, K = I: a = min(C, 1) each; squared, with either intercept: `a (1 + 1/2C) = 1`."""
    for C in (0.25, 4.0):
        found = KernelSVM(C, solver="newton", tol=1e-12).fit(np.eye(2), [0, 1])
        np.testing.assert_allclose(found.coef_[1] - found.coef_[0], [-min(C, 1), min(C, 1)], rtol=1e-9)
        assert found.objective_[0] == pytest.approx(min(C, 1) ** 2 + 2 * C * max(0, 1 - C), rel=1e-9)
        for intercept in ("free", "penalised"):
            squared = KernelSVM(C, loss="squared_hinge", intercept=intercept, tol=1e-12).fit(np.eye(2), [0, 1])
            a = 1 / (1 + 1 / (2 * C))
            np.testing.assert_allclose(squared.coef_[1] - squared.coef_[0], [-a, a], rtol=1e-9)


def test_products_find_what_the_formed_kernel_finds() -> None:
    x, y, targets = features(70, 3)
    K = radial(x)
    square = torch.from_numpy(K)
    products = OperatorGram(K.shape, lambda v: square @ v, dtype=torch.float64, symmetric=True)
    positive, most = torch.from_numpy(y > 0), torch.linspace(0.5, 3, 70, dtype=torch.float64)
    aims = torch.from_numpy(targets)
    for squared in (False, True):
        for bias in (False, True):
            for margins in (
                classes_apart(positive, most, squared=squared, bias=bias),
                tube(aims, most, 0.1, squared=squared, bias=bias),
            ):
                one = fit_margins(margins, Formed(as_gram(K), constant=not bias), 1e-7)
                other = fit_margins(margins, Products(products, constant=not bias), 1e-7)
                assert max(one.gap, other.gap) <= 1e-7
                assert other.value == pytest.approx(one.value, rel=2e-7)
                assert other.steps <= 2 * one.steps + 20


def naive_gap(margins: Margins, u: np.ndarray, K: np.ndarray, b: float) -> float:
    """Primal minus dual, each loss as the maximum over a fine grid of u."""
    targets, low, high, give = (v.numpy() for v in (margins.targets, margins.low, margins.high, margins.yields))
    r = targets - K @ u - b
    primal = u @ K @ u / 2
    for i in range(len(r)):
        grid = np.linspace(max(low[i], -50), min(high[i], 50), 20_001)
        primal += (grid * r[i] - margins.epsilon * np.abs(grid) - give[i] * grid**2 / 2).max()
    dual = targets @ u - margins.epsilon * np.abs(u).sum() - (give * u**2).sum() / 2 - u @ K @ u / 2
    return float(primal - dual)


@pytest.mark.parametrize("squared", [False, True])
def test_the_gap_is_primal_minus_dual(squared: bool) -> None:
    random = np.random.default_rng(3)
    x, y, targets = features(9, 2)
    K = radial(x)
    most = torch.from_numpy(random.uniform(0.5, 2, 9))
    for margins in (
        classes_apart(torch.from_numpy(y > 0), most, squared=squared, bias=False),
        tube(torch.from_numpy(targets), most, 0.1, squared=squared, bias=False),
    ):
        u = torch.from_numpy(random.normal(size=9)).clamp(margins.low, margins.high)
        _, _, gap = margins.gap(u, torch.from_numpy(K) @ u, 0.0)
        assert gap == pytest.approx(naive_gap(margins, u.numpy(), K, 0.0), abs=1e-3, rel=1e-4)


@pytest.mark.parametrize("squared", [False, True])
def test_the_best_intercept_is_the_best_of_many(squared: bool) -> None:
    _, y, targets = features(31, 2)
    most = torch.linspace(0.5, 3, 31, dtype=torch.float64)
    r = torch.from_numpy(np.random.default_rng(0).normal(size=31))
    for margins in (
        classes_apart(torch.from_numpy(y > 0), most, squared=squared, bias=True),
        tube(torch.from_numpy(targets), most, 0.3, squared=squared, bias=True),
    ):
        b = margins.best_intercept(r, 0.0)
        many = [float(margins.loss(r - c).sum()) for c in np.linspace(-4, 4, 4001)]
        assert float(margins.loss(r - b).sum()) <= min(many) * (1 + 1e-12)


@pytest.mark.parametrize("intercept", ["free", "penalised"])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_several_classes_and_stopping_early(loss: str, intercept: str) -> None:
    x, _, targets = features(60, 3)
    K, y = radial(x), np.digitize(targets, [-0.6, 0.6])
    found = KernelSVM(3.0, loss=loss, intercept=intercept, solver="newton").fit(K, y)
    assert found.coef_.shape == (3, 60)
    for c in range(3):
        alone = KernelSVM(3.0, loss=loss, intercept=intercept, solver="newton").fit(K, y == c)
        np.testing.assert_allclose(found.logits(K)[:, c], alone.decision_function(K), atol=1e-9)
    with pytest.warns(ConvergenceWarning, match="above its minimum"):
        short = KernelSVM(1e3, loss=loss, intercept=intercept, solver="newton", max_iter=1).fit(K, y == 0)
    best = KernelSVM(1e3, loss=loss, intercept=intercept, solver="newton", tol=1e-9).fit(K, y == 0).objective_[0]
    assert not short.converged_
    assert best * (1 - 1e-9) <= short.objective_[0]
    assert short.objective_[0] * (1 - short.gap_) <= best * (1 + 1e-9)


def test_negative_eigenvalues_are_lifted_and_said() -> None:
    x, y, _ = features(40, 3)
    K = radial(x)
    K -= (np.linalg.eigvalsh(K)[0] + 1e-4) * np.eye(40)
    with pytest.warns(NumericalWarning, match="negative eigenvalues"):
        found = KernelSVM(10.0, solver="newton").fit(K, y)
    assert found.jitter_ > 0
    assert np.linalg.eigvalsh(K)[0] + found.jitter_ > 0
    lifted = K + found.jitter_ * np.eye(40)
    coef = found.coef_[1] - found.coef_[0]
    shortfall = 1 - y * (lifted @ coef + found.intercept_[1] - found.intercept_[0])
    assert coef @ lifted @ coef / 2 + 10 * np.maximum(0, shortfall).sum() == pytest.approx(
        found.objective_[0], rel=1e-9
    )
    with pytest.raises(NumericalError, match="expected a positive semi-definite one"):
        KernelSVM(10.0, solver="newton").fit(radial(x) - np.eye(40), y)


@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("intercept", ["free", "penalised"])
def test_any_c_on_kernels_of_any_rank(loss: str, intercept: str) -> None:
    """The steps do not grow with C, nor where the kernel has three eigenvalues or classes are far apart."""
    x, y, targets = features(60, 3)
    make, aims = (KernelSVM, y) if "hinge" in loss else (KernelSVR, targets)
    for inputs in (x, x + 5 * y[:, None]):
        for C in (1e-8, 1e-3, 1.0, 1e3, 1e5):
            for K in (inputs @ inputs.T, radial(inputs)):
                found = make(C, loss=loss, intercept=intercept, solver="newton").fit(K, aims)
                assert found.converged_
                assert found.n_iter_ <= 60
                assert objective(found, K, aims) == pytest.approx(found.objective_[0], rel=1e-6)


def test_auto_goes_on_where_libsvm_stops() -> None:
    x, y, targets = features(60, 3)
    for make, aims in ((KernelSVM, y), (KernelSVR, targets)):
        found = make(1e4).fit(x @ x.T, aims)
        assert found.solver_ == "newton"
        assert found.converged_
        with pytest.warns(ConvergenceWarning, match="above its minimum"):
            short = make(1e4, solver="smo").fit(x @ x.T, aims)
        assert short.objective_[0] >= found.objective_[0]


def test_what_a_constant_fits_needs_no_support_vectors() -> None:
    x, _, _ = features(20, 3)
    for loss in ("epsilon_insensitive", "squared_epsilon_insensitive"):
        for solver in ("newton", "auto"):
            for epsilon in (0.0, 0.1):
                found = KernelSVR(1e4, epsilon=epsilon, loss=loss, solver=solver).fit(radial(x), np.full(20, 3.0))
                assert found.converged_
                np.testing.assert_allclose(found.predict(radial(x)), 3.0, atol=epsilon + 1e-9)
                assert not len(found.support_)


def test_large_c_is_as_good_as_its_gap_says() -> None:
    """Rounding of scores times C counts: what is written out is within the gap that was reported."""
    x, y, _ = features(60, 3)
    far = x + 9 * y[:, None]
    for loss, aims in zip(LOSSES, (y, y, x[:, 0], x[:, 0])):
        for intercept in ("free", "penalised"):
            make = KernelSVM if "hinge" in loss else KernelSVR
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                found = make(1e8, loss=loss, intercept=intercept, solver="newton").fit(far @ far.T, aims)
            value = objective(found, far @ far.T, aims)
            assert abs(value - found.objective_[0]) <= (found.gap_ + 1e-9) * value
            assert found.gap_ <= 1e-2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("intercept", ["free", "penalised"])
def test_cuda_finds_what_the_cpu_finds(loss: str, intercept: str) -> None:
    x, y, targets = features(300, 3)
    make, aims = (KernelSVM, y) if "hinge" in loss else (KernelSVR, targets)
    weights = np.random.default_rng(1).integers(0, 3, 300).astype(float)
    K = radial(x)
    here = make(10.0, loss=loss, intercept=intercept, solver="newton", tol=1e-9).fit(K, aims, weights)
    there = make(10.0, loss=loss, intercept=intercept, tol=1e-9).fit(torch.from_numpy(K).cuda(), aims, weights)
    assert there.solver_ == "newton"
    assert there.converged_
    np.testing.assert_allclose(there.objective_, here.objective_, rtol=1e-8)
    np.testing.assert_allclose(there.logits(torch.from_numpy(K).cuda()), here.logits(K), atol=1e-4)


def test_wrong_options_are_refused() -> None:
    K, y = np.eye(4), [0, 1, 0, 1]
    for steps in (2.5, None):
        with pytest.raises(UsageError, match=r"got max_iter=.*; expected a number of steps"):
            KernelSVM(max_iter=steps).fit(K, y)
    for weights in ([1e-40, 1, 1, 1], [1e300, 1, 1, 1]):
        with pytest.raises(UsageError, match="got C times sample_weight"):
            KernelSVM(loss="squared_hinge").fit(K, y, weights)
    for unmet in ({"loss": "squared_hinge"}, {"intercept": "penalised"}):
        with pytest.raises(UsageError, match="all that libsvm has: use solver='newton'"):
            KernelSVM(solver="smo", **unmet).fit(K, y)


@pytest.mark.guard
@pytest.mark.parametrize("seed", range(60))
def test_odd_problems_are_right_or_said(seed: int) -> None:
    """Scales, ranks, repeated rows, rounding, rare classes, separable labels, any C: the gap is a bound, or a warning came."""
    random = np.random.default_rng(seed)
    n, p = int(random.integers(4, 40)), int(random.choice([1, 2, 5, 60]))
    x = random.normal(size=(n, p))
    if random.random() < 0.3:
        x[n // 2 :] = x[: n - n // 2]
    y = np.r_[-1, 1, np.where(random.random(n - 2) < random.choice([0.1, 0.5]), 1, -1)]
    if random.random() < 0.3:
        x = x + 5 * y[:, None]
    scale, C = 10.0 ** random.uniform(-6, 6), 10.0 ** random.uniform(-6, 5)
    K = scale * (x @ x.T if random.random() < 0.5 else radial(x))
    targets = x[:, 0] * random.choice([1e-3, 1.0, 1e3]) + random.normal(size=n)
    for intercept in ("free", "penalised"):
        for model, aims in (
            (KernelSVM(C, intercept=intercept, solver="newton"), y),
            (KernelSVM(C, intercept=intercept, loss="squared_hinge"), y),
            (KernelSVR(C, intercept=intercept, solver="newton"), targets),
            (KernelSVR(C, intercept=intercept, loss="squared_epsilon_insensitive"), targets),
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model.fit(K, aims)
            said = any(issubclass(w.category, ConvergenceWarning | NumericalWarning) for w in caught)
            assert model.converged_ or said
            lifted = K + model.jitter_ * np.eye(n)
            value = objective(model, lifted, aims)
            assert value == pytest.approx(model.objective_[0], rel=1e-6)
            if intercept == "free" and "squared" not in model.loss and model.converged_ and C * scale < 1e5:
                peer = type(model)(C, solver="smo", max_iter=200_000)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    peer.fit(K, aims)
                assert value <= objective(peer, K, aims) * (1 + 2e-6)
