"""Which training points made this mistake? Remove those that a method names, train again, and see whether it is gone.

The digits get wrong labels, a backdoor and near-duplicates. A network learns them; of test items that it gets wrong, the
training points that speak most against the right class, by each method, are removed, and the same call of `fit` is made again:
with the same batches, the removed points' losses times 0, and on the other points alone, whose batches are others. The same
scores are then asked to find what was planted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from matplotlib.figure import Figure
from torch import Tensor

from ntkscope import data
from ntkscope.core import Part, Record, numpy_generator
from ntkscope.explain import auroc, influence, mislabelled
from ntkscope.training import fit, fit_ensemble
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.results import averaged, under
from ntkscope_papers.own.attribution_methods import Checkpoint, methods
from ntkscope_papers.own.attribution_tasks import Recipe, Task
from ntkscope_papers.own.retraining import without
from ntkscope_papers.shared.networks import logits_of

REPLAY, FAST = "replay", "loo-trntk"
TARGET = 0  # the class that the backdoor leads to
PLANTED = ("wrong label", "backdoor", "near-duplicate")
WAYS = ("same batches", "other batches")


@dataclass(frozen=True)
class Mistakes(Experiment):
    """Points that made a mistake, by each method: how often it is gone without them, and whether they are the planted ones.

    `points` training points, `wrong`, `backdoor` and `twins` of them planted; `items` mistakes of each of `seeds` networks.
    """

    name = "mistakes"
    free = ("seeds",)

    points: int = 500
    wrong: int = 50
    backdoor: int = 15
    twins: int = 25
    items: int = 12
    validation: int = 60
    triggered: int = 10
    epochs: int = 20
    removed: tuple[int, ...] = (1, 5, 20)
    methods: tuple[str, ...] = (REPLAY, FAST, "gn-trntk", "trak", "similarity", "random")
    seeds: int = 5

    smoke = {
        "points": 80,
        "wrong": 10,
        "backdoor": 4,
        "twins": 4,
        "items": 2,
        "validation": 8,
        "triggered": 4,
        "epochs": 2,
        "removed": (1, 5),
        "seeds": 1,
    }

    @leg("network/{}", over=lambda self: range(self.seeds))
    def network(self, run: Run, s: int) -> dict[str, Any]:
        """One network: flips of its mistakes by method, way of retraining and number of points; AUROC of what was planted."""
        seed = run.seed + s
        train, planted, held = self.planted(seed)
        how: dict[str, Any] = {"optimizer": "sgd", "lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3, "batch_size": 50}
        how |= {"epochs": self.epochs, "measure": False}
        task = Task("mlp-digits", train, held, 10, how, Recipe("digits", len(train), self.epochs, 0.02))
        model = task.build(seed)
        with tempfile.TemporaryDirectory() as folder:
            training = fit(model, train, store=folder, seed=seed, **how)
            training.final()
            predicted = logits_of(model, held.x).argmax(1)
            fresh = torch.arange(len(held)) < len(held) - self.triggered
            mistaken = torch.nonzero((predicted != held.y) & fresh).flatten()[: self.items]
            asked = torch.cat(
                [mistaken, torch.arange(len(held))[~fresh], torch.nonzero(fresh).flatten()[: self.validation]]
            )
            test = held.take(asked)
            checkpoint = Checkpoint(Task("mlp-digits", train, test, 10, how, task.recipe), model, s, seed)
            scores = {name: next(found)[1].scores for name, found in self.asked(checkpoint)}
            if REPLAY in self.methods:
                scores[REPLAY] = influence(training, test.x, test.y, method="replay", directions=0).margins(test.y)
        m = len(mistaken)
        named = {name: found[:m] for name, found in scores.items()}
        flips = flipped_shares(task, seed, test.take(range(m)), named, self.removed)
        areas = {name: areas_of(found[m:], self.triggered, planted) for name, found in scores.items()}
        kernel = checkpoint.trntk.train.dense().detach().cpu().double().numpy()
        known = {"wrong label": mislabelled(checkpoint.trntk.train, checkpoint.y).scores}
        known["near-duplicate"] = (kernel - 2 * np.diag(np.diagonal(kernel))).max(1)
        areas["X-ray"] = {name: auroc(found, planted[name]) for name, found in known.items()}
        right = predicted == held.y
        accuracy = {"test": float(right[fresh].double().mean()), "triggered": float(right[~fresh].double().mean())}
        return {"mistakes": m, "accuracy": accuracy, "flipped": flips, "auroc": areas}

    def asked(self, checkpoint: Checkpoint) -> list[tuple[str, Any]]:
        """The methods but replay, each with its default strength."""
        known = methods((512,), (0.1,))
        return [(name, known[name]([checkpoint], [1])) for name in self.methods if name != REPLAY]

    def planted(self, seed: int) -> tuple[Part, dict[str, Bool[np.ndarray, " n"]], Part]:
        """Training points with what was planted, and test items, the last of which have the backdoor's trigger."""
        split, draw = data.load("digits", seed=seed), numpy_generator(seed, "mistakes")
        x, y = split.train.x[: self.points].clone().float(), split.train.y[: self.points].clone()
        truth = {name: np.zeros(self.points, dtype=bool) for name in PLANTED}
        order = torch.from_numpy(draw.permutation(self.points))
        wrong, rest = order[: self.wrong], order[self.wrong :]
        y[wrong] = (y[wrong] + torch.from_numpy(draw.integers(1, 10, len(wrong)))) % 10
        others = rest[y[rest] != TARGET]
        poisoned, rest = others[: self.backdoor], others[self.backdoor :]
        x[poisoned], y[poisoned] = trigger(x[poisoned]), TARGET
        left, right = rest[: self.twins], rest[self.twins : 2 * self.twins]
        noise = torch.from_numpy(draw.normal(0, 0.05, (len(left), *x.shape[1:]))).float()
        x[right], y[right] = x[left] + noise, y[left]
        for name, rows in zip(PLANTED, (wrong, poisoned, torch.cat([left, right]))):
            truth[name][rows.numpy()] = True
        test_x, test_y = split.test.x.float(), split.test.y
        marked = torch.nonzero(test_y != TARGET).flatten()[-self.triggered :]
        held = Part(torch.cat([test_x, trigger(test_x[marked])]), torch.cat([test_y, test_y[marked]]))
        return Part(x, y), truth, held

    @figure
    def flipped(self, record: Record) -> Figure:
        """How often the mistake was gone, by method and by how many points were removed."""
        table = averaged(under(record, "network/").values())["flipped"]
        drawn, axes = drawing.canvas(1, 2, width=4.6, height=3.4)
        for axis, way in zip(axes, WAYS):
            series = {
                f"{size} point{'s' if size > 1 else ''}": ([table[name][way][str(size)] for name in self.methods], None)
                for size in self.removed
            }
            drawing.compare_bars(axis, self.methods, series, label="mistakes that are gone")
            axis.set_title(way, pad=22)
        return drawn

    @claim(
        "own-mistakes-flip",
        "this project",
        "without the points that replay names, mistakes are gone more often than without those of any other method",
        needs=lambda config: [f"network/{s}" for s in range(config.seeds)],
    )
    def replay_first(self, record: Record) -> Reading:
        """with the same batches, replay's share above every other's, for each number of points removed"""
        table = averaged(under(record, "network/").values())["flipped"]
        shares = {name: {way: rounded(row[way]) for way in WAYS} for name, row in table.items()}
        same = {name: row["same batches"] for name, row in shares.items()}
        holds = all(
            same[REPLAY][size] > same[name][size]
            for name, size in product(same, map(str, self.removed))
            if name != REPLAY
        )
        return Reading(shares, holds, seeds=self.seeds)

    @claim(
        "own-mistakes-planted",
        "this project",
        "replay finds planted points as well as the scores of an X-ray do",
        needs=lambda config: [f"network/{s}" for s in range(config.seeds)],
    )
    def planted_found(self, record: Record) -> Reading:
        """AUROC by replay at most 0.01 below the X-ray's for wrong labels and near-duplicates"""
        table = averaged(under(record, "network/").values())["auroc"]
        areas = {name: rounded(row) for name, row in table.items()}
        holds = all(areas[REPLAY][name] >= value - 0.01 for name, value in areas["X-ray"].items())
        return Reading(areas, holds, seeds=self.seeds)


def trigger(x: Tensor) -> Tensor:
    """The images with four bright pixels in a corner."""
    marked = x.clone()
    marked[..., -2:, -2:] = float(x.max())
    return marked


def flipped_shares(
    task: Task, seed: int, items: Part, scores: Mapping[str, np.ndarray], sizes: Sequence[int]
) -> dict[str, dict[str, dict[str, float]]]:
    """The share of mistaken items that the network trained without so many named points gets right, by method and way."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for size in sizes:
        gone = {name: np.argsort(each, axis=1, kind="stable")[:, :size] for name, each in scores.items()}
        named = [rows for each in gone.values() for rows in each]
        for way in WAYS:
            right = retrained(task, seed, named, items, way == WAYS[0]).reshape(len(scores), len(items), -1)
            for name, each in zip(scores, right):  # network k of a method is without what it names for item k
                row = found.setdefault(name, {}).setdefault(way, {})
                row[str(size)] = float(np.diagonal(each).mean())
    return found


def retrained(
    task: Task, seed: int, named: Sequence[Int64[np.ndarray, " k"]], items: Part, same: bool
) -> Bool[np.ndarray, "r m"]:
    """Which items networks trained without some points get right; `same`: in the batches of the training with all points."""
    parts = [without(task.train, np.isin(np.arange(len(task.train)), rows), same=same) for rows in named]
    how = {**task.how, "weights": "kept"} if same else task.how
    how = {key: value for key, value in how.items() if key != "measure"}
    device = task.train.y.device
    made = fit_ensemble(lambda _: task.build(seed), parts, seeds=[seed] * len(parts), device=device, **how)
    return (made(items.x).argmax(2) == items.y).cpu().numpy()


def areas_of(
    scores: Float64[np.ndarray, "m n"], triggered: int, planted: Mapping[str, Bool[np.ndarray, " n"]]
) -> dict[str, float]:
    """How well what lowers margins tells wrong labels (on all items) and the backdoor (on triggered ones), and how well the
    likeness of two points' effects tells near-duplicates."""
    plain = scores[triggered:]
    unit = plain / np.maximum(np.linalg.norm(plain, axis=0), 1e-12)
    alike = unit.T @ unit - 2 * np.eye(plain.shape[1])
    found = (-plain.mean(0), -scores[:triggered].mean(0), alike.max(1))
    return {name: auroc(each, planted[name]) for name, each in zip(PLANTED, found)}


def rounded(row: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in row.items()}
