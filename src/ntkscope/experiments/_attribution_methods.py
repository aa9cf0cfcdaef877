"""Attributions that are compared: each gives one score per test item and training point, from one network or several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import nn

from ntkscope.core import numpy_generator
from ntkscope.experiments import _trak as trak
from ntkscope.experiments._attribution_tasks import Task
from ntkscope.experiments._network import logits_of
from ntkscope.experiments._retraining import input_cosine
from ntkscope.explain import Influence, attribute, influence
from ntkscope.explain.influences import margin_directions
from ntkscope.machines import KernelPair, fit_machine, kernel_pairs
from ntkscope.machines.computing import clock

Scores = Float64[np.ndarray, "m n"]
GLM_ALPHA = 1e-4  # of the surrogate whose decomposition is compared, as in an X-ray


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A network trained on all points, with what several methods use of it; each is timed when it is first computed."""

    task: Task
    model: nn.Module
    number: int
    kernel_options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def trntk(self) -> KernelPair:
        return self.kernel("trntk")

    def kernel(self, name: str) -> KernelPair:
        (pair,) = kernel_pairs({name: {}}, self.model, self.task.train.x, self.task.test.x, **self.kernel_options)
        return pair

    @cached_property
    def logits(self) -> Float64[np.ndarray, "m c"]:
        return logits_of(self.model, self.task.test.x).numpy()

    @cached_property
    def train_logits(self) -> Float64[np.ndarray, "n c"]:
        return logits_of(self.model, self.task.train.x).numpy()

    @property
    def y(self) -> Int64[np.ndarray, " n"]:
        return self.task.train.y.cpu().numpy()

    @property
    def y_test(self) -> Int64[np.ndarray, " m"]:
        return self.task.test.y.cpu().numpy()


@dataclass(frozen=True, eq=False)
class Scored:
    """One attribution by the first networks: scores, the seconds they took, and where they are a group's the exact effect."""

    scores: Scores
    seconds: float
    variant: str = ""
    influence: Influence | None = None


Method = Callable[[Sequence[Checkpoint], Sequence[int]], Iterator[tuple[int, Scored]]]


def averaged(one: Callable[[Checkpoint], tuple[Scores, float, Influence | None]]) -> Method:
    """A method that averages its scores over networks; `counts` says after how many it is reported."""

    def method(checkpoints: Sequence[Checkpoint], counts: Sequence[int]) -> Iterator[tuple[int, Scored]]:
        total, seconds = np.zeros(()), 0.0
        for done, checkpoint in enumerate(checkpoints[: max(counts)], start=1):
            began = clock(checkpoint.model)
            scores, before, found = one(checkpoint)
            seconds += clock(checkpoint.model) - began + before
            total = total + scores
            if done in counts:
                yield done, Scored(total / done, seconds, influence=found if done == 1 else None)

    return method


def _leave_one_out(checkpoint: Checkpoint, targets: np.ndarray) -> tuple[Scores, float, Influence | None]:
    """Influence through ridge regression on the trace-NTK; its kernel's seconds count too."""
    known = "trntk" in vars(checkpoint)
    pair = checkpoint.trntk
    found = influence(pair.train, pair.test, targets, logits=checkpoint.logits)
    return found.margins(checkpoint.y_test), pair.seconds if known else 0.0, found


def loo_labels(checkpoint: Checkpoint) -> tuple[Scores, float, Influence | None]:
    return _leave_one_out(checkpoint, checkpoint.y)


def loo_logits(checkpoint: Checkpoint) -> tuple[Scores, float, Influence | None]:
    return _leave_one_out(checkpoint, checkpoint.train_logits)


def _gauss_newton(checkpoint: Checkpoint, pair: KernelPair) -> Scores:
    found = influence(
        pair.train,
        pair.test,
        checkpoint.y,
        method="gauss-newton",
        logits=checkpoint.logits,
        train_logits=checkpoint.train_logits,
    )
    return found.margins(checkpoint.y_test)


def gn_trntk(checkpoint: Checkpoint) -> tuple[Scores, float, Influence | None]:
    known = "trntk" in vars(checkpoint)
    pair = checkpoint.trntk
    return _gauss_newton(checkpoint, pair), pair.seconds if known else 0.0, None


def gn_entk(checkpoint: Checkpoint) -> tuple[Scores, float, Influence | None]:
    return _gauss_newton(checkpoint, checkpoint.kernel("entk")), 0.0, None


def decomposition(checkpoint: Checkpoint) -> tuple[Scores, float, Influence | None]:
    """What the logits of the X-ray's surrogate are made of, contracted to margins."""
    known = "trntk" in vars(checkpoint)
    pair = checkpoint.trntk
    parts = attribute(fit_machine(pair, checkpoint.y, alpha=GLM_ALPHA, classes=checkpoint.task.classes), pair.test)
    directions = margin_directions(checkpoint.logits, checkpoint.y_test)
    kernel = pair.test.dense().detach().cpu().double().numpy()
    return kernel * (directions @ parts.coef), pair.seconds if known else 0.0, None


def similarity(checkpoint: Checkpoint) -> tuple[Scores, float, Influence | None]:
    """Input cosine, where the labels agree."""
    return input_cosine(checkpoint.task) * (checkpoint.y_test[:, None] == checkpoint.y[None]), 0.0, None


def chance(checkpoint: Checkpoint) -> tuple[Scores, float, Influence | None]:
    draw = numpy_generator(checkpoint.number, "random attribution")
    return draw.normal(size=(len(checkpoint.y_test), len(checkpoint.y))), 0.0, None


def grad_dot(dim: int) -> Method:
    """The inner product of a test item's margin gradient with a training point's loss gradient, projected."""

    def one(checkpoint: Checkpoint) -> tuple[Scores, float, Influence | None]:
        found = trak.features(checkpoint.model, checkpoint.task.train, checkpoint.task.test, dim, checkpoint.number)
        return ((found.test.double() @ found.train.double().T) * found.doubt).cpu().numpy(), 0.0, None

    return averaged(one)


def trak_grid(dims: Sequence[int], dampings: Sequence[float]) -> Method:
    """TRAK for every projection size and damping; yields all of them, so that the best can be chosen for it.

    Projected once, to the largest size, and cut; the seconds are those of one variant with the largest size.
    """

    def method(checkpoints: Sequence[Checkpoint], counts: Sequence[int]) -> Iterator[tuple[int, Scored]]:
        grid = [(dim, damping) for dim in dims for damping in dampings]
        kernels: dict[tuple[int, float], Any] = dict.fromkeys(grid, 0.0)
        doubt, seconds = np.zeros(()), 0.0
        for done, checkpoint in enumerate(checkpoints[: max(counts)], start=1):
            began = clock(checkpoint.model)
            found = trak.features(
                checkpoint.model, checkpoint.task.train, checkpoint.task.test, max(dims), checkpoint.number
            )
            seconds += clock(checkpoint.model) - began
            doubt = doubt + found.doubt.double().cpu().numpy()
            for at, (dim, damping) in enumerate(grid):
                began = time.perf_counter()
                kernels[dim, damping] = kernels[dim, damping] + trak.whitened(found, dim, damping)
                seconds += time.perf_counter() - began if at == len(grid) - 1 else 0.0
            del found
            if done in counts:
                for dim, damping in grid:
                    yield (
                        done,
                        Scored(kernels[dim, damping] / done * (doubt / done), seconds, f"k={dim}, λ={damping:g}"),
                    )

    return method


def methods(dims: Sequence[int], dampings: Sequence[float]) -> dict[str, Method]:
    """All of them by name."""
    return {
        "loo-trntk": averaged(loo_labels),
        "loo-trntk-logits": averaged(loo_logits),
        "gn-trntk": averaged(gn_trntk),
        "gn-entk": averaged(gn_entk),
        "decomposition": averaged(decomposition),
        "similarity": averaged(similarity),
        "grad-dot": grad_dot(max(dims)),
        "random": averaged(chance),
        "trak": trak_grid(dims, dampings),
    }


def release(device: torch.device) -> None:
    """Give back what PyTorch keeps of the GPU's memory between methods."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
