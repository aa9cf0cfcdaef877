"""Search: every setting of a grid, scored by cross-validation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from sklearn.model_selection import KFold, StratifiedKFold
from torch import nn

from ntkscope.core import NumericalError, Part, UsageError, derive_seed
from ntkscope.core import progress as show_progress
from ntkscope.core.arguments import instance, whole
from ntkscope.core.progress import Progress
from ntkscope.training.ensembles.ensemble import OWN, fit_ensemble
from ntkscope.training.evaluation import evaluate
from ntkscope.training.fit import fit
from ntkscope.training.settings import Settings, as_settings

MODEL = "model."
Score = Callable[[nn.Module, Part], float]


@dataclass(frozen=True)
class SearchRow:
    """One setting of the grid and its score on each fold left out."""

    options: Mapping[str, Any]
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the folds."""
        return math.fsum(self.scores) / len(self.scores)

    @property
    def standard_error(self) -> float:
        """s / √k with s the standard deviation over the k folds, as if folds were independent (they overlap)."""
        return float(np.std(self.scores, ddof=1) / math.sqrt(len(self.scores)))


@dataclass(frozen=True)
class SearchResult:
    """Every setting of the grid, in the grid's order; `str(result)` is a table."""

    rows: tuple[SearchRow, ...]
    score: str
    larger_is_better: bool

    @property
    def best(self) -> SearchRow:
        """The row with the best mean; the first of equals."""
        finite = [row for row in self.rows if math.isfinite(row.mean)]
        if not finite:
            raise UsageError("no setting of the grid has a finite score; widen the grid, to lower learning rates first")
        return max(finite, key=lambda row: row.mean if self.larger_is_better else -row.mean)

    def __str__(self) -> str:
        names = list(self.rows[0].options)
        head = [*names, self.score, "s.e."]
        lines = [
            [*(f"{row.options[n]}" for n in names), f"{row.mean:.4g}", f"{row.standard_error:.2g}"] for row in self.rows
        ]
        widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
        return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths)) for line in [head, *lines])


def folds(part: Part, count: int, seed: int = 0) -> Iterator[tuple[Part, Part]]:
    """`count` pairs (rest, fold), folds disjoint and together everything; class numbers are spread evenly over them.

    Examples:
        >>> part = Part(torch.arange(6.0)[:, None], torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> [sorted(fold.y.tolist()) for _, fold in folds(part, 3)]
        [[0, 1], [0, 1], [0, 1]]
    """
    instance(part, "data", Part, "a Part(x, y)")
    count = whole(count, "count", low=2, high=len(part), expected=f"2 ... {len(part)} folds of {len(part)} items")
    state = derive_seed(seed, "folds") % 2**32
    stratified = part.y.ndim == 1 and not part.y.is_floating_point()
    if stratified and (fewest := int(torch.unique(part.y, return_counts=True)[1].min())) < count:
        raise UsageError(f"got {count} folds, but a class has {fewest} items; use at most {fewest} folds")
    splitter = (StratifiedKFold if stratified else KFold)(count, shuffle=True, random_state=state)
    for rest, fold in splitter.split(np.zeros(len(part)), part.y.cpu().numpy() if stratified else None):
        yield part.take(torch.from_numpy(rest)), part.take(torch.from_numpy(fold))


def search(
    build: Callable[..., nn.Module],
    part: Part,
    grid: Mapping[str, Sequence[Any]],
    settings: Settings | None = None,
    *,
    folds_count: int = 5,
    score: Literal["accuracy", "loss"] | Score = "accuracy",
    larger_is_better: bool | None = None,
    vectorised: bool = False,
    progress: bool = False,
    **options: Any,
) -> SearchResult:
    """Train every setting of `grid` on all folds but one and score it on that one.

    Keys of the grid are fields of `Settings`, or `"model.NAME"` for an option of `build`, which is called as
    `build(seed=..., NAME=value)`. The other fields come from `settings` or as keywords; their seed fixes folds and networks.
    `score` is "accuracy", "loss", or a function of the network and the part left out. A setting whose loss is not finite scores
    NaN. Cost: |grid| · folds runs.

    With `vectorised` the settings that differ in lr and weight decay alone train together on all folds, one `fit_ensemble` for
    each network and choice of the other settings: the same scores, up to rounding, in a fraction of the time.

    Examples:
        >>> def build(seed):
        ...     return ns.models.mlp(2, classes=2, widths=[4], seed=seed)
        >>> found = search(build, ns.core.Part(x, y), {"lr": [1e-6, 0.5]}, steps=5, folds_count=3, score="loss")
        >>> found.best.options, found.best.mean < found.rows[0].mean
        ({'lr': 0.5}, True)
    """
    if not grid or any(len(values) == 0 for values in grid.values()):
        raise UsageError(
            f"the grid {dict(grid)} has nothing to try; expected {{option: values}} with at least one value"
        )
    if "seed" in grid:
        raise UsageError("the grid has 'seed', and folds are compared on one; expected seed= beside the grid")
    if larger_is_better is None:
        if callable(score):
            raise UsageError("got a score function without larger_is_better; pass True or False")
        larger_is_better = score == "accuracy"
    weights = options.get("weights", None if settings is None else settings.weights)
    if isinstance(weights, torch.Tensor):
        raise UsageError("got weights as a tensor for all items; put it into the part's extras and pass its name")
    points = [dict(zip(grid, values)) for values in itertools.product(*grid.values())]
    runs = [as_settings(settings, _without_model({**options, **point})) for point in points]
    seed = runs[0].seed
    pairs = list(folds(part, folds_count, seed))
    grids = [
        {key.removeprefix(MODEL): value for key, value in point.items() if key.startswith(MODEL)} for point in points
    ]
    jobs = [
        _Job(at, number, partial(build, **grids[at]), replace(run, seed=derive_seed(seed, "fold", number)))
        for at, run in enumerate(runs)
        for number in range(len(pairs))
    ]
    scores = np.full((len(points), len(pairs)), math.nan)
    bar: Progress[None] = show_progress(total=len(jobs), label="searching", enabled=progress)
    with bar:
        for some in _together(jobs, grid, pairs) if vectorised else [[job] for job in jobs]:
            models = _trained_together(some, pairs) if vectorised else [_trained(some[0], pairs)]
            for job, model in zip(some, models):
                if model is not None:
                    scores[job.point, job.fold] = _score(model, pairs[job.fold][1], job.settings, score)
                bar.advance()
    rows = tuple(SearchRow(point, tuple(map(float, row))) for point, row in zip(points, scores))
    return SearchResult(rows, score if isinstance(score, str) else score.__name__, larger_is_better)


@dataclass(frozen=True, eq=False)
class _Job:
    """One setting of the grid on all folds but one."""

    point: int
    fold: int
    build: Callable[..., nn.Module]
    settings: Settings


def _trained(job: _Job, pairs: Sequence[tuple[Part, Part]]) -> nn.Module | None:
    """The network of a job, or None where training has no finite answer."""
    model = job.build(seed=job.settings.seed)
    try:
        fit(model, pairs[job.fold][0], job.settings, snapshots="final", measure=False).final()
    except NumericalError:
        return None
    return model


def _together(
    jobs: Sequence[_Job], grid: Mapping[str, Sequence[Any]], pairs: Sequence[tuple[Part, Part]]
) -> list[list[_Job]]:
    """Jobs that can be members of one ensemble: all but their rates is the same, and their folds are as long."""
    places = list(itertools.product(*(range(len(values)) for values in grid.values())))
    groups: dict[tuple[int, ...], list[_Job]] = {}
    for job in jobs:
        key = [at for name, at in zip(grid, places[job.point]) if name not in OWN]
        groups.setdefault((*key, len(pairs[job.fold][0])), []).append(job)
    return list(groups.values())


def _trained_together(jobs: Sequence[_Job], pairs: Sequence[tuple[Part, Part]]) -> Iterator[nn.Module | None]:
    """The networks of some jobs, trained as one ensemble."""
    ensemble = fit_ensemble(
        lambda seed: jobs[0].build(seed=seed),
        [pairs[job.fold][0] for job in jobs],
        replace(jobs[0].settings, seed=0),
        seeds=[job.settings.seed for job in jobs],
        diverged="nan",
        snapshots="final",
        **_own_values(jobs),
    )
    assert ensemble.diverged is not None
    return (None if bad else ensemble.member(i) for i, bad in enumerate(ensemble.diverged.tolist()))


def _own_values(jobs: Sequence[_Job]) -> dict[str, Any]:
    """What differs between the jobs: not every optimizer allows members rates of their own."""
    values = {name: [float(getattr(job.settings, name)) for job in jobs] for name in OWN}
    return {name: each for name, each in values.items() if len(set(each)) > 1}


def _without_model(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if not key.startswith(MODEL)}


def _score(model: nn.Module, fold: Part, settings: Settings, score: str | Score) -> float:
    """The score of a network on a fold."""
    if not isinstance(score, str):
        return float(score(model, fold))
    metrics = evaluate(model, fold, loss=settings.loss_rule, weights=settings.weights)
    if score not in metrics:
        raise UsageError("got score='accuracy' with targets that are not class labels; use score='loss'")
    return metrics[score]
