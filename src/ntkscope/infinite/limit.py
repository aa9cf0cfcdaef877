"""Kernels of infinitely wide networks, straight from a PyTorch module or from the vocabulary of this room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.progress import counter
from ntkscope.infinite.layer import Layer, Shape
from ntkscope.infinite.pairs import Block, Network
from ntkscope.infinite.registry import INITS, Translator
from ntkscope.infinite.rules.serial import Serial
from ntkscope.infinite.workers import spread
from ntkscope.linalg import DenseGram, Gram
from ntkscope.tangent.batches import as_batch
from ntkscope.tangent.plan import parse_bytes

KINDS = ("ntk", "nngp")
PARAMETRIZATIONS = ("ntk", "standard")


@dataclass(frozen=True)
class Kernels:
    """Both kernels of one network, from one pass."""

    nngp: Gram
    ntk: Gram


def from_module(module: nn.Module, *, init: str = "checked") -> Serial:
    """The layers of a module tree; see `kernel` for `init`.

    >>> from_module(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)), init="default").layers[1]
    Relu(normalise=False)
    """
    if init not in INITS:
        raise UsageError(f"init={init!r} came; expected one of {', '.join(INITS)}")
    return Serial((Translator(init)(module),))


def kernel(
    net: nn.Module | Layer,
    x1: Any,
    x2: Any = None,
    kind: str = "ntk",
    *,
    parametrization: str = "ntk",
    init: str = "checked",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    memory: str | int | float = "2GiB",
    store: str | None = None,
    executor: Any = None,
    progress: bool = False,
) -> Gram:
    """The kernel of `net` in the limit of infinite width, between `x1` and `x2` (`x1` with itself when left out).

    "nngp": the covariance of an output at initialisation. "ntk": the inner product of its gradients; for a single output,
    so a finite network with c of them has a trace-NTK of c times it.

    `net`: a tree of modules, or layers of this room; images are (n, channels, h, w). `parametrization`: "ntk" puts the
    scales outside the parameters and has a limit; "standard", what PyTorch's layers do, counts gradients of the layers'
    actual widths. `init`: where the scales of a module's weights come from: PyTorch's default law, "checked" against the
    values or not ("default"), or the values ("measured"). `dtype`: float64, or float32 for speed (relative error about
    1e-6, and 5e-3 at pairs of nearly equal inputs). `memory`: bytes held besides inputs and result.

    Differentiable in the inputs when they require gradients (in one tile then). O(n m) a layer, times positions for
    images, times pairs of positions when they are pooled.

    >>> from ntkscope.infinite import Dense, Relu, serial
    >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    >>> kernel(serial(Dense(), Relu(normalise=True), Dense()), x).dense().diagonal()
    tensor([2., 2.], dtype=torch.float64)
    """
    if kind not in KINDS:
        raise UsageError(f"kind={kind!r} came; expected one of {', '.join(KINDS)}")
    made = _compute(net, x1, x2, kind == "ntk", parametrization, init, dtype, device, memory, store, executor, progress)
    return made.ntk if kind == "ntk" else made.nngp


def kernels(
    net: nn.Module | Layer,
    x1: Any,
    x2: Any = None,
    *,
    parametrization: str = "ntk",
    init: str = "checked",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    memory: str | int | float = "2GiB",
    progress: bool = False,
) -> Kernels:
    """Both kernels for the price of the NTK, as predictions with their variance need them; arguments as of `kernel`."""
    return _compute(net, x1, x2, True, parametrization, init, dtype, device, memory, None, None, progress)


def _compute(
    net: nn.Module | Layer,
    x1: Any,
    x2: Any,
    tangent: bool,
    parametrization: str,
    init: str,
    dtype: torch.dtype,
    device: torch.device | str | None,
    memory: str | int | float,
    store: str | None,
    executor: Any,
    show: bool,
) -> Kernels:
    if store is not None or executor is not None:
        raise UsageError(
            "store= or executor= came, but infinite-width kernels are computed in memory only; leave it out"
        )
    if parametrization not in PARAMETRIZATIONS:
        raise UsageError(f"parametrization={parametrization!r} came; expected one of {', '.join(PARAMETRIZATIONS)}")
    if dtype not in (torch.float64, torch.float32):
        raise UsageError(f"dtype={dtype} came; expected torch.float64 or torch.float32")
    if isinstance(net, nn.Module):
        net = from_module(net, init=init)
    elif not isinstance(net, Layer):
        raise UsageError(
            f"a network of type {type(net).__name__} came; expected a torch.nn.Module or layers of this room"
        )
    left = _inputs(x1, dtype, device)
    right = left if x2 is None else _inputs(x2, dtype, device)
    if left.shape[1:] != right.shape[1:]:
        raise UsageError(f"inputs of shapes {tuple(left.shape)} and {tuple(right.shape)} came; expected samples alike")
    shape = Shape(left.shape[1], tuple(left.shape[2:]))
    network = Network.of(Serial((net,)), shape, tangent, parametrization == "standard")
    if left.requires_grad or right.requires_grad:
        return _whole(network, left, right, x2 is None)
    with torch.no_grad():
        return _tiled(network, left, right, x2 is None, parse_bytes(memory), show)


def _inputs(x: Any, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    batch = as_batch(x, nn.Identity())
    tensors = batch.tensors()
    if len(tensors) != 1 or tensors[0].dim() not in (2, 3, 4):
        raise UsageError(
            f"inputs of shapes {[tuple(t.shape) for t in tensors]} came; expected one tensor (n, d), (n, c, l) or (n, c, h, w)"
        )
    values = tensors[0].to(device=device, dtype=dtype)
    if not bool(torch.isfinite(values).all()):
        raise NumericalError(
            "inputs with NaN or infinite values came; expected finite ones: look at how they were made"
        )
    return values


def _grams(network: Network, nngp: Tensor, ntk: Tensor | None, symmetric: bool, diagonals: Any) -> Kernels:
    def gram(values: Tensor, which: int) -> Gram:
        rows, columns = (None, None) if diagonals is None else (side[which] for side in diagonals)
        return DenseGram(
            values,
            symmetric=symmetric,
            name=f"infinite-{KINDS[1 - which]}",
            row_diagonal=rows,
            column_diagonal=columns,
            meta={
                "dtype": str(values.dtype).removeprefix("torch."),
                "parametrization": "standard" if network.standard else "ntk",
            },
        )

    first = gram(nngp, 0)
    return Kernels(first, first if ntk is None else gram(ntk, 1))


def _whole(network: Network, left: Tensor, right: Tensor, symmetric: bool) -> Kernels:
    """In one piece, for autograd."""
    one = network.block(left)
    two = one if symmetric else network.block(right)
    nngp, ntk = network.tile(one, two)
    if symmetric:
        nngp = (nngp + nngp.T) / 2
        ntk = None if ntk is None else (ntk + ntk.T) / 2
    return _grams(network, nngp, ntk, symmetric, None)


def _tiled(network: Network, left: Tensor, right: Tensor, symmetric: bool, memory: int, show: bool) -> Kernels:
    """Tile by tile, the upper triangle of a symmetric one."""
    n, m = len(left), len(right)
    block, tile = network.plan(max(n, m), memory, left)
    out = [left.new_empty(n, m) for _ in range(2 if network.tangent else 1)]
    sides: list[list[list[Tensor]]] = [[], []]
    with counter(_count(n, m, block, tile, symmetric), "infinite kernel", show) as bar:
        for i in range(0, n, block):
            one = network.block(left[i : i + block])
            sides[0].append(one.diagonal)
            for j in range(i if symmetric else 0, m, block):
                two = one if symmetric and i == j else network.block(right[j : j + block])
                if not symmetric and i == 0:
                    sides[1].append(two.diagonal)
                whole = (slice(i, i + len(one)), slice(j, j + len(two)))
                fill = partial(_fill, network, [values[whole] for values in out], one, two)
                for _ in spread(_tiles(len(one), len(two), tile, two is one), fill, left.device):
                    bar.advance(1)
                if symmetric and two is not one:
                    for values in out:
                        values[whole[::-1]] = values[whole].T
    diagonals = None
    if network.knows_diagonal:
        joined = [[torch.cat(parts) for parts in zip(*side)] if side else None for side in sides]
        if symmetric:
            for values, exact in zip(out, joined[0] or []):
                values.diagonal().copy_(exact)
        else:
            diagonals = [side + [None] * (2 - len(side)) for side in joined if side is not None]
    return _grams(network, out[0], out[1] if network.tangent else None, symmetric, diagonals)


def _fill(network: Network, out: list[Tensor], one: Block, two: Block, place: tuple[slice, slice]) -> None:
    """One tile, and its mirror image where both sides are the same inputs."""
    rows, columns = place
    for values, part in zip(out, network.tile(one[rows], two[columns])):
        assert part is not None
        if two is not one:
            values[rows, columns] = part
        elif rows == columns:
            values[rows, columns] = (part + part.T) / 2
        else:
            values[rows, columns] = part
            values[columns, rows] = part.T


def _tiles(n: int, m: int, tile: int, triangle: bool) -> Iterator[tuple[slice, slice]]:
    for a in range(0, n, tile):
        for b in range(a if triangle else 0, m, tile):
            yield slice(a, min(a + tile, n)), slice(b, min(b + tile, m))


def _count(n: int, m: int, block: int, tile: int, symmetric: bool) -> int:
    """How many tiles there will be."""
    count = 0
    for i in range(0, n, block):
        for j in range(i if symmetric else 0, m, block):
            count += sum(1 for _ in _tiles(min(block, n - i), min(block, m - j), tile, symmetric and i == j))
    return count
