"""Teacher and student of Wang et al. (2023), Section 3: data, two-layer network, and the cases of Table 8."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope import models, training
from ntkscope.core import Part, Record, Snapshot, Split
from ntkscope.training import StopWhen
from ntkscope_papers.framework import Experiment, Run
from ntkscope_papers.framework.results import summary
from ntkscope_papers.shared.paired_training import stacked_outputs
from ntkscope_papers.wang_2023.index_teacher import LINKS, gaussian_moments, index_teacher

LAYER = "layer1.weight"
OPTIMIZERS = {"case1": "gd", "case2": "sgd", "case3": "sgd", "case4": "adam", "adagrad": "adagrad"}


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
        return index_teacher(
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
    """One way of training. `lr` is in the units of its loss: the mean of r² for SGD, Eq. 74's `1/(2b) Σ r²` for all others.

    Without the former, case 3 of Table 8 has no spike. `expected`: about how many steps it takes; moments of a run are spread
    over these. `most`: where it ends if the loss never falls to `threshold`.
    """

    optimizer: str
    lr: float
    batch: int | None
    expected: int
    most: int
    threshold: float = 1e-5

    @property
    def stop(self) -> float:
        """The mean of r² at which it ends."""
        return self.threshold * (1 if self.optimizer == "sgd" else 2)

    def options(self) -> dict[str, Any]:
        """The settings of `fit_ensemble`, whose loss is the mean of r²."""
        every = max(1, self.expected // 200) if self.optimizer == "gd" else 1
        return {
            "optimizer": self.optimizer,
            "lr": self.rate(self.lr),
            "loss": "mse",
            "batch_size": self.batch,
            "steps": self.most,
            "stop": StopWhen(loss=self.stop, every=every),
        }

    def rate(self, lr: float) -> float:
        """`lr` as a step on the mean of r²: a step on half of it is one of half the size; Adam and AdaGrad see no scale."""
        return lr / 2 if self.optimizer == "gd" else lr

    def moments(self, between: int) -> tuple[int, ...]:
        """The start and `between` steps spaced evenly in their logarithm; the end comes by itself."""
        spread = np.geomspace(max(1, self.expected / 100), max(2, self.expected / 2), between)
        return tuple(sorted({0, *(min(self.most, round(float(step))) for step in spread)}))


@dataclass(frozen=True)
class TeacherStudent(Experiment):
    """The sizes of Table 8, which all experiments with this teacher share; their `smoke` is an eighth of it.

    With the sizes of batches (and with them the steps of SGD) an eighth too, spikes stay where they are.
    """

    items: int = 2000
    width: int = 1500
    dimension: int = 1000
    noise: float = 0.3
    seeds: int = 3
    batch: int = 32
    threshold: float = 1e-5

    smoke = {"items": 250, "width": 188, "dimension": 125, "seeds": 2, "batch": 4}

    @property
    def edge(self) -> float:
        """Where the bulk of WᵀW/d ends at the start, by the law of Marchenko and Pastur."""
        return (1 + math.sqrt(self.width / self.dimension)) ** 2

    def seeds_of(self, run: Run) -> list[int]:
        return list(range(run.seed, run.seed + self.seeds))


@dataclass(frozen=True)
class Table8(TeacherStudent):
    """Networks trained by several `cases` of Table 8; `rates`, `expected` and `most` are theirs, in this order.

    `expected`: steps to the threshold; `most`: steps at which a run ends in any case.
    """

    cases: ClassVar[tuple[str, ...]] = ("case1", "case3", "case4")
    rates: tuple[float, ...] = (5.0, 22.0, 0.092)
    expected: tuple[int, ...] = (6_300, 1_300, 190)
    most: tuple[int, ...] = (16_000, 40_000, 8_000)
    adam_batch: int = 256

    smoke = {
        **TeacherStudent.smoke,
        "rates": (12.5, 2.75, 0.092),  # GD at a larger step
        "expected": (300, 1_000, 150),
        "most": (300, 2_000, 300),
        "adam_batch": 32,
    }

    def case(self, name: str) -> Case:
        """One of `cases` with this configuration's numbers."""
        place, optimizer = self.cases.index(name), OPTIMIZERS[name]
        batch = {"gd": None, "sgd": self.batch}.get(optimizer, self.adam_batch)
        return Case(optimizer, self.rates[place], batch, self.expected[place], self.most[place], self.threshold)


@dataclass(frozen=True, eq=False)
class TrainedTogether:
    """Members of one call of `fit_ensemble`, each with its split."""

    ensemble: training.ensembles.ensemble.Ensemble
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
        inputs = zip(*((split.test.x, -split.test.x, split.train.x) for split in self.splits))
        predicted, mirrored, fitted = map(self.outputs, inputs)
        scores: list[dict[str, Any]] = []
        for i, split in enumerate(self.splits):
            scores.append({"steps": int(self.ensemble.steps[i]), "diverged": self.diverged[i]})
            if not self.diverged[i]:
                scores[i] |= score(predicted[i], split.test)
                scores[i] |= {
                    "train_mse": float((fitted[i] - split.train.y.double()).square().mean()),
                    "not_odd": float((predicted[i] + mirrored[i]).abs().max() / predicted[i].abs().max()),
                }
        return scores


def score(predicted: Tensor, part: Part) -> dict[str, float]:
    """R² and mean squared error on `part`, and the variance of its labels."""
    y = part.y.double().cpu()
    error, spread = float((predicted.double().cpu() - y).square().mean()), float(y.var(correction=0))
    return {"r2": 1 - error / spread, "test_error": error, "variance": spread}


def train_case(
    student: Student,
    case: Case,
    seeds: Sequence[int],
    device: torch.device,
    *,
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
    options = case.options()
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


def load_member(model: nn.Module, snapshot: Snapshot, i: int) -> None:
    """Give `model` the weights of member i."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(snapshot.params[name][i])


def members(record: Record, key: str) -> list[Mapping[str, Any]]:
    """The networks of a leg that did not diverge."""
    return [one for one in record.metrics[key]["members"] if not one.get("diverged")]


def average(values: Iterable[float]) -> float:
    """Their mean; NaN without any."""
    several = list(values)
    return summary(several)["mean"] if several else float("nan")


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
        "second": 1 + quadratic + student.noise**2,
    }
