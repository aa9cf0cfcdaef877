"""Where a network collapses, by its probes: the first layer at which three different classifiers need the same few directions.

Harlev et al., "Exploring learned representations of neural networks with principal component analysis" (2023), section 5.
Their rule is a look at Figures 17 and 18; here it is a rule with two margins, and a bootstrap over test items says how
firmly it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Protocol

import numpy as np
from jaxtyping import Bool, Float64, Int64

from ntkscope.core import UsageError, numpy_generator
from ntkscope.core.arguments import labels_of, plain_array
from ntkscope.core.checked import Count, CountOrZero, NonNegative, within

PROBES = ("knn", "ncc", "svm")  # the published three
CHUNK = 1 << 22  # weights of items drawn at a time


class Sweep(Protocol):
    """What is read of a layer's `ProbeSweep`."""

    @property
    def dims(self) -> Sequence[int]: ...

    @property
    def predictions(self) -> Mapping[str, Mapping[int, Any]]: ...


@dataclass(frozen=True)
class ProbesAt:
    """One layer: how many components each probe needs, its best accuracy over all numbers of them, and whether they agree.

    `share`: of the bootstrap's draws, in which they agree.
    """

    layer: str
    counts: Mapping[str, int]
    best: Mapping[str, float]
    agree: bool
    share: float


@dataclass(frozen=True)
class CollapseLayer:
    """The first layer at which the probes agree, None if there is none, and how sure that is.

    `distribution`: in which share of the draws each layer is the first, None for no layer. `once`: whether they agree from
    there on to the last layer, and `share_once` in how many draws so. `nc1`: of every layer, where it was given; `nc1_falls`
    whether it is lower at this layer than at the one before.
    """

    layer: str | None
    before: str | None
    once: bool
    layers: tuple[ProbesAt, ...]
    distribution: Mapping[str | None, float]
    share_once: float
    draws: int
    nc1: Mapping[str, float] | None = None

    @property
    def nc1_falls(self) -> bool | None:
        if self.nc1 is None or self.layer is None or self.before is None:
            return None
        return self.nc1[self.layer] < self.nc1[self.before]


def collapse_layer(
    sweeps: Mapping[str, Sweep],
    y: Any = None,
    *,
    nc1: Mapping[str, float] | None = None,
    share: Annotated[float, within(above=0, high=1)] = 0.9,
    components: CountOrZero = 2,
    accuracy: NonNegative = 0.02,
    draws: Count = 1000,
    seed: int = 0,
) -> CollapseLayer:
    """The first layer at which k-NN, NCC and SVM agree: their counts differ by at most `components`, accuracies by `accuracy`.

    A probe's count is the smallest number of components, among those tried, with `share` of its own best accuracy at that
    layer; the accuracy is that best. `sweeps`: of the layers, first to last, all on the same test items; `y`: their labels,
    where the sweeps do not hold them (`.labels`). Each draw resamples the test items, the same for all layers and probes,
    and chooses everything again, the best number of components too. O(draws · items · layers · dims).

    Examples:
        >>> from types import SimpleNamespace
        >>> y = np.array([0, 1] * 10)
        >>> early, late = ({1: 1 - y, 2: y}, {1: y, 2: y})
        >>> layers = {"conv": {"knn": early, "ncc": early, "svm": late}, "dense": {"knn": late, "ncc": late, "svm": late}}
        >>> sweeps = {name: SimpleNamespace(dims=(1, 2), predictions=found) for name, found in layers.items()}
        >>> collapse_layer(sweeps, y, components=0, draws=20).layer
        'dense'
    """
    if not sweeps:
        raise UsageError("got no layers; expected a sweep of at least one")
    labels = _labels(sweeps, y)
    names = list(sweeps)
    if nc1 is not None and set(names) - set(nc1):
        raise UsageError(f"got nc1 without {', '.join(sorted(set(names) - set(nc1)))}; expected one per layer")
    correct = {name: _correct(name, sweep, labels) for name, sweep in sweeps.items()}
    even = np.full((1, len(labels)), 1.0)
    found = {name: _needed(values, even, sweeps[name].dims, share) for name, values in correct.items()}
    agrees = {name: bool(_agree(*pair, components, accuracy)[0]) for name, pair in found.items()}
    resampled = _resampled(correct, sweeps, (share, components, accuracy), draws, seed)  # (draws, layers)
    first = np.where(resampled.any(1), resampled.argmax(1), len(names))
    keys: list[str | None] = [*names, None]
    layers = tuple(
        ProbesAt(
            name,
            dict(zip(PROBES, map(int, found[name][0][0]))),
            dict(zip(PROBES, map(float, found[name][1][0]))),
            agrees[name],
            float(resampled[:, at].mean()),
        )
        for at, name in enumerate(names)
    )
    at = next((k for k, name in enumerate(names) if agrees[name]), None)
    return CollapseLayer(
        layer=None if at is None else names[at],
        before=None if not at else names[at - 1],
        once=_once(list(agrees.values())),
        layers=layers,
        distribution={key: float((first == k).mean()) for k, key in enumerate(keys)},
        share_once=float(np.mean([_once(list(row)) for row in resampled])),
        draws=draws,
        nc1=None if nc1 is None else {name: float(nc1[name]) for name in names},
    )


def _labels(sweeps: Mapping[str, Sweep], y: Any) -> Int64[np.ndarray, " m"]:
    held = y if y is not None else getattr(next(iter(sweeps.values())), "labels", None)
    if held is None:
        raise UsageError("got sweeps without labels; expected y=, the labels of their test items")
    return labels_of(held)


def _correct(name: str, sweep: Sweep, labels: Int64[np.ndarray, " m"]) -> Bool[np.ndarray, "3 m d"]:
    """Which items each probe gets right with each number of components."""
    absent = [probe for probe in PROBES if probe not in getattr(sweep, "predictions", ())]
    if absent:
        raise UsageError(f"got a sweep of {name} without {', '.join(absent)}; expected the probes {', '.join(PROBES)}")
    right = []
    for probe in PROBES:
        columns = [plain_array(sweep.predictions[probe][d]) for d in sweep.dims]
        if any(column.shape != labels.shape for column in columns):
            raise UsageError(
                f"got predictions of shape {columns[0].shape} for {name} and {len(labels)} labels; expected the same test items"
                " at every layer"
            )
        right.append(np.stack([column == labels for column in columns], axis=1))
    return np.stack(right)


def _needed(
    correct: Bool[np.ndarray, "3 m d"], weights: Float64[np.ndarray, "b m"], dims: Sequence[int], share: float
) -> tuple[Int64[np.ndarray, "b 3"], Float64[np.ndarray, "b 3"]]:
    """Counts and best accuracies of the probes, for each weighting of the items."""
    scores = np.stack([weights @ each / weights.sum(1, keepdims=True) for each in correct.astype(np.float64)], axis=1)
    best = scores.max(2)
    first = (scores >= share * best[..., None] - 1e-12).argmax(2)
    return np.asarray(list(dims))[first], best


def _agree(
    counts: Int64[np.ndarray, "b 3"], best: Float64[np.ndarray, "b 3"], components: int, accuracy: float
) -> Bool[np.ndarray, " b"]:
    return (np.ptp(counts, axis=1) <= components) & (np.ptp(best, axis=1) <= accuracy + 1e-12)


def _resampled(
    correct: Mapping[str, np.ndarray],
    sweeps: Mapping[str, Sweep],
    rule: tuple[float, int, float],
    draws: int,
    seed: int,
) -> Bool[np.ndarray, "draws layers"]:
    """Whether the probes agree at each layer, for resampled test items."""
    share, components, accuracy = rule
    items = next(iter(correct.values())).shape[1]
    random = numpy_generator(seed, "collapse layer")
    step = max(1, CHUNK // items)
    rows = []
    for start in range(0, draws, step):
        chosen = random.integers(0, items, (min(step, draws - start), items))
        weights = np.stack([np.bincount(row, minlength=items) for row in chosen]).astype(np.float64)
        each = [_agree(*_needed(correct[n], weights, sweeps[n].dims, share), components, accuracy) for n in correct]
        rows.append(np.stack(each, axis=1))
    return np.concatenate(rows)


def _once(agrees: Sequence[bool]) -> bool:
    """Whether there is exactly one change, from not agreeing to agreeing."""
    return not agrees[0] and agrees[-1] and sum(a != b for a, b in pairwise(agrees)) == 1
