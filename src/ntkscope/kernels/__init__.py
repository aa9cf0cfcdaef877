"""Finite-width kernels of a network, one per file; each makes a `Gram`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ntkscope.core import UsageError
from ntkscope.kernels import conjugate, embedding, entk, preactivation, projected, pseudo, trace
from ntkscope.kernels._projected_store import extend
from ntkscope.kernels.registry import KERNELS, Request
from ntkscope.linalg import Gram
from ntkscope.tangent import guards
from ntkscope.tangent.batches import as_batch
from ntkscope.tangent.plan import parse_bytes
from ntkscope.tangent.subject import Selection, quiet

__all__ = [
    "KERNELS",
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
    outputs: Sequence[int] | int | None = None,
    params: Selection = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    memory: str | int | float = "2GiB",
    store: str | os.PathLike[str] | None = None,
    executor: Any = None,
    progress: bool = False,
    seed: int = 0,
    **options: Any,
) -> Gram:
    """The kernel `name` of `model` between `x1` and `x2` (`x1` with itself when left out).

    `outputs`: which outputs count (all). `params`: which parameters (all that require a gradient): a glob or globs on their
    names, "last" for the last affine layer, or a predicate. `dtype`, `device`: compute there instead of where the model is.
    `memory`: bytes held besides model and inputs, the result included. `seed`: of random projections. `store`: a folder or
    fsspec URL to keep the kernel in, tile by tile; tiles that are there already are not computed again, and the Gram reads
    them when they are needed. `executor`: a Dask client (or its scheduler's address) whose workers compute the tiles.
    Further options belong to the kernel. The model is never changed.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    >>> kernel("trntk0", model, x).dense()
    tensor([[1., 1.],
            [1., 2.]])
    """
    make = KERNELS[name]
    if not isinstance(model, nn.Module):
        raise UsageError(f"a model of type {type(model).__name__} came; expected a torch.nn.Module")
    if store is None and executor is not None:
        raise UsageError(
            "executor= came without store=; expected a folder that the workers write tiles to: pass store="
        )
    known = [p.name for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY]
    unknown = [key for key in options if key not in known]
    if unknown:
        raise UsageError(
            f"kernel {name!r} has no option {', '.join(unknown)}; its options: {', '.join(known) or 'none'}"
        )
    guards.check_mode(model)
    request = Request(
        name=next(key for key in KERNELS if key.lower() == name.lower()),
        model=model,
        x1=as_batch(x1, model),
        x2=None if x2 is None else as_batch(x2, model),
        outputs=[outputs] if isinstance(outputs, int) else outputs,
        params=params,
        dtype=dtype,
        device=device,
        memory=parse_bytes(memory),
        progress=progress,
        seed=seed,
        store=None if store is None else os.fspath(store),
        executor=executor,
    )
    where = request.subject(still=True)
    for batch in (request.x1, request.x2):
        if batch is not None:
            guards.check_placement(where, batch)
            guards.check_inputs_finite(batch)
    with quiet(where.device):
        return make(request, **options)
