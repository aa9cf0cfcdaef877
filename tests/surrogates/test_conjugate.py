"""Least squares on the conjugate kernel's features, weighted minimum norm, and the difference of two outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import ntkscope as ns
from ntkscope.core import Part, UsageError
from ntkscope.linalg import FactoredGram, as_gram
from ntkscope.surrogates import ConjugateLeastSquares, MinimumNorm
from ntkscope_papers.qadeer_2023.grids import target_function


@pytest.fixture
def network() -> nn.Module:
    return ns.models.mlp(1, 1, widths=(16, 16), activation="tanh", seed=0).double().eval()


@pytest.fixture
def split() -> ns.Split:
    return target_function("f2", intervals=40, dtype="float64")


def features(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Eq. 28 by autograd: the derivatives of the output by the last layer's weights and bias."""
    last = list(network.parameters())[-2:]
    rows = [torch.autograd.grad(network(row[None])[0, 0], last) for row in x]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def test_the_kernel_of_a_network_holds_the_features(network: nn.Module, split: ns.Split) -> None:
    """On `ns.kernel("ck")`, train and test, as on autograd's own Jacobian of the last layer, by NumPy's lstsq."""
    x, y, weights = split.train.x, split.train.y, split.train.extras["weights"]
    K, K_test = ns.kernel("ck", network, x), ns.kernel("ck", network, split.test.x, x)
    fitted = ConjugateLeastSquares().fit(K, y, weights)
    roots = weights.sqrt()[:, None].numpy()
    phi = features(network, x).numpy()
    gamma = np.linalg.lstsq(roots * phi, roots[:, 0] * y.numpy(), rcond=fitted.cutoff_)[0]
    expected = features(network, split.test.x).numpy() @ gamma
    np.testing.assert_allclose(fitted.predict(K_test), expected, rtol=1e-6, atol=1e-6)
    on_features = ConjugateLeastSquares().fit(phi, y, weights)
    np.testing.assert_allclose(
        on_features.predict(features(network, split.test.x).numpy()), expected, rtol=1e-6, atol=1e-6
    )
    assert fitted.rank_ <= 17
    assert fitted.singular_values_.shape == (17,)
    assert fitted.residual_ < 1e-3


def test_features_keep_digits_that_the_gram_has_lost(network: nn.Module, split: ns.Split) -> None:
    """Condition numbers beyond 1e8: the Gram's machine stops at its rounding, that of the features does not."""
    x, y, weights = split.train.x, split.train.y, split.train.extras["weights"]
    K = ns.kernel("ck", network, x)
    by_features = ConjugateLeastSquares().fit(K, y, weights).predict(K)
    by_gram = MinimumNorm().fit(K, y, weights).predict(K)
    error = [float(((values - y.numpy()) ** 2 * weights.numpy()).sum()) for values in (by_features, by_gram)]
    assert error[0] < error[1] / 10


def test_well_conditioned_features_give_the_kernel_machine() -> None:
    """Eq. 17 to 21: the same function, also where features outnumber points; ridge as in KernelRidge."""
    random = np.random.default_rng(0)
    for width in (5, 30):
        phi, test, y = random.normal(size=(12, width)), random.normal(size=(7, width)), random.normal(size=(12, 2))
        weights = random.random(12) + 0.1
        gram = MinimumNorm().fit(phi @ phi.T, y, weights)
        own = ConjugateLeastSquares().fit(phi, y, weights)
        np.testing.assert_allclose(own.predict(test), gram.predict(test @ phi.T), rtol=1e-8, atol=1e-8)
        ridge = ns.surrogates.KernelRidge(0.3).fit(phi @ phi.T, y, weights)
        own = ConjugateLeastSquares(0.3).fit(phi, y, weights)
        np.testing.assert_allclose(own.predict(test), ridge.predict(test @ phi.T), rtol=1e-8, atol=1e-8)


def test_weighted_minimum_norm_is_equation_14() -> None:
    random = np.random.default_rng(1)
    phi, y = random.normal(size=(10, 4)), random.normal(size=10)  # singular: the weights matter
    weights = random.random(10)
    weights[3] = 0
    K, roots = phi @ phi.T, np.diag(np.sqrt(weights))
    fitted = MinimumNorm(tol=1e-10).fit(K, y, weights)
    expected = y @ roots @ np.linalg.pinv(roots @ K @ roots, rcond=1e-10, hermitian=True) @ roots
    np.testing.assert_allclose(fitted.coef_[0], expected, rtol=1e-8, atol=1e-8)
    assert (fitted.rank_, fitted.cutoff_, fitted.coef_[0, 3]) == (4, 1e-10, 0)
    best = np.linalg.lstsq(roots @ phi, roots @ y, rcond=None)[0]  # Eq. 17
    np.testing.assert_allclose(fitted.predict(K), phi @ best, rtol=1e-8, atol=1e-8)
    unweighted = MinimumNorm(tol=1e-10).fit(K, y)
    assert np.abs(unweighted.coef_ - fitted.coef_).max() > 1e-3  # canary
    np.testing.assert_allclose(unweighted.coef_, MinimumNorm(tol=1e-10).fit(K, y, np.full(10, 2.0)).coef_, atol=1e-9)
    single = MinimumNorm().fit(as_gram(K.astype(np.float32)), y, weights)
    assert single.cutoff_ == pytest.approx(10 * torch.finfo(torch.float32).eps)


def test_a_kernel_machine_or_an_attribution_of_it_is_refused() -> None:
    """Its weights belong to features, not to training points."""
    fitted = ConjugateLeastSquares().fit(FactoredGram(torch.eye(3).double()), [1.0, 2.0, 3.0])
    with pytest.raises(UsageError, match="without coef_"):
        ns.explain.attribute(fitted, torch.eye(3).double())


class TestContrast:
    def test_its_logistic_function_is_the_softmax(self) -> None:
        """Eq. 10, and remark 3.1: the conjugate kernel of the difference is that of one output."""
        model = ns.models.mlp(2, 2, widths=(8,), seed=1).double().eval()
        x = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        difference = ns.models.contrast(model, 0, 1)
        with torch.no_grad():
            assert_close(torch.sigmoid(difference(x))[:, 0], model(x).softmax(1)[:, 0], rtol=1e-12, atol=1e-12)
        assert_close(ns.kernel("ck", difference, x).dense(), ns.kernel("ck", model, x).dense())
        assert next(difference.parameters()) is next(model.parameters())
        assert ns.kernel("trntk0", difference, x).shape == (6, 6)
        assert not difference.training

    def test_the_readout_of_a_difference_can_be_solved(self) -> None:
        model = ns.models.mlp(2, 2, widths=(8,), seed=1).double().eval()
        x = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        part = Part(x, x[:, :1].sin())
        made = ns.retrain_last_layer(ns.models.contrast(model), part)
        K = ns.kernel("ck", model, x)
        assert isinstance(K, FactoredGram)
        phi = K.left
        with torch.no_grad():
            best = phi @ torch.linalg.lstsq(phi, part.y, driver="gelsd").solution
            assert_close(made(x), best, rtol=1e-6, atol=1e-6)

    def test_wrong_outputs(self) -> None:
        with pytest.raises(UsageError, match="got outputs 1 and 1; expected two different ones"):
            ns.models.contrast(nn.Linear(2, 2), 1, 1)
        with pytest.raises(UsageError, match=r"expected \(n, c\) with c > 5"):
            ns.models.contrast(nn.Linear(2, 2), 0, 5)(torch.ones(1, 2))
