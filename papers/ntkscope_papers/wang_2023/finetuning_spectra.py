"""Wang et al., Figure 23: the conjugate kernel's spectrum while an encoder is fine-tuned on tweets, MiniLM in place of BERT.

The real MiniLM encoder (six layers, 22.7 million parameters) with a two-class readout on the mean of its token vectors,
fine-tuned by SGD on 4,000 tweets of Sentiment140; the test part is the 359 tweets labelled by hand. The CK (Eq. 76, no bias)
is that of some training tweets, taken ten times per epoch, in evaluation mode. Labels are ±1 and nothing is centred.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from ntkscope import models
from ntkscope.core import Part, Record, Split
from ntkscope.kernels import kernel
from ntkscope.linalg import power_law_tail
from ntkscope.training.evaluation import evaluating
from ntkscope.training.store import SnapshotStore
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.results import digits, under
from ntkscope_papers.shared.networks import accuracy, train_watched, weights_file
from ntkscope_papers.shared.sentences import build_encoder, on, sample, sentences

WHY = "MiniLM with six layers in place of BERT"
SHOWN = 20  # leading eigenvalues and alignments kept of each moment


def accuracies(config: Any) -> list[str]:
    """The legs of all networks."""
    return [f"accuracy/{s}" for s in range(config.seeds)]


on_minilm = partial(claim, needs=accuracies, stand_in=WHY)


@dataclass(frozen=True)
class FinetuningSpectra(Experiment):
    """Linear-width networks, Figure 23: the CK's leading eigenvalues and alignments while MiniLM is fine-tuned on tweets.

    `points`: training tweets whose CK is taken, `per_epoch` times in every epoch; `length`: tokens of a tweet.
    """

    name = "finetuning-spectra"
    free = ("seeds",)

    dataset: str = "sentiment140"
    encoder: str = "minilm"
    train_items: int = 4000
    test_items: int | None = None
    length: int = 48
    epochs: int = 10
    batch: int = 32
    lr: float = 0.05
    points: int = 1000
    per_epoch: int = 10
    seeds: int = 1

    smoke = {
        "dataset": "made-up",
        "encoder": "tiny",
        "train_items": 128,
        "test_items": 60,
        "length": 6,
        "epochs": 3,
        "lr": 0.5,
        "points": 60,
        "per_epoch": 2,
    }

    @property
    def moments(self) -> tuple[int, ...]:
        """The steps at which the CK is taken: the start, fractions of an epoch, the end."""
        steps = -(-self.train_items // self.batch)
        total = self.epochs * steps
        count = self.epochs * self.per_epoch
        return tuple(sorted({round(i * total / count) for i in range(count + 1)}))

    def prepare(self, run: Run) -> Split:
        train, test = self.train_items, self.test_items
        return sentences(self.dataset, self.encoder, root=run.root, train=train, test=test, length=self.length)

    @leg("accuracy/{}", over=lambda self: range(self.seeds))
    def accuracy(self, run: Run, s: int) -> dict[str, float]:
        """Of network `s`; the moments of its training are results of their own."""
        model = self.finetune(run, s)
        return {"train": accuracy(model, run.data.train), "test": accuracy(model, run.data.test)}

    def finetune(self, run: Run, s: int) -> nn.Module:
        """Train network `s`, taking every moment that the record lacks; a killed run resumes from its latest checkpoint."""
        weights = weights_file(run.record, f"network-{s}")
        store = SnapshotStore(Path(run.record.folder) / f"checkpoints-{s}")
        build = partial(build_encoder, self.encoder, run.seed + s)
        probe = sample(run.data.train, self.points, run.seed + s)
        keys = {step: f"moment/{s}/{step}" for step in self.moments}
        if not weights.exists() or any(key not in run.record.metrics for key in keys.values()):
            model = build().to(run.device)
            how = {"optimizer": "sgd", "lr": self.lr, "batch_size": self.batch, "epochs": self.epochs}

            def measure(step: int) -> dict[str, Any]:
                return {"step": step, **moment(model, probe, run.device)}

            train_watched(run, model, run.data.train, store.folder, keys, measure, **how, seed=run.seed + s)
            if not weights.exists():
                weights.parent.mkdir(exist_ok=True)
                models.save_weights(model, weights)
            store.discard()
        return models.load_weights(build(), weights).to(run.device).eval()

    def evolution(self, record: Record) -> list[list[Mapping[str, Any]]]:
        """The moments of every network in their order."""
        several = [under(record, f"moment/{s}/").values() for s in range(self.seeds)]
        return [sorted(rows, key=lambda row: int(row["step"])) for rows in several]

    def by_epoch(self, rows: list[Mapping[str, Any]]) -> list[float]:
        """The first eigenvalue at the start, then its median over each epoch: one passing collapse is not a turn."""
        several: dict[int, list[float]] = {}
        for row in rows:
            epoch = math.ceil(self.epochs * row["step"] / rows[-1]["step"])
            several.setdefault(epoch, []).append(row["values"][0])
        return [digits(float(np.median(values)), 5) for _, values in sorted(several.items())]

    @on_minilm("spectra-fig23-accuracies", "Figure 23", {"train %": 95.90, "test %": 84.0})
    def accurate(self, record: Record) -> Reading:
        """test accuracy between 75 and 90 %"""
        found = [record.metrics[key] for key in accuracies(self)]
        percent = {f"{where} %": [round(100 * one[where], 2) for one in found] for where in ("train", "test")}
        return Reading(percent, all(0.75 <= one["test"] <= 0.9 for one in found))

    @on_minilm("spectra-fig23-eigen-evolution", "Figure 23a", "the CK's first eigenvalue first falls and then rises")
    def first_eigenvalue(self, record: Record) -> Reading:
        """the least of its start and of its median over each epoch lies inside the run, at least 2 % below both ends"""
        measured = []
        for rows in self.evolution(record):
            first = [row["values"][0] for row in rows]
            at = int(np.argmin(first))
            epoch = digits(self.epochs * rows[at]["step"] / rows[-1]["step"], 3)
            single = {"least": first[at], "at epoch": epoch, "end": first[-1]}
            measured.append({"start, then medians of the epochs": self.by_epoch(rows), "single moments": single})
        note = "single moments fall far below where training passes through a collapse; the medians leave that out"
        holds = all(turns(self.by_epoch(rows)) for rows in self.evolution(record))
        return Reading({"first eigenvalue": measured}, holds, note)

    @on_minilm("spectra-fig23-alignment", "Figure 23b", "the alignment of labels and first eigenvector grows")
    def alignment(self, record: Record) -> Reading:
        """that of the first or of the second eigenvector ends at least 0.2 above its start"""
        ends = [[rows[i]["alignments"][:2] for i in (0, -1)] for rows in self.evolution(record)]
        rises = [max(after - before for before, after in zip(*pair)) >= 0.2 for pair in ends]
        return Reading({"of the first two, before and after": ends}, all(rises))

    @on_minilm(
        "spectra-pretrained-ck-heavy-tail",
        "Section 5",
        "the pre-trained encoder's CK has a heavy tail and several spikes",
    )
    def pretrained(self, record: Record) -> Reading:
        """first eigenvalue > 10 times the median of the positive ones; the upper tenth likelier by a power law than an
        exponential"""
        start = self.evolution(record)[0][0]
        ratio = start["values"][0] / start["median"]
        measured = {"first over median": digits(ratio, 4), "leading": start["values"][:6], "upper tenth": start["tail"]}
        note = "ratio: Vuong's, in favour of the power law where positive"
        return Reading(measured, ratio > 10 and start["tail"]["ratio"] > 0, note)

    @figure
    def figure23(self, record: Record) -> Figure:
        """First and second eigenvalue, and their eigenvectors' alignment with the labels, over the epochs, as in Figure 23."""
        drawn, (left, right) = drawing.canvas(1, 2, width=4.6)
        for s, rows in enumerate(self.evolution(record)):
            at = [self.epochs * row["step"] / max(rows[-1]["step"], 1) for row in rows]
            for i, (name, style) in enumerate((("first", "-"), ("second", "--"))):
                for axis, values in ((left, "values"), (right, "alignments")):
                    line = [row[values][i] for row in rows]
                    label = name if s == 0 else None
                    axis.plot(at, line, style, color=drawing.COLOURS[i], linewidth=1.2, label=label)
        drawing.label(left, x="epoch", y="eigenvalue of the CK", log="y", legend=True)
        drawing.label(right, x="epoch", y="alignment with the labels", legend=True)
        right.set_ylim(0, 1)
        return drawn


def moment(model: nn.Module, probe: Part, device: torch.device) -> dict[str, Any]:
    """The CK's leading eigenvalues, its median one, its tail, and how each leading eigenvector is aligned with the labels."""
    with evaluating(model), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        gram = kernel("ck", model, on(probe.x, device), bias=False)
        values, vectors = torch.linalg.eigh(gram.to(torch.float64).dense())
    values, vectors = values.flip(0), vectors.flip(1)
    y = torch.where(probe.y > 0, 1.0, -1.0).double().to(vectors.device)
    alignments = (y @ vectors[:, :SHOWN]).abs() / y.norm()
    positive = values[values > 1e-10 * values[0]].cpu().numpy()  # features of single precision leave more than zero
    return {
        "values": [digits(float(value), 6) for value in values[:SHOWN]],
        "alignments": [digits(float(value), 5) for value in alignments],
        "median": digits(float(np.median(positive)), 5),
        "positive": len(positive),
        "share of the first": digits(float(values[0] / values.sum()), 5),
        "tail": upper_tenth(positive),
    }


def upper_tenth(values: np.ndarray) -> dict[str, float]:
    """The largest tenth of the values, at least ten, by a power law: exponent, Vuong's ratio and p against an exponential."""
    upper = np.sort(values)[-max(10, round(len(values) / 10)) :]
    fit = power_law_tail(upper, least=len(upper), resamples=0)
    rival = fit.against["exponential"]
    return {
        "alpha": digits(fit.alpha, 4),
        "ratio": digits(rival.ratio, 4),
        "p": digits(rival.p, 3),
        "points": fit.points,
    }


def turns(first: list[float]) -> bool:
    """Whether the least value is inside and at least 2 % below both ends.

    >>> turns([2.0, 1.0, 3.0]), turns([3.0, 2.0, 1.0])
    (True, False)
    """
    at = int(np.argmin(first))
    return 0 < at < len(first) - 1 and first[at] <= 0.98 * min(first[0], first[-1])
