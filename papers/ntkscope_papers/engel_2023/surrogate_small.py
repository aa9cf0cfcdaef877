"""Table 1 of the surrogate paper, small networks: MLP and CNN on the two-class parts of MNIST, CIFAR-10, Fashion-MNIST.

Every row is run in three readings of the training (`small_training`) and two measures (`published_measure`). Judged is the
row as it was published: the authors' training, τ of the score of the fixed class 1, their SGDClassifier. Next to it stand τ of
the correct class at the surrogate's optimum, which is what the text of the paper defines, our own training, and the τ of a
predictor that knows labels alone.

Where classes separate, the pooled τ of the correct class says little: moving the bias lifts every log-odds of one class and
lowers every one of the other, so the order *between* classes depends on a number that the data hardly determine. Therefore τ
within each class is reported too, and τ at the bias that agrees best with the network (which a surrogate has no way to know).

One leg per network; the networks of a row and reading are trained in one stack by the first of its legs. Estimated seconds on
one H200 (training of five, then each network): softmax 20 + 8, sigmoid 20 + 8; authors: mlp-mnist2 40 + 40, cnn-mnist2
100 + 40, cnn-cifar2 250 + 45, cnn-fmnist2 200 + 40. A training that is killed continues in the same folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from matplotlib.figure import Figure
from scipy.stats import kendalltau
from torch import nn

from ntkscope import models
from ntkscope.core import Part, Record, Split, UsageError
from ntkscope.measures.faithfulness import kendall_tau
from ntkscope_papers.engel_2023 import small_claims
from ntkscope_papers.engel_2023.kernel_pairs import kernel_pairs
from ntkscope_papers.engel_2023.published_measure import Compared, floor_on_used, label_floor, spread, stochastic_fits
from ntkscope_papers.engel_2023.side_by_side import side_by_side
from ntkscope_papers.engel_2023.small_claims import OURS, ROWS, as_published, networks
from ntkscope_papers.engel_2023.small_training import READINGS, Training, class_logits
from ntkscope_papers.engel_2023.surrogate import Surrogate, log_odds_figure, log_odds_pair
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg
from ntkscope_papers.framework.results import summary
from ntkscope_papers.shared.images import chosen_points
from ntkscope_papers.shared.networks import logits_of, trained_together, weights_file


@dataclass(frozen=True)
class SurrogateSmall(Experiment):
    """Surrogate paper, Table 1: the trace-NTK surrogate of small networks on two classes, three trainings, two measures.

    `seeds` networks per row with our training, `other_seeds` in the second reading, `authors_seeds` with the authors'.

    `points`, `authors_points`: training points in the kernel. `authors_share`: of the authors' epochs. `sgd_seeds`: fits of the
    SGDClassifier per network, with the ridge `sgd_alpha`. `compared_points`: for the fits to labels and to logits side by side.
    """

    name = "surrogate-small"
    statements = claims_of(small_claims)
    free = ("seeds", "other_seeds", "memory")

    rows: tuple[str, ...] = tuple(ROWS)
    dataset: str | None = None  # instead of a row's own, for smoke runs
    train_items: int = 10_000
    test_items: int | None = None
    points: int = 5000
    epochs: int = 10
    batch: int = 64
    sigmoid_epochs: int = 2
    sigmoid_lr: float = 0.5
    sigmoid_batch: int = 16
    channels: tuple[int, ...] = (16, 32, 64)
    sigmoid_channels: tuple[int, ...] = (64, 32, 8)
    alpha: float = 1e-4
    precision: str = "exact"
    memory: str = "4GiB"
    seeds: int = 5
    other_seeds: int = 5
    authors_seeds: int = 5
    authors_points: int = 10_000
    authors_share: float = 1.0
    sgd_seeds: int = 5
    sgd_alpha: float = 1e-4
    compared_points: int = 2000

    smoke = {
        "rows": ("mlp-mnist2", "cnn-mnist2"),
        "dataset": "digits",
        "train_items": 200,
        "test_items": 60,
        "points": 80,
        "epochs": 5,
        "batch": 20,
        "channels": (8, 8),
        "sigmoid_channels": (8, 8),
        "seeds": 2,
        "other_seeds": 1,
        "authors_seeds": 2,
        "authors_points": 80,
        "authors_share": 0.1,
        "sgd_seeds": 2,
        "compared_points": 60,
    }

    def networks(self, reading: str) -> int:
        """How many networks a row has in this reading."""
        return {"softmax": self.seeds, "sigmoid": self.other_seeds, "authors": self.authors_seeds}[reading]

    def measure(self, run: Run) -> None:
        unknown = [row for row in self.rows if row not in ROWS]
        if unknown:
            raise UsageError(f"got rows {', '.join(unknown)}; expected some of {', '.join(ROWS)}")
        super().measure(run)

    def prepare(self, run: Run) -> Callable[[str, str, int], Split]:
        """The images of network s of a row and reading, the last ones held; those of the authors are the same for every s."""
        read = lru_cache(1)(lambda row, reading, s: Training(self, row, reading).images(run.root, run.seed + s))
        return lambda row, reading, s: read(row, reading, 0 if reading == "authors" else s)

    def trained(self, run: Run, row: str, reading: str, s: int) -> Ready:
        """Network s of a row, all of them trained if they are not yet."""
        training, key = Training(self, row, reading), f"{row}/{reading}"
        seeds = [run.seed + place for place in range(self.networks(reading))]
        files = [weights_file(run.record, f"{key}/{place}") for place in range(len(seeds))]
        if not all(file.exists() for file in files):
            splits = [run.data(row, reading, place) for place in range(len(seeds))]
            parts = [training.part(split, seed) for split, seed in zip(splits, seeds)]
            build = partial(training.build, splits[0])
            trained_together(run.record, key, build, parts, training.how, seeds=seeds, device=run.device)
        split = run.data(row, reading, s)
        model = models.load_weights(training.build(split, seeds[s]), files[s]).to(run.device).eval()
        start = training.build(split, seeds[s]).to(run.device).eval() if training.centred else None
        return Ready(model, start, training.threshold)

    def cases(self) -> Iterator[tuple[str, str, int]]:
        yield from (
            (row, reading, s) for row in self.rows for reading in READINGS for s in range(self.networks(reading))
        )

    @leg("{}/{}/{}", over=cases)
    def network(self, run: Run, row: str, reading: str, s: int) -> dict[str, Any]:
        """One network: its kernel, its surrogates at the optimum and by SGD, both measures; of the first one more."""
        seed, one, split = run.seed + s, self.trained(run, row, reading, s), run.data(row, reading, s)
        points = self.authors_points if reading == "authors" else self.points
        part = split.train.take(torch.from_numpy(chosen_points(split.train.y, points, seed)))
        x, x_test = part.x.to(run.device), split.test.x.to(run.device)
        (pair,) = kernel_pairs(["trntk"], one.model, x, x_test, precision=self.precision, memory=self.memory)
        y, compared = part.y.numpy(), Compared(one.logits(split.test), split.test.y.numpy())
        surrogate = Surrogate(pair, y, self.alpha, seed)
        found = both_measures(surrogate, compared)
        fits = stochastic_fits(pair, y, compared, self.sgd_alpha, range(self.sgd_seeds))
        found["stochastic"] = fits
        found["sgd"] = {key: (spread(fits, key) or {"mean": float("nan")})["mean"] for key in ("tau", "tad")}
        if one.start is not None:
            # the authors' scripts call class 1 by σ(f) ≥ ½ on one row, without subtracting the start
            outputs = logits_of(one.model, split.test.x).numpy()[:, 0]
            found["accuracy of f alone"] = float(((outputs > 0) == (compared.y == 1)).mean())
        if s == 0:
            odds = log_odds_pair(surrogate.logits, compared.network, compared.y)
            run.record.array(f"log-odds-{row}-{reading}", odds)
            found["other ridges"] = surrogate.ridges(compared.network, compared.y, "tau", "tad")
            few = chosen_points(part.y, self.compared_points, seed)
            own = one.logits(part.take(torch.from_numpy(few)))
            found["side by side"] = side_by_side(pair.take(few), y[few], own, compared, alpha=self.alpha)
        return found

    @figure
    def tables(self, record: Record) -> dict[str, Figure]:
        """τ of every reading beside the published one; τ against the ridge; log-odds of the first networks."""
        drawn, axes = drawing.canvas(1, 2, width=5.2)
        series: dict[str, Any] = {}
        for reading in READINGS:
            found = {row: networks(record, row, reading, self.networks(reading)) for row in self.rows}
            if not any(found.values()):
                continue
            series[f"{reading}, correct class"] = _bars(
                [summary(one["tau"] for one in several) if several else None for several in found.values()]
            )
            measured = [as_published(several) for several in found.values()]
            if any(measured):
                series[f"{reading}, as published"] = _bars(
                    [one and {"mean": one["tau"][0], "sem": one["tau"][1]} for one in measured]
                )
            for row, several in found.items():
                if several and "other ridges" in several[0]:
                    ridges = {**several[0]["other ridges"], f"{several[0]['alpha']:g}": several[0]}
                    line = sorted((float(k), v["tau"]) for k, v in ridges.items())
                    style = {"softmax": "-", "sigmoid": "--"}.get(reading, ":")
                    colour = drawing.COLOURS[list(ROWS).index(row)]
                    axes[1].plot(*zip(*line), style, marker="o", markersize=3, color=colour, label=f"{row}, {reading}")
        series["published"] = ([ROWS[row][0][4] for row in self.rows], None)
        drawing.compare_bars(axes[0], self.rows, series, label="Kendall τ")
        drawing.label(axes[1], x="ridge strength", y="Kendall τ of the correct class, first network", log="x")
        if axes[1].lines:
            axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        titles = {f"{row}-{reading}": f"{row}, {reading}" for reading in READINGS for row in self.rows}
        ours = {key: title for key, title in titles.items() if key.endswith(OURS)}
        odds = log_odds_figure("log-odds", record, ours) or log_odds_figure("log-odds", record, titles)
        return {"table1": drawn, **odds}


def _bars(means: list[Any]) -> tuple[list[float | None], list[float]]:
    return [None if m is None else m["mean"] for m in means], [0.0 if m is None else m["sem"] for m in means]


@dataclass(frozen=True, eq=False)
class Ready:
    """A trained network, and its start where the difference of the two was trained."""

    model: nn.Module
    start: nn.Module | None
    threshold: float

    def logits(self, part: Part) -> Float64[np.ndarray, "n 2"]:
        """Of the two classes."""
        start = None if self.start is None else logits_of(self.start, part.x).numpy()
        return class_logits(logits_of(self.model, part.x).numpy(), start, self.threshold)


def both_measures(one: Surrogate, compared: Compared) -> dict[str, Any]:
    """Faithfulness at the optimum: of the correct class, of the fixed class 1, and what labels alone would score."""
    network, y = compared.network, compared.y
    margin, own = network[:, 1] - network[:, 0], log_odds_pair(one.logits, network, y)
    return {
        **one.row(network, y),
        "median |log-odds|": float(np.median(np.abs(margin))),
        "fixed class": compared.measured(one.logits)["fixed class"],
        "label floor": label_floor(y, margin),
        "label floor, unsaturated": floor_on_used(y, margin),
        **offsets(own[0], own[1], y),
    }


def offsets(
    surrogate: Float64[np.ndarray, " n"], network: Float64[np.ndarray, " n"], y: Int64[np.ndarray, " n"]
) -> dict[str, Any]:
    """τ of correct-class log-odds within each of two classes, and pooled at the change of bias where it is largest.

    >>> y = np.array([0, 0, 1, 1])
    >>> found = offsets(np.array([4.0, 5.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0, 4.0]), y)
    >>> found["tau within classes"], found["best bias"]["tau"]
    ({'0': 1.0, '1': 1.0}, 1.0)
    """
    side = np.where(y == 1, 1.0, -1.0)
    reach = float(np.ptp(surrogate))
    shifts = np.linspace(-reach, reach, 201)
    taus = [kendalltau(surrogate + shift * side, network).statistic for shift in shifts]  # τ-b too, without its error
    best = int(np.argmax(taus))
    return {
        "tau within classes": {str(c): kendall_tau(surrogate[y == c], network[y == c]) for c in (0, 1)},
        "best bias": {"shift": float(shifts[best]), "tau": float(taus[best])},
    }
