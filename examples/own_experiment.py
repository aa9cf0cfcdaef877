"""An experiment of your own: stored, resumable, with a verdict. Run: python examples/own_experiment.py [FOLDER] [smoke|paper]

The statement: with a few labels, the kernel of a trained network tells digits apart better than that of the untrained network.
In a package of your own, an entry point in the group "ntkscope.experiments" makes it known to `ntkscope run`.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure

import ntkscope as ns
from ntkscope.core import Record
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.results import under


@dataclass(frozen=True)
class FewLabels(Experiment):
    """Accuracy of ridge regression with few labels, on the kernel before and after training on other digits."""

    name = "few-labels"
    free = ("seeds",)

    labels: tuple[int, ...] = (20, 50, 100)
    epochs: int = 10
    seeds: int = 3

    smoke: ClassVar = {"labels": (20,), "epochs": 1, "seeds": 2}

    def cases(self) -> Iterator[tuple[int, int]]:
        return product(self.labels, range(self.seeds))

    @leg("accuracy/{}/{}", over=cases)
    def accuracy(self, run: Run, labels: int, s: int) -> dict[str, float]:
        """Of both kernels, on the same labels."""
        split = ns.data.load("digits", seed=run.seed + s)
        model = ns.models.build("small_cnn", image_size=8, classes=10, seed=run.seed + s).eval()
        few, others = split.train.take(range(labels)), split.train.take(range(labels, len(split.train)))

        def ridge() -> float:
            surrogate = ns.surrogates.KernelRidgeClassifier().fit(ns.kernel("trntk", model, few.x), few.y)
            predicted = surrogate.predict(ns.kernel("trntk", model, split.test.x, few.x))
            return float((predicted == split.test.y.numpy()).mean())

        before = ridge()
        ns.training.fit(
            model, others, optimizer="adam", lr=3e-3, epochs=self.epochs, batch_size=64, measure=False
        ).final()
        return {"before": before, "after": ridge()}

    @claim("few-labels-trained-kernel", "this example", "the trained kernel is better", seeds=3)
    def better(self, record: Record) -> Reading:
        """mean accuracy after minus before: above 0.02 for every number of labels"""
        gains = {f"{labels} labels": round(float(np.diff(means(record, labels))[0]), 4) for labels in self.labels}
        return Reading(gains, min(gains.values()) > 0.02, seeds=self.seeds)

    @figure
    def by_labels(self, record: Record) -> Figure:
        drawn, (axis,) = drawing.canvas()
        lines = np.array([means(record, labels) for labels in self.labels]).T
        for name, line in zip(("before training", "after training"), lines):
            axis.plot(self.labels, line, "o-", label=name)
        axis.set(xlabel="labels", ylabel="test accuracy")
        axis.legend(frameon=False)
        return drawn


def means(record: Record, labels: int) -> tuple[float, float]:
    runs = under(record, f"accuracy/{labels}/").values()
    return float(np.mean([run["before"] for run in runs])), float(np.mean([run["after"] for run in runs]))


def main(folder: str = "runs/few-labels", scale: str = "paper") -> Record:
    record = FewLabels.run(scale, out=folder)
    for each in record.claims:
        print(each.id, "too small to judge" if each.too_small else each.outcome, each.measured)
    return record


if __name__ == "__main__":
    main(*sys.argv[1:])
