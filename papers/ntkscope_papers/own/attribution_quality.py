"""Attributions judged by retraining: does a score per training point predict what training on other points does?

Every task trains networks on random halves of its training points. An attribution of a network trained on all points predicts
the margin of a test item on a half as the sum of its scores over that half; the linear datamodeling score is the rank
correlation of predicted and actual margins over the halves, averaged over test items. On two tasks single points, and groups
of 20, are removed for real too. Every method is given the best of its settings by the very score it is judged by; only the
Gauss-Newton step on the whole eNTK has its default alone.

The statements are this project's own, so that its page and README quote measured figures; none is from a paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64

from ntkscope.core import Claim, Record, UsageError
from ntkscope.explain.influences import margin_directions
from ntkscope.measures.datamodeling import (
    DatamodelingScore,
    datamodeling_difference,
    group_predictions,
    linear_datamodeling_score,
    random_subsets,
    spearman,
)
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.results import once
from ntkscope_papers.own.attribution_methods import Checkpoint, Method, Scored, methods, release
from ntkscope_papers.own.attribution_tasks import RECIPES, Task, task
from ntkscope_papers.own.retraining import nearest_groups, once_with, reliability, retrained_margins
from ntkscope_papers.shared.networks import trained

FAST, FULL, PEER = "loo-trntk", "gn-entk", "trak"
JUDGED = "gn-trntk"  # the one of ours that has to beat TRAK on every task; the others stand beside it
OURS = (FAST, "margin-kernel", JUDGED, FULL)
SOURCE = "this project"
GROUP = 20
ABOVE = {
    name: Published(
        f"own-lds-{name}",
        SOURCE,
        "a Gauss-Newton step on trntk predicts retraining better than TRAK at equal numbers of checkpoints",
        "paired 95 % interval of the difference in LDS above 0, with one and with five checkpoints",
    )
    for name in RECIPES
}
FEWER = Published(
    "own-lds-one-against-five",
    SOURCE,
    "one checkpoint of ours is level with TRAK's five, at a fifth of its time",
    "on two of four tasks the interval of the difference reaches 0 or more, and seconds are at most 1/5",
)
REMOVED = Published(
    "own-removal",
    SOURCE,
    "influence orders what removing points for real does",
    "rank correlation with real retraining above chance (one-sided 5 %) for single points and above 0.5 for groups of 20",
)


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
        for name in self.tasks:
            one = task(name, run.record, self, device=run.device, root=run.root, seed=run.seed)
            truth = _truth(self, run.record, one, run.seed, run.progress)
            checkpoints = _checkpoints(self, run.record, one, run.device, run.seed)
            judged = partial(_judged, run.record, truth, checkpoints)
            with run.record.stage(
                f"{name} methods", total=len(self.methods), progress="auto" if run.progress else False
            ) as stage:
                for at, method in enumerate(self.methods):
                    lds = [f"lds-{name}-{method}-{count}" for count in _counts(self.checkpoints, method, one)]
                    once_with(run.record, f"{name}/{method}", lds, partial(judged, method, known[method]))
                    release(run.device)
                    stage.advance(max(0, at + 1 - stage.done))
            once(run.record, f"{name}/differences", partial(_differences, self, run.record, name))

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return (*ABOVE.values(), FEWER, REMOVED)

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return judge(self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


@dataclass(frozen=True, eq=False)
class Truth:
    """What retraining did: mean margins on the halves, and the drops in margin where points were removed for real."""

    task: Task
    masks: Bool[np.ndarray, "s n"]
    margins: Float64[np.ndarray, "s m"]
    removed: Mapping[str, tuple[np.ndarray, np.ndarray]]  # groups (t, k) and the drops of the margins of items 0 … t-1


def _truth(config: AttributionQuality, record: Record, one: Task, seed: int, progress: bool) -> Truth:
    recipe, n = one.recipe, len(one.train)
    together = config.together or recipe.together
    repeats = config.repeats or recipe.repeats
    masks = random_subsets(n, config.subsets, seed=seed)
    margins = retrained_margins(record, "halves", one, masks, repeats, together, progress)
    removed: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    figures: dict[str, Any] = {"points": n, "halves": len(masks), "repeats": repeats, "ceiling": reliability(margins)}
    again = recipe.removals and (config.removal_repeats or recipe.removals)
    if again:
        whole = retrained_margins(record, "whole", one, np.ones((1, n), dtype=bool), again, together, progress)[0]
        for name, size in (("point", 1), ("group", min(GROUP, n // 3))):
            groups = nearest_groups(one, min(config.removals, len(one.test)), size)
            without = np.ones((len(groups), n), dtype=bool)
            np.put_along_axis(without, groups, False, axis=1)
            found = retrained_margins(record, f"without-{name}", one, without, again, together, progress)
            drops = np.stack([whole[:, t] - found[t, :, t] for t in range(len(groups))])  # (t, r)
            removed[name] = groups, drops.mean(1)
            figures[f"drop without a {name}"] = {
                "mean": float(drops.mean()),
                "ceiling": reliability(drops[:, :, None]),
                "items": len(groups),
                "repeats": again,
            }
    once(record, f"{one.name}/retraining", lambda: figures)
    return Truth(one, masks, margins.mean(1), removed)


def _checkpoints(
    config: AttributionQuality, record: Record, one: Task, device: torch.device, seed: int
) -> list[Checkpoint]:
    options = {"memory": config.memory}
    models = [
        trained(
            record, f"{one.name}/{s}", partial(one.build, seed + s), one.train, one.how, device=device, seed=seed + s
        )
        for s in range(config.checkpoints)
    ]
    return [Checkpoint(one, model, s, options) for s, model in enumerate(models)]


def _counts(checkpoints: int, method: str, one: Task) -> list[int]:
    """One checkpoint and all of them; of the whole eNTK as many as the task has time for."""
    return sorted({1, min(checkpoints, one.recipe.full) if method == FULL else checkpoints})


def _judged(record: Record, truth: Truth, checkpoints: list[Checkpoint], name: str, method: Method) -> dict[str, Any]:
    """A method's scores with one checkpoint and with all: LDS, seconds, rank correlation with real removals."""
    found: dict[str, Any] = {}
    for count, scored in method(checkpoints, _counts(len(checkpoints), name, truth.task)):
        score = linear_datamodeling_score(group_predictions(scored.scores, truth.masks), truth.margins)
        variants = found.setdefault(str(count), {}).setdefault("variants", {})
        if scored.variant:
            variants[scored.variant] = round(score.mean, 4)
        if score.mean < found[str(count)].get("lds", -np.inf):
            continue
        record.array(f"lds-{truth.task.name}-{name}-{count}", score.items)
        found[str(count)] |= {
            "lds": score.mean,
            "interval": list(score.interval),
            "seconds": scored.seconds,
            "variant": scored.variant,
            "removal": _removal(truth, scored, checkpoints[0]),
        }
    return {"by checkpoints": found}


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


def _differences(config: AttributionQuality, record: Record, name: str) -> dict[str, Any]:
    """Ours minus TRAK, paired over test items: at equal checkpoints, and our one against its several."""
    most = config.checkpoints
    found: dict[str, Any] = {}
    for ours in (m for m in config.methods if m in OURS and PEER in config.methods):
        for mine, theirs in dict.fromkeys([(1, 1), (most, most), (1, most)]):
            if str(mine) not in record.metrics[f"{name}/{ours}"]["by checkpoints"]:
                continue
            gap, interval = datamodeling_difference(
                _score(record, name, ours, mine), _score(record, name, PEER, theirs)
            )
            found[f"{ours}, {mine} against {theirs}"] = {"difference": gap, "interval": list(interval)}
    return found


def _score(record: Record, name: str, method: str, count: int) -> DatamodelingScore:
    items = record.arrays[f"lds-{name}-{method}-{count}"]
    return DatamodelingScore(items, float(items.mean()), (float("nan"), float("nan")))


def judge(config: AttributionQuality, record: Record, difference: str) -> Iterator[Claim]:
    """Whether ours is above TRAK on each task; one checkpoint against several; real removals."""
    most = config.checkpoints
    compared = PEER in config.methods and FAST in config.methods
    for name, published in ABOVE.items():
        if name not in config.tasks or not compared:
            yield published.judged(None, None, note="this task or a method was left out")
            continue
        gaps = record.metrics[f"{name}/differences"]
        equal = [gaps.get(f"{JUDGED}, {k} against {k}") for k in dict.fromkeys((1, most))]
        holds = all(gap is not None and gap["interval"][0] > 0 for gap in equal) if JUDGED in config.methods else None
        yield published.judged(_table(config, record, name), holds, difference=difference, note=_noise(record, name))
    if not compared:
        yield FEWER.judged(None, None, note="a method was left out")
    else:
        level = {}
        for name in config.tasks:
            row = record.metrics[f"{name}/differences"][f"{FAST}, 1 against {most}"]
            seconds = _of(record, name, FAST, 1)["seconds"] / max(1e-9, _of(record, name, PEER, most)["seconds"])
            level[name] = {
                "difference": _rounded(row["difference"], *row["interval"]),
                "seconds, ratio": round(seconds, 3),
            }
        held = [v for v in level.values() if v["difference"][2] >= 0 and v["seconds, ratio"] <= 0.2]
        yield FEWER.judged(level, len(held) >= 2, difference=difference)
    real = {
        name: {m: _of(record, name, m, 1)["removal"] for m in config.methods}
        for name in config.tasks
        if RECIPES[name].removals
    }
    ours = [found[FAST] for found in real.values() if FAST in found]
    chance = 1.645 / max(1, config.removals - 1) ** 0.5
    yield REMOVED.judged(
        {
            name: {m: {k: round(v, 3) for k, v in row.items()} for m, row in found.items()}
            for name, found in real.items()
        }
        or None,
        bool(ours) and all(row["point"] > chance and row["group"] > 0.5 for row in ours),
        difference=difference,
    )


def _table(config: AttributionQuality, record: Record, name: str) -> dict[str, Any]:
    """LDS with its interval, and seconds, of every method with one and with all checkpoints."""
    return {
        method: {
            count: [*_rounded(row["lds"], *row["interval"]), f"{row['seconds']:.3g} s"]
            for count, row in record.metrics[f"{name}/{method}"]["by checkpoints"].items()
        }
        for method in config.methods
    }


def _noise(record: Record, name: str) -> str:
    found = record.metrics[f"{name}/retraining"]
    return (
        f"{found['halves']} halves of {found['points']} points, {found['repeats']} networks each; noise of retraining bounds"
        f" any score by about {found['ceiling']:.2f}; TRAK with the best of its settings by this score"
    )


def _of(record: Record, name: str, method: str, count: int) -> Mapping[str, Any]:
    row: Mapping[str, Any] = record.metrics[f"{name}/{method}"]["by checkpoints"][str(count)]
    return row


def _rounded(*values: float) -> list[float]:
    return [round(float(value), 4) for value in values]


def draw(record: Record) -> dict[str, Any]:
    """LDS of every method on every task, with one checkpoint and with all."""
    tasks, names = list(record.config["tasks"]), list(record.config["methods"])
    figure, axes = drawing.canvas(1, len(tasks), width=3.8, height=3.4)
    for axis, name in zip(axes, tasks):
        rows = {m: record.metrics[f"{name}/{m}"]["by checkpoints"] for m in names}
        counts = list(dict.fromkeys(count for row in rows.values() for count in row))
        series = {}
        for count in counts:
            found = [rows[m].get(count) for m in names]
            values = [row and row["lds"] for row in found]
            half = [(row["interval"][1] - row["interval"][0]) / 2 if row else 0.0 for row in found]
            series[f"{count} checkpoint{'s' if count != '1' else ''}"] = (values, half)
        drawing.compare_bars(axis, names, series, label="linear datamodeling score")
        axis.set_title(name, pad=22)
    return {"lds": figure}
