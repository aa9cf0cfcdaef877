"""The nearest class centre in kernel form: against scikit-learn on features, an affine rule, and refits without a point."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import NearestCentroid

from ntkscope.surrogates import NearestClassCentre


def problem(seed: int, n: int = 40, width: int = 6, classes: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return random.normal(size=(n, width)) + random.normal(size=(classes, width))[y], y, random.normal(size=(500, width))


@pytest.mark.parametrize("seed", range(5))
def test_predictions_are_those_of_nearest_centroid_on_the_features(seed: int) -> None:
    x, y, new = problem(seed)
    fitted = NearestClassCentre(variance=0.3).fit(x @ x.T, y)
    assert (fitted.predict(new @ x.T) == NearestCentroid().fit(x, y).predict(new)).all()


def test_the_rule_is_affine() -> None:
    """Claim probes-ncc-is-affine: `argmin ‖x - μ_c‖²` is `argmax μ_c·x - ‖μ_c‖²/2`."""
    x, y, new = problem(7)
    centres = np.stack([x[y == c].mean(0) for c in range(4)])
    distances = ((new[:, None] - centres) ** 2).sum(-1)
    scores = new @ centres.T - (centres**2).sum(1) / 2
    assert (distances.argmin(1) == scores.argmax(1)).all()
    np.testing.assert_allclose(NearestClassCentre().fit(x @ x.T, y).logits(new @ x.T), scores, atol=1e-12)
