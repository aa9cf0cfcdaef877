"""Representations: what simple classifiers read from each layer, how far it has collapsed, and where they agree."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int64
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from ntkscope.core import NtkscopeError, Part, UsageError
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.core.model.tree import length, take
from ntkscope.data.subsets import stratified
from ntkscope.linalg.features.pca import pca
from ntkscope.measures.collapse import collapse
from ntkscope.measures.dimension import two_nn
from ntkscope.measures.probe_agreement import PROBES, collapse_layer
from ntkscope.measures.probes import ProbeSweep, sweep
from ntkscope.tangent import activations
from ntkscope.xray.context import Context, subset
from ntkscope.xray.registry import Finding, Section, Skip, register
from ntkscope.xray.result import Result
from ntkscope.xray.task import CLASSIFICATION
from ntkscope.xray.workload import Workload

TRAIN, TEST = 1000, 500  # items at most
LAYERS = 12  # layers at most, evenly through the network
DIMS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 30, 50, 100)
NEIGHBOURS = 10
STRENGTH = 0.01  # C of the support vector machine, on standardised activations
NEAR = 500  # items whose intrinsic dimension is estimated
DRAWS = 500
WIDTH = 2048  # numbers per item that a layer is taken to have


@dataclass(frozen=True)
class Layer(Result):
    """One layer. `accuracy` and `components` by probe: its best on test items, and how many components give 90 % of that.

    `variance`: the share of the activations' variance in those. `nc1`, `cdnv`: of the training items. `differs`: share of
    test items for which the nearest class mean of this layer is not the network's decision. `agree`: whether the probes do,
    and in which `share` of resampled test items. `averaged`: over positions, because the layer is too large. `reason`: why
    there are no numbers.
    """

    name: str
    width: int
    accuracy: Mapping[str, float]
    components: Mapping[str, int]
    variance: Mapping[str, float]
    nc1: float | None
    cdnv: float | None
    differs: float | None
    dimension: float | None
    dimension_error: float | None
    agree: bool
    share: float
    averaged: bool
    reason: str


@dataclass(frozen=True)
class Representations(Result):
    """The layers in the network's order.

    `collapse`: the first at which the probes agree, None for none; `distribution`: in which share of the draws each layer is
    it ("" for none). `lasting`: whether they agree at every layer from there on.
    """

    layers: tuple[Layer, ...]
    accuracy: float
    collapse: str | None
    before: str | None
    lasting: bool
    distribution: Mapping[str, float]
    train: int
    test: int
    left_out: int


def run(context: Context) -> Finding[Representations]:
    draw = (context.seed, "xray", "representations")
    behind = stratified(context.train.strata, TRAIN, *draw, "train")
    ahead = stratified(context.test.strata, TEST, *draw, "test")
    train, test = subset(context.train, behind), subset(context.test, ahead)
    decisions = context.network_logits[ahead].argmax(1).astype(np.int64)
    if len(np.unique(context.y_train[behind])) < 2:
        raise Skip("the training items are all of one class: there is nothing for a probe to tell apart")
    every = _stages(context, train)
    names = evenly(every, LAYERS)
    found = {name: _layer(context, name, train, test, decisions) for name in names}
    layers = [layer for layer, _ in found.values()]
    sweeps = {name: swept for name, (_, swept) in found.items() if swept is not None}
    if not sweeps:
        raise Skip(f"no layer could be probed; {layers[0].name}: {layers[0].reason}")
    agreed = collapse_layer(sweeps, draws=DRAWS, seed=context.seed)
    told = {each.layer: each for each in agreed.layers}
    shown = tuple(
        replace(layer, agree=told[layer.name].agree, share=told[layer.name].share) if layer.name in told else layer
        for layer in layers
    )
    flags = [each.agree for each in agreed.layers]
    result = Representations(
        layers=shown,
        accuracy=float((decisions == context.y_test[ahead]).mean()),
        collapse=agreed.layer,
        before=agreed.before,
        lasting=agreed.layer is not None and all(flags[flags.index(True) :]),
        distribution={layer or "": share for layer, share in agreed.distribution.items() if share > 0},
        train=len(train),
        test=len(test),
        left_out=len(every) - len(names),
    )
    return Finding(result, _confidence(result))


def _stages(context: Context, train: Part) -> list[str]:
    few = take(train.x, torch.arange(min(3, length(train.x))))
    try:
        return list(activations(context.model, few, device=context.device, memory=context.memory // 4))
    except UsageError as why:
        raise Skip(f"the network has no layer that could be probed: {why}") from why


def evenly(names: Sequence[str], most: int) -> list[str]:
    """At most so many of them, first and last among them.

    >>> evenly(list("abcdefg"), 3), evenly(["a"], 3)
    (['a', 'd', 'g'], ['a'])
    """
    if len(names) <= most:
        return list(names)
    return [names[round(k * (len(names) - 1) / (most - 1))] for k in range(most)]


def _layer(
    context: Context, name: str, train: Part, test: Part, decisions: Int64[np.ndarray, " m"]
) -> tuple[Layer, ProbeSweep | None]:
    """One layer measured; one that cannot be says why."""
    bare = Layer(name, 0, {}, {}, {}, None, None, None, None, None, False, 0.0, False, "")
    try:
        rows, others, averaged = _features(context, name, train, test)
        bare = replace(bare, width=rows.shape[1], averaged=averaged)
        most = min(DIMS[-1], *rows.shape)
        found = pca(rows, components=most, memory=context.memory // 2, seed=context.seed)
        dims = sorted({*(d for d in DIMS if d < len(found)), len(found)})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a hundredth of a percent of the objective
            swept = sweep(
                found.transform(rows),
                train.y,
                found.transform(others),
                test.y,
                dims,
                probes=PROBES,
                k=min(NEIGHBOURS, len(train)),
                C=STRENGTH,
                total=found.total,
            )
    except NtkscopeError as why:
        return replace(bare, reason=str(why)), None
    needed = swept.smallest(0.9)
    bare = replace(
        bare,
        accuracy={probe: max(swept.accuracy[probe].values()) for probe in PROBES},
        components=needed,
        variance={probe: min(1.0, swept.variance[d]) for probe, d in needed.items()},
    )
    return _dimension(_collapse(bare, rows, train.y, others, decisions), rows), swept


def _features(context: Context, name: str, train: Part, test: Part) -> tuple[Tensor, Tensor, bool]:
    """Activations of training and test items, flattened; averaged over positions where they would take too much memory."""
    for reduce in ("flatten", "mean"):
        try:
            rows, others = (
                activations(
                    context.model, part.x, name, reduce=reduce, device=context.device, memory=context.memory // 4
                )[name]
                for part in (train, test)
            )
        except MemoryBudgetError:
            if reduce == "mean":
                raise
            continue
        assert isinstance(rows, Tensor)
        assert isinstance(others, Tensor)
        return rows, others, reduce == "mean"
    raise AssertionError("unreachable")


def _collapse(layer: Layer, rows: Tensor, y: Tensor, others: Tensor, decisions: Int64[np.ndarray, " m"]) -> Layer:
    """With the measures of collapse, of the classes with at least two items."""
    counts = torch.bincount(y.cpu())
    kept = (counts[y.cpu()] >= 2).to(rows.device)
    try:
        found = collapse(rows[kept], y[kept.cpu()], decisions=decisions, at=others)
    except NtkscopeError:
        return layer
    return replace(layer, nc1=found.nc1, cdnv=found.cdnv, differs=found.nc4)


def _dimension(layer: Layer, rows: Tensor) -> Layer:
    try:
        found = two_nn(rows[:NEAR], halvings=0)
    except NtkscopeError:  # too few distinct items
        return layer
    return replace(layer, dimension=found.dimension, dimension_error=found.error)


def _confidence(result: Representations) -> str:
    error = 100 * (max(result.accuracy * (1 - result.accuracy), 0.01) / result.test) ** 0.5
    said = (
        f"Probes are fitted on {result.train:,} training items and judged on {result.test:,} test items: accuracies are"
        f" certain to about {error:.1f} points, one standard error, and slightly flattering, as the best number of"
        " components is chosen on the same items."
    )
    if result.left_out:
        said += f" {len(result.layers)} layers are shown, evenly through the network; {result.left_out} are not."
    return said


def cost(work: Workload) -> float:
    """Forward passes of every layer's turn, principal components, and the probes."""
    n, m = min(work.train, TRAIN), min(work.test, TEST)
    top = DIMS[-1]
    products = n * WIDTH * min(n, WIDTH) + (n + m) * WIDTH * top + n * m * top + 300 * n * top * work.classes
    products += min(n, NEAR) ** 2 * WIDTH
    return LAYERS * (3 * work.rates.forward * (n + m) + products * work.rates.double)


SECTION = register(
    Section(
        name="representations",
        place=6,
        title="Representations",
        meaning=(
            "What each layer knows about the classes. Three simple classifiers are fitted to the principal components of each"
            " layer's activations: nearest neighbours, nearest class centre and a linear support vector machine. Where they"
            " need the same few directions and do equally well, the layer has collapsed to nearly one point per class; what"
            " the network used to decide is to be found in the layers before."
        ),
        formula=(
            "Activations, standardised on training items, projected on their first d principal components; per probe the best"
            " accuracy over d, and the smallest d with 0.9 of it. Probes agree: these d differ by at most 2, accuracies by at"
            " most 0.02. NC1 = tr(Σ_W Σ_B⁺)/C; CDNV = mean over pairs of classes of (σ_c² + σ_c′²) / (2 ‖μ_c − μ_c′‖²)."
            " Intrinsic dimension: two nearest neighbours (Facco et al. 2017)."
        ),
        run=run,
        result=Representations,
        cost=cost,
        tasks=(CLASSIFICATION,),
    )
)
