"""Finite-width kernels of a network, one per file; each makes a `Gram`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ntkscope.core.checked import check_room
from ntkscope.kernels import conjugate, embedding, entk, preactivation, projected, pseudo, trace
from ntkscope.kernels._projected_store import extend
from ntkscope.kernels.registry import KERNELS, Certify
from ntkscope.kernels.tangent_machine import Tangent
from ntkscope.linalg import Gram
from ntkscope.tangent.blocks.heads import OutputSketch
from ntkscope.tangent.model.subject import Selection

__all__ = [
    "KERNELS",
    "OutputSketch",
    "Tangent",
    "conjugate",
    "embedding",
    "entk",
    "extend",
    "kernel",
    "preactivation",
    "projected",
    "pseudo",
    "trace",
]


def kernel(
    name: str,
    model: nn.Module,
    x1: Any,
    x2: Any = None,
    *,
    outputs: Sequence[int] | set[int] | int | OutputSketch | None = None,
    params: Selection = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    memory: str | int | float = "2GiB",
    store: str | os.PathLike[str] | None = None,
    executor: Any = None,
    progress: bool = False,
    seed: int = 0,
    certify: Certify = "every",
    **options: Any,
) -> Gram:
    """The kernel `name` of `model` between `x1` and `x2` (`x1` with itself when left out).

    `outputs`: which outputs count (all), or `OutputSketch(k)` for k random combinations of them. `params`: which parameters
    (all that require a gradient): a glob or globs on their names, "last" for the last affine layer, or a predicate. `dtype`,
    `device`: compute there instead of where the model is. `memory`: bytes held besides model and inputs, the result
    included. `seed`: of random projections. `store`: a folder or fsspec URL to keep the kernel in, tile by tile; tiles that
    are there already are not computed again, and the Gram reads them when they are needed. `executor`: a Dask client (or its
    scheduler's address) whose workers compute the tiles. `certify`: which blocks are checked against plain autograd on the
    model itself: "every" one, "sampled" (one in eight), or False; `K.certificate` says what the checks found. Further options
    belong to the kernel. The model is never changed.

    To compute several kernels of one model, keep a `Tangent`: it probes the model once.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    >>> kernel("trntk0", model, x).dense()
    tensor([[1., 1.],
            [1., 2.]])
    """
    KERNELS[name]  # an unknown name is refused before anything is looked at
    tangent = Tangent(model, outputs=outputs, params=params, dtype=dtype, device=device, memory=memory, certify=certify)
    return tangent._once().kernel(name, x1, x2, store=store, executor=executor, progress=progress, seed=seed, **options)


check_room(__name__, classes="OutputSketch Tangent")
