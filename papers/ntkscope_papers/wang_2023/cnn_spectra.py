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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope import data, models
from ntkscope.core import Part, Record, Split
from ntkscope.kernels import kernel
from ntkscope.measures.spectra import compare
from ntkscope.training.stopping import StopWhen
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Published, Reading, claim, lacking
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.framework.results import summary
from ntkscope_papers.qadeer_2023.networks import digits
from ntkscope_papers.shared.images import chosen_points, load_images
from ntkscope_papers.shared.networks import logits_of, trained
from ntkscope_papers.wang_2023.log_spectra import in_logarithms, quantile_slope
from ntkscope_papers.wang_2023.two_layer import Shape, conjugate_kernel, first_layer_kernel, network, weights_of

NAME = "cnn-spectra"
OPTIMIZERS = ("GD", "SGD", "Adam")
BEYOND = "large-SGD"
CASES: dict[str, dict[str, Any]] = {  # of Table 8: squared error without the half
    "case-3": {"optimizer": "sgd", "lr": 22.0, "batch_size": 32},
    "case-4": {"optimizer": "adam", "lr": 0.092, "batch_size": 256},
}
QUANTILES = np.linspace(0, 1, 101)
SHOWN = 20  # leading eigenvalues in the record

ACCURACIES = Published(
    "spectra-fig22-accuracies",
    "Figure 22",
    {"GD": 79.0, "SGD": 84.0, "Adam": 86.4},
    "mean test accuracy of GD at most that of SGD + 1 point, of SGD at most that of Adam + 1 point",
    seeds=3,
)
SPECTRA = Published(
    "spectra-fig22-ntk-spectra",
    "Figure 22, Section 5",
    "unchanged by GD, a heavier tail with SGD, heavier still with Adam; spikes from the start",
    "mean KS distance of log-eigenvalues, scaled by the trace: GD < SGD < Adam; at the start λ₁ > 5 λ₁₀ everywhere",
    seeds=3,
)
GROWS = Published(
    "spectra-top-eigenvalue-grows",
    "Section 5",
    "the first eigenvalue of the NTK is larger after training than before",
    "λ₁ after over λ₁ before > 1 in every CNN trained by SGD or Adam, and in cases 3 and 4 of Table 8",
    seeds=3,
)


@dataclass(frozen=True)
class CnnSpectra(Experiment):
    """Linear-width networks, Figure 22: the NTK's spectrum of a small CNN on CIFAR-2 before and after GD, SGD and Adam.

    `points`: training images whose NTK is taken. `dimension`, `case_epochs`: d and epochs of Table 8's networks.
    """

    name = NAME
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
        match optimizer:
            case "GD":
                return {"optimizer": "sgd", "lr": self.gd_rate, "steps": self.gd_steps, "loss": "mse"}
            case "SGD":
                rate = {"optimizer": "sgd", "lr": self.sgd_rate}
            case "large-SGD":
                rate = {"optimizer": "sgd", "lr": self.large_rate}
            case _:
                rate = {"optimizer": "adam", "lr": self.adam_rate}
        return {**rate, "batch_size": self.batch, "epochs": self.epochs, "loss": "mse"}

    def measure(self, run: Run) -> None:
        split = load(self, run.root)
        run_legs(run.record, legs(self, run.record, split, run.seed, run.device), self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def load(config: CnnSpectra, root: str | None) -> Split:
    """Two classes as ±1: of a set with more, the upper half of the labels against the lower."""
    split = load_images(config.dataset, root=root, train=config.train_items, test=config.test_items)

    def signs(part: Part) -> Part:
        return Part(part.x, torch.where(part.y >= len(split.classes) / 2, 1.0, -1.0))

    return split.replace(train=signs(split.train), test=signs(split.test))


def build(config: CnnSpectra, split: Split, seed: int) -> nn.Module:
    channels, size = split.train.x.shape[1:3]
    return models.build(
        "small_cnn", classes=1, in_channels=channels, image_size=size, channels=config.channels, seed=seed
    )


def spectrum(config: CnnSpectra, model: nn.Module, x: Tensor, device: torch.device) -> np.ndarray:
    """Eigenvalues of the NTK, descending, in double precision."""
    gram = kernel("trntk0", model.eval(), x.double(), dtype=torch.float64, device=device, memory=config.memory)
    values: np.ndarray = torch.linalg.eigvalsh(gram.dense().double()).flip(0).cpu().numpy()
    return values


def trained_network(
    config: CnnSpectra, record: Record, split: Split, optimizer: str, seed: int, device: torch.device
) -> dict[str, Any]:
    """One network: its accuracies, and its NTK's spectrum before and after training."""
    make = partial(build, config, split, seed)
    model = trained(record, f"{optimizer}-{seed}", make, split.train, config.how(optimizer), device=device, seed=seed)
    accuracy = {
        where: float(((logits_of(model, part.x)[:, 0] > 0) == (part.y > 0)).double().mean())
        for where, part in (("train", split.train), ("test", split.test))
    }
    chosen = torch.from_numpy(chosen_points((split.train.y > 0).long(), config.points, seed))
    x = split.train.x[chosen].to(device)
    before, after = (spectrum(config, each, x, device) for each in (make().to(device), model))
    return accuracy | compared(before, after)


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


def teacher(config: CnnSpectra, record: Record, case: str, seed: int, device: torch.device) -> dict[str, Any]:
    """Case 3 or 4 of Table 8: the first eigenvalue of the full NTK before and after."""
    shape = Shape.of(config.dimension)
    part = data.load("index-teacher", seed=seed, dimension=shape.dimension, train=shape.items, test=1).train
    how = {**CASES[case], "loss": "mse", "epochs": config.case_epochs, "stop": StopWhen(loss=1e-5)}
    how["batch_size"] = min(how["batch_size"], shape.items)
    make = partial(network, shape, seed, law="normal")
    lean = Part(part.x, part.y)
    model = trained(record, f"{case}-{seed}", make, lean, how, device=device, seed=seed)
    x = part.x.double().to(device)
    tops = []
    for each in (make().to(device), model):
        W, v = weights_of(each)
        tops.append(float(torch.linalg.eigvalsh(first_layer_kernel(W, v, x) + conjugate_kernel(W, x))[-1]))
    with torch.no_grad():
        left = (model(part.x.to(device))[:, 0].cpu() - part.y).square().mean()
    return {"first": tops, "first over first": tops[1] / tops[0], "training loss": float(left)}


def legs(config: CnnSpectra, record: Record, split: Split, seed: int, device: torch.device) -> list[Leg]:
    found = [
        Leg(f"{optimizer}/{s - seed}", partial(trained_network, config, record, split, optimizer, s, device))
        for s in range(seed, seed + config.seeds)
        for optimizer in OPTIMIZERS
    ]
    found.append(Leg(f"{BEYOND}/0", partial(trained_network, config, record, split, BEYOND, seed, device)))
    return found + [
        Leg(f"{case}/{s - seed}", partial(teacher, config, record, case, s, device))
        for s in range(seed, seed + config.case_seeds)
        for case in CASES
    ]


def _runs(config: Any, record: Record) -> tuple[dict[str, list[Mapping[str, Any]]], list[str]]:
    """The runs of each optimizer, and the keys of those that are missing."""
    keys = {name: [f"{name}/{s}" for s in range(config.seeds)] for name in OPTIMIZERS}
    lacks = [key for several in keys.values() for key in several if key not in record.metrics]
    found = {name: [record.metrics[key] for key in several if key in record.metrics] for name, several in keys.items()}
    return found, lacks


@claim(
    "spectra-fig22-accuracies",
    "Figure 22",
    {"GD": 79.0, "SGD": 84.0, "Adam": 86.4},
    "mean test accuracy of GD at most that of SGD + 1 point, of SGD at most that of Adam + 1 point",
    seeds=3,
)
def _accuracies(config: Any, record: Record) -> Reading:
    runs, lacks = _runs(config, record)
    if lacks:
        return lacking(*lacks)
    test = {name: summary(100 * run["test"] for run in several) for name, several in runs.items()}
    train = {name: summary(100 * run["train"] for run in several)["mean"] for name, several in runs.items()}
    means = {name: found["mean"] for name, found in test.items()}
    measured = {
        "test %": {name: [round(found["mean"], 2), round(found["sem"], 2)] for name, found in test.items()},
        "training %": {name: round(value, 2) for name, value in train.items()},
    }
    holds = means["GD"] <= means["SGD"] + 1 and means["SGD"] <= means["Adam"] + 1
    note = "classes, architecture, sample and steps are not published: the reading is ours"
    return Reading(measured, holds, note, seeds=config.seeds)


@claim(
    "spectra-fig22-ntk-spectra",
    "Figure 22, Section 5",
    "unchanged by GD, a heavier tail with SGD, heavier still with Adam; spikes from the start",
    "mean KS distance of log-eigenvalues, scaled by the trace: GD < SGD < Adam; at the start λ₁ > 5 λ₁₀ everywhere",
    seeds=3,
)
def _spectra(config: Any, record: Record) -> Reading:
    runs, lacks = _runs(config, record)
    if lacks:
        return lacking(*lacks)
    means = {
        key: {name: float(np.mean([run[key] for run in several])) for name, several in runs.items()}
        for key in ("KS", "KS over the mean", "Q–Q slope")
    }
    spiked = min(run["first over tenth, before"] for several in runs.values() for run in several)
    measured = {key: {name: digits(value, 3) for name, value in row.items()} for key, row in means.items()}
    judged, beside = (means[key]["GD"] < means[key]["SGD"] < means[key]["Adam"] for key in ("KS over the mean", "KS"))
    words = "holds" if beside else "does not hold"
    note = (
        f"without the scaling, as the Q–Q plots compare them, the order {words}: most of the trace is the first eigenvalue,"
        " which moves all others when it alone grows; the slope of the Q–Q plot over the upper half of logarithms is above 1"
        " where the tail got heavier"
    )
    return Reading(
        {**measured, "λ₁/λ₁₀ at the start, least": digits(spiked, 3)}, judged and spiked > 5, note, seeds=config.seeds
    )


@claim(
    "spectra-top-eigenvalue-grows",
    "Section 5",
    "the first eigenvalue of the NTK is larger after training than before",
    "λ₁ after over λ₁ before > 1 in every CNN trained by SGD or Adam, and in cases 3 and 4 of Table 8",
    seeds=3,
)
def _grows(config: Any, record: Record) -> Reading:
    runs, lacks = _runs(config, record)
    cases = {case: [f"{case}/{s}" for s in range(config.case_seeds)] for case in CASES}
    lacks += [key for several in cases.values() for key in several if key not in record.metrics]
    if lacks:
        return lacking(*lacks)
    ratios = {name: [run["first over first"] for run in several] for name, several in runs.items()}
    ratios |= {case: [record.metrics[key]["first over first"] for key in keys] for case, keys in cases.items()}
    holds = all(value > 1 for name, values in ratios.items() if name != "GD" for value in values)
    measured = {name: [digits(value, 4) for value in values] for name, values in ratios.items()}
    note = ""
    if f"{BEYOND}/0" in record.metrics:
        measured[BEYOND] = [digits(record.metrics[f"{BEYOND}/0"]["first over first"], 4)]
        note = "SGD at a step beyond the largest stable one at the start, measured beside, is no part of the check"
    return Reading(measured, holds, note, seeds=config.seeds)


def draw(record: Record) -> dict[str, Any]:
    """Q–Q plots of log-eigenvalues before and after training, one panel for each optimizer, as in Figure 22."""
    figure, axes = drawing.canvas(1, 3, width=3.8)
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
    return {"figure22": figure}
