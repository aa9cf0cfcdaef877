"""The NTK review, section 3: the largest learning rate from the kernel's largest eigenvalue, against where training fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from ntkscope import infinite
from ntkscope.core import Record
from ntkscope.core.random import derive_seed
from ntkscope.infinite import Relu
from ntkscope.infinite.layer import Layer
from ntkscope.kernels import kernel
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.results import summary
from ntkscope_papers.im_2021.cube import fully_connected
from ntkscope_papers.im_2021.wide import on_sphere
from ntkscope_papers.shared.images import load_images

LOSSES = {"mean": 2.0, "half-mean": 1.0}  # Σ(f−y)²/n and half of it: the factor c in f ← f − η c Θ (f − y) / n
TESTED = {"mean": (0.99, 1.01), "half-mean": (1.99, 2.01)}  # η λ
AROUND = (0.25, 16.0)  # where the threshold is searched, in units of 1/λ
FACTOR = 2.0


@dataclass(frozen=True)
class MaxLearningRates(Experiment):
    """NTK review, section 3: 1/λ and 2/λ against the learning rates at which training of wide networks fails.

    `steps`: of gradient descent per trial; `trials`: of the bisection; `linear_steps`: of the linearised model.
    """

    name = "max-learning-rate"
    free = ("seeds",)

    datasets: tuple[str, ...] = ("mnist", "cifar10")
    items: int = 96
    hidden: tuple[int, ...] = (1, 2)
    width: int = 512
    steps: int = 40
    linear_steps: int = 2000
    trials: int = 8
    seeds: int = 5

    smoke = {
        **{"datasets": ("digits",), "items": 40, "hidden": (1,), "width": 128, "seeds": 2},
        **{"steps": 20, "linear_steps": 1000, "trials": 6},
    }

    def prepare(self, run: Run) -> dict[str, tuple[Tensor, Tensor]]:
        """Inputs of norm √d and one-hot labels, by data set."""
        found = {}
        for dataset in self.datasets:
            split = load_images(dataset, root=run.root, train=self.items, test=10)
            y = torch.nn.functional.one_hot(split.train.y, len(split.classes)).double()
            found[dataset] = on_sphere(split.train.x).to(run.device), y.to(run.device)
        return found

    @leg("linear/{}/{}", over=lambda self: product(self.datasets, self.hidden))
    def linear(self, run: Run, dataset: str, hidden: int) -> dict[str, Any]:
        x, y = run.data[dataset]
        return linearised(infinite.kernel(network(hidden), x).dense(), y, self.linear_steps, self.trials)

    @leg("network/{}/{}/{}", over=lambda self: product(self.datasets, self.hidden, range(self.seeds)))
    def thresholds(self, run: Run, dataset: str, hidden: int, s: int) -> dict[str, Any]:
        """Two of one network in units of 1/λ, loss Σ(f−y)²/n: where the loss first rises, and where it is lost.

        `rises`: some loss of the first steps exceeds the one at the start. `lost`: the last one does, or is not a number. With
        half the loss both rates are twice as large and every step is the same.
        """
        x, y = run.data[dataset]
        net, classes = network(hidden), y.shape[1]
        rate = infinite.max_learning_rate(infinite.kernel(net, x).dense()).inverse
        x, y = x.float(), y.float()
        seed = derive_seed(run.seed, "rate", s)
        model = infinite.finite(net, (x.shape[1],), self.width, outputs=classes, seed=seed).to(run.device)
        started = [p.detach().clone() for p in model.parameters()]
        own = kernel("trntk0", model, x).dense() / classes

        def losses(times: float, *, until: float = 1e12) -> list[float]:
            with torch.no_grad():
                for p, w in zip(model.parameters(), started):
                    p.copy_(w)
            return descent(model, x, y, times * rate, self.steps, until=until)

        def exceeds(seen: list[float]) -> bool:
            return not seen[-1] <= seen[0]

        found: dict[str, Any] = {
            "prediction": rate,
            "own prediction": infinite.max_learning_rate(own).inverse,
            "rises": threshold(lambda times: exceeds(losses(times, until=1.0)), self.trials),
            "lost": threshold(lambda times: exceeds(losses(times)), self.trials, low=0.5),
        }
        if s == 0:
            shown = (0.9, 1.2, 1.5, 3.0)
            found["curves"] = {f"{times:g}": [float(f"{v:.4g}") for v in losses(times)] for times in shown}
        return found

    @property
    def _settings(self) -> list[str]:
        return [f"{dataset}/{hidden}" for dataset in self.datasets for hidden in self.hidden]

    @claim("ntkreview-max-lr", "Section 3", "the largest stable learning rate is 1/λ")
    def linearised_model(self, record: Record) -> Reading:
        """gradient descent on the linearised model diverges from ηλ = 1 on with Σ(f−y)²/n and from 2 on with half of it:
        not at 0.99 and 1.99, at 1.01 and 2.01"""
        found = {key: record.metrics[f"linear/{key}"] for key in self._settings}
        holds = all(
            [one[loss]["tested"][str(times)] for times in TESTED[loss]] == [False, True]
            for one in found.values()
            for loss in LOSSES
        )
        measured = {
            key: {f"ηλ, {loss}": round(one[loss]["threshold"], 4) for loss in LOSSES} for key, one in found.items()
        }
        note = (
            "λ is the largest eigenvalue of Θ/n. 1/λ is the rule for Σ(f−y)²/n; with the factor 1/2, which the document does"
            f" not mention, it is 2/λ; {self.linear_steps} steps on the exact kernel of {self.items} images"
        )
        return Reading(measured, holds, note)

    @claim("ntkreview-max-lr-real", "Section 3", "accurate for finite networks on real data")
    def networks(self, record: Record) -> Reading:
        """measured threshold of a wide MLP within a factor 2 of 1/λ, for every network"""
        measured: dict[str, Any] = {}
        worst, lost = 1.0, []
        for key in self._settings:
            runs = [record.metrics[f"network/{key}/{s}"] for s in range(self.seeds)]
            means = {
                "ηλ where the loss rises": [one["rises"] for one in runs],
                "with the network's own NTK": [
                    one["rises"] * one["prediction"] / one["own prediction"] for one in runs
                ],
                "where it is lost": [one["lost"] for one in runs],
            }
            worst = max(worst, *(max(one["rises"], 1 / one["rises"]) for one in runs))
            lost += means["where it is lost"]
            several = {name: summary(values) for name, values in means.items()}
            measured[key] = {
                name: {end: round(one[end], 3) for end in ("mean", "sem", "n")} for name, one in several.items()
            }
        beyond = sum(value > FACTOR for value in lost)
        most = f"more than {max(lost):g}" if max(lost) >= AROUND[1] else f"{max(lost):.2g}"
        note = (
            f"reading: the rate at which the loss first rises in {self.steps} steps, width {self.width}, Σ(f−y)²/n (2/λ with"
            f" half of it); mean and standard error of {self.seeds} networks, largest factor {worst:.2f}. A loss that rises is"
            f" caught again in many networks: it stays lost only from {min(lost):.2g} to {most} times 1/λ, so by the"
            f" reading of no recovery {beyond} of {len(lost)} networks are beyond the factor 2"
        )
        return Reading(measured, worst <= FACTOR, note)

    @figure
    def rates(self, record: Record) -> Figure:
        """Thresholds of every network beside 1/λ; losses of one network below and above it."""
        found, keys = record.metrics, self._settings
        drawn, axes = drawing.canvas(1, 2, width=5.2)
        for i, (what, label, marker) in enumerate(
            (("rises", "the loss rises", "o"), ("lost", "the loss stays lost", "s"))
        ):
            for j, key in enumerate(keys):
                values = [found[f"network/{key}/{s}"][what] for s in range(self.seeds)]
                at = j + 0.18 * (2 * i - 1) + np.linspace(-0.08, 0.08, len(values))
                name = label if j == 0 else None
                axes[0].plot(at, values, marker, markersize=4, alpha=0.8, color=drawing.COLOURS[i], label=name)
        for value, text in ((1.0, "prediction, ηλ = 1"), (AROUND[1], "largest rate tried")):
            axes[0].axhline(value, color="#999999", linestyle="--" if value == 1 else ":", linewidth=1, label=text)
        names = [f"{key.split('/')[0]}, {key.split('/')[1]} hidden" for key in keys]
        axes[0].set_xticks(range(len(keys)), names, rotation=15, ha="right")
        axes[0].set_ylabel("ηλ of Σ(f−y)²/n, one point per network")
        drawing.plain_log(axes[0])
        axes[0].legend(loc="center right")
        curves = found[f"network/{keys[0]}/0"]["curves"]
        for i, (times, losses) in enumerate(curves.items()):
            axes[1].plot(losses, color=drawing.COLOURS[i], linewidth=1.2, label=f"ηλ = {times}")
        axes[1].set_yscale("log")
        axes[1].xaxis.get_major_locator().set_params(integer=True)
        drawing.label(
            axes[1],
            title=f"{names[0]}, first network",
            x="steps of gradient descent",
            y="training loss Σ(f−y)²/n",
            legend=True,
        )
        return drawn


def network(hidden: int) -> Layer:
    """ReLU layers without biases, σ_w² = 2."""
    return fully_connected(Relu(), hidden, 2.0, 0.0)


def threshold(fails: Callable[[float], bool], trials: int, low: float = AROUND[0], high: float = AROUND[1]) -> float:
    """Where `fails` turns true between `low` and `high`, by bisection of the logarithm; the geometric middle of the end.

    An end on the wrong side is returned itself: the threshold is not between the two.

    >>> round(threshold(lambda rate: rate > 3.0, 12), 2)
    3.0
    """
    if fails(low):
        return low
    if not fails(high):
        return high
    for _ in range(trials):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fails(middle) else (middle, high)
    return math.sqrt(low * high)


def linearised(theta: Float[Tensor, "n n"], y: Float[Tensor, "n c"], steps: int, trials: int) -> dict[str, Any]:
    """Gradient descent on the linearised model, step by step from zero outputs, for both usual losses."""
    n = len(theta)
    top = infinite.max_learning_rate(theta).largest_eigenvalue
    found: dict[str, Any] = {"largest eigenvalue": top}
    for loss, factor in LOSSES.items():

        def diverges(times: float, factor: float = factor) -> bool:
            """At the learning rate times/λ: whether what is left after all steps exceeds what there was."""
            residual = -y
            for _ in range(steps):
                residual = residual - (times / top) * factor / n * (theta @ residual)
                if not bool(torch.isfinite(residual).all()):
                    return True
            return bool(residual.norm() > y.norm())

        found[loss] = {
            "threshold": threshold(diverges, trials + 3),
            "tested": {str(times): diverges(times) for times in TESTED[loss]},
        }
    return found


def descent(
    model: nn.Module, x: Float[Tensor, "n d"], y: Float[Tensor, "n c"], lr: float, steps: int, *, until: float
) -> list[float]:
    """Losses Σ(f−y)²/n of full-batch gradient descent, the start first; ends when one exceeds `until` times the first."""
    parameters = list(model.parameters())
    seen: list[float] = []
    for _ in range(steps + 1):
        loss = (model(x) - y).square().sum(1).mean()
        seen.append(float(loss.detach()))
        if not seen[-1] <= until * seen[0]:
            break
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, g in zip(parameters, gradients):
                p.sub_(g, alpha=lr)
    return seen
