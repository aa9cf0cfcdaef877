"""Wang et al., Figure 22: the NTK's spectrum of a small CNN on two classes of CIFAR-10, trained by GD, SGD and Adam.

The paper names neither classes, architecture, sample, steps nor rates. The reading here: airplane against automobile (the first
two labels), two convolutions and a linear readout, 2,000 training images, squared error on ±1 as in Eq. 74, the NTK on 1,000
of the training images. GD and SGD take steps below the largest stable one at the start (n/λ₁, about 0.013), GD ten times so.
SGD beyond it is measured beside: there the first eigenvalue has to fall for the training to settle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ntkscope import models
from ntkscope.core import Part, Record, Split
from ntkscope.kernels import kernel
from ntkscope.measures.spectra import compare
from ntkscope.training.stopping import StopWhen
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.results import digits, summary
from ntkscope_papers.shared.images import chosen_points, load_images
from ntkscope_papers.shared.networks import logits_of, trained
from ntkscope_papers.wang_2023.index_teacher import index_teacher
from ntkscope_papers.wang_2023.two_layer import Shape, conjugate_kernel, first_layer_kernel, network, weights_of

OPTIMIZERS = ("GD", "SGD", "Adam")
BEYOND = "large-SGD"
CASES: dict[str, dict[str, Any]] = {  # of Table 8: squared error without the half
    "case-3": {"optimizer": "sgd", "lr": 22.0, "batch_size": 32},
    "case-4": {"optimizer": "adam", "lr": 0.092, "batch_size": 256},
}
QUANTILES = np.linspace(0, 1, 101)
SHOWN = 20  # leading eigenvalues in the record


def judged(config: Any) -> list[str]:
    """The legs of the CNNs that are judged."""
    return [f"{name}/{s}" for name in OPTIMIZERS for s in range(config.seeds)]


on_networks = partial(claim, needs=judged, seeds=3)


@dataclass(frozen=True)
class CnnSpectra(Experiment):
    """Linear-width networks, Figure 22: the NTK's spectrum of a small CNN on CIFAR-2 before and after GD, SGD and Adam.

    `points`: training images whose NTK is taken. `dimension`, `case_epochs`: d and epochs of Table 8's networks.
    """

    name = "cnn-spectra"
    free = ("seeds", "case_seeds", "memory")

    dataset: str = "cifar2"
    train_items: int = 2000
    test_items: int | None = None
    channels: tuple[int, ...] = (16, 32)
    points: int = 1000
    gd_rate: float = 0.001
    gd_steps: int = 300
    sgd_rate: float = 0.005
    large_rate: float = 0.05
    adam_rate: float = 1e-3
    batch: int = 32
    epochs: int = 30
    dimension: int = 1000
    case_epochs: int = 300
    case_seeds: int = 1
    memory: str = "8GiB"
    seeds: int = 3

    smoke = {
        "dataset": "digits",
        "train_items": 120,
        "test_items": 80,
        "channels": (4, 8),
        "points": 60,
        "gd_steps": 20,
        "epochs": 3,
        "dimension": 24,
        "case_epochs": 5,
        "memory": "1GiB",
        "seeds": 1,
    }

    def how(self, optimizer: str) -> dict[str, Any]:
        """The settings of `fit`."""
        if optimizer == "GD":
            return {"optimizer": "sgd", "lr": self.gd_rate, "steps": self.gd_steps, "loss": "mse"}
        rates = {"SGD": self.sgd_rate, BEYOND: self.large_rate, "Adam": self.adam_rate}
        rule = {"optimizer": "adam" if optimizer == "Adam" else "sgd", "lr": rates[optimizer]}
        return {**rule, "batch_size": self.batch, "epochs": self.epochs, "loss": "mse"}

    def prepare(self, run: Run) -> Split:
        """Two classes as ±1: of a set with more, the upper half of the labels against the lower."""
        split = load_images(self.dataset, root=run.root, train=self.train_items, test=self.test_items)

        def signs(part: Part) -> Part:
            return Part(part.x, torch.where(part.y >= len(split.classes) / 2, 1.0, -1.0))

        return split.replace(train=signs(split.train), test=signs(split.test))

    def build(self, split: Split, seed: int) -> nn.Module:
        channels, size = split.train.x.shape[1:3]
        return models.build(
            "small_cnn", classes=1, in_channels=channels, image_size=size, channels=self.channels, seed=seed
        )

    def spectrum(self, model: nn.Module, x: Tensor, device: torch.device) -> np.ndarray:
        """Eigenvalues of the NTK, descending, in double precision."""
        gram = kernel("trntk0", model.eval(), x.double(), dtype=torch.float64, device=device, memory=self.memory)
        values: np.ndarray = torch.linalg.eigvalsh(gram.dense().double()).flip(0).cpu().numpy()
        return values

    @leg("{}/{}", over=lambda self: [*((name, s) for s in range(self.seeds) for name in OPTIMIZERS), (BEYOND, 0)])
    def cnn(self, run: Run, optimizer: str, s: int) -> dict[str, Any]:
        """One network: its accuracies, and its NTK's spectrum before and after training."""
        split, seed, device = run.data, run.seed + s, run.device
        make = partial(self.build, split, seed)
        model = trained(run, f"{optimizer}-{seed}", make, split.train, self.how(optimizer), seed=seed)
        accuracy = {
            where: float(((logits_of(model, part.x)[:, 0] > 0) == (part.y > 0)).double().mean())
            for where, part in (("train", split.train), ("test", split.test))
        }
        chosen = torch.from_numpy(chosen_points((split.train.y > 0).long(), self.points, seed))
        x = split.train.x[chosen].to(device)
        before, after = (self.spectrum(each, x, device) for each in (make().to(device), model))
        return accuracy | compared(before, after)

    @leg("{}/{}", over=lambda self: product(CASES, range(self.case_seeds)))
    def two_layers(self, run: Run, case: str, s: int) -> dict[str, Any]:
        """Case 3 or 4 of Table 8: the first eigenvalue of the full NTK before and after."""
        shape, seed, device = Shape.of(self.dimension), run.seed + s, run.device
        part = index_teacher(seed=seed, dimension=shape.dimension, train=shape.items, test=1).train
        how = {**CASES[case], "loss": "mse", "epochs": self.case_epochs, "stop": StopWhen(loss=1e-5)}
        how["batch_size"] = min(how["batch_size"], shape.items)
        make = partial(network, shape, seed, law="normal")
        model = trained(run, f"{case}-{seed}", make, Part(part.x, part.y), how, seed=seed)
        x = part.x.double().to(device)
        tops = []
        for each in (make().to(device), model):
            W, v = weights_of(each)
            tops.append(float(torch.linalg.eigvalsh(first_layer_kernel(W, v, x) + conjugate_kernel(W, x))[-1]))
        with torch.no_grad():
            left = (model(part.x.to(device))[:, 0].cpu() - part.y).square().mean()
        return {"first": tops, "first over first": tops[1] / tops[0], "training loss": float(left)}

    def networks(self, record: Record) -> dict[str, list[Mapping[str, Any]]]:
        """The results of each optimizer's networks."""
        return {name: [record.metrics[f"{name}/{s}"] for s in range(self.seeds)] for name in OPTIMIZERS}

    @on_networks("spectra-fig22-accuracies", "Figure 22", {"GD": 79.0, "SGD": 84.0, "Adam": 86.4})
    def accuracies(self, record: Record) -> Reading:
        """mean test accuracy of GD at most that of SGD + 1 point, of SGD at most that of Adam + 1 point"""
        runs = self.networks(record)
        test = {name: summary(100 * run["test"] for run in several) for name, several in runs.items()}
        train = {name: summary(100 * run["train"] for run in several)["mean"] for name, several in runs.items()}
        means = {name: found["mean"] for name, found in test.items()}
        measured = {
            "test %": {name: [round(found["mean"], 2), round(found["sem"], 2)] for name, found in test.items()},
            "training %": {name: round(value, 2) for name, value in train.items()},
        }
        holds = means["GD"] <= means["SGD"] + 1 and means["SGD"] <= means["Adam"] + 1
        note = "classes, architecture, sample and steps are not published: the reading is ours"
        return Reading(measured, holds, note, seeds=self.seeds)

    @on_networks(
        "spectra-fig22-ntk-spectra",
        "Figure 22, Section 5",
        "unchanged by GD, a heavier tail with SGD, heavier still with Adam; spikes from the start",
    )
    def spectra(self, record: Record) -> Reading:
        """mean KS distance of log-eigenvalues, scaled by the trace: GD < SGD < Adam; at the start λ₁ > 5 λ₁₀ everywhere"""
        runs = self.networks(record)
        means = {
            key: {name: float(np.mean([run[key] for run in several])) for name, several in runs.items()}
            for key in ("KS", "KS over the mean", "Q–Q slope")
        }
        spiked = min(run["first over tenth, before"] for several in runs.values() for run in several)
        measured: dict[str, Any] = {
            key: {name: digits(value, 3) for name, value in row.items()} for key, row in means.items()
        }
        measured["λ₁/λ₁₀ at the start, least"] = digits(spiked, 3)
        ordered, beside = (row["GD"] < row["SGD"] < row["Adam"] for row in (means["KS over the mean"], means["KS"]))
        lighter = [name for name in ("SGD", "Adam") if means["Q–Q slope"][name] < 1]
        beyond = f"the statement goes further than its check: the tail got lighter with {' and '.join(lighter)}; "
        note = (beyond if lighter else "") + (
            f"without the scaling, as the Q–Q plots compare them, the order {'holds' if beside else 'does not hold'}: most of"
            " the trace is the first eigenvalue, which moves all others when it alone grows; the slope of the Q–Q plot over the"
            " upper half of logarithms is above 1 where the tail got heavier"
        )
        return Reading(measured, ordered and spiked > 5, note, seeds=self.seeds)

    @claim(
        "spectra-top-eigenvalue-grows",
        "Section 5",
        "the first eigenvalue of the NTK is larger after training than before",
        needs=lambda config: judged(config) + [f"{case}/{s}" for case in CASES for s in range(config.case_seeds)],
        seeds=3,
    )
    def first_eigenvalue_grows(self, record: Record) -> Reading:
        """λ₁ after over λ₁ before > 1 in every CNN trained by SGD or Adam, and in cases 3 and 4 of Table 8"""
        runs = self.networks(record)
        runs |= {case: [record.metrics[f"{case}/{s}"] for s in range(self.case_seeds)] for case in CASES}
        ratios = {name: [run["first over first"] for run in several] for name, several in runs.items()}
        holds = all(value > 1 for name, values in ratios.items() if name != "GD" for value in values)
        measured = {name: [digits(value, 4) for value in values] for name, values in ratios.items()}
        note = ""
        if f"{BEYOND}/0" in record.metrics:
            measured[BEYOND] = [digits(record.metrics[f"{BEYOND}/0"]["first over first"], 4)]
            note = "SGD at a step beyond the largest stable one at the start, measured beside, is no part of the check"
        return Reading(measured, holds, note, seeds=self.seeds)

    @figure
    def figure22(self, record: Record) -> Figure:
        """Q–Q plots of log-eigenvalues before and after training, one panel for each optimizer, as in Figure 22."""
        drawn, axes = drawing.canvas(1, 3, width=3.8)
        for axis, name in zip(axes, OPTIMIZERS):
            several = [run for key, run in record.metrics.items() if key.startswith(f"{name}/")]
            for i, run in enumerate(several):
                before, after = run["quantiles"]
                axis.plot(before, after, "o", markersize=3, color=drawing.COLOURS[i % len(drawing.COLOURS)], alpha=0.7)
                if i == 0:
                    axis.plot(before, before, color="#999999", linewidth=0.8)
            if several:
                accuracy = summary(100 * run["test"] for run in several)["mean"]
                distance = summary(run["KS"] for run in several)["mean"]
                axis.set_title(f"{name}: {accuracy:.1f} % correct, KS {distance:.3f}")
            drawing.label(axis, x="logarithm of the eigenvalue, at the start", y="after training")
        return drawn


def compared(before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """What is kept of two spectra: how far apart they are in shape, how their first values compare, and their quantiles."""
    old, new = (in_logarithms(values, scaled=False) for values in (before, after))
    return {
        "KS": compare(old, new).ks,
        "KS over the mean": compare(in_logarithms(before), in_logarithms(after)).ks,
        "Q–Q slope": quantile_slope(old, new),
        "first over first": float(after[0] / before[0]),
        "first over tenth, before": float(before[0] / before[9]),
        "first over tenth, after": float(after[0] / after[9]),
        "share of the first": [float(values[0] / values.sum()) for values in (before, after)],
        "quantiles": [[digits(float(q), 5) for q in np.quantile(values, QUANTILES)] for values in (old, new)],
        "leading": [[digits(float(value), 5) for value in values[:SHOWN]] for values in (before, after)],
    }


def in_logarithms(values: Any, *, scaled: bool = True) -> np.ndarray:
    """Logarithms of the positive eigenvalues, ascending, over their mean: the spectrum's shape whatever its scale.

    >>> in_logarithms([0.0, 1.0, 3.0]).round(4).tolist()
    [-0.6931, 0.4055]
    """
    array = np.sort(np.asarray(values, dtype=np.float64))
    array = array[array > 1e-12 * array[-1]]
    return np.log(array / (array.mean() if scaled else 1.0))


def quantile_slope(before: Any, after: Any, share: float = 0.5) -> float:
    """The slope of the Q–Q plot of two log-spectra over the upper `share` of quantiles; above 1 where the tail got heavier.

    >>> quantile_slope([0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 4.0, 6.0])
    2.0
    """
    q = np.linspace(1 - share, 1, 101)
    x, y = np.quantile(before, q), np.quantile(after, q)
    return round(float(np.polyfit(x, y, 1)[0]), 9)
