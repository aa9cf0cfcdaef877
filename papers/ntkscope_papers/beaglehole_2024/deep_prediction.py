"""Beaglehole et al., Figure 6: the start of the centred correlation with two hidden layers, and its first-order prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch import Tensor

from ntkscope.core import Record
from ntkscope.infinite import Relu
from ntkscope_papers.beaglehole_2024 import derivatives as early
from ntkscope_papers.beaglehole_2024.data import chain_monomial, high_rank_polynomial, spectrum
from ntkscope_papers.beaglehole_2024.matrices import layer_view, mlp
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.results import rounded, summary, under

DIP = 0.05
TASKS = {"chain-monomial": chain_monomial, "high-rank-polynomial": high_rank_polynomial}


def every_network(config: DeepPrediction) -> list[str]:
    """The legs of all panels."""
    return [f"{task}/{activation}/{width}/{s}" for task, activation, width, s in config.networks()]


on_networks = partial(claim, seeds=10, needs=every_network)


@dataclass(frozen=True)
class DeepPrediction(Experiment):
    """Beaglehole et al., Figure 6, App. C: two hidden layers, quadratic and ReLU, by decay of the data's spectrum.

    `decays` are the α of the data's eigenvalues 1/(1 + k^α); their grid is not published.
    """

    name = "deep-prediction"
    free = ("seeds",)

    tasks: tuple[str, ...] = tuple(TASKS)
    activations: tuple[str, ...] = ("quadratic", "relu")
    widths: tuple[int, ...] = (128, 1024)
    items: int = 128
    dimension: int = 128
    decays: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0, 5.0, 10.0)
    seeds: int = 10

    smoke = {"widths": (16, 64), "items": 16, "dimension": 16, "decays": (0.0, 1.0, 2.0, 10.0), "seeds": 2}

    def panels(self) -> Iterator[tuple[str, str, int]]:
        return product(self.tasks, self.activations, self.widths)

    def networks(self) -> Iterator[tuple[str, str, int, int]]:
        return product(self.tasks, self.activations, self.widths, range(self.seeds))

    @leg()
    def spectrum(self, run: Run) -> dict[str, Any]:
        """The data's eigenvalues at both ends of α, k from 1, and from 0."""
        flat, steep = spectrum(self.dimension, 0), spectrum(self.dimension, float("inf"))
        from_zero = 1 / (1 + torch.arange(self.dimension, dtype=torch.float64) ** 60.0)
        return {
            "alpha 0": [float(flat.min()), float(flat.max())],
            "alpha infinite": [float(steep[0]), float(steep[1:].max())],
            "alpha 60, k from 0": from_zero[:3].tolist(),
        }

    @leg("{}/{}/{}/{}", over=lambda self: self.networks())
    def correlations(self, run: Run, task: str, activation: str, width: int, s: int) -> dict[str, Any]:
        """Of one network at every decay."""
        seed, device = run.seed + s, run.device
        return {"decays": {f"{a:g}": self.one_decay(task, activation, width, a, seed, device) for a in self.decays}}

    def one_decay(
        self, task: str, activation: str, width: int, decay: float, seed: int, device: torch.device
    ) -> dict[str, float]:
        """ρ(ẆᵀẆ, ẆᵀKẆ) of the first layer of one network, with the labels and with its residuals; predictions."""
        options: dict[str, Any] = {"dimension": self.dimension, "decay": decay, "train": self.items, "test": 1}
        part = TASKS[task](seed=seed, dtype="float64", **options).train
        x, y = part.x.to(device), part.y.to(device)
        model = mlp(self.dimension, width, seed, activation=activation).double().to(device)
        view = layer_view(model, model.get_submodule("layer1"), x)
        tangents, outputs = view.tangents[:, 0], view.outputs[:, 0]
        network: dict[str, Any] = {"activation": activation, "depth": 2}
        if activation == "quadratic":
            other = {"predicted, this width": early.first_order_prediction(x, y, width=width, **network)}
        else:
            other = {"predicted, linear slope": early.first_order_prediction(x, y, activation=linear_slope, depth=2)}
        return {
            "observed": early.feature_derivatives(x, tangents, y).correlation,
            "observed, residuals": early.feature_derivatives(x, tangents, y - outputs).correlation,
            "predicted": early.first_order_prediction(x, y, **network).correlation,
            **{name: prediction.correlation for name, prediction in other.items()},
        }

    @claim(
        "nfa-appC-spectrum", "App. C", "eigenvalues 1/(1 + k^α); a projector as α → 0 and as α → ∞", needs=["spectrum"]
    )
    def both_limits(self, record: Record) -> Reading:
        """half the identity, and half a projector of rank one, k from 1"""
        values = {key: value for key, value in record.metrics["spectrum"].items() if key != "seconds"}
        holds = values["alpha 0"] == [0.5, 0.5] and values["alpha infinite"] == [0.5, 0.0]
        holds = holds and values["alpha 60, k from 0"][:2] == [1, 0.5]
        note = "halves of projectors, which suffices for proportionality; with k from 0 the limit has eigenvalues 1 and 1/2"
        return Reading(values, holds, note, exact=True)

    @claim(
        "nfa-fig6-setting",
        "Figure 6, App. C, App. H",
        {"n": 128, "d": 128, "k": [128, 1024], "init_scale": 1, "r": 5},
        needs=every_network,
    )
    def setting(self, record: Record) -> Reading:
        """configuration only"""
        measured = {"n": self.items, "d": self.dimension, "k": list(self.widths), "decays": list(self.decays)}
        note = "residuals are the labels (Eq. 4); E[𝒦] is that of infinite width; the grid of α is not published"
        return Reading(measured, True, note)

    @on_networks(
        "nfa-fig6-dip",
        "Figure 6, App. C",
        "observed and predicted correlations are lowest at intermediate α",
        f"in every panel the mean over seeds is lowest inside, at least {DIP} below both ends",
    )
    def dips(self, record: Record) -> Reading:
        measured: dict[str, Any] = {}
        deep = []
        for (task, activation, width), key in product(self.panels(), ("observed", "predicted")):
            values = curves(record, task, activation, width, key)
            lowest = int(values.mean(0).argmin())
            below = summary((values[:, [0, -1]].min(1) - values[:, lowest]).tolist())
            measured[f"{task}, {activation}, k = {width}, {key}"] = {
                "α": self.decays[lowest],
                "below the ends": three_digits(below),
            }
            deep.append(0 < lowest < values.shape[1] - 1 and below["mean"] >= DIP)
        return Reading(measured, all(deep), f"{sum(deep)} of {len(deep)} curves", seeds=self.seeds)

    @on_networks("nfa-fig6-width", "Figure 6, App. C", "quadratic: the prediction is closer at width 1024 than at 128")
    def width(self, record: Record) -> Reading:
        """mean difference over α smaller at the larger width, both tasks, by more than two paired standard errors"""
        if "quadratic" not in self.activations or len(self.widths) < 2:
            return Reading(None, note="needs quadratic networks at two widths")
        measured: dict[str, Any] = {}
        closer = []
        narrow, wide = min(self.widths), max(self.widths)
        for task in self.tasks:
            small, large = (errors(record, task, "quadratic", width) for width in (narrow, wide))
            gain = summary((small - large).tolist())
            closer.append(gain["mean"] > 2 * gain["sem"])
            own = (errors(record, task, "quadratic", width, "predicted, this width") for width in self.widths)
            measured[task] = {
                f"error at {narrow}": rounded(float(small.mean()), 3),
                f"error at {wide}": rounded(float(large.mean()), 3),
                "difference": three_digits(gain),
                "errors with E[𝒦] of the width": [rounded(float(one.mean()), 3) for one in own],
            }
        return Reading(measured, all(closer), "", seeds=self.seeds)

    @on_networks("nfa-fig6-relu", "Figure 6, App. C", "ReLU: only qualitatively right, worse than quadratic")
    def relu(self, record: Record) -> Reading:
        """at the larger width mean error of ReLU above that of quadratic, both tasks; Spearman over α > 0.5"""
        if set(self.activations) < {"quadratic", "relu"}:
            return Reading(None, note="needs ReLU and quadratic networks")
        width = max(self.widths)
        measured: dict[str, Any] = {}
        holds = []
        for task in self.tasks:
            quadratic = float(errors(record, task, "quadratic", width).mean())
            measured[task] = {"error, quadratic": rounded(quadratic, 3)}
            observed = curves(record, task, "relu", width, "observed").mean(0)
            for name, key in (("linear part of the slope", "predicted, linear slope"), ("whole slope", "predicted")):
                error = float(errors(record, task, "relu", width, key).mean())
                rank = float(spearmanr(observed, curves(record, task, "relu", width, key).mean(0)).statistic)
                measured[task][f"ReLU, {name}"] = rounded({"error": error, "Spearman over α": rank}, 3)
                if key != "predicted":
                    holds.append(error > quadratic and rank > 0.5)
        note = (
            "the text says that terms of the nonlinear part of φ̇ are missing: judged on E[𝒦] with the linear part of ReLU's"
            " slope; with the whole arc-cosine kernel the prediction is as close as that of quadratic networks"
        )
        return Reading(measured, all(holds), note, seeds=self.seeds)

    @figure
    def figure_6(self, record: Record) -> dict[str, Figure]:
        """Observed at every width and predicted, by α, one panel for each task and activation."""
        there = {key.rpartition("/")[0] for key in every_network(self) if key in record.metrics}
        panels = sorted({panel.rpartition("/")[0] for panel in there})
        drawn, axes = drawing.canvas(1, max(1, len(panels)), width=3.6)
        for axis, panel in zip(axes, panels):
            task, activation = panel.split("/")
            widths = sorted(width for width in self.widths if f"{panel}/{width}" in there)
            for i, width in enumerate(widths):
                values = curves(record, task, activation, width, "observed")
                sems = values.std(0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.zeros(len(self.decays))
                drawing.line_with_errors(axis, self.decays, values.mean(0), sems, i, f"observed, k = {width}")
            values = curves(record, task, activation, widths[-1], "predicted").mean(0)
            axis.plot(self.decays, values, "--", color=drawing.COLOURS[3], label="predicted")
            if activation == "relu":
                values = curves(record, task, activation, widths[-1], "predicted, linear slope").mean(0)
                axis.plot(
                    self.decays, values, ":", color=drawing.COLOURS[2], label="predicted, linear part of the slope"
                )
            drawing.label(axis, title=f"{task}, {activation}", x="decay α", y="ρ(ẆᵀẆ, ẆᵀKẆ)", legend=True)
        return {"deep-prediction": drawn}


def linear_slope(cov: Tensor, q1: Tensor, q2: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU with only the constant and linear part of its slope: E[φ̇φ̇] = 1/4 + cos θ / 2π, the first terms of (π - θ) / 2π."""
    values, _ = Relu().covariances(cov, q1, q2, False)
    return values, 0.25 + cov / (q1 * q2).sqrt().clamp(min=1e-300) / (2 * math.pi)


def curves(record: Record, task: str, activation: str, width: int, key: str) -> np.ndarray:
    """(seeds, decays) of one number."""
    runs = under(record, f"{task}/{activation}/{width}/").values()
    return np.array([[one[key] for one in run["decays"].values()] for run in runs], dtype=np.float64)


def errors(record: Record, task: str, activation: str, width: int, key: str = "predicted") -> np.ndarray:
    """Mean over α of |predicted - observed|, one for each seed."""
    gap = curves(record, task, activation, width, key) - curves(record, task, activation, width, "observed")
    return np.abs(gap).mean(1)


def three_digits(numbers: dict[str, float]) -> dict[str, float]:
    return {name: rounded(float(value), 3) for name, value in numbers.items()}
