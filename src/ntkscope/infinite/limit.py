"""Kernels of infinitely wide networks, straight from a PyTorch module or from the vocabulary of this room."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import as_device, in_range
from ntkscope.core.checked import Count
from ntkscope.core.model.calling import parted
from ntkscope.core.sizes import parse_bytes
from ntkscope.infinite.layer import Layer, Shape
from ntkscope.infinite.pair_blocks import PairBlocks, refuse_not_finite
from ntkscope.infinite.pairs import Network
from ntkscope.infinite.registry import Init, Step, Translator
from ntkscope.infinite.replay import hold_to_network
from ntkscope.infinite.rules.conv import Conv
from ntkscope.infinite.rules.dense import Dense
from ntkscope.infinite.rules.flatten import Flatten
from ntkscope.infinite.rules.identity import Identity
from ntkscope.infinite.rules.serial import Serial
from ntkscope.infinite.tile_source import PairTiles, found_cut, make_cut
from ntkscope.linalg import DenseGram, Gram
from ntkscope.linalg.grams.assembly import assemble
from ntkscope.models._init import seeded
from ntkscope.storage import open_kernel
from ntkscope.storage.filling import fill
from ntkscope.storage.kernel_store import KernelStore
from ntkscope.tangent.model.batches import as_batch

KINDS = ("ntk", "nngp")
Kind: TypeAlias = Annotated[str, KINDS]
Parametrization: TypeAlias = Literal["ntk", "standard"]


@dataclass(frozen=True)
class Kernels:
    """Both kernels of one network, from one pass."""

    nngp: Gram
    ntk: Gram


def from_module(module: nn.Module, *, init: Init = "checked") -> Serial:
    """The layers of a module tree; see `kernel` for `init`.

    Fully connected networks are checked against the module on random inputs, all others by `kernel` on its inputs.

    Examples:
        >>> from_module(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)), init="default").layers[1]
        Relu(normalize=False)
    """
    layers, steps = _translated(module, init)
    features = _vectors(layers)
    if features is not None:
        layers.shape(Shape(features), "")
        hold_to_network(module, layers, steps, [torch.ones(1, features)])
    return layers


def _translated(module: nn.Module, init: str) -> tuple[Serial, list[Step]]:
    translator = Translator(init)
    return Serial((translator(module),)), translator.steps


def _own(steps: list[Step]) -> str:
    """The parametrisation of the modules that were translated; that of this room's own layers is "ntk"."""
    affine = [(step, step.layer.module) for step in steps if isinstance(step.layer, Dense | Conv)]
    scaled = [step.path for step, module in affine if module is not None and module.outside is not None]
    plain = [step.path for step, module in affine if module is not None and module.outside is None]
    if scaled and plain:
        raise UsageError(
            f"got a network with layers in the NTK parametrisation (at {scaled[0]!r}) and in the standard one (at"
            f' {plain[0]!r}); expected one of them, or parametrization="ntk" or "standard" to say which one is meant for all'
        )
    return "standard" if plain else "ntk"


def _vectors(layers: Serial) -> int | None:
    """The dimension of the inputs a translated network takes, where it begins with a fully connected layer."""
    first = next((each for each in layers.layers if not isinstance(each, Flatten | Identity)), None)
    return first.module.fan_in if isinstance(first, Dense) and first.module is not None else None


def kernel(
    net: nn.Module | Layer,
    x1: Any,
    x2: Any = None,
    kind: Kind = "ntk",
    *,
    parametrization: Parametrization | None = None,
    init: Init = "checked",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    memory: str | int | float = "2GiB",
    store: str | os.PathLike[str] | None = None,
    executor: Any = None,
    progress: bool = False,
) -> Gram:
    """The kernel of `net` in the limit of infinite width, between `x1` and `x2` (`x1` with itself when left out).

    "nngp": the covariance of an output at initialisation. "ntk": the inner product of its gradients; for a single output,
    so a finite network with c of them has a trace-NTK of c times it.

    `net`: a tree of modules, or layers of this room; images are (n, channels, h, w). `parametrization`: "ntk" puts the
    scales outside the parameters and has a limit; "standard", what PyTorch's layers do, counts gradients of the layers'
    actual widths. By default a module's own: "standard" for `nn.Linear` and convolutions, "ntk" for `models.mlp(ntk=True)`,
    so that this is the mean of the empirical NTK over draws of the module; "ntk" for layers of this room. `init`: where the
    scales of a module's weights come from: PyTorch's default law, "checked" against the values or not ("default"), or the
    values ("measured"). `dtype`: float64, or float32 for speed (relative error about 1e-6, and 5e-3 at pairs of nearly equal
    inputs). `memory`: bytes held besides inputs and result. `store`, `executor`: a folder or URL to keep the kernel in, tile
    by tile, and whose workers compute the tiles, as for `ns.kernel`.

    Differentiable in the inputs when they require gradients (in one tile then). O(n m) per layer, times positions for
    images, times pairs of positions when they are pooled.

    Examples:
        >>> from ntkscope.infinite import Dense, Relu, serial
        >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        >>> kernel(serial(Dense(), Relu(normalize=True), Dense()), x).dense().diagonal()
        tensor([2., 2.], dtype=torch.float64)
    """
    if store is None and executor is not None:
        raise UsageError("got executor= without store=; expected a folder that the workers write tiles to: pass store=")
    pairs = _pairs(net, x1, x2, kind == "ntk", parametrization, init, dtype, device)
    if store is not None:
        return _stored(pairs, kind, parse_bytes(memory), store, executor, progress)
    return _computed(pairs, (kind,), parse_bytes(memory), progress)[kind]


def kernels(
    net: nn.Module | Layer,
    x1: Any,
    x2: Any = None,
    *,
    parametrization: Parametrization | None = None,
    init: Init = "checked",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    memory: str | int | float = "2GiB",
) -> Kernels:
    """Both kernels for the price of the NTK, as predictions with their variance need them; arguments as of `kernel`.

    Examples:
        >>> from ntkscope.infinite import Dense, Relu, serial
        >>> both = kernels(serial(Dense(), Relu(normalize=True), Dense()), torch.eye(2))
        >>> both.nngp.dense()
        tensor([[0.5000, 0.1592],
                [0.1592, 0.5000]], dtype=torch.float64)
        >>> both.ntk.dense()
        tensor([[1.0000, 0.1592],
                [0.1592, 1.0000]], dtype=torch.float64)
    """
    pairs = _pairs(net, x1, x2, True, parametrization, init, dtype, device)
    made = _computed(pairs, ("nngp", "ntk"), parse_bytes(memory))
    return Kernels(made["nngp"], made["ntk"])


def finite(net: Layer, shape: tuple[Count, ...], width: Count, *, outputs: Count = 1, seed: int = 0) -> nn.Module:
    """A module whose empirical NTK tends to `kernel(net, …)` as `width` grows, at the rate 1/√width.

    `shape`: of one input, (d,), (c, l) or (c, h, w). Weights and biases are standard normal draws of `seed`, their scales
    outside. The last affine layer has `outputs` units.

    Examples:
        >>> from ntkscope.infinite import Dense, Relu, serial
        >>> finite(serial(Dense(), Relu(), Dense()), (3,), 8, outputs=2)(torch.zeros(1, 3)).shape
        torch.Size([1, 2])
    """
    if not 1 <= len(shape) <= 3:
        raise UsageError(f"got shape={shape}; expected the shape of one input")
    layers = Serial((net,))
    layers.shape(Shape(shape[0], tuple(shape[1:])), "")
    with seeded(seed, "infinite"):
        return layers.finite(Shape(shape[0], tuple(shape[1:])), width, outputs)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """A network and the inputs between which its kernel is; `symmetric`: of the left ones with themselves."""

    network: Network
    left: Tensor
    right: Tensor
    symmetric: bool


def _pairs(
    net: nn.Module | Layer,
    x1: Any,
    x2: Any,
    tangent: bool,
    parametrization: str | None,
    init: str,
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> _Pairs:
    if dtype not in (torch.float64, torch.float32):
        raise UsageError(f"got dtype={dtype}; expected torch.float64 or torch.float32")
    if isinstance(net, nn.Module):
        layers, steps = _translated(net, init)
    elif isinstance(net, Layer):
        layers, steps = Serial((net,)), []
    else:
        raise UsageError(
            f"got a network of type {type(net).__name__}; expected a torch.nn.Module or layers of this room"
        )
    as_device(device, auto=False)
    left = _inputs(x1, dtype, device)
    right = left if x2 is None else _inputs(x2, dtype, device)
    if left.shape[1:] != right.shape[1:]:
        raise UsageError(f"got inputs of shapes {tuple(left.shape)} and {tuple(right.shape)}; expected samples alike")
    shape = Shape(left.shape[1], tuple(left.shape[2:]))
    if parametrization is None:
        parametrization = _own(steps) if tangent else "ntk"  # the NNGP has the same in both
    network = Network.of(layers, shape, tangent, parametrization == "standard")
    if isinstance(net, nn.Module):
        hold_to_network(net, layers, steps, [left[:2], right[-1:]])
    return _Pairs(network, left, right, x2 is None)


def _computed(pairs: _Pairs, wanted: tuple[str, ...], memory: int, show: bool = False) -> dict[str, Gram]:
    """In memory: whole where gradients in the inputs are wanted, else by tiles."""
    if pairs.left.requires_grad or pairs.right.requires_grad:
        return _whole(pairs.network, pairs.left, pairs.right, pairs.symmetric, wanted)
    with torch.no_grad():
        return _tiled(pairs.network, pairs.left, pairs.right, pairs.symmetric, wanted, memory, show)


def _stored(pairs: _Pairs, kind: str, memory: int, store: str | os.PathLike[str], executor: Any, show: bool) -> Gram:
    """In a store, the tiles that were missing computed."""
    network, left = pairs.network, pairs.left.detach()
    right = None if pairs.symmetric else pairs.right.detach()
    found = KernelStore.find(store)
    side = max(len(left), len(left if right is None else right))
    cut = make_cut(network, side, memory, left) if found is None else found_cut(found)
    source = PairTiles(network, left, right, kind, cut, memory, _tiled, str(left.device))
    kept = KernelStore.prepare(store, source)
    cut.workers(memory, left.element_size(), 1)  # an error if its tiles do not fit
    fill(kept, source, executor=executor, progress=show)
    return open_kernel(kept.url)


def _inputs(x: Any, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    batch = as_batch(parted(x)[0] if isinstance(x, Mapping) else x, nn.Identity(), graph=True)
    tensors = batch.tensors()
    if len(tensors) != 1 or tensors[0].dim() not in (2, 3, 4):
        raise UsageError(
            f"got inputs of shapes {[tuple(t.shape) for t in tensors]}; expected one tensor (n, d), (n, c, l) or (n, c, h, w)"
        )
    values = tensors[0].to(device=device, dtype=dtype)
    # A sum is one cheap pass, and finite unless a value is not, or it overflows.
    if not bool(torch.isfinite(values.sum())) and not bool(torch.isfinite(values).all()):
        raise NumericalError("got inputs with NaN or infinite values; expected finite ones: check how they were made")
    return in_range(values, "inputs")


def _gram(network: Network, kind: str, values: Tensor, symmetric: bool, rows: Any = None, columns: Any = None) -> Gram:
    return DenseGram(
        values,
        symmetric=symmetric,
        name=f"infinite-{kind}",
        row_diagonal=rows,
        column_diagonal=columns,
        meta={"dtype": str(values.dtype).removeprefix("torch."), "parametrization": network.parametrization},
    )


def _whole(network: Network, left: Tensor, right: Tensor, symmetric: bool, wanted: tuple[str, ...]) -> dict[str, Gram]:
    """In one piece, for autograd."""
    one = network.block(left)
    two = one if symmetric else network.block(right)
    found: dict[str, Gram] = {}
    for kind, values in zip(("nngp", "ntk"), network.tile(one, two)):
        if kind in wanted and values is not None:
            refuse_not_finite(values, kind)
            found[kind] = _gram(network, kind, (values + values.T) / 2 if symmetric else values, symmetric)
    return found


def _tiled(
    network: Network, left: Tensor, right: Tensor, symmetric: bool, wanted: tuple[str, ...], memory: int, show: bool
) -> dict[str, Gram]:
    """Block by block, the upper triangle of a symmetric one."""
    source = PairBlocks(network, left, None if symmetric else right, wanted, memory)
    planes = dict.fromkeys(wanted[1:], left.dtype)
    made = assemble(source, planes=planes, total=source.pairs, label="infinite kernel", progress=show)
    values = {wanted[0]: made.values, **made.planes}
    return {kind: _gram(network, kind, values[kind], symmetric, *source.diagonals(kind)) for kind in wanted}
