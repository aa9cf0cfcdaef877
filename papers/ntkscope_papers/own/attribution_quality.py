"""Attributions judged by retraining: does a score per training point predict what training on other points does?

Every task trains networks on random halves of its training points. An attribution of a network trained on all points predicts
the margin of a test item on a half as the sum of its scores over that half; the linear datamodeling score is the rank
correlation of predicted and actual margins over the halves, averaged over test items. On two tasks single points, and groups
of 20, are removed for real too. Every method is given the best of its settings by the very score it is judged by; only the
Gauss-Newton step on the whole eNTK has its default alone.

The statements are this project's own, so that its page and README quote measured figures; none is from a paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from matplotlib.figure import Figure

from ntkscope.core import Record, UsageError
from ntkscope.explain.removal.influences import margin_directions
from ntkscope.measures.datamodeling import (
    DatamodelingScore,
    datamodeling_difference,
    group_predictions,
    linear_datamodeling_score,
    random_subsets,
    spearman,
)
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.intervals import estimate
from ntkscope_papers.framework.results import digits
from ntkscope_papers.own.attribution_methods import Checkpoint, Scored, methods
from ntkscope_papers.own.attribution_tasks import RECIPES, Task, task
from ntkscope_papers.own.retraining import nearest_groups, reliability, retrained_margins
from ntkscope_papers.shared.networks import trained

FAST, FULL, PEER = "loo-trntk", "gn-entk", "trak"
JUDGED = "gn-trntk"  # the one of ours that has to beat TRAK on every task; the others stand beside it
OURS = (FAST, "margin-kernel", JUDGED, FULL)
GROUP = 20


@dataclass(frozen=True)
class AttributionQuality(Experiment):
    """Linear datamodeling scores of influence, decomposition, TRAK and baselines; real removals of points and groups.

    `points`, `epochs`, `repeats`, `removal_repeats`, `together`: of every task instead of its own, where not None.
    """

    name = "attribution-quality"
    free = ("memory", "together", "tasks", "methods")

    tasks: tuple[str, ...] = tuple(RECIPES)
    dataset: str | None = None  # instead of a task's own, for smoke runs
    encoder: str = "minilm"
    points: int | None = None
    items: int = 500
    epochs: int | None = None
    subsets: int = 100
    repeats: int | None = None
    removals: int = 50
    removal_repeats: int | None = None
    together: int | None = None
    checkpoints: int = 5
    methods: tuple[str, ...] = tuple(methods((1,), (0.0,)))
    trak_dims: tuple[int, ...] = (512, 2048)
    trak_dampings: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0, 10.0)
    memory: str = "64GiB"

    smoke = {
        "dataset": "digits",
        "points": 60,
        "items": 12,
        "epochs": 3,
        "subsets": 8,
        "repeats": 2,
        "removals": 4,
        "removal_repeats": 2,
        "together": 8,
        "checkpoints": 2,
        "trak_dims": (16, 32),
        "trak_dampings": (0.1, 1.0),
        "memory": "2GiB",
    }

    def measure(self, run: Run) -> None:
        known = methods(self.trak_dims, self.trak_dampings)
        for kind, given, all_of_them in (("tasks", self.tasks, RECIPES), ("methods", self.methods, known)):
            unknown = [name for name in given if name not in all_of_them]
            if unknown:
                raise UsageError(f"got {kind} {', '.join(unknown)}; expected some of {', '.join(all_of_them)}")
        self.recover(run)
        super().measure(run)

    def recover(self, run: Run) -> None:
        """Recompute results whose arrays were lost: margins of retrained networks, and scores of methods."""
        metrics, arrays = run.record.metrics, run.record.arrays
        for name in self.tasks:
            retrained = [key for key in metrics if key.startswith(f"{name}/") and key.count("/") == 2]
            if any(key.replace("/", "-") not in arrays for key in retrained):
                run.data(name)
        for name, method in product(self.tasks, self.methods):
            counts = metrics.get(f"{name}/{method}", {}).get("by checkpoints", {})
            if any(f"lds-{name}-{method}-{count}" not in arrays for count in counts):
                run.record.put(**{f"{name}/{method}": self.scores(run, name, method)})

    def prepare(self, run: Run) -> Callable[[str], tuple[Truth, list[Checkpoint]]]:
        """What retraining did on a task, and its networks trained on all points; the last task is held."""

        @lru_cache(1)
        def subject(name: str) -> tuple[Truth, list[Checkpoint]]:
            one = task(name, run)
            truth, checkpoints = self.truth(run, one), []
            for s in range(self.checkpoints):
                seed = run.seed + s
                model = trained(run, f"{name}/{s}", partial(one.build, seed), one.train, one.how, seed=seed)
                checkpoints.append(Checkpoint(one, model, s, seed, {"memory": self.memory}))
            return truth, checkpoints

        return subject

    def truth(self, run: Run, one: Task) -> Truth:
        recipe, n = one.recipe, len(one.train)
        margins_of = partial(retrained_margins, run, one, together=self.together or recipe.together)
        repeats = self.repeats or recipe.repeats
        masks = random_subsets(n, self.subsets, seed=run.seed)
        margins = margins_of("halves", masks, repeats)
        removed: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        figures: dict[str, Any] = {
            "points": n,
            "halves": len(masks),
            "repeats": repeats,
            "ceiling": reliability(margins),
        }
        again = recipe.removals and (self.removal_repeats or recipe.removals)
        if again:
            whole = margins_of("whole", np.ones((1, n), dtype=bool), again)[0]
            for name, size in (("point", 1), ("group", min(GROUP, n // 3))):
                groups = nearest_groups(one, min(self.removals, len(one.test)), size)
                without = np.ones((len(groups), n), dtype=bool)
                np.put_along_axis(without, groups, False, axis=1)
                found = margins_of(f"without-{name}", without, again)
                drops = np.stack([whole[:, t] - found[t, :, t] for t in range(len(groups))])  # (t, r)
                removed[name] = groups, drops.mean(1)
                figures[f"drop without a {name}"] = {
                    "mean": float(drops.mean()),
                    "ceiling": reliability(drops[:, :, None]),
                    "items": len(groups),
                    "repeats": again,
                }
        return Truth(one, masks, margins.mean(1), removed, figures)

    @leg("{}/retraining", over=lambda self: self.tasks)
    def retraining(self, run: Run, name: str) -> Mapping[str, Any]:
        truth, _ = run.data(name)
        return truth.figures

    @leg("{}/{}", over=lambda self: product(self.tasks, self.methods))
    def scores(self, run: Run, name: str, method: str) -> dict[str, Any]:
        """A method's scores with one checkpoint and with all: LDS, seconds, rank correlation with real removals.

        Of the whole eNTK with as many checkpoints as the task has time for.
        """
        truth, checkpoints = run.data(name)
        most = min(self.checkpoints, truth.task.recipe.full) if method == FULL else self.checkpoints
        found: dict[str, Any] = {}
        for count, scored in methods(self.trak_dims, self.trak_dampings)[method](checkpoints, sorted({1, most})):
            score = linear_datamodeling_score(group_predictions(scored.scores, truth.masks), truth.margins)
            row = found.setdefault(str(count), {"variants": {}})
            if scored.variant:
                row["variants"][scored.variant] = round(score.mean, 4)
            if score.mean < row.get("lds", -np.inf):
                continue
            run.record.array(f"lds-{name}-{method}-{count}", score.items)
            row |= {
                "lds": score.mean,
                "interval": list(score.interval),
                "seconds": scored.seconds,
                "variant": scored.variant,
                "removal": _removal(truth, scored, checkpoints[0]),
            }
        torch.cuda.empty_cache()
        return {"by checkpoints": found}

    @leg("{}/differences", over=lambda self: self.tasks)
    def differences(self, run: Run, name: str) -> dict[str, Any]:
        """Ours minus TRAK, paired over test items: at equal checkpoints, and our one against its several."""
        record, most = run.record, self.checkpoints
        found: dict[str, Any] = {}
        for ours in (m for m in self.methods if m in OURS and PEER in self.methods):
            for mine, theirs in dict.fromkeys([(1, 1), (most, most), (1, most)]):
                if str(mine) not in record.metrics[f"{name}/{ours}"]["by checkpoints"]:
                    continue
                pair = _score(record, name, ours, mine), _score(record, name, PEER, theirs)
                gap, interval = datamodeling_difference(*pair)
                found[f"{ours}, {mine} against {theirs}"] = {"difference": gap, "interval": list(interval)}
        return found

    @figure
    def lds(self, record: Record) -> Figure:
        """LDS of every method on every task, with one checkpoint and with all."""
        drawn, axes = drawing.canvas(1, len(self.tasks), width=3.8, height=3.4)
        for axis, name in zip(axes, self.tasks):
            rows = {m: record.metrics[f"{name}/{m}"]["by checkpoints"] for m in self.methods}
            counts = list(dict.fromkeys(count for row in rows.values() for count in row))
            series = {}
            for count in counts:
                found = [rows[m].get(count) for m in self.methods]
                values = [row and row["lds"] for row in found]
                half = [(row["interval"][1] - row["interval"][0]) / 2 if row else 0.0 for row in found]
                series[f"{count} checkpoint{'s' if count != '1' else ''}"] = (values, half)
            drawing.compare_bars(axis, self.methods, series, label="linear datamodeling score")
            axis.set_title(name, pad=22)
        return drawn


@dataclass(frozen=True, eq=False)
class Truth:
    """What retraining did: mean margins on the halves, and the drops in margin where points were removed for real."""

    task: Task
    masks: Bool[np.ndarray, "s n"]
    margins: Float64[np.ndarray, "s m"]
    removed: Mapping[str, tuple[np.ndarray, np.ndarray]]  # groups (t, k) and the drops of the margins of items 0 … t-1
    figures: Mapping[str, Any]


def _removal(truth: Truth, scored: Scored, first: Checkpoint) -> dict[str, float]:
    """The rank correlation over test items of predicted and real drops; by the block formula too where there is one."""
    found = {}
    for name, (groups, drops) in truth.removed.items():
        items = np.arange(len(groups))
        predicted = scored.scores[items[:, None], groups].sum(1)
        found[name] = spearman(predicted, drops) if np.ptp(predicted) > 0 else 0.0
        if scored.influence is not None and groups.shape[1] > 1:
            directions = margin_directions(first.logits, first.y_test)
            exact = [-float(scored.influence.without(group)[t] @ directions[t]) for t, group in enumerate(groups)]
            found[f"{name}, together"] = spearman(exact, drops)
    return found


def _score(record: Record, name: str, method: str, count: int) -> DatamodelingScore:
    items = record.arrays[f"lds-{name}-{method}-{count}"]
    return DatamodelingScore(items, float(items.mean()), (float("nan"), float("nan")))


def legs_of(config: AttributionQuality, *names: str) -> list[str]:
    """The legs of these tasks, or of all, if they are part of the run."""
    tasks = [name for name in names or config.tasks if name in config.tasks]
    return [f"{name}/{what}" for name, what in product(tasks, ("retraining", *config.methods, "differences"))]


def above(name: str, config: AttributionQuality, record: Record) -> Reading:
    """LDS with its interval, and seconds, of every method with one and with all checkpoints."""
    if name not in config.tasks or not {PEER, FAST} <= set(config.methods):
        return Reading(None, note="this task or a method was left out")
    gaps = record.metrics[f"{name}/differences"]
    equal = [gaps.get(f"{JUDGED}, {k} against {k}") for k in dict.fromkeys((1, config.checkpoints))]
    holds = all(gap is not None and gap["interval"][0] > 0 for gap in equal) if JUDGED in config.methods else None
    measured = {
        method: {
            count: {"LDS": estimate(row["lds"], *row["interval"]), "seconds": digits(row["seconds"])}
            for count, row in record.metrics[f"{name}/{method}"]["by checkpoints"].items()
        }
        for method in config.methods
    }
    return Reading(measured, holds, _noise(record, name))


ABOVE = [
    claim(
        f"own-lds-{name}",
        "this project",
        "a Gauss-Newton step on trntk predicts retraining better than TRAK at equal numbers of checkpoints",
        "paired 95 % interval of the difference in LDS above 0, with one and with five checkpoints",
        needs=lambda config, name=name: legs_of(config, name),  # type: ignore[misc]
    )(partial(above, name))
    for name in RECIPES
]


@claim(
    "own-lds-one-against-five",
    "this project",
    "one checkpoint of ours is level with TRAK's five, at a fifth of its time",
    needs=legs_of,
)
def fewer(config: AttributionQuality, record: Record) -> Reading:
    """on two of four tasks the interval of the difference reaches 0 or more, and seconds are at most 1/5"""
    if not {PEER, FAST} <= set(config.methods):
        return Reading(None, note="a method was left out")
    most = config.checkpoints
    level: dict[str, dict[str, Any]] = {}
    for name in config.tasks:
        row = record.metrics[f"{name}/differences"][f"{FAST}, 1 against {most}"]
        seconds = _of(record, name, FAST, 1)["seconds"] / max(1e-9, _of(record, name, PEER, most)["seconds"])
        level[name] = {"difference": estimate(row["difference"], *row["interval"]), "seconds, ratio": round(seconds, 3)}
    held = [v for v in level.values() if v["difference"]["high"] >= 0 and v["seconds, ratio"] <= 0.2]
    return Reading(level, len(held) >= 2)


@claim("own-removal", "this project", "influence orders what removing points for real does", needs=legs_of)
def removed(config: AttributionQuality, record: Record) -> Reading:
    """rank correlation with real retraining above chance (one-sided 5 %) for single points and above 0.5 for groups of
    20"""
    real = {
        name: {m: _of(record, name, m, 1)["removal"] for m in config.methods}
        for name in config.tasks
        if RECIPES[name].removals
    }
    ours = [found[FAST] for found in real.values() if FAST in found]
    chance = 1.645 / max(1, config.removals - 1) ** 0.5
    measured = {
        name: {m: {k: round(v, 3) for k, v in row.items()} for m, row in found.items()} for name, found in real.items()
    }
    holds = bool(ours) and all(row["point"] > chance and row["group"] > 0.5 for row in ours)
    return Reading(measured or None, holds)


def _noise(record: Record, name: str) -> str:
    found = record.metrics[f"{name}/retraining"]
    return (
        f"{found['halves']} halves of {found['points']} points, {found['repeats']} networks each; noise of retraining bounds"
        f" any score by about {found['ceiling']:.2f}; TRAK with the best of its settings by this score"
    )


def _of(record: Record, name: str, method: str, count: int) -> Mapping[str, Any]:
    row: Mapping[str, Any] = record.metrics[f"{name}/{method}"]["by checkpoints"][str(count)]
    return row
