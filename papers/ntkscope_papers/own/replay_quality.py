"""Replay judged by retraining: does the derivative through a training predict what that training does on other points?

Networks are trained again on random halves of the points, and on random 95 %: with the seeds and batches of the networks that
the attributions are of, where the losses of the removed points count nothing, and with other seeds on the other points alone.
An attribution predicts the margin of a test item as the sum of its scores over the points that stay. The linear
datamodeling score is held against what one seed's retrainings say of the other seeds'. Replay has no settings; the other
methods are given the best of theirs by the very score that they are judged by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from matplotlib.figure import Figure

from ntkscope.core import Record, UsageError, numpy_generator
from ntkscope.measures.datamodeling import (
    group_predictions,
    item_scores,
    random_subsets,
)
from ntkscope.measures.uncertainty import percentile_interval
from ntkscope.training.schedules import Cosine, Triangular
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.intervals import estimate
from ntkscope_papers.framework.results import averaged, rounded, under
from ntkscope_papers.own.attribution_methods import Checkpoint, Scored, methods, replay_margins
from ntkscope_papers.own.attribution_tasks import Recipe, Task, task
from ntkscope_papers.own.mistakes import WAYS, flipped_shares
from ntkscope_papers.own.retraining import retrained_margins
from ntkscope_papers.shared.networks import logits_of, trained

REPLAY = "replay"
SHARES = {"half": 0.5, "five-percent": 0.05}  # of the points that are removed
HIGH, BAR, SHARE = 0.9, 0.85, 0.95  # replay reaches BAR where the ceiling is HIGH, else SHARE of it
SGD = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-3}
# Chosen by the ceiling alone, before any replay: of 17 recipes tried on 1,000 images (rates 0.02 to 0.2, constant or falling to
# 0, momentum 0.9 and 0, batches of 50 to 200, 1 to 40 epochs, decay 0.001 to 0.03; mostly 8 or 12 random halves by three seeds)
# the highest among those with 93 % of 1,000 test images right; with 5,000 the higher of two like it.
SMOOTH = {"optimizer": "sgd", "weight_decay": 0.01, "schedule": Triangular(peak=0.0)}
RECIPES = {
    "mlp-digits": Recipe("digits", 400, epochs=20, lr=0.02, batch=50, how=SGD),
    "lenet-mnist1k": Recipe("mnist", 1000, epochs=10, lr=0.02, batch=50, together=50, how=SGD),
    "lenet-mnist5k": Recipe("mnist", 5000, epochs=4, lr=0.02, batch=50, together=250, how=SGD),
    "lenet-mnist1k-smooth": Recipe("mnist", 1000, epochs=30, lr=0.1, batch=50, together=50, how=SMOOTH),
    "lenet-mnist5k-smooth": Recipe("mnist", 5000, epochs=8, lr=0.05, batch=50, together=250, how=SMOOTH),
    # The rates of the last two go to zero: what the last steps at a constant rate leave to chance is no effect of any point.
    # ResNet-9's was chosen by the ceiling alone, of 6 halves and 2 seeds on 1,000 images of 16x16: at 0.002, 0.005 and 0.01 it
    # was 0.32, 0.35 and 0.41, within noise of each other; at 0.02, or where the rate stayed, below 0.04.
    "resnet9-cifar10": Recipe(
        "cifar10", 5000, epochs=4, lr=0.005, batch=125, together=50, how={**SGD, "schedule": Cosine()}
    ),
    "finetuned-cola": Recipe(
        "cola",
        1000,
        epochs=3,
        lr=5e-5,
        batch=32,
        together=50,
        how={"optimizer": "adamw", "weight_decay": 0.01, "schedule": Triangular(peak=0)},
    ),
}
FLIPPED = ("mlp-digits", "lenet-mnist1k")


@dataclass(frozen=True)
class ReplayQuality(Experiment):
    """Linear datamodeling scores of replay, leave-one-out, Gauss-Newton and TRAK, of one network and of all `seeds`, beside
    what retraining itself would score; and how many mistakes are gone without the points that a method names.

    `points`, `epochs`, `together`: of every task instead of its own, where not None. `mistakes` of each network on `asked`
    test items are tried without `removed` points.
    """

    name = "replay-quality"
    free = ("memory", "together", "tasks", "methods")

    tasks: tuple[str, ...] = tuple(RECIPES)
    dataset: str | None = None  # instead of a task's own, for smoke runs
    encoder: str = "minilm"
    points: int | None = None
    items: int = 64
    epochs: int | None = None
    subsets: int = 100
    seeds: int = 5
    together: int | None = None
    methods: tuple[str, ...] = (REPLAY, "loo-trntk", "gn-trntk", "trak")
    trak_dims: tuple[int, ...] = (512, 2048)
    trak_dampings: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0, 10.0)
    asked: int = 500
    mistakes: int = 12
    removed: tuple[int, ...] = (1, 5, 20)
    resamples: int = 500
    memory: str = "16GiB"

    smoke = {
        "tasks": ("mlp-digits", "lenet-mnist1k", "finetuned-cola"),
        "dataset": "digits",
        "points": 40,
        "items": 8,
        "epochs": 2,
        "subsets": 6,
        "seeds": 2,
        "together": 6,
        "trak_dims": (16,),
        "trak_dampings": (0.1,),
        "asked": 40,
        "mistakes": 2,
        "removed": (1, 5),
        "resamples": 20,
        "memory": "2GiB",
    }

    def measure(self, run: Run) -> None:
        for kind, given, known in (
            ("tasks", self.tasks, RECIPES),
            ("methods", self.methods, methods(self.trak_dims, self.trak_dampings)),
        ):
            unknown = [name for name in given if name not in known]
            if unknown:
                raise UsageError(f"got {kind} {', '.join(unknown)}; expected some of {', '.join(known)}")
        super().measure(run)

    def prepare(self, run: Run) -> Callable[[str], tuple[Task, list[Checkpoint]]]:
        """A task and its networks trained on all points; the last task is held."""

        @lru_cache(1)
        def subject(name: str) -> tuple[Task, list[Checkpoint]]:
            one, checkpoints = task(name, run, RECIPES), []
            for s in range(self.seeds):
                seed = run.seed + s
                model = trained(run, f"{name}/{s}", partial(one.build, seed), one.train, one.how, seed=seed)
                checkpoints.append(Checkpoint(one, model, s, seed, {"memory": self.memory}))
            return one, checkpoints

        return subject

    def masks(self, one: Task, removal: str, seed: int) -> Bool[np.ndarray, "s n"]:
        return random_subsets(len(one.train), self.subsets, share=1 - SHARES[removal], seed=seed)

    def truth(self, run: Run, one: Task, removal: str, way: str) -> Float64[np.ndarray, "s r m"]:
        """The margins of the test items after retraining, `way` of WAYS."""
        same, together = way == WAYS[0], self.together or one.recipe.together
        masks, name = self.masks(one, removal, run.seed), f"{removal} {way}".replace(" ", "-")
        return retrained_margins(run, one, name, masks, self.seeds, together, same=same)

    @leg("{}/{}/retrained", over=lambda self: product(self.tasks, SHARES))
    def retrained(self, run: Run, name: str, removal: str) -> dict[str, Any]:
        """What one seed's retrainings score as a prediction of the others': the ceiling of any attribution of one network."""
        one, _ = run.data(name)
        every = {way: self.truth(run, one, removal, way) for way in WAYS}
        return {
            "points": len(one.train),
            "items": len(one.test),
            "ceiling": {way: ceiling(margins) for way, margins in every.items()},
        }

    @leg("{}/{}/replay-{}", over=lambda self: product(self.tasks, SHARES, range(self.seeds)))
    def one_replay(self, run: Run, name: str, removal: str, s: int) -> dict[str, Any]:
        """The scores by a replay of one training, at the share of the points that stays; its seconds without that training."""
        scores, seconds = replay_margins(run.data(name)[1][s], SHARES[removal])
        run.record.array(f"replay-{name}-{removal}-{s}", scores)
        return {"replay seconds": round(seconds, 3)}

    @leg("{}/{}/{}", over=lambda self: product(self.tasks, SHARES, self.methods))
    def scores(self, run: Run, name: str, removal: str, method: str) -> dict[str, Any]:
        """A method's LDS with one network and with all, both ways; `own`: each replay's against its own seed's retrainings."""
        one, checkpoints = run.data(name)
        masks, counts = self.masks(one, removal, run.seed), sorted({1, self.seeds})
        truth = {way: self.truth(run, one, removal, way) for way in WAYS}
        if method == REPLAY:
            each = [self.replays(run, name, removal, s) for s in range(self.seeds)]
            made = [(k, Scored(np.mean([e for e, _ in each[:k]], 0), sum(t for _, t in each[:k]))) for k in counts]
        else:
            made = list(methods(self.trak_dims, self.trak_dampings)[method](checkpoints, counts))
        found: dict[str, Any] = {str(k): {} for k in counts}
        for (count, scored), way in product(made, WAYS):
            predicted = group_predictions(scored.scores, masks)
            lds = float(item_scores(predicted, truth[way].mean(1), constant=0.0).mean())
            if lds <= found[str(count)].get(way, {"lds": -np.inf})["lds"]:
                continue
            run.record.array(predicted_array(name, removal, method, count, way), predicted)
            found[str(count)] |= {way: {"lds": lds, "setting": scored.variant}}
            found[str(count)]["seconds"] = round(scored.seconds, 3)
        if method == REPLAY:
            own = [
                item_scores(group_predictions(scores, masks), truth[WAYS[0]][:, s], constant=0.0).mean()
                for s, (scores, _) in enumerate(each)
            ]
            found["own"] = float(np.mean(own))
        torch.cuda.empty_cache()
        return {"by networks": found}

    def replays(self, run: Run, name: str, removal: str, s: int) -> tuple[np.ndarray, float]:
        """The scores that a leg has put into the record; computed again where they were lost."""
        record, array = run.record, f"replay-{name}-{removal}-{s}"
        if array not in record.arrays:
            record.put(**{f"{name}/{removal}/replay-{s}": {"seconds": 0.0, **self.one_replay(run, name, removal, s)}})
        seconds = record.metrics[f"{name}/{removal}/replay-{s}"]["replay seconds"]
        return np.asarray(record.arrays[array], dtype=np.float64), float(seconds)

    @leg("{}/{}/intervals", over=lambda self: product(self.tasks, SHARES))
    def intervals(self, run: Run, name: str, removal: str) -> dict[str, Any]:
        """95 % intervals of every LDS, and of replay's minus every other's, over subsets and items drawn anew."""
        one, _ = run.data(name)
        counts, found = sorted({1, self.seeds}), {}
        for way in WAYS:
            actual = self.truth(run, one, removal, way).mean(1)
            predicted = {
                (method, count): run.record.arrays[predicted_array(name, removal, method, count, way)]
                for method, count in product(self.methods, counts)
            }
            drawn = resampled_scores(list(predicted.values()), actual, self.resamples, run.seed)
            column, few = dict(zip(predicted, drawn.T)), min(actual.shape)
            gaps = {
                (m, k): column[REPLAY, k] - column[m, k] for m, k in predicted if REPLAY in self.methods and m != REPLAY
            }
            found[way] = {
                "lds": {f"{m}, {k}": interval(values, few) for (m, k), values in column.items()},
                "replay minus": {f"{m}, {k}": interval(values, few) for (m, k), values in gaps.items()},
            }
        return found

    @leg("{}/flips-{}", over=lambda self: product((t for t in self.tasks if t in FLIPPED), range(self.seeds)))
    def flips(self, run: Run, name: str, s: int) -> dict[str, Any]:
        """How many mistakes of one network are gone without the points that speak most against the right class."""
        _, checkpoints = run.data(name)
        wide = task(name, replace(run, experiment=replace(self, items=self.asked)), RECIPES)
        model, seed = checkpoints[s].model, run.seed + s
        wrong = torch.nonzero(logits_of(model, wide.test.x).argmax(1) != wide.test.y.cpu()).flatten()[: self.mistakes]
        items = wide.test.take(wrong.to(wide.test.y.device))
        if not len(items):
            return {"mistakes": 0}
        checkpoint = Checkpoint(replace(wide, test=items), model, s, seed, {"memory": self.memory})
        known = methods((512,), (0.1,))
        scores = {m: next(known[m]([checkpoint], [1]))[1].scores for m in (*self.methods, "random") if m != REPLAY}
        if REPLAY in self.methods:
            scores[REPLAY] = replay_margins(checkpoint, None)[0]
        return {"mistakes": len(items), "flipped": flipped_shares(wide, seed, items, scores, self.removed)}

    @figure
    def lds(self, record: Record) -> Figure:
        """LDS of every method with all networks: tasks side by side, removals one below the other; first the ceiling."""
        tasks = [
            name for name in self.tasks if any(f"{name}/{removal}/retrained" in record.metrics for removal in SHARES)
        ]
        drawn, axes = drawing.canvas(len(SHARES), max(1, len(tasks)), width=3.6, height=2.9)
        for axis, (removal, name) in zip(axes, product(SHARES, tasks), strict=False):
            names = [m for m in self.methods if f"{name}/{removal}/{m}" in record.metrics]
            series = {}
            for way in WAYS if f"{name}/{removal}/retrained" in record.metrics else ():
                top = record.metrics[f"{name}/{removal}/retrained"]["ceiling"][way]
                rows = [record.metrics[f"{name}/{removal}/{m}"]["by networks"] for m in names]
                series[way] = ([top, *(row[str(self.seeds)][way]["lds"] for row in rows)], None)
            if not series:
                axis.set_axis_off()
                continue
            drawing.compare_bars(axis, ["ceiling", *names], series, label="linear datamodeling score")
            axis.set_title(f"{name}, {removal}", pad=22)
            axis.set_ylim(min(0, axis.get_ylim()[0]), 1)
        return drawn


def predicted_array(name: str, removal: str, method: str, count: int, way: str) -> str:
    return f"predicted-{name}-{removal}-{method}-{count}-{way}".replace(" ", "-")


def ceiling(margins: Float64[np.ndarray, "s r m"]) -> float:
    """The LDS of one seed's margins as a prediction of the mean of the others', mean over seeds; NaN with a single one."""
    seeds = range(margins.shape[1])
    if len(seeds) < 2:
        return float("nan")
    each = [item_scores(margins[:, r], np.delete(margins, r, 1).mean(1), constant=0.0).mean() for r in seeds]
    return float(np.mean(each))


def resampled_scores(
    predicted: Sequence[np.ndarray], actual: Float64[np.ndarray, "s m"], resamples: int, seed: int
) -> Float64[np.ndarray, "r k"]:
    """The LDS of several predictions on the same resampled subsets and test items, so that differences are paired."""
    random = numpy_generator(seed, "resampled subsets and items")
    (s, m), k = actual.shape, len(predicted)
    side_by_side, repeated = np.concatenate(list(predicted), 1), np.tile(actual, (1, k))
    found = np.empty((resamples, k))
    for row in found:
        subsets, items = random.integers(s, size=s), random.integers(m, size=m)
        while not np.ptp(actual[subsets], axis=0).all():  # one subset alone, which orders nothing
            subsets = random.integers(s, size=s)
        row[:] = item_scores(side_by_side[subsets], repeated[subsets], constant=0.0).reshape(k, m)[:, items].mean(1)
    return found


def interval(values: Float64[np.ndarray, " r"], items: int) -> list[float]:
    return [round(value, 4) for value in percentile_interval(values, 0.95, items)]


def measured_of(name: str, config: ReplayQuality, record: Record) -> tuple[list[str], list[str]]:
    """The removals of which a task has every result, and the legs that the others lack."""
    legs = {r: [f"{name}/{r}/{leg}" for leg in ("retrained", *config.methods, "intervals")] for r in SHARES}
    lacks = {removal: [leg for leg in every if leg not in record.metrics] for removal, every in legs.items()}
    return [r for r in SHARES if not lacks[r]], [leg for every in lacks.values() for leg in every]


def reached(name: str, config: ReplayQuality, record: Record) -> Reading:
    """Replay's LDS with all networks beside the ceiling and what is asked for."""
    if name not in config.tasks or REPLAY not in config.methods:
        return Reading(None, note="this task or replay was left out")
    removals, lacks = measured_of(name, config, record)
    measured: dict[str, Any] = {}
    missed = []
    for removal, way in product(removals, WAYS):
        top = record.metrics[f"{name}/{removal}/retrained"]["ceiling"][way]
        rows = record.metrics[f"{name}/{removal}/{REPLAY}"]["by networks"]
        lds, asked = rows[str(config.seeds)][way]["lds"], BAR if top >= HIGH else SHARE * top
        measured.setdefault(removal, {})[way] = rounded({"replay": lds, "ceiling": top, "asked": asked})
        missed += [f"{removal}, {way}"] if not lds >= asked else []
    note = f"missed: {'; '.join(missed)}" if missed else ""
    return Reading(measured or None, not missed, note, tuple(lacks), seeds=config.seeds)


def ahead(name: str, way: str, config: ReplayQuality, record: Record) -> Reading:
    """Replay's LDS with all networks minus those of the other methods, with intervals."""
    if name not in config.tasks or REPLAY not in config.methods or len(config.methods) < 2:
        return Reading(None, note="this task, replay or what it is compared with was left out")
    removals, lacks = measured_of(name, config, record)
    measured: dict[str, Any] = {}
    low = []
    for removal, method in product(removals, config.methods):
        if method == REPLAY:
            continue
        gap = record.metrics[f"{name}/{removal}/intervals"][way]["replay minus"][f"{method}, {config.seeds}"]
        mine, other = (
            record.metrics[f"{name}/{removal}/{m}"]["by networks"][str(config.seeds)][way]["lds"]
            for m in (REPLAY, method)
        )
        measured.setdefault(removal, {})[method] = estimate(mine - other, *gap)
        low += [f"{removal}, {method}"] if not gap[0] > 0 else []
    note = f"not above: {'; '.join(low)}" if low else ""
    return Reading(measured or None, not low, note, tuple(lacks), seeds=config.seeds)


QUALITY = [
    statement
    for name in RECIPES
    for statement in (
        claim(
            f"own-replay-lds-{name}",
            "this project",
            "replay predicts retraining about as well as the seeds of retraining agree",
            f"LDS of five replays at least {BAR} where one seed's retrainings score {HIGH} for the others', else {SHARE} of"
            " that; half and 5 % of the points removed, same and other batches",
        )(partial(reached, name)),
        *(
            claim(
                f"own-replay-first-{way.split()[0]}-{name}",
                "this project",
                f"replay predicts retraining better than other attributions do, {way}",
                "paired 95 % interval of the difference in LDS above 0 for every other method, five networks each; half and 5 %"
                " of the points removed",
            )(partial(ahead, name, way))
            for way in WAYS
        ),
    )
]


@claim(
    "own-replay-flips",
    "this project",
    "without the points that replay names, mistakes are gone more often than without those of any other method",
    needs=lambda config: [f"{t}/flips-{s}" for t in config.tasks if t in FLIPPED[:1] for s in range(config.seeds)],
)
def flipped(config: ReplayQuality, record: Record) -> Reading:
    """with the same batches, replay's share above every other's, for each number of points removed, on digits"""
    if FLIPPED[0] not in config.tasks or REPLAY not in config.methods:
        return Reading(None, note="digits or replay were left out")
    tables = {
        name: averaged(row for row in under(record, f"{name}/flips-").values() if row["mistakes"])
        for name in FLIPPED
        if any(row["mistakes"] for row in under(record, f"{name}/flips-").values())
    }
    shares = {name: rounded(table["flipped"]) for name, table in tables.items()}
    same = {method: row[WAYS[0]] for method, row in shares.get(FLIPPED[0], {}).items()}
    holds = bool(same) and all(
        same[REPLAY][str(size)] > same[method][str(size)]
        for method, size in product(same, config.removed)
        if method != REPLAY
    )
    return Reading(shares or None, holds, seeds=config.seeds)
