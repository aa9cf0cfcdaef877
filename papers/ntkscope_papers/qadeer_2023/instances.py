"""Random instances of nested projections whose residuals are monotone between training nodes: what Theorem 4.1 asks for."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.core import numpy_generator
from ntkscope.measures.regression_bounds import regression_bounds

TAU, CELLS, WIDE, NARROW = 3, 6, 3, 2


def monotone_instances(count: int, seed: int) -> dict[str, Any]:
    """Polynomials of degree 1 and 2 fitted to random targets: how many have monotone residuals, how tight the theorem is.

    The projections are exact to rounding (least squares on orthonormal columns), β is far below 1.
    """
    random = numpy_generator(seed, "monotone instances")
    x = np.linspace(-1, 1, TAU * CELLS + 1)
    roots = np.sqrt(np.where(np.arange(CELLS + 1) % CELLS == 0, 0.5, 1.0))
    powers = x[:, None] ** np.arange(WIDE)
    found = []
    for _ in range(count):
        slope, shift, size = random.normal(size=3)
        f = np.exp(slope * x) + size * np.tanh(3 * (x - shift)) + random.normal() * np.abs(x - random.uniform(-1, 1))
        fits = [_projected(powers[:, :width], f, roots) for width in (NARROW, WIDE)]
        found.append(regression_bounds(f, fits[0], fits[1], refinement=TAU))
    said = [one for one in found if one.theorem_4_1 is not None]
    return {
        "drawn": count,
        "monotone": len(said),
        "hold": sum(bool(one.theorem_4_1) for one in said),
        "largest ck/ntk over c2": max((one.test_ck / one.test_ntk / one.c2 for one in said), default=0.0),
        "largest ntk/ck over c1": max((one.test_ntk / one.test_ck / one.c1 for one in said), default=0.0),
        "4.2 holds": sum(bool(one.theorem_4_2) for one in found if one.theorem_4_2 is not None),
        "4.2 said": sum(one.theorem_4_2 is not None for one in found),
    }


def _projected(features: np.ndarray, f: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """The best fit in the trapezoid product on the training nodes, at every test node."""
    weights: np.ndarray = np.linalg.lstsq(features[::TAU] * roots[:, None], roots * f[::TAU], rcond=None)[0]
    values: np.ndarray = features @ weights
    return values
