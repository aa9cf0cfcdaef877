"""Spikes: singular values of a matrix that noise with the same entries would not have."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import tensor_of
from ntkscope.core.checked import Probability
from ntkscope.core.shown import Shown
from ntkscope.linalg.grams.gram import Gram
from ntkscope.linalg.random_matrices.nulls import NoiseNull, Null, PermutationNull, RedrawnNull, excess_kurtosis
from ntkscope.linalg.random_matrices.spiked import participation, spike_overlaps, spike_strength
from ntkscope.linalg.solvers.system import NumericalWarning
from ntkscope.linalg.spectra.singular import SingularParts

Matrix: TypeAlias = Tensor | np.ndarray
LEFT_OVER = 1e-10  # of the norm: a residual below it is rounding
SHIFT, SMALL_SHIFT = 1.0, 0.75  # Tracy–Widom units: a correction for the kurtosis beyond this is no small correction
SMALL, SMALLEST = 60, 12  # rows or columns: below, the second of these holds, or the law itself does not


@dataclass(frozen=True, eq=False, repr=False)
class SpikeTest(Shown):
    """What a test for spikes found, in singular values of the matrix minus the `mean` of its entries, largest first.

    Of each spike: its singular value, `left` and `right` singular vectors (as columns), and p-value, for the matrix without the
    spikes of the rounds before; `strengths`: of the direction underneath (`θ` in `θ u vᵀ + noise`), by inverting the spiked
    model's formula (BBP); `overlaps`: |cos| of its vectors with that direction, as the strength implies; `participation`: the
    share of entries that carry its vectors, about 1/3 for a direction spread over them all. `p_value`: of the largest singular
    value, spike or not. `edge`: what a value must exceed at this level, in the last round. `scale`: standard deviation of the
    noise, corrected for what the spikes took along.
    """

    count: int
    values: tuple[float, ...]
    p_values: tuple[float, ...]
    p_value: float
    edge: float
    scale: float
    strengths: tuple[float, ...]
    overlaps: tuple[tuple[float, float], ...]
    participation: tuple[tuple[float, float], ...]
    mean: float
    left: Float[Tensor, "m k"]
    right: Float[Tensor, "n k"]


def spike_test(
    W: Matrix,
    *,
    null: Literal["permutation", "tracy-widom"] | Matrix = "permutation",
    level: Probability = 0.05,
    draws: int = 199,
    seed: int = 0,
) -> SpikeTest:
    """Which singular values of W (m, n) are larger than noise would have them, and the directions they speak of.

    The mean of the entries is removed first. Then the largest singular value is compared with a null; if it is significant, it
    is taken out (deflated) and what remains is tested in the same way, until a value is not significant. All values that
    are significant in one round are taken out together: without the first of them the null of the others would be lower.

    - `"permutation"`: the entries of what remains, permuted `draws` times; p = (1 + #{draws ≥ value}) / (1 + draws). The first
      round is exact for independent entries of any law; later ones allow for the room the spikes took (`crowding`).
      Costs, per round, `draws` times the smaller Gram and about `10 min(m, n)^⅓` of its products with a vector. The same
      draws on every device.
    - `"tracy-widom"`: the largest eigenvalue of Gaussian noise with Ma's (2012) constants, the variance that a scale
      estimated from the same entries takes away (Nadler 2011), and the shift of the edge by the entries' excess
      kurtosis κ, a factor `1 + κ/√(mn)`. No draws; for large matrices of entries with light tails: where more than 1 % beyond
      the level would be false alarms (20 × 30 uniform entries: 8 % at 5 %), a `NumericalWarning` says so.
    - a matrix W0 of W's shape, such as the initial weights: W0, and `draws - 1` times as many entries from those of W0 and of
      what remains together. The first round is exact if training did no more than draw the weights again.

    Strength, overlaps: `ntkscope.linalg.random_matrices.spiked`. O(m n min(m, n)) without the draws.

    Examples:
        >>> from ntkscope.core import generator
        >>> noise = torch.randn(60, 80, generator=generator(0, "doctest"), dtype=torch.float64)
        >>> spike_test(noise).count
        0
        >>> found = spike_test(noise + 2.0)              # the mean is no spike
        >>> found.count, round(found.mean, 1)
        (0, 2.0)
        >>> planted = torch.zeros(60, 80).double()
        >>> planted[:, 0] = 4.0
        >>> found = spike_test(noise + planted, null="tracy-widom")
        >>> found.count, found.p_value < 1e-6, round(found.strengths[0] / float((planted - planted.mean()).norm()), 1)
        (1, True, 1.0)
    """
    matrix = checked_matrix(W, "W")
    if isinstance(null, str):
        if null == "tracy-widom":
            centred = Centred.of(matrix)
            found = find_spikes(centred, NoiseNull(level))
            _warn_of_doubtful_law(centred)
            return found
        return find_spikes(Centred.of(matrix), PermutationNull(level, draws, seed))
    start = checked_matrix(null, "W0").to(matrix.device)
    if start.shape != matrix.shape:
        raise UsageError(
            f"got W0 of shape {tuple(start.shape)} for W of shape {tuple(matrix.shape)}; expected the same shape: the initial"
            " weights of the same layer"
        )
    return find_spikes(Centred.of(matrix), RedrawnNull(level, draws, seed, start - start.mean()))


def checked_matrix(W: Matrix, name: str) -> Float[Tensor, "m n"]:
    """A float64 matrix with at least two rows and columns, finite and not constant, or an error with what to do."""
    if isinstance(W, Gram):
        raise UsageError(
            f"got {name} as {W!r}: entries of a Gram are not independent, so neither permuted entries nor Marchenko–Pastur are"
            " its null; compare it with the initial kernel: ntkscope.measures.spectra.classify(K, K0)"
        )
    hint = ": flatten a convolution's weights to (out, in · height · width)"
    matrix = tensor_of(W, name, 2, empty=True, hint=hint)
    if min(matrix.shape) < 2:
        raise UsageError(f"got {name} of shape {tuple(matrix.shape)}; expected at least two rows and two columns")
    low, high = torch.aminmax(matrix)
    if float(high) - float(low) <= 1e-12 * max(abs(float(high)), abs(float(low))):
        raise NumericalError(
            f"{name} is constant ({float(high):.6g}), so nothing is left without its mean; expected entries that differ: was"
            " the layer initialised?"
        )
    if (
        matrix.shape[0] == matrix.shape[1]
        and torch.equal(matrix[0], matrix[:, 0])  # cheap, and enough to know most that are not
        and torch.equal(matrix, matrix.T)
    ):
        raise UsageError(
            f"got {name} equal to its transpose: the entries of a Gram or of tied weights are not independent, so"
            " neither permuted entries nor Marchenko–Pastur are its null; compare a Gram with the initial kernel:"
            " ntkscope.measures.spectra.classify(as_gram(K), as_gram(K0))"
        )
    return matrix


@dataclass(frozen=True, eq=False)
class Centred:
    """A matrix minus its mean over its largest entry (so that no square overflows), with its singular values and vectors."""

    mean: float
    unit: float
    entries: Float[Tensor, "m n"]
    parts: SingularParts

    @classmethod
    def of(cls, matrix: Float[Tensor, "m n"]) -> Centred:
        mean = matrix.mean()
        entries = matrix - mean
        low, high = torch.aminmax(entries)
        unit = torch.maximum(-low, high)
        entries /= unit
        return cls(float(mean), float(unit), entries, SingularParts.of(entries))

    @property
    def values(self) -> Float[Tensor, " p"]:
        """Singular values of `entries`, descending."""
        return self.parts.values

    @cached_property
    def kurtosis(self) -> float:
        """Excess kurtosis of the entries."""
        return excess_kurtosis(self.entries)


def find_spikes(matrix: Centred, null: Null) -> SpikeTest:
    """The rounds of `spike_test`."""
    residual, values, unit = matrix.entries, matrix.values, matrix.unit
    shape = (residual.shape[0], residual.shape[1])
    norm, count, first = float(residual.norm()), 0, math.nan
    left_over = norm
    p_values: list[float] = []
    while True:
        edge, probability = null.round(residual, count, unit)
        rest = values[count:]
        p = probability(rest[: 1 + int((rest > edge).sum())])
        first = p[0] if not p_values else first
        new = next((k for k, value in enumerate(p) if not value <= null.level), len(p))
        p_values += p[:new]
        if new:
            taken = slice(count, count + new)
            left, right = matrix.parts.vectors(count + new)
            residual = torch.addmm(residual, left[:, taken] * values[taken], right[:, taken].T, alpha=-1)
            count += new
            left_over = float(residual.norm())
        nothing = left_over <= LEFT_OVER * norm or count >= len(values) - 1
        if not new or null.once or nothing:
            break
    scale = 0.0 if left_over <= LEFT_OVER * norm else noise_scale(left_over, shape, count) * unit
    found = [value * unit for value in values[:count].tolist()]
    strengths = [spike_strength(value, shape, scale) if scale else value for value in found]
    left, right = matrix.parts.vectors(count)
    return SpikeTest(
        count=count,
        values=tuple(found),
        p_values=tuple(p_values),
        p_value=first,
        edge=edge * unit,
        scale=scale,
        strengths=tuple(strengths),
        overlaps=tuple(spike_overlaps(theta, shape, scale) if scale else (1.0, 1.0) for theta in strengths),
        participation=tuple(zip(participation(left).tolist(), participation(right).tolist())),
        mean=matrix.mean,
        left=left.clone(),
        right=right.clone(),
    )


def noise_scale(norm: float, shape: tuple[int, int], removed: int) -> float:
    """Root mean square of the entries; each direction taken out took a row's and a column's worth of noise along."""
    rows, columns = shape
    return norm / math.sqrt(max(1.0, (rows - removed) * (columns - removed) - (removed == 0)))


def _warn_of_doubtful_law(centred: Centred) -> None:
    kurtosis = centred.kurtosis
    shape = tuple(centred.entries.shape)
    shift, side = NoiseNull.kurtosis_shift(shape, kurtosis), min(shape)
    if abs(shift) > (SHIFT if side >= SMALL else SMALL_SHIFT) or side < SMALLEST:
        warnings.warn(
            f"got a matrix of shape {shape} whose entries have the excess kurtosis {kurtosis:.3g}; the Tracy–Widom law is"
            f' for larger ones (here corrected by {shift:.2g} of its units), so p-values are doubtful: use null="permutation"',
            NumericalWarning,
            stacklevel=3,
        )
