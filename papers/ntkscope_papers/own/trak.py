"""TRAK: projected gradients of the margin, whitened over the training points, times how wrong each point still is.

Park et al., "TRAK: Attributing model behavior at scale" (2023), equation 17, written out in float32: the peer that other
attributions are compared with where its package is not available. A test holds it to the package's own scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ntkscope.core import Inputs, Part
from ntkscope.core.model.calling import arguments
from ntkscope.core.model.tree import map_leaves

CHUNK = 2**28  # gradient entries held at a time, a gigabyte in float32


@dataclass(frozen=True, eq=False)
class Features:
    """Projected gradients of one network: of test items and of training points, with `1 - p` of the latter."""

    test: Float[Tensor, "m k"]
    train: Float[Tensor, "n k"]
    doubt: Float[Tensor, " n"]


def margin_gradients(model: nn.Module, part: Part) -> Iterator[tuple[Float[Tensor, "b p"], Float[Tensor, " b"]]]:
    """Gradients of `log p / (1 - p)`, p the probability of the label, per item, in blocks; and p itself."""
    params = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def margin(params: dict[str, Tensor], x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        args, options = arguments(model, map_leaves(lambda leaf: leaf[None], x))
        z = functional_call(model, {**params, **buffers}, args, options)[0]
        chosen = torch.arange(len(z), device=z.device) == y
        own = (z * chosen).sum()
        odds = own - torch.where(chosen, -torch.inf, z).logsumexp(0)
        return odds, torch.sigmoid(odds)

    each = vmap(grad(margin, has_aux=True), in_dims=(None, 0, 0))
    count = sum(p.numel() for p in params.values())
    for rows in torch.arange(len(part), device=part.y.device).split(max(1, min(512, CHUNK // count))):
        piece = part.take(rows)
        found, p = each(params, piece.x, piece.y)
        yield torch.cat([found[name].flatten(1) for name in params], 1), p


def features(model: nn.Module, train: Part, test: Part, dim: int | None, seed: int) -> Features:
    """Projections to `dim` numbers by one Gaussian matrix; the gradients themselves where `dim` is None."""
    device = train.y.device
    count = sum(p.numel() for p in model.parameters())
    matrix = None
    if dim is not None:
        random = torch.Generator(device).manual_seed(seed)
        matrix = torch.randn(count, dim, generator=random, device=device).div_(dim**0.5)  # of an encoder, 90 GB
    sides = []
    for part in (test, train):
        blocks = [(g if matrix is None else g @ matrix, p) for g, p in margin_gradients(model, part)]
        sides.append([torch.cat(column) for column in zip(*blocks)])
    return Features(sides[0][0], sides[1][0], 1 - sides[1][1])


def whitened(found: Features, dim: int | None, damping: float) -> Float64[np.ndarray, "m n"]:
    """`Φ_x (ΦᵀΦ + λ I)⁻¹ Φᵀ` with the first `dim` numbers; λ is `damping` times the mean eigenvalue."""
    test, train = found.test[:, :dim].double(), found.train[:, :dim].double()
    core = train.T @ train
    core.diagonal().add_(damping * core.diagonal().mean() + 1e-12 * core.diagonal().mean())
    return (test @ torch.linalg.solve(core, train.T)).cpu().numpy()
