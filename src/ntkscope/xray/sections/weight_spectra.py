"""Spectra: which directions of each weight matrix stand out of the noise that its entries would make in another order."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import NtkscopeError, UsageError
from ntkscope.kernels.costs import Rates
from ntkscope.linalg import NumericalWarning, spike_test
from ntkscope.linalg.random_matrices.nulls import NoiseNull, excess_kurtosis
from ntkscope.measures.spectra import classify
from ntkscope.measures.uncertainty import holm
from ntkscope.tracking.weights import as_matrix
from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, Section, Skip, register
from ntkscope.xray.result import Result
from ntkscope.xray.workload import Workload

LEVEL = 0.05  # of false alarms over all layers together
SMALLEST = 50  # singular values that a test needs
DRAWS = 199  # permutations of the entries
PERMUTED = 1 << 15  # entries up to which a matrix is permuted; larger ones are near the Tracy–Widom law's limit
LIGHT = 1.0  # units of that law by which the entries' kurtosis may move it: beyond, entries are permuted all the same
MOST_VALUES = 2000  # singular values of one matrix that are kept for the page
FEWEST = 1 / (DRAWS + 1)  # the smallest p that so many permutations can give
ROUNDS = 2  # of a test: the spikes found first are taken out before the next round


@dataclass(frozen=True)
class Layer(Result):
    """One weight matrix. `label`: its class; `count`, `values`, `strengths`: of its spikes, `edge` what noise reaches.

    `p`: of its largest singular value; `holm`: the same, corrected for the number of matrices. `alpha` with its interval: the
    exponent of a power law fitted to the largest squared singular values. `spread`: share of the entries of the first
    spike's vectors that carry it, the smaller side; few entries are no direction. `null`: what it was compared with,
    "permutations" or "Tracy–Widom". `cause` and `reason`: what the class rests on.
    """

    name: str
    rows: int
    columns: int
    label: str
    count: int
    largest: float
    values: tuple[float, ...]
    strengths: tuple[float, ...]
    edge: float | None
    p: float | None
    holm: float | None
    alpha: float | None
    alpha_low: float | None
    alpha_high: float | None
    spread: float | None
    null: str
    cause: str
    reason: str


@dataclass(frozen=True)
class Spectra(Result):
    """The matrices in the network's order, and the level of the tests; `tested`: how many there was a test for; `initial`:
    whether the initial network's singular values are kept as well."""

    layers: tuple[Layer, ...]
    tested: int
    level: float
    initial: bool


def run(context: Context) -> Finding[Spectra]:
    if not context.matrices:
        raise Skip("the network has no weight that is a matrix with at least two rows and columns")
    first = {} if context.initial is None else dict(context.initial.named_parameters())
    found = []
    for number, (name, weight) in enumerate(context.matrices.items()):
        W = _matrix(weight, context.device)
        values = torch.linalg.svdvals(W).cpu().numpy()
        context.keep(f"weight_spectra.values.{number}", kept_values(values))
        if name in first:
            before = torch.linalg.svdvals(_matrix(first[name], context.device)).cpu().numpy()
            context.keep(f"weight_spectra.initial.{number}", kept_values(before))
        found.append(_layer(name, W, values, context))
    layers = corrected(found)
    tested = sum(layer.p is not None for layer in layers)
    return Finding(Spectra(layers, tested, LEVEL, context.initial is not None), _confidence(layers, tested))


def _matrix(weight: Tensor, device: torch.device | None) -> Float64[Tensor, "m n"]:
    matrix = as_matrix(weight)
    return matrix.to(device or matrix.device, torch.float64)


def kept_values(values: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, " j"]:
    """At most `MOST_VALUES` of some values in descending order: the largest, and evenly many of the others.

    >>> kept_values(np.array([2.0, 1.0])).tolist(), len(kept_values(np.ones(5000)))
    ([2.0, 1.0], 2000)
    """
    if len(values) <= MOST_VALUES:
        return values
    sure = MOST_VALUES // 10
    rest = np.linspace(sure, len(values) - 1, MOST_VALUES - sure).round().astype(int)
    return values[np.r_[np.arange(sure), rest]]


def _layer(name: str, W: Tensor, values: Float64[np.ndarray, " k"], context: Context) -> Layer:
    """One matrix, classified; one for which there is no test says why."""
    bare = Layer(
        *(name, W.shape[0], W.shape[1], "undecided", 0, float(values[0]), (), ()),
        *(None,) * 7,
        null="",
        cause="",
        reason="",
    )
    try:
        draws = _draws(W, context)
        seen = classify(W, level=LEVEL, draws=draws, seed=context.seed)
    except NtkscopeError as why:
        return replace(bare, reason=str(why))
    spikes, tail, evidence = seen.spikes, seen.tail, seen.evidence
    bare = replace(bare, label=seen.label, cause=str(evidence.get("cause", "")), reason=str(evidence.get("reason", "")))
    if tail is not None:
        low, high = tail.interval
        bare = replace(bare, alpha=_finite(tail.alpha), alpha_low=_finite(low), alpha_high=_finite(high))
    if spikes is None:
        return bare
    p = spikes.p_value
    if draws and p <= FEWEST * (1 + 1e-9):  # no permutation came close: how far away it is, the law of noise tells
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # of heavy entries, whose p is then the permutations'
            p = min(p, spike_test(W, null="tracy-widom", level=LEVEL).p_value) if _light(W) else p
    return replace(
        bare,
        count=spikes.count,
        values=spikes.values,
        strengths=spikes.strengths,
        edge=_finite(spikes.edge),
        p=p,
        spread=min(spikes.participation[0]) if spikes.count else None,
        null="permutations" if draws else "Tracy–Widom",
    )


def _draws(W: Float64[Tensor, "m n"], context: Context) -> int:
    """How many permutations the test takes; 0 for none, where the law of large matrices is as good."""
    if min(W.shape) < 2 or W.numel() <= PERMUTED or _light(W):
        return DRAWS if W.numel() <= PERMUTED else 0
    seconds = permuting(*W.shape) * Rates(**context.record.metrics["rates"]).double
    late = context.clock.too_short_for(seconds)
    if late is not None:
        raise UsageError(f"its entries are too heavy-tailed for the fast test, and the slow one does not fit: {late}")
    return DRAWS


def _light(W: Float64[Tensor, "m n"]) -> bool:
    """Whether the Tracy–Widom law holds for such entries: their kurtosis moves it by little."""
    kurtosis = excess_kurtosis(W - W.mean())
    return abs(NoiseNull.kurtosis_shift(tuple(W.shape), kurtosis)) <= LIGHT


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(float(value)) else None


def corrected(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The same layers, p corrected after Holm for all that were tested."""
    places = [k for k, layer in enumerate(layers) if layer.p is not None]
    adjusted = dict(zip(places, holm([layers[k].p or 0.0 for k in places]), strict=True))
    return tuple(replace(layer, holm=adjusted.get(k)) for k, layer in enumerate(layers))


def _confidence(layers: Sequence[Layer], tested: int) -> str:
    if not tested:
        return "No matrix is large enough for a test, which needs about fifty singular values."
    permuted = sum(layer.null == "permutations" for layer in layers)
    how = {0: "the Tracy–Widom law of noise", tested: f"{DRAWS} permutations of their entries"}.get(
        permuted,
        f"{DRAWS} permutations of their entries ({permuted}) or, where they are large, the Tracy–Widom law of noise",
    )
    said = (
        f"Tested: {tested} of {len(layers)} matrices, against {how}. All tests together raise a false alarm in"
        f" {100 * LEVEL:.0f} % of networks without any spike (Holm)."
    )
    return said + (" The others are too small to tell." if tested < len(layers) else "")


def permuting(rows: int, columns: int) -> float:
    """Multiply-adds of one round of permutations: drawing and sorting them, and products of the smaller Gram; measured."""
    return DRAWS * rows * columns * (1200 + 3.0 * min(rows, columns))


def cost(work: Workload) -> float:
    """The decomposition of every matrix, a few times, and the permutations of those that are small."""
    total = 0.0
    for rows, columns in work.matrices:
        short, long = sorted((rows, columns))
        total += 40.0 * short * short * long
        if short >= SMALLEST:
            total += 2e8 + (ROUNDS * permuting(rows, columns) if rows * columns <= PERMUTED else 0.0)
    return total * work.rates.double


SECTION = register(
    Section(
        name="weight_spectra",
        place=7,
        title="Spectra",
        meaning=(
            "What training wrote into each weight matrix. The singular values of random entries end at a sharp edge; a value"
            " beyond it is a direction that chance does not explain. The weights alone tell, without the history of the"
            " training."
        ),
        formula=(
            "W = UΣVᵀ (a convolution as out × in·k·k). The largest σ is compared with that of the same entries, mean removed,"
            " in random order: p = (1 + #{draws ≥ σ}) / (1 + draws); if it is significant it is taken out, and the rest is"
            " tested. θ u vᵀ + noise of scale s gives σ = √((θ² + m s²)(θ² + n s²)) / θ, from which the strength θ. Heavy tail:"
            " a power law of the largest σ²."
        ),
        run=run,
        result=Spectra,
        cost=cost,
    )
)
