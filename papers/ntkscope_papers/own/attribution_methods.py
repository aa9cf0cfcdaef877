"""Attributions that are compared: each gives one score per test item and training point, from one network or several."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from ntkscope.core import numpy_generator
from ntkscope.explain import attribute, influence
from ntkscope.explain.removal.gauss_newton import GaussNewtonInfluence
from ntkscope.explain.removal.influences import Influence, margin_directions
from ntkscope.machines import KernelPair, fit_machine, kernel_pairs
from ntkscope.machines.computing import clock
from ntkscope.training import fit
from ntkscope_papers.own import trak
from ntkscope_papers.own.attribution_tasks import Task
from ntkscope_papers.own.retraining import input_cosine
from ntkscope_papers.shared.networks import logits_of

Scores = Float64[np.ndarray, "m n"]
STRENGTHS = (1.0, 0.1, 10.0, 100.0)  # times the default ridge strength; every method that has one gets its best
GLM_ALPHA = 1e-4  # of the surrogate whose decomposition is compared, as in an X-ray


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A network trained on all points, with what several methods use of it; each is timed when it is first computed."""

    task: Task
    model: nn.Module
    number: int
    seed: int
    kernel_options: dict[str, Any] = field(default_factory=dict)
    strengths: dict[str, float] = field(default_factory=dict)  # the default ones of Gauss-Newton steps, once known

    @cached_property
    def trntk(self) -> KernelPair:
        return self.kernel("trntk")

    def shared(self) -> tuple[KernelPair, float]:
        """The trace-NTK, and the seconds it took if it was computed before."""
        known = "trntk" in vars(self)
        return self.trntk, self.trntk.seconds if known else 0.0

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
    seconds: float = 0.0
    variant: str = ""
    influence: Influence | None = None


Method = Callable[[Sequence[Checkpoint], Sequence[int]], Iterator[tuple[int, Scored]]]
# of one network at so many times the default ridge strength; the seconds are those that the caller's clock did not see
One = Callable[[Checkpoint, float], Scored]


def averaged(one: One, strengths: Sequence[float] = (1.0,)) -> Method:
    """A method that averages its scores over networks, for every ridge strength, so that the best can be chosen.

    Seconds are those of the default strength; `counts` says after how many networks it is reported.
    """

    def method(checkpoints: Sequence[Checkpoint], counts: Sequence[int]) -> Iterator[tuple[int, Scored]]:
        totals: dict[float, Any] = dict.fromkeys(strengths, 0.0)
        first: dict[float, Influence | None] = {}
        seconds = 0.0
        for done, checkpoint in enumerate(checkpoints[: max(counts)], start=1):
            for times in strengths:
                began = clock(checkpoint.model)
                scored = one(checkpoint, times)
                seconds += (clock(checkpoint.model) - began + scored.seconds) * (times == 1.0)
                totals[times] = totals[times] + scored.scores
                first.setdefault(times, scored.influence)
            if done in counts:
                for times, total in totals.items():
                    variant = f"{times:g} × the default strength" if len(strengths) > 1 else ""
                    yield done, Scored(total / done, seconds, variant, first[times] if done == 1 else None)

    return method


def tuned(one: One) -> Method:
    return averaged(one, STRENGTHS)


def doubted(one: Callable[[Checkpoint], tuple[dict[str, Scores], np.ndarray, float]]) -> Method:
    """A method as TRAK: means over networks of some products and of `1 - p`, multiplied; all variants are yielded.

    `one` gives the products by variant, `1 - p` of the training points, and the seconds of one variant.
    """

    def method(checkpoints: Sequence[Checkpoint], counts: Sequence[int]) -> Iterator[tuple[int, Scored]]:
        totals: dict[str, Any] = {}
        doubt, seconds = np.zeros(()), 0.0
        for done, checkpoint in enumerate(checkpoints[: max(counts)], start=1):
            products, own, took = one(checkpoint)
            totals = {variant: totals.get(variant, 0.0) + product for variant, product in products.items()}
            doubt, seconds = doubt + own, seconds + took
            if done in counts:
                for variant, total in totals.items():
                    yield done, Scored(total / done * (doubt / done), seconds, variant)

    return method


def leave_one_out(targets: str, checkpoint: Checkpoint, times: float) -> Scored:
    """Influence through ridge regression on the trace-NTK to "y" or "train_logits"; its kernel's seconds count too."""
    pair, before = checkpoint.shared()
    alpha = times * float(pair.train.diagonal().double().mean())
    found = influence(pair.train, pair.test, getattr(checkpoint, targets), alpha=alpha, logits=checkpoint.logits)
    return Scored(found.margins(checkpoint.y_test), before, influence=found)


def _gauss_newton(checkpoint: Checkpoint, pair: KernelPair, times: float = 1.0) -> Scores:
    """One Gauss-Newton step; the default strength is what the first call found it to be."""
    known = checkpoint.strengths.get(pair.name)
    found = influence(
        pair.train,
        pair.test,
        checkpoint.y,
        method="gauss-newton",
        alpha=None if known is None else times * known,
        logits=checkpoint.logits,
        train_logits=checkpoint.train_logits,
    )
    assert isinstance(found, GaussNewtonInfluence)
    checkpoint.strengths.setdefault(pair.name, found.alpha)
    return found.margins(checkpoint.y_test)


def gn_trntk(checkpoint: Checkpoint, times: float) -> Scored:
    pair, before = checkpoint.shared()
    return Scored(_gauss_newton(checkpoint, pair, times), before)


def gn_entk(checkpoint: Checkpoint, times: float) -> Scored:
    return Scored(_gauss_newton(checkpoint, checkpoint.kernel("entk")))


def replayed(checkpoint: Checkpoint, times: float) -> Scored:
    """The derivative through every step of the training, at the half of the points that stays; its own training counts."""
    return Scored(replay_margins(checkpoint, 0.5)[0])


def replay_margins(checkpoint: Checkpoint, remove: float | None) -> tuple[Scores, float]:
    """Scores by a replay of the checkpoint's training, `remove` as in `influence`, and its seconds without that training."""
    one = checkpoint.task
    device = one.train.y.device
    with (
        tempfile.TemporaryDirectory() as folder,
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
    ):
        model = one.build(checkpoint.seed).to(device)
        how = {**one.how, "seed": checkpoint.seed, "measure": False}
        training = fit(model, one.train, store=folder, **how)
        training.final()
        began = clock(model)
        options = {"method": "replay", "remove": remove, "directions": 0, **checkpoint.kernel_options}
        found = influence(training, one.test.x, one.test.y, **options)
        seconds = clock(model) - began
    return found.margins(checkpoint.y_test), seconds


class Margin(nn.Module):
    """`log p / (1 - p)` of a label, p its probability by the network: one output, (n, 1), of inputs and labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.model(x)
        chosen = torch.arange(z.shape[1], device=z.device) == y[:, None]
        own = torch.where(chosen, z, 0.0).sum(1, keepdim=True)
        return own - torch.where(chosen, -torch.inf, z).logsumexp(1, keepdim=True)


def _margin_products(checkpoint: Checkpoint) -> tuple[dict[str, Scores], np.ndarray, float]:
    """`κ(x, X) (K + λ I)⁻¹`, κ the exact tangent kernel of the margins; λ as other ridge strengths, of the mean diagonal."""
    began = clock(checkpoint.model)
    train, test = ((part.x, part.y) for part in (checkpoint.task.train, checkpoint.task.test))
    (pair,) = kernel_pairs({"trntk0": {}}, Margin(checkpoint.model), train, test, **checkpoint.kernel_options)
    K, k = (gram.dense().detach().double() for gram in (pair.train, pair.test))
    mean = K.diagonal().mean()
    eye = torch.eye(len(K), dtype=K.dtype, device=K.device)
    seconds = clock(checkpoint.model) - began
    products = {}
    for times in STRENGTHS:
        began = clock(checkpoint.model)
        solved = torch.linalg.solve(K + times * mean * eye, k.T).T.cpu().numpy()
        products[f"{times:g} × the default strength"] = solved
        seconds += (clock(checkpoint.model) - began) * (times == 1.0)
    p = torch.from_numpy(checkpoint.train_logits).softmax(1)
    doubt = (1 - p[torch.arange(len(p)), torch.from_numpy(checkpoint.y)]).numpy()
    return products, doubt, seconds


margin_kernel = doubted(_margin_products)  # what TRAK estimates by projection


def decomposition(checkpoint: Checkpoint, times: float) -> Scored:
    """What the logits of the X-ray's surrogate are made of, contracted to margins."""
    pair, before = checkpoint.shared()
    parts = attribute(fit_machine(pair, checkpoint.y, alpha=GLM_ALPHA, classes=checkpoint.task.classes), pair.test)
    directions = margin_directions(checkpoint.logits, checkpoint.y_test)
    kernel = pair.test.dense().detach().cpu().double().numpy()
    return Scored(kernel * (directions @ parts.coef), before)


def similarity(checkpoint: Checkpoint, times: float) -> Scored:
    """Input cosine, where the labels agree."""
    return Scored(input_cosine(checkpoint.task) * (checkpoint.y_test[:, None] == checkpoint.y[None]))


def chance(checkpoint: Checkpoint, times: float) -> Scored:
    draw = numpy_generator(checkpoint.number, "random attribution")
    return Scored(draw.normal(size=(len(checkpoint.y_test), len(checkpoint.y))))


def grad_dot(dim: int) -> Method:
    """The inner product of a test item's margin gradient with a training point's loss gradient, projected."""

    def one(checkpoint: Checkpoint, times: float) -> Scored:
        found = trak.features(checkpoint.model, checkpoint.task.train, checkpoint.task.test, dim, checkpoint.number)
        return Scored(((found.test.double() @ found.train.double().T) * found.doubt).cpu().numpy())

    return averaged(one)


def trak_grid(dims: Sequence[int], dampings: Sequence[float]) -> Method:
    """TRAK for every projection size and damping: projected once, to the largest size, and cut.

    Seconds are those of the last variant.
    """

    def one(checkpoint: Checkpoint) -> tuple[dict[str, Scores], np.ndarray, float]:
        task, began = checkpoint.task, clock(checkpoint.model)
        found = trak.features(checkpoint.model, task.train, task.test, max(dims), checkpoint.number)
        projected = clock(checkpoint.model) - began
        products, seconds = {}, 0.0
        for dim, damping in product(dims, dampings):
            start = time.perf_counter()
            products[f"k={dim}, λ={damping:g}"] = trak.whitened(found, dim, damping)
            seconds = time.perf_counter() - start
        return products, found.doubt.double().cpu().numpy(), projected + seconds

    return doubted(one)


def methods(dims: Sequence[int], dampings: Sequence[float]) -> dict[str, Method]:
    """All of them by name."""
    return {
        "loo-trntk": tuned(partial(leave_one_out, "y")),
        "loo-trntk-logits": tuned(partial(leave_one_out, "train_logits")),
        "margin-kernel": margin_kernel,
        "gn-trntk": tuned(gn_trntk),
        "gn-entk": averaged(gn_entk),
        "decomposition": averaged(decomposition),
        "similarity": averaged(similarity),
        "grad-dot": grad_dot(max(dims)),
        "random": averaged(chance),
        "trak": trak_grid(dims, dampings),
        "replay": averaged(replayed),
    }
