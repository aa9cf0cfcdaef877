"""Spectra: how one differs from another, and whether a matrix is noise, noise with spikes, or heavy-tailed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Float64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.checked import CountOrZero, Positive, Probability
from ntkscope.linalg import Gram, marchenko_pastur
from ntkscope.linalg.features.rows import distinct_rows
from ntkscope.linalg.random_matrices.nulls import (
    InitialNull,
    NoiseNull,
    Null,
    PermutationNull,
    constants,
    upper_quantile,
)
from ntkscope.linalg.random_matrices.spike_test import Centred, SpikeTest, checked_matrix, find_spikes
from ntkscope.linalg.random_matrices.spiked import participation
from ntkscope.linalg.random_matrices.tracy_widom import MEAN
from ntkscope.linalg.spectra.power_law import TailFit, checked_sample, plain_tail
from ntkscope.linalg.spectra.singular import SingularParts
from ntkscope.measures._spectrum_change import Spectrum, SpectrumChange, compare, spectrum

__all__ = ["LABELS", "SpectrumChange", "SpectrumClass", "classify", "classify_eigenvalues", "compare", "spectrum"]
LABELS = ("invariant bulk", "bulk + spikes", "heavy tail", "undecided")
Weights: TypeAlias = Tensor | np.ndarray
Evidence: TypeAlias = dict[str, float | int | str]

# The rule, frozen on synthetic matrices (`python -m benchmarks spectra`).
LEVEL, MOST_LEVEL = 0.02, 0.05  # of the tests behind a name; the second with few draws
FEWEST = 50  # singular values or eigenvalues
MANY = 6  # spikes; more of them that reach down to the bulk are a tail
ATTACHED = 2.0  # mean steps (of the logarithm) between the last spike and the bulk's edge
LOCALISED = 2.0  # times the Σ v⁴ of a Gaussian direction: a vector above it is carried by few entries
HUGE = 1 / 3  # of the largest singular value in one entry
MOVED = 0.1  # Kolmogorov–Smirnov distance of a bulk that is another one
SHIFTED = 0.1  # by how much an eigenvalue of a kernel exceeds the initial one to lie outside
ROUNDING = 1e-6  # relative; singular values come from squares
NOTHING = 1e-12  # of the largest eigenvalue: one below it is rounding
DRAWS = 199  # of W0's entries where no other number was asked for


@dataclass(frozen=True, eq=False)
class SpectrumClass:
    """What kind of spectrum a matrix has, and why."""

    label: str
    """One of `LABELS`."""
    evidence: Evidence
    """Numbers and words that led there; `reason` is a sentence."""
    spikes: SpikeTest | None
    tail: TailFit | None
    """Of the squared singular values (a Gram's eigenvalues), where values leave the bulk."""


def classify(
    W: Weights | Gram,
    W0: Weights | Gram | Sequence[Gram] | None = None,
    *,
    level: Probability | None = None,
    draws: CountOrZero = 199,
    seed: int = 0,
) -> SpectrumClass:
    """Whether a matrix has the spectrum of noise (*invariant bulk*), *bulk + spikes*, a *heavy tail*, or is *undecided*.

    Weights (m, n), with the initial weights W0 as null if they are given, else with their own entries permuted:

    1. Under 50 singular values: undecided.
    2. The largest singular value lies outside the bulk, few entries carry both its vectors (half as many as carry a Gaussian
       direction, or fewer) and one entry is a third of it or more: heavy tail, from *a few huge entries*. So matrices of
       independent heavy-tailed entries (Cauchy, Pareto, Student's t₃) are heavy-tailed, as their spectra are, but
       `evidence["cause"]` says that no direction was learned; one corrupt entry reads the same.
    3. More than 6 spikes (`spike_test`) that reach down to the bulk (the last no farther from the edge than two mean steps
       between them, in logarithms): heavy tail, from *many directions*.
    4. Any other number of spikes: bulk + spikes. If rows or columns repeat others exactly, 3 and 4 hold only if spikes remain
       without the repeats; undecided otherwise.
    5. None: invariant bulk if the rest is within a Kolmogorov–Smirnov distance of 0.1 of the Marchenko–Pastur law (of W0's
       spectrum), apart from its scale; undecided otherwise, as orthogonal weights are.

    A Gram has no such null: its entries are not independent. Its W0 is the initial kernel or a sequence of kernels of
    redrawn initialisations; eigenvalues that exceed the initial ones count instead of spikes: by 10 %, or by what
    redrawn initialisations differ. Largest eigenvalues that fell by as much, relative to the bulk, leave no invariant
    bulk: undecided, if none exceeds the initial ones.

    `level`: how often noise may be named anything else. By default 0.02, or the least that 19 to 48 draws can show: at 0.05,
    every other sample of matrices would have more than 5 % misnamed.
    `draws=0` takes the Tracy–Widom law in place of permutations of W. Costs one eigendecomposition of the smaller Gram besides.

    Examples:
        >>> import torch
        >>> from ntkscope.core import generator
        >>> noise = torch.randn(60, 90, generator=generator(1, "doctest"), dtype=torch.float64)
        >>> classify(noise, draws=0).label
        'invariant bulk'
        >>> classify(noise + 4 * torch.outer(torch.ones(60), torch.arange(90) % 2 - 0.5), draws=0).label
        'bulk + spikes'
    """
    if isinstance(W, Gram) or isinstance(W0, Gram):
        return _classify_kernel(W, W0)
    if isinstance(W0, list | tuple) and any(isinstance(one, Gram | Tensor | np.ndarray) for one in W0):
        raise UsageError("got several W0 for weights; expected the initial weights: redrawn kernels are for a Gram")
    matrix = checked_matrix(W, "W")
    side = min(matrix.shape)
    if side < FEWEST:
        reason = f"{side} singular values are too few to tell a bulk from its spikes; {FEWEST} would do"
        return SpectrumClass("undecided", {"singular values": side, "reason": reason}, None, None)
    start = None if W0 is None else _start(W0, matrix)
    if level is None:
        level = LEVEL if draws == 0 else min(MOST_LEVEL, max(LEVEL, 1 / (1 + draws)))  # fewer draws are refused
    null: Null = NoiseNull(level) if draws == 0 else PermutationNull(level, draws, seed)
    if start is not None:
        null = InitialNull(level, draws or DRAWS, seed, start - start.mean())
    parts = Centred.of(matrix)
    spikes = find_spikes(parts, null)
    bulk = _Bulk.of(parts.values, (matrix.shape[0], matrix.shape[1]), spikes.count)
    distance = bulk.distance if start is None else _moved(parts.values, start)
    top, entry = float(parts.values[0]), 1 / float(parts.values[0])  # the largest entry is 1 there
    left, right = parts.parts.vectors(1)
    rows, columns = _carriers(left), _carriers(right)
    few = _localised(rows, len(left)) and _localised(columns, len(right))
    evidence: Evidence = {
        "singular values": side,
        "entries' excess kurtosis": parts.kurtosis,
        "spikes": spikes.count,
        "p-value of the largest": spikes.p_value,
        "largest over the bulk's edge": top / bulk.edge if bulk.edge else math.inf,
        "largest entry over it": entry,
        "rows that carry it": rows,
        "columns that carry it": columns,
        "distance of the bulk": distance,
    }
    huge = top > bulk.edge and few and entry >= HUGE
    values = parts.values * parts.unit
    label, words = _judge(spikes, huge, distance, start is None)
    if spikes.count and not huge:
        label, words = _without_repeats(matrix, start, null, label, words)
    tail = _tail(values.square()) if label != "invariant bulk" else None
    return SpectrumClass(label, evidence | words | _tail_words(tail), spikes, tail)


def _without_repeats(
    matrix: Tensor, start: Tensor | None, null: Null, label: str, words: Evidence
) -> tuple[str, Evidence]:
    """The same label if spikes remain without the rows and columns that repeat others; *undecided* if these alone stand out.

    Equal rows are no independent entries: they make a singular value that says nothing of a learned direction.
    """
    rows, columns = distinct_rows(matrix), distinct_rows(matrix.T)
    repeated = {"repeated rows": matrix.shape[0] - len(rows), "repeated columns": matrix.shape[1] - len(columns)}
    if not any(repeated.values()):
        return label, words
    said = " and ".join(f"{count} {name.removeprefix('repeated ')}" for name, count in repeated.items() if count)
    count = 0
    if min(len(rows), len(columns)) >= FEWEST:
        if isinstance(null, InitialNull) and start is not None:
            kept = start[rows][:, columns]
            null = replace(null, start=kept - kept.mean())
        count = find_spikes(Centred.of(matrix[rows][:, columns]), null).count
    repeated["spikes without repeats"] = count
    if count:
        return label, words | repeated | {"reason": f"{words['reason']}; {count} without the {said} that repeat others"}
    reason = f"{said} repeat others, so that entries are not independent; without them no singular value lies outside the bulk"
    return "undecided", words | repeated | {"cause": "repeated rows or columns", "reason": reason}


def _judge(spikes: SpikeTest, huge: bool, distance: float, alone: bool) -> tuple[str, Evidence]:
    if huge:
        reason = (
            "single entries carry the largest singular value: the entries are heavy-tailed, no direction was learned"
        )
        return "heavy tail", {"cause": "a few huge entries", "reason": reason}
    if spikes.count > MANY and reaches_bulk(spikes.values, spikes.edge):
        reason = f"{spikes.count} singular values lie outside the bulk and reach down to it: a tail rather than spikes"
        return "heavy tail", {"cause": "many directions", "reason": reason}
    if spikes.count:
        reason = f"{spikes.count} singular value{'s' * (spikes.count > 1)} outside a bulk of noise"
        return "bulk + spikes", {"cause": "learned directions", "reason": reason}
    other = "the Marchenko–Pastur law" if alone else "the initial spectrum"
    if distance <= MOVED:
        return "invariant bulk", {"cause": "noise", "reason": f"no singular value outside the bulk, which is {other}"}
    reason = f"no singular value outside the bulk, but the bulk is not {other} (distance {distance:.2f})"
    return "undecided", {"cause": "unknown", "reason": reason}


def reaches_bulk(values: Sequence[Positive], edge: Positive) -> bool:
    """Whether values above `edge`, descending, come down to it in steps rather than stand apart from it.

    Examples:
        >>> reaches_bulk([8.0, 4.0, 2.2], 2.0), reaches_bulk([8.0, 7.9, 7.8], 2.0)
        (True, False)
    """
    gap, height = (math.log(max(value / edge, 1.0)) for value in (values[-1], values[0])) if values else (1.0, 0.0)
    return gap <= ATTACHED * height / max(len(values), 1)


@dataclass(frozen=True)
class _Bulk:
    """The Marchenko–Pastur law whose median is that of the squared singular values, so that outliers do not stretch it."""

    edge: float
    distance: float

    @classmethod
    def of(cls, values: Float[Tensor, " p"], shape: tuple[int, int], removed: int) -> _Bulk:
        short, long = min(shape), max(shape)
        squares = (values.square() / long).cpu().numpy()
        law = marchenko_pastur(short / long)
        variance = float(np.median(squares)) / _median(short / long)
        if not variance > 0:
            return cls(0.0, 1.0)
        rest = np.sort(squares[min(removed, len(squares) - 1) :])
        shares, steps = law.cdf(rest / variance), np.arange(len(rest)) / len(rest)
        distance = max(float((shares - steps).max()), float((steps - shares).max()) + 1 / len(rest))
        centre, width = constants(shape, 0.0)
        highest = centre + width * (upper_quantile(0.01) - MEAN)
        return cls(math.sqrt(variance * highest), distance)


@cache
def _median(ratio: float) -> float:
    return marchenko_pastur(ratio).quantile(0.5)


def _start(W0: Any, matrix: Tensor) -> Tensor:
    start = checked_matrix(W0, "W0").to(matrix.device)
    if start.shape != matrix.shape:
        raise UsageError(
            f"got W0 of shape {tuple(start.shape)} for W of shape {tuple(matrix.shape)}; expected the initial weights of the"
            " same layer"
        )
    return start


def _moved(values: Float[Tensor, " p"], start: Tensor) -> float:
    """The distance from the initial spectrum, both in units of their medians."""
    initial = SingularParts.of(start - start.mean()).values
    scales = [float(one.median()) or 1.0 for one in (values, initial)]
    return _apart((initial / scales[1]).cpu().numpy(), (values / scales[0]).cpu().numpy())


def _apart(one: Spectrum, two: Spectrum) -> float:
    """The Kolmogorov–Smirnov distance that remains when values may move by `ROUNDING`: equal ones come out of order."""
    one, two = np.sort(one), np.sort(two)
    gaps = [
        np.searchsorted(a, a, side="right") / len(a) - np.searchsorted(b, a * (1 + ROUNDING), side="right") / len(b)
        for a, b in ((one, two), (two, one))
    ]
    return max(0.0, *(float(gap.max()) for gap in gaps))


def _carriers(vector: Float[Tensor, "n 1"]) -> float:
    """How many entries carry a unit vector: its participation times its length."""
    return float(participation(vector)[0]) * len(vector)


def _localised(carriers: float, entries: int) -> bool:
    return carriers * LOCALISED < (entries + 2) / 3


def _tail(squares: Any) -> TailFit | None:
    try:
        least = max(20, len(squares) // 10)
        return plain_tail(checked_sample(squares, least), least)
    except (UsageError, NumericalError):  # too few positive values, or ties: there is no tail to fit
        return None


def _tail_words(tail: TailFit | None) -> Evidence:
    return {} if tail is None else {"tail exponent": tail.alpha, "points of the tail": tail.points}


def _classify_kernel(K: Any, starts: Any) -> SpectrumClass:
    """The rule for Grams: eigenvalues against those of one or more initial kernels."""
    if starts is None:
        raise UsageError(
            f"got {K!r} without an initial kernel: the Marchenko–Pastur law is for independent entries, and those of a Gram are"
            " inner products; pass W0=K0, the kernel at initialisation, or kernels of redrawn initialisations"
        )
    several = [starts] if isinstance(starts, Gram) else list(starts)
    if not isinstance(K, Gram) or not several or not all(isinstance(one, Gram) for one in several):
        raise UsageError(
            "got a Gram and something else; expected Grams for both: ntkscope.linalg.as_gram makes one of a matrix"
        )
    if any(one.shape != K.shape for one in several):
        raise UsageError(
            f"got initial kernels of shapes {[one.shape for one in several]} for {K!r}; expected the same items"
        )
    return classify_eigenvalues(spectrum(K, "K"), np.stack([spectrum(one, "K0") for one in several]))


def classify_eigenvalues(values: Spectrum, initial: Float64[np.ndarray, "k n"]) -> SpectrumClass:
    """`classify` of a Gram from its eigenvalues and those of one or more initial kernels, one per row; all descending.

    Examples:
        >>> initial = np.linspace(2.0, 1.0, 100)[None]
        >>> classify_eigenvalues(np.concatenate([[50.0], initial[0, 1:]]), initial).label
        'bulk + spikes'
    """
    n = len(values)
    if initial.shape != (len(initial), n) or not len(initial):
        raise UsageError(f"got {n} eigenvalues and initial ones of shape {initial.shape}; expected (kernels, {n})")
    if n < FEWEST:
        reason = f"{n} eigenvalues are too few to tell a bulk from its spikes; {FEWEST} would do"
        return SpectrumClass("undecided", {"eigenvalues": n, "reason": reason}, None, None)
    top = n // 10
    sums = initial[:, top:].sum(1)
    scale = float(values[top:].sum() / sums.mean()) if sums.mean() > 0 else 1.0
    first = initial.mean(0)
    tolerance, tolerance_below = SHIFTED, SHIFTED
    if len(initial) > 1 and first[top - 1] > 0:
        tolerance = max(0.02, float((initial.max(0) / first - 1)[:top].max()))
        tolerance_below = max(0.02, float((1 - initial.min(0) / first)[:top].max()))
    rounding = NOTHING * max(float(values[0]), scale * float(first[0]), 0.0)
    highest = (initial.max(0)[:top] * (1 + tolerance) * max(scale, 0.0)).clip(rounding)
    outside = max(0, *(int((values > edge).sum()) - k for k, edge in enumerate(highest)))
    lowest = initial.min(0)[:top] * (1 - tolerance_below) * max(scale, 0.0)
    fallen = max(0, *(k + 1 - int((values >= edge).sum()) for k, edge in enumerate(lowest) if edge > rounding), 0)
    distance = _apart(first, values / scale if scale > 0 else values)
    evidence: Evidence = {
        "eigenvalues": n,
        "eigenvalues outside": outside,
        "eigenvalues that fell": fallen,
        "tolerance": tolerance,
        "scale of the bulk": scale,
        "distance of the bulk": distance,
        "largest over the initial": float(values[0] / first[0]) if first[0] else math.inf,
    }
    if outside > MANY:
        label, reason = "heavy tail", f"{outside} more eigenvalues than initially lie outside the bulk"
    elif outside:
        label, reason = (
            "bulk + spikes",
            f"{outside} more eigenvalue{'s' * (outside > 1)} than initially outside the bulk",
        )
    elif fallen:
        label = "undecided"
        reason = f"no eigenvalue outside, but {fallen} of the largest fell by over {tolerance_below:.0%} relative to the bulk"
    elif distance <= MOVED:
        label = "invariant bulk"
        reason = f"no eigenvalue outside, and the bulk is the initial one times {scale:.3g}"
    else:
        label, reason = "undecided", f"no eigenvalue outside, but the bulk moved (distance {distance:.2f})"
    tail = _tail(values.clip(0)) if label != "invariant bulk" else None
    return SpectrumClass(label, evidence | {"reason": reason} | _tail_words(tail), None, tail)
