"""The two-layer network of the linear-width regime: its kernels (Eq. 76, 77), gradient descent on its first layer (Eq. 82)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope import models
from ntkscope.core import Part, Snapshot
from ntkscope.models._layers import activation as make_activation
from ntkscope.training import fit_ensemble
from ntkscope.training.modes import Phase
from ntkscope.training.stopping import StopWhen
from ntkscope_papers.wang_2023.index_teacher import index_teacher

ACTIVATION = "normalised-tanh"
FIRST, LAST = "layer1.weight", "readout.weight"
sigma = make_activation(ACTIVATION)


@dataclass(frozen=True)
class Shape:
    """n items of d numbers, h units."""

    items: int
    dimension: int
    width: int

    @classmethod
    def of(cls, dimension: int) -> Shape:
        """The ratios of Table 8: n = 2d, h = 1.5d."""
        return cls(2 * dimension, dimension, 3 * dimension // 2)

    @property
    def ratio(self) -> float:
        return self.items / self.dimension

    def __str__(self) -> str:
        return f"{self.items}-{self.dimension}-{self.width}"


def network(shape: Shape, seed: int, *, law: str = "sign", scale: float = 1.0) -> nn.Module:
    """Eq. 79 with W ~ N(0, 1), v by `law`, and `scale` times σ."""
    return models.build(
        "mlp",
        in_features=shape.dimension,
        widths=[shape.width],
        bias=False,
        activation=ACTIVATION,
        ntk=True,
        sigma_w=[1.0, scale],
        law=["normal", law],
        seed=seed,
    )


def items_of(shape: Shape, seed: int, device: torch.device) -> Part:
    """Training items of the teacher of Table 8, in double precision."""
    split = index_teacher(seed=seed, dimension=shape.dimension, train=shape.items, test=1, dtype="float64")
    part: Part = split.train.to(device)
    return part


def conjugate_kernel(W: Float[Tensor, "h d"], x: Float[Tensor, "n d"], *, divided: bool = True) -> Float[Tensor, "n n"]:
    """`σ(XW/√d)ᵀσ(XW/√d)/h`, Eq. 76; `divided=False` is section 4.1's form, without the √d."""
    hidden = sigma(x @ W.T / (math.sqrt(W.shape[1]) if divided else 1.0))
    kernel: Tensor = hidden @ hidden.T / len(W)
    return kernel


def first_layer_kernel(
    W: Float[Tensor, "h d"], v: Float[Tensor, " h"], x: Float[Tensor, "n d"]
) -> Float[Tensor, "n n"]:
    """`XᵀX/d ⊙ σ'ᵀ diag(v)² σ'/h`: Eq. 77 without the CK, the tangent kernel of the first layer."""
    with torch.enable_grad():
        z = (x @ W.T / math.sqrt(W.shape[1])).detach().requires_grad_(True)
        (slopes,) = torch.autograd.grad(sigma(z).sum(), z)
    weighted = slopes * v
    return (x @ x.T / W.shape[1]) * (weighted @ weighted.T / len(W))


def weights_of(model: nn.Module) -> tuple[Tensor, Tensor]:
    """W and v of a network, in double precision."""
    return model.get_parameter(FIRST).detach().double(), model.get_parameter(LAST).detach().double()[0]


@dataclass(eq=False)
class Descent:
    """Members trained side by side: their items, W before and after, v, and norms of every step (members, steps)."""

    parts: list[Part]
    start: Tensor
    end: Tensor
    readout: Tensor
    steps: list[int]
    scale: float
    distances: list[np.ndarray] = field(default_factory=list)
    moves: list[np.ndarray] = field(default_factory=list)
    residuals: list[np.ndarray] = field(default_factory=list)

    def residual(self, W: Float[Tensor, "k h d"]) -> np.ndarray:
        """`‖y - f(X)‖` of each member."""
        found = []
        for part, weight, v in zip(self.parts, W, self.readout):
            hidden = sigma(part.x @ weight.T / math.sqrt(weight.shape[1]))
            found.append(float((part.y - self.scale * hidden @ v / math.sqrt(len(v))).norm()))
        return np.array(found)


def descend(
    shape: Shape,
    seeds: Sequence[int],
    rates: Sequence[float],
    *,
    steps: int,
    device: torch.device,
    scale: float = 1.0,
    stop: float | None = None,
    follow: str = "",
) -> Descent:
    """`steps` of Eq. 82 with the loss of Eq. 74, one member for each seed and its rate; ended at a loss of `stop`.

    `follow`: "moves" keeps the norms of every update, "all" those of the residuals too. A member that diverges has
    NaN for weights.
    """
    shared = {seed: items_of(shape, seed, device) for seed in dict.fromkeys(seeds)}
    models_ = [network(shape, seed, scale=scale).double() for seed in seeds]
    start = torch.stack([weights_of(model)[0] for model in models_]).to(device)
    readout = torch.stack([weights_of(model)[1] for model in models_]).to(device)
    made = Descent([shared[seed] for seed in seeds], start, start, readout, [], scale)
    before = start

    def watch(snapshot: Snapshot) -> None:
        nonlocal before
        now = snapshot.params[FIRST].detach().clone()
        if snapshot.step:
            made.moves.append(_norms(now - before))
        made.distances.append(_norms(now - start))
        if follow == "all":
            made.residuals.append(made.residual(now))
        before = now

    options: dict[str, Any] = {"stop": StopWhen(loss=2 * stop, every=10)} if stop is not None else {}
    ensemble = fit_ensemble(
        lambda seed: network(shape, seed, scale=scale),
        made.parts,
        seeds=list(seeds),
        lr=[rate / 2 for rate in rates],  # "mse" is twice the loss of Eq. 74
        loss="mse",
        steps=steps,
        mode=(Phase(train=("first",)),),
        dtype=torch.float64,
        device=device,
        diverged="nan",
        snapshots=1 if follow else "final",
        on_snapshot=watch if follow else None,
        **options,
    )
    made.end = ensemble.params[FIRST].detach()
    made.steps = ensemble.steps.tolist()
    return made


def _norms(W: Float[Tensor, "k h d"]) -> np.ndarray:
    return W.flatten(1).norm(dim=1).cpu().numpy()
