"""The NTK review, section 3: the largest learning rate from the kernel's largest eigenvalue, against where training fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope import infinite
from ntkscope.core import Claim, Record
from ntkscope.core.random import derive_seed
from ntkscope.infinite import Layer, Relu
from ntkscope.kernels import kernel
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.results import once, summary
from ntkscope_papers.im_2021.cube import fully_connected
from ntkscope_papers.shared.images import load_images

LOSSES = {"mean": 2.0, "half-mean": 1.0}  # Σ(f−y)²/n and half of it: the factor c in f ← f − η c Θ (f − y) / n
TESTED = {"mean": (0.99, 1.01), "half-mean": (1.99, 2.01)}  # η λ
AROUND = (0.25, 16.0)  # where the threshold is searched, in units of 1/λ
FACTOR = 2.0

PUBLISHED = {
    claim.id.removeprefix("ntkreview-"): claim
    for claim in (
        Published(
            "ntkreview-max-lr",
            "Section 3",
            "the largest stable learning rate is 1/λ",
            "gradient descent on the linearised model diverges from ηλ = 1 on with Σ(f−y)²/n and from 2 on with half of it:"
            " not at 0.99 and 1.99, at 1.01 and 2.01",
        ),
        Published(
            "ntkreview-max-lr-real",
            "Section 3",
            "accurate for finite networks on real data",
            "measured threshold of a wide MLP within a factor 2 of 1/λ, for every network",
        ),
    )
}


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
        "datasets": ("digits",),
        "items": 40,
        "hidden": (1,),
        "width": 128,
        "steps": 20,
        "linear_steps": 1000,
        "trials": 6,
        "seeds": 2,
    }

    def measure(self, run: Run) -> None:
        total = len(self.datasets) * len(self.hidden) * (1 + self.seeds)
        with run.record.stage("rates", total=total, progress="auto" if run.progress else False) as stage:
            for dataset in self.datasets:
                split = load_images(dataset, root=run.root, train=self.items, test=10)
                x = split.train.x.flatten(1).double()
                x = (x / x.norm(dim=1, keepdim=True) * math.sqrt(x.shape[1])).to(run.device)
                y = torch.nn.functional.one_hot(split.train.y, len(split.classes)).double().to(run.device)
                for hidden in self.hidden:
                    net = fully_connected(Relu(), hidden, 2.0, 0.0)
                    theta = infinite.kernel(net, x).dense()
                    key = f"linear/{dataset}/{hidden}"
                    once(run.record, key, partial(linearised, theta, y, self.linear_steps, self.trials))
                    stage.advance(stage.done < total)
                    rate = infinite.max_learning_rate(theta).inverse
                    for s in range(self.seeds):
                        own = derive_seed(run.seed, "rate", s)
                        compute = partial(network, net, x.float(), y.float(), rate, self, own, curves=s == 0)
                        once(run.record, f"network/{dataset}/{hidden}/{s}", compute)
                        stage.advance(stage.done < total)

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return tuple(PUBLISHED.values())

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return judge(self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


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


def network(
    net: Layer,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n c"],
    rate: float,
    config: MaxLearningRates,
    seed: int,
    *,
    curves: bool = False,
) -> dict[str, Any]:
    """Two thresholds of one network in units of 1/λ, loss Σ(f−y)²/n: where the loss first rises, and where it is lost.

    `rises`: some loss of the first steps exceeds the one at the start. `lost`: the last one does, or is not a number. With
    half the loss both rates are twice as large and every step is the same.
    """
    model = infinite.finite(net, (x.shape[1],), config.width, outputs=y.shape[1], seed=seed).to(x.device)
    started = [p.detach().clone() for p in model.parameters()]
    own = kernel("trntk0", model, x).dense() / y.shape[1]

    def losses(times: float, *, until: float) -> list[float]:
        with torch.no_grad():
            for p, w in zip(model.parameters(), started):
                p.copy_(w)
        return descent(model, x, y, times * rate, config.steps, until=until)

    def rises(times: float) -> bool:
        seen = losses(times, until=1.0)
        return not seen[-1] <= seen[0]

    def lost(times: float) -> bool:
        seen = losses(times, until=1e12)
        return not seen[-1] <= seen[0]

    found: dict[str, Any] = {
        "prediction": rate,
        "own prediction": infinite.max_learning_rate(own).inverse,
        "rises": threshold(rises, config.trials),
        "lost": threshold(lost, config.trials, low=0.5),
    }
    if curves:
        found["curves"] = {
            f"{times:g}": [float(f"{v:.4g}") for v in losses(times, until=1e12)] for times in (0.9, 1.2, 1.5, 3.0)
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


def judge(config: MaxLearningRates, record: Record, difference: str) -> Iterator[Claim]:
    """The linearised model exactly, networks within a factor."""
    linear = {key: record.metrics[f"linear/{key}"] for key in _settings(config)}
    right = all(
        [one[loss]["tested"][str(times)] for times in TESTED[loss]] == [False, True]
        for one in linear.values()
        for loss in LOSSES
    )
    measured: dict[str, Any] = {
        key: {f"ηλ, {loss}": round(one[loss]["threshold"], 4) for loss in LOSSES} for key, one in linear.items()
    }
    note = (
        "λ is the largest eigenvalue of Θ/n. 1/λ is the rule for Σ(f−y)²/n; with the factor 1/2, which the document does not"
        f" mention, it is 2/λ; {config.linear_steps} steps on the exact kernel of {config.items} images"
    )
    yield PUBLISHED["max-lr"].judged(measured, right, difference=difference, note=note)
    measured, worst, lost = {}, 1.0, []
    for key in _settings(config):
        runs = [record.metrics[f"network/{key}/{s}"] for s in range(config.seeds)]
        rises = [one["rises"] for one in runs]
        own = [one["rises"] * one["prediction"] / one["own prediction"] for one in runs]
        lost += [one["lost"] for one in runs]
        worst = max(worst, *(max(r, 1 / r) for r in rises))
        means = {
            "ηλ where the loss rises": rises,
            "with the network's own NTK": own,
            "where it is lost": lost[-len(runs) :],
        }
        measured[key] = {name: _pair(values) for name, values in means.items()}
    beyond = sum(value > FACTOR for value in lost)
    note = (
        f"reading: the rate at which the loss first rises in {config.steps} steps, width {config.width}, Σ(f−y)²/n (2/λ with"
        f" half of it); mean and standard error of {config.seeds} networks, largest factor {worst:.2f}. A loss that rises is"
        f" caught again in many networks: it stays lost only from {min(lost):.2g} to {_at_most(max(lost))} times 1/λ, so by the"
        f" reading of no recovery {beyond} of {len(lost)} networks are beyond the factor 2"
    )
    yield PUBLISHED["max-lr-real"].judged(measured, worst <= FACTOR, difference=difference, note=note)


def _settings(config: MaxLearningRates) -> list[str]:
    return [f"{dataset}/{hidden}" for dataset in config.datasets for hidden in config.hidden]


def _pair(values: list[float]) -> list[float]:
    found = summary(values)
    return [round(found["mean"], 3), round(found["sem"], 3)]


def _at_most(value: float) -> str:
    return f"more than {value:g}" if value >= AROUND[1] else f"{value:.2g}"


def draw(record: Record) -> dict[str, Any]:
    """Thresholds of every network beside 1/λ; losses of one network below and above it."""
    config, found = record.config, record.metrics
    keys = [f"{dataset}/{hidden}" for dataset in config["datasets"] for hidden in config["hidden"]]
    figure, axes = drawing.canvas(1, 2, width=5.2)
    for i, (what, label, marker) in enumerate((("rises", "the loss rises", "o"), ("lost", "the loss stays lost", "s"))):
        for j, key in enumerate(keys):
            values = [found[f"network/{key}/{s}"][what] for s in range(config["seeds"])]
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
    return {"rates": figure}
