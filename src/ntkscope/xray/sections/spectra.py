"""Spectra: which directions of each weight matrix stand out of the noise that its entries would make in another order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import NtkscopeError
from ntkscope.linalg import spike_test
from ntkscope.measures.spectra import classify
from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, Section, Skip, register
from ntkscope.xray.result import Result
from ntkscope.xray.weights import as_matrix
from ntkscope.xray.workload import Workload

LEVEL = 0.05  # of false alarms over all layers together
DRAWS = 199  # permutations of the entries
MOST_VALUES = 2000  # singular values of one matrix that are kept for the page
FEWEST = 1 / (DRAWS + 1)  # the smallest p that so many permutations can give
ROUNDS = 3  # of a test: the spikes found first are taken out before the next round


@dataclass(frozen=True)
class Layer(Result):
    """One weight matrix. `label`: its class; `count`, `values`, `strengths`: of its spikes, `edge` what noise reaches.

    `p`: of its largest singular value; `holm`: the same, corrected for the number of matrices. `alpha` with its interval: the
    exponent of a power law fitted to the largest squared singular values. `spread`: share of the entries of the first
    spike's vectors that carry it, the smaller side; few entries are no direction. `note`: why something is missing.
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
    note: str


@dataclass(frozen=True)
class Spectra(Result):
    """The matrices in the network's order, and the level of the tests; `tested`: how many there was a test for."""

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
        context.keep(f"spectra.values.{number}", kept_values(values))
        W0 = None if name not in first else _matrix(first[name], context.device)
        found.append(_layer(name, W, W0, values, context.seed))
    layers = corrected(found)
    tested = sum(layer.p is not None for layer in layers)
    return Finding(Spectra(layers, tested, LEVEL, context.initial is not None), _confidence(tested, len(layers)))


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


def _layer(name: str, W: Tensor, W0: Tensor | None, values: Float64[np.ndarray, " k"], seed: int) -> Layer:
    """One matrix, classified; one for which there is no test says why."""
    try:
        return _tested(name, W, W0, values, seed)
    except NtkscopeError as why:
        rows, columns = W.shape
        nothing = {field: None for field in ("edge", "p", "holm", "alpha", "alpha_low", "alpha_high", "spread")}
        return Layer(name, rows, columns, "undecided", 0, float(values[0]), (), (), **nothing, note=str(why))


def _tested(name: str, W: Tensor, W0: Tensor | None, values: Float64[np.ndarray, " k"], seed: int) -> Layer:
    seen = classify(W, W0, level=LEVEL, seed=seed)
    spikes, tail = seen.spikes, seen.tail
    p = None if spikes is None else float(spikes.p_value)
    if p is not None and p <= FEWEST * (1 + 1e-9):  # no permutation came close: how far away it is, the law of noise tells
        p = min(p, float(spike_test(W, null="tracy-widom", level=LEVEL).p_value))
    count = 0 if spikes is None else int(spikes.count)
    return Layer(
        name=name,
        rows=W.shape[0],
        columns=W.shape[1],
        label=str(seen.label),
        count=count,
        largest=float(values[0]),
        values=() if spikes is None else tuple(map(float, spikes.values)),
        strengths=() if spikes is None else tuple(map(float, spikes.strengths)),
        edge=None if spikes is None else _finite(spikes.edge),
        p=p,
        holm=None,
        alpha=None if tail is None else _finite(tail.alpha),
        alpha_low=None if tail is None else _finite(tail.interval[0]),
        alpha_high=None if tail is None else _finite(tail.interval[1]),
        spread=min(map(float, spikes.participation[0])) if spikes is not None and count else None,
        note="" if spikes is not None else _why(seen.evidence),
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(float(value)) else None


def _why(evidence: object) -> str:
    """The first text among the evidence: why there was no test."""
    told = evidence.values() if isinstance(evidence, dict) else ()
    return next((value for value in told if isinstance(value, str)), "")


def corrected(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The same layers, p corrected after Holm for all that were tested."""
    places = [k for k, layer in enumerate(layers) if layer.p is not None]
    adjusted = dict(zip(places, holm([layers[k].p or 0.0 for k in places]), strict=True))
    return tuple(replace(layer, holm=adjusted.get(k)) for k, layer in enumerate(layers))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) p-values: the k-th smallest of m times m - k + 1, never below the ones before, at most 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    out, highest = [0.0] * len(p_values), 0.0
    for place, k in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[k]))
        out[k] = highest
    return out


def _confidence(tested: int, layers: int) -> str:
    if not tested:
        return "No matrix is large enough for a test, which needs about fifty singular values."
    said = (
        f"Tested on {tested} of {layers} matrices against {DRAWS} permutations of their entries; where none of those came close,"
        f" p is that of the Tracy–Widom law. All tests together raise a false alarm in {100 * LEVEL:.0f} % of networks without"
        " any spike (Holm)."
    )
    if tested < layers:
        said += " The others are too small to tell."
    return said


def cost(work: Workload) -> float:
    """Permuted copies of every matrix, by the smaller Gram of each, and its own decomposition."""
    total = 0.0
    for rows, columns in work.matrices:
        short, long = sorted((rows, columns))
        total += ROUNDS * DRAWS * short * short * (long + 0.3 * short) + 40 * short**3
    return total * work.rates.double


SECTION = register(
    Section(
        name="spectra",
        place=6,
        title="Spectra",
        meaning=(
            "What training wrote into each weight matrix. The singular values of random entries end at a sharp edge; a value"
            " beyond it is a direction that chance does not explain. The weights alone tell, without the history of the"
            " training."
        ),
        formula=(
            "W = UΣVᵀ (a convolution as out × in·k·k). The largest σ is compared with that of the same entries, mean removed, in"
            " random order: p = (1 + #{draws ≥ σ}) / (1 + draws); if it is significant it is taken out, and the rest is"
            " tested. θ u vᵀ + noise of scale s gives σ = √((θ² + m s²)(θ² + n s²)) / θ, from which the strength θ. Heavy tail:"
            " a power law of the largest σ²."
        ),
        run=run,
        result=Spectra,
        cost=cost,
    )
)
