"""How well real-valued outputs are predicted: R² and error of each output, and whether two networks rank the items alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import Matrix, finite, unit_of
from ntkscope.core.checked import CountOrZero
from ntkscope.measures._studentised import of_r2
from ntkscope.measures.kendall import kendall
from ntkscope.measures.registry import measure
from ntkscope.measures.uncertainty import resampled_means

CONSTANT = 1e-12  # spread of an output, relative to its size, up to which it is constant: rounding alone gives so much


@dataclass(frozen=True)
class OutputFidelity:
    """One output of a surrogate beside the network's: R², root mean square distance, Kendall's τ-b; NaN where undefined."""

    r2: float
    r2_low: float
    r2_high: float
    rmse: float
    tau: float
    tau_low: float
    tau_high: float


def r_squared(predicted: Any, true: Any) -> Float64[np.ndarray, " d"]:
    """`1 - Σ (y - f)² / Σ (y - mean y)²` of each output, (items,) or (items, outputs); NaN for one that is constant; O(nd).

    Examples:
        >>> r_squared([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).tolist(), r_squared([[2.0], [2.0]], [[1.0], [3.0]]).tolist()
        ([1.0], [0.0])
    """
    f, y, _ = scaled_outputs(predicted, true)
    centred = y - y.mean(0)
    missed, spread = np.square(y - f).sum(0), np.square(centred).sum(0)
    varies = np.sqrt(spread / len(y)) > CONSTANT * np.abs(y).max(0)
    return np.where(varies, 1 - missed / np.where(varies, spread, 1.0), math.nan)


def rmse(predicted: Any, true: Any) -> Float64[np.ndarray, " d"]:
    """The root of the mean squared error of each output, in the output's own unit; O(nd).

    Examples:
        >>> rmse([1.0, 5.0], [1.0, 2.0]).round(4).tolist()
        [2.1213]
    """
    f, y, units = scaled_outputs(predicted, true)
    return np.asarray(np.sqrt(np.square(y - f).mean(0)) * units)


@measure("r2-outputs", of="two outputs", high=1, best=1)
def r2_outputs(predicted: Any, true: Any) -> float:
    """R² averaged over the outputs that vary; O(nd).

    Examples:
        >>> r2_outputs([[1.0, 0.0], [2.0, 0.0]], [[1.0, 1.0], [2.0, -1.0]])
        0.5
    """
    found = r_squared(predicted, true)
    if np.isnan(found).all():
        raise NumericalError("every output is the same for all items: R² is undefined; use more items")
    return float(np.nanmean(found))


def output_fidelity(
    surrogate: Any, network: Any, *, bootstrap: CountOrZero = 1000, seed: int = 0
) -> tuple[OutputFidelity, ...]:
    """Every output of a surrogate beside the network's, with 95 % intervals over items: of R² studentised, of τ Student's.

    Examples:
        >>> network = np.array([[0.0], [1.0], [2.0], [4.0]])
        >>> (found,) = output_fidelity(network, network)
        >>> found.r2, found.rmse, found.tau
        (1.0, 0.0, 1.0)
    """
    g, f, _ = scaled_outputs(surrogate, network)
    values, errors = r_squared(g, f), rmse(surrogate, network)
    found = []
    for k in range(f.shape[1]):
        rank = kendall(g[:, k], f[:, k]) if len(f) > 1 else None
        low, high = _interval(g[:, k], f[:, k], bootstrap, seed) if not math.isnan(values[k]) else (math.nan, math.nan)
        tau = math.nan if rank is None else rank.tau_b
        ends = (math.nan, math.nan) if rank is None or math.isnan(tau) else rank.interval("b")
        found.append(OutputFidelity(float(values[k]), low, high, float(errors[k]), tau, *ends))
    return tuple(found)


def two_outputs(first: Any, second: Any) -> tuple[Matrix, Matrix]:
    """Two sets of outputs of the same items as float64 matrices (items, outputs).

    Examples:
        >>> two_outputs([1.0, 2.0], [3.0, 4.0])[0].tolist()
        [[1.0], [2.0]]
    """
    arrays = [finite(values, "the outputs", 1, 2) for values in (first, second)]
    f, y = (values[:, None] if values.ndim == 1 else values for values in arrays)
    if f.shape != y.shape or not f.size:
        raise UsageError(f"got outputs of shapes {f.shape} and {y.shape}; expected the same items and outputs in both")
    return f, y


def scaled_outputs(first: Any, second: Any) -> tuple[Matrix, Matrix, Float64[np.ndarray, " d"]]:
    """`two_outputs`, each output divided by its unit: 1, unless squares would overflow or vanish.

    Examples:
        >>> f, y, units = scaled_outputs([1e200, 2e200], [0.0, 1e200])
        >>> np.allclose(f * units, [[1e200], [2e200]]), bool(np.isfinite(f**2).all())
        (True, True)
    """
    f, y = two_outputs(first, second)
    units = np.array([unit_of(f[:, k], y[:, k]) for k in range(f.shape[1])])
    return f / units, y / units, units


def _interval(g: Float64[np.ndarray, " n"], f: Float64[np.ndarray, " n"], resamples: int, seed: int) -> Any:
    if not resamples:
        return math.nan, math.nan
    studentised = of_r2(np.square(f - g), f)
    return studentised.interval(*resampled_means(studentised.products, resamples=resamples, seed=seed))
