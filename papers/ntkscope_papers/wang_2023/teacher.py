"""Teacher and student of Wang et al. (2023), Section 3: data, two-layer network, and the cases of Table 8."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope import data, models, training
from ntkscope.core import Part, Snapshot, Split
from ntkscope.data.index_teacher import LINKS, gaussian_moments
from ntkscope.training import StopWhen
from ntkscope_papers.shared.paired_training import stacked_outputs

LAYER = "layer1.weight"


@dataclass(frozen=True)
class Student:
    """The sizes of a problem, its teacher, and the student's activation and initial law."""

    items: int
    width: int
    dimension: int
    test_items: int
    tau: float | None = None
    directions: int = 1
    link: str = "softplus"
    noise: float = 0.3
    activation: str = "normalised-tanh"
    law: str = "normal"
    scale: float = 1.0

    def split(self, seed: int) -> Split:
        """Noise-free test labels, the quadratic term centred: the reading that matches the published table."""
        return data.load(
            "index-teacher",
            seed=seed,
            dimension=self.dimension,
            directions=self.directions,
            link=self.link,
            tau=self.tau,
            noise=self.noise,
            train=self.items,
            test=self.test_items,
        )

    def network(self, seed: int) -> nn.Module:
        """Eq. 79: no biases, the NTK parametrisation, v ~ N(0, 1), W of `law` times `scale`."""
        return models.build(
            "mlp",
            in_features=self.dimension,
            classes=1,
            widths=self.width,
            depth=1,
            bias=False,
            activation=self.activation,
            ntk=True,
            law=[self.law, "normal"],
            init_scale=[self.scale, 1.0],
            seed=seed,
        )


@dataclass(frozen=True)
class Case:
    """One way of training. `lr` is in the units of its loss: `halved` is Eq. 74's `1/(2b) Σ r²`, otherwise the mean of r².

    `expected`: about how many steps it takes; moments of a run are spread over these. `most`: where it ends if the loss never
    falls to the threshold.
    """

    optimizer: str
    lr: float
    batch: int | None
    halved: bool
    expected: int
    most: int

    def options(self, threshold: float) -> dict[str, Any]:
        """The settings of `fit_ensemble`, whose loss is the mean of r²: a step on half of it is a step of half the size."""
        adaptive = self.optimizer in ("adam", "adagrad")  # does not see the scale of its loss
        chosen: dict[str, Any] = {
            "optimizer": self.optimizer,
            "lr": self.rate(self.lr),
            "loss": "mse",
            "batch_size": self.batch,
            "steps": self.most,
        }
        every = 1 if self.batch is not None or adaptive else max(1, self.expected // 200)
        return chosen | {"stop": StopWhen(loss=threshold * (2 if self.halved else 1), every=every)}

    def rate(self, lr: float) -> float:
        """`lr` as a step on the mean of r²."""
        return lr / 2 if self.halved and self.optimizer in ("gd", "sgd") else lr

    def moments(self, between: int) -> tuple[int, ...]:
        """The start and `between` steps spaced evenly in their logarithm; the end comes by itself."""
        spread = np.geomspace(max(1, self.expected / 100), max(2, self.expected / 2), between)
        return tuple(sorted({0, *(min(self.most, round(float(step))) for step in spread)}))


OPTIMIZERS = {"case1": "gd", "case2": "sgd", "case3": "sgd", "case4": "adam", "adagrad": "adagrad"}


def table_case(name: str, lr: float, expected: int, most: int, *, batch: int, adaptive_batch: int) -> Case:
    """A case of Table 8, or AdaGrad beside it. GD is on Eq. 74's loss; SGD on the mean of r², without which case 3 has no
    spike.

    >>> table_case("case3", 22.0, 1300, 4000, batch=32, adaptive_batch=256).halved
    False
    """
    optimizer = OPTIMIZERS[name]
    size = {"gd": None, "sgd": batch}.get(optimizer, adaptive_batch)
    return Case(optimizer, lr, size, halved=optimizer != "sgd", expected=expected, most=most)


@dataclass(frozen=True, eq=False)
class TrainedTogether:
    """Members of one call of `fit_ensemble`, each with its split."""

    ensemble: training.Ensemble
    splits: list[Split]
    seconds: float

    def member(self, i: int) -> nn.Module:
        """Member i in double precision, in evaluation mode."""
        return self.ensemble.member(i).double().eval()

    @property
    def diverged(self) -> list[bool]:
        lost = self.ensemble.diverged
        return [False] * len(self.splits) if lost is None else lost.tolist()

    def outputs(self, x: Sequence[Tensor]) -> Float64[Tensor, "k n"]:
        """Of every member on its own inputs, on the CPU."""
        e = self.ensemble
        found = []
        for i, inputs in enumerate(x):
            params, buffers = ({name: p[i : i + 1] for name, p in group.items()} for group in (e.params, e.buffers))
            found.append(stacked_outputs(e.template, params, buffers, inputs, e.vectorised)[0, :, 0])
        return torch.stack(found)

    def scores(self) -> list[dict[str, Any]]:
        """R², error and training error of every member, and how far from odd it is on its test inputs."""
        told: list[dict[str, Any]] = []
        predicted = self.outputs([split.test.x for split in self.splits])
        mirrored = self.outputs([-split.test.x for split in self.splits])
        fitted = self.outputs([split.train.x for split in self.splits])
        for i, split in enumerate(self.splits):
            if self.diverged[i]:
                told.append({"steps": int(self.ensemble.steps[i]), "diverged": True})
                continue
            training_error = float((fitted[i] - split.train.y.double()).square().mean())
            told.append(
                score(predicted[i], split.test)
                | {
                    "train_mse": training_error,
                    "steps": int(self.ensemble.steps[i]),
                    "diverged": False,
                    "not_odd": float((predicted[i] + mirrored[i]).abs().max() / predicted[i].abs().max()),
                }
            )
        return told


def score(predicted: Tensor, part: Part) -> dict[str, float]:
    """R² and mean squared error on `part`, and the variance of its labels."""
    y = part.y.double().cpu()
    error, spread = float((predicted.double().cpu() - y).square().mean()), float(y.var(correction=0))
    return {"r2": 1 - error / spread, "test_error": error, "variance": spread}


def train_case(
    student: Student,
    case: Case,
    seeds: Sequence[int],
    *,
    device: torch.device,
    threshold: float = 1e-5,
    rates: Sequence[float] | None = None,
    watch: Callable[[Snapshot], None] | None = None,
    moments: Sequence[int] = (),
    splits: Sequence[Split] | None = None,
) -> TrainedTogether:
    """One network per seed (or per seed and rate: `rates` has one for each entry of `seeds`), stacked, in single precision.

    A seed draws the data, the network and the order of its batches. A member whose loss is not finite has NaN for weights.
    """
    drawn = {seed: student.split(seed) for seed in dict.fromkeys(seeds)} if splits is None else {}
    own = [drawn[seed] for seed in seeds] if splits is None else list(splits)
    options = case.options(threshold)
    if rates is not None:
        options["lr"] = [case.rate(rate) for rate in rates]
    began = time.perf_counter()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        ensemble = training.fit_ensemble(
            student.network,
            [split.train for split in own],
            seeds=list(seeds),
            device=device,
            diverged="nan",
            snapshots=list(moments),
            on_snapshot=watch,
            **options,
        )
    return TrainedTogether(ensemble, own, time.perf_counter() - began)


def label_moments(student: Student) -> dict[str, float]:
    """Of the teacher's labels with noise, by quadrature: c = E[y β·x] for one direction, E y², and the odd part's variance.

    >>> moments = label_moments(Student(2, 2, 2, 2, tau=0.0))
    >>> round(moments["linear"] ** 2, 6), round(moments["odd"], 6), round(moments["second"], 6)
    (0.920761, 0.920761, 1.09)
    """
    link = LINKS[student.link]
    mean, std = gaussian_moments(link)
    z = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2)
    density /= density.sum()
    values = (link(z) - mean) / std
    odd = (values - values.flip(0)) / 2
    tau = 0.2 if student.tau is None else student.tau
    quadratic = (
        2 * tau**2 / student.dimension
        + 2 * tau * float((density * values * (z.square() - 1)).sum()) / student.dimension
    )
    return {
        "linear": float((density * values * z).sum()),
        "odd": float((density * odd.square()).sum()),
        "clean": 1 + quadratic,
        "second": 1 + quadratic + student.noise**2,
    }
