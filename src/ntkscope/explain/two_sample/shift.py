"""Distribution shift: whether two samples come from one distribution, by tests that are exact under rearrangement."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from torch import nn

from ntkscope import kernels
from ntkscope.core import UsageError
from ntkscope.core.checked import Count, Probability
from ntkscope.core.model.tree import join
from ntkscope.explain.two_sample import c2st, kolmogorov, mmd
from ntkscope.explain.two_sample.density_ratio import DensityRatio, kernel_density_ratio, odds
from ntkscope.explain.two_sample.embedding import embedded
from ntkscope.explain.two_sample.pooled import Pooled, pool
from ntkscope.explain.two_sample.rearrangements import Rearrangements, check_count, p_value, rearrange
from ntkscope.measures.uncertainty import holm
from ntkscope.tangent.model.batches import as_batch

TESTS = ("c2st", "mmd", "ks")
SHIFT, NO_SHIFT = "shift", "no shift found"
COMBINED = "holm"
SPREAD = 51  # arrangements from which an effect's spread without a shift is taken


@dataclass(frozen=True, eq=False)
class Shift:
    """What tells two samples a and b apart.

    `p`: of every test, `(1 + #{T_b ≥ T}) / (1 + B)`, and under "holm" the smallest of them corrected for their number.
    `effects`: (value, low, high), 95 % intervals or wider (docs/science.md): "auc", the area under the ROC curve of a
    linear classifier of a against b on items it was not fitted on, its mean over classifiers fitted on so many items;
    "auc_pc12" and "auc_pc12_qda", the same given the first two principal components, linear and quadratic; "mmd2", the
    squared maximum mean discrepancy; "ks", the largest Kolmogorov–Smirnov distance over components. `verdict`: "shift" where
    "holm" is at most `level`, else "no shift found", which does not show that there is none. `nulls`: each test's statistic,
    the samples' own first, then those of the rearrangements. `scores`: the classifier's, of the items of a, then of b.
    `plane`: the first two principal components of all items, in the same order.
    """

    p: Mapping[str, float]
    effects: Mapping[str, tuple[float, float, float]]
    level: float
    sizes: tuple[int, int]
    units: tuple[int, int]
    component: int | None
    nulls: Mapping[str, Float64[np.ndarray, " r"]] = field(repr=False)
    scores: Float64[np.ndarray, " n"] = field(repr=False)
    pooled: Pooled = field(repr=False)
    rearrangements: Rearrangements = field(repr=False)
    seed: int = 0

    @property
    def verdict(self) -> str:
        return SHIFT if self.p[COMBINED] <= self.level else NO_SHIFT

    @property
    def plane(self) -> Float64[np.ndarray, "n 2"]:
        return self.pooled.components(2)

    @cached_property
    def ratio(self) -> DensityRatio:
        """`p_b / p_a` at the items of both, by cross-fitted odds; `.effective` says how far to trust `.a` as weights."""
        folds = self.rearrangements.stratified_folds(c2st.FOLDS, self.seed)
        return odds(self.pooled, folds)

    @cached_property
    def ratio_pc12(self) -> DensityRatio:
        """The same from kernel density estimates in the plane of the first two principal components."""
        if self.plane.shape[1] < 2:
            raise UsageError(
                "the embedding varies in one direction alone; expected at least two for densities in a plane"
            )
        return kernel_density_ratio(self.plane, self.sizes[0])

    def __str__(self) -> str:
        tests = ", ".join(f"{name} p = {value:.3g}" for name, value in self.p.items())
        auc = self.effects.get("auc")
        told = "tells them apart" if auc is not None and auc[1] > 0.5 else "does not tell them apart"
        said = f"; a linear classifier {told}: AUC {auc[0]:.2f} ({auc[1]:.2f}–{auc[2]:.2f})" if auc is not None else ""
        return f"{self.verdict} ({self.sizes[0]:,} against {self.sizes[1]:,} items): {tests}{said}"


def shift(
    embed: Any,
    a: Any,
    b: Any,
    *,
    layer: str | int | None = None,
    pooling: Any = "mean",
    tests: str | Sequence[str] = TESTS,
    kernel: str | None = None,
    permutations: Count = 999,
    groups: Any = None,
    level: Probability = 0.05,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
) -> Shift:
    """Whether the items of `a` and `b` come from one distribution, as seen by an embedding.

    `embed`, `layer`, `pooling`, `store`: how items become vectors, as `embedding.embedded` says. Tests: "c2st",
    cross-fitted ridge scores and their AUC; "mmd", the unbiased squared discrepancy under a Gaussian of the median distance,
    or under the kernel of `ns.KERNELS` that `kernel` names (then `embed` is a module); "ks", the largest distance over the
    first principal components of both. Every p comes from `permutations` rearrangements of items, or of whole `groups` (one
    name per item, of a then b; a group lies in one sample) where items are not independent: repeated items, several per
    user. One decomposition and one pass over the kernel serve all of them: O(N² B) for N items.

    Examples:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(300, 5))
        >>> found = shift(None, x[:100], x[100:] + 0.6, permutations=99)
        >>> found.verdict, found.p["c2st"], found.effects["auc"][0] > 0.7
        ('shift', 0.01, True)
    """
    chosen = _tests(tests)
    if isinstance(kernel, str) and not (isinstance(embed, nn.Module) and kernel in kernels.KERNELS):
        raise UsageError(
            f"got kernel={kernel!r} with embed of type {type(embed).__name__}; expected a kernel of"
            f" {', '.join(kernels.KERNELS)} together with a module, or None for a Gaussian"
        )
    first, second = embedded(embed, a, b, layer=layer, pooling=pooling, store=store)
    pooled = pool(first, second)
    found = rearrange(pooled.first, pooled.second, groups, permutations, seed)
    check_count(permutations, level, found, len(chosen))
    folds = found.folds(c2st.FOLDS, seed, pooled.centred)
    nulls: dict[str, Float64[np.ndarray, " r"]] = {}
    effects: dict[str, tuple[float, float, float]] = {}
    told = c2st.separation(pooled, found.labels if "c2st" in chosen else found.labels[:SPREAD], folds)
    effects["auc"] = c2st.auc_interval(told.scores, found.labels[0], found.unit, float(told.auc[1:].std()))
    effects |= _plane_effects(pooled, found, folds)
    component = None
    for name in chosen:
        if name == "c2st":
            nulls[name] = told.auc
        elif name == "mmd":
            rows = (
                mmd.gaussian(pooled.centred, found.unit, seed)
                if kernel is None
                else _network_kernel(kernel, embed, a, b)
            )
            held_out = mmd.discrepancies(rows, found)
            nulls[name] = held_out.squared
            effects["mmd2"] = (float(held_out.squared[0]), *mmd.discrepancy_interval(held_out, found))
        else:
            parts = pooled.components(kolmogorov.COMPONENTS)
            largest = kolmogorov.largest_distances(parts, found.labels)
            nulls[name], component = largest.statistic, largest.component
            ends = kolmogorov.distance_interval(largest.distance, found.unit, found.labels[0], parts.shape[1])
            effects["ks"] = (largest.distance, *ends)
    p = {name: p_value(nulls[name]) for name in chosen}
    units = tuple(len(np.unique(found.unit[which])) for which in (~found.labels[0], found.labels[0]))
    return Shift(
        p={**p, COMBINED: min(holm(list(p.values())))},
        effects=effects,
        level=level,
        sizes=(pooled.first, pooled.second),
        units=(units[0], units[1]),
        component=component,
        nulls=nulls,
        scores=told.scores,
        pooled=pooled,
        rearrangements=found,
        seed=seed,
    )


def _tests(tests: str | Sequence[str]) -> tuple[str, ...]:
    listed = tests if isinstance(tests, Iterable) and not isinstance(tests, str) else (tests,)
    chosen = tuple(dict.fromkeys(listed))
    if not chosen or any(name not in TESTS for name in chosen):
        raise UsageError(f"got tests={tests!r}; expected some of {', '.join(TESTS)}")
    return chosen


def _plane_effects(
    pooled: Pooled, found: Rearrangements, folds: Int64[np.ndarray, " n"]
) -> dict[str, tuple[float, float, float]]:
    """How well the first two principal components alone tell the samples apart."""
    plane = pooled.leading(2)
    labels = found.labels[:SPREAD]
    linear = c2st.cross_fitted(plane, labels, folds)
    curved = c2st.quadratic_scores(plane.centred, labels, folds)
    return {
        name: c2st.auc_interval(scores[:, 0], labels[0], found.unit, float(c2st.areas(scores, labels)[1:].std()))
        for name, scores in (("auc_pc12", linear), ("auc_pc12_qda", curved))
    }


def _network_kernel(name: str, model: nn.Module, a: Any, b: Any) -> mmd.Rows:
    """A kernel of the network between all items, in float64."""
    batches = [as_batch(x, model) for x in (a, b)]
    args, kwargs = (join([getattr(batch, part) for batch in batches]) for part in ("args", "kwargs"))
    values = kernels.kernel(name, model, kwargs if kwargs else args).numpy().astype(np.float64)
    if len(values) != len(batches[0]) + len(batches[1]):
        raise UsageError(f"the kernel {name!r} has several rows per item; expected one, such as 'trntk' or 'ck'")
    return lambda rows: values[rows].copy()
