"""The embedding kernel: the sum over layers of the Grams of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ntkscope.core import MemoryBudgetError, NumericalError, UsageError
from ntkscope.core.budget import show_bytes
from ntkscope.core.progress import counter
from ntkscope.kernels._feature_tiles import FeatureRecipe
from ntkscope.kernels._stored import stored
from ntkscope.kernels.registry import KERNELS, Request, describe
from ntkscope.linalg import DenseGram, Gram
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.feature_audit import AuditedFeatures
from ntkscope.tangent.hooks import outputs_of
from ntkscope.tangent.plan import SLACK
from ntkscope.tangent.subject import Subject

BLOCK = {
    "cpu": 128,
    "cuda": 2048,
}  # samples multiplied together; every block is run through the network once a block of the others


@KERNELS.register("em")
def em(request: Request, *, layers: Sequence[str] | None = None, normalize: bool = False) -> Gram:
    """`Σ_l <h_l(x), h_l(x')>` with h_l the flattened output of module l.

    Default layers: the model's stages, that is its outermost modules that make one tensor a sample, without the one that
    makes the outputs. `normalize=True` divides each layer's Gram by its own norms first, so that wide layers do not drown
    the others. Stateless activations inside a stage are not layers of their own.
    """
    request.unrestricted()
    subject, few = request.still()
    if isinstance(layers, str):
        layers = [layers]
    chosen = list(layers) if layers is not None else stages(subject, few)
    compute = partial(_layers, layers=tuple(chosen), normalize=normalize)
    if request.store is not None:
        recipe = FeatureRecipe(request.model, request.dtype, request.device, compute, request.certify)
        options = {"layers": ", ".join(chosen), "normalize": str(normalize)}
        meta = describe(subject, layers=list(chosen), normalized=normalize)
        return stored(request, recipe, options, meta=meta)
    n, m = len(request.x1), len(request.x1 if request.x2 is None else request.x2)
    probe = _features(subject, request.placed(subject, request.x1[:1]), chosen)
    each = sum(layer.numel() for layer in probe) * subject.dtype.itemsize * 3
    largest = BLOCK.get(subject.device.type, 128)
    block = _block(request.memory, n * m * subject.dtype.itemsize, each, n, m, largest)
    values = torch.zeros(n, m, dtype=subject.dtype, device=subject.device)
    sides = [torch.zeros(size, dtype=torch.float64, device=subject.device) for size in (n, m)]
    audited = AuditedFeatures(subject, compute, request.certify)
    with counter(n * m, "embedding kernel", enabled=request.progress) as bar:
        for i in range(0, n, block):
            left = audited(request.x1[i : i + block])
            sides[0][i : i + block] = _squares(left)
            for j in range(i if request.x2 is None else 0, m, block):
                source = request.x1 if request.x2 is None else request.x2
                right = left if request.x2 is None and j == i else audited(source[j : j + block])
                if i == 0:
                    sides[1][j : j + block] = _squares(right)
                tile = sum((a @ b.T).double() for a, b in zip(left, right))
                assert isinstance(tile, Tensor)
                values[i : i + block, j : j + block] = (tile + tile.T) / 2 if right is left else tile
                if request.x2 is None and right is not left:
                    values[j : j + block, i : i + block] = tile.T
                bar.advance(tile.numel() * (2 if request.x2 is None and right is not left else 1))
    return DenseGram(
        values,
        symmetric=request.x2 is None,
        name=request.name,
        row_diagonal=sides[0].to(values.dtype),
        column_diagonal=sides[1].to(values.dtype),
        meta=describe(subject, layers=tuple(chosen), normalized=normalize, certificate=audited.certificate()),
    )


def stages(subject: Subject, batch: Batch) -> list[str]:
    """The outermost modules that make one tensor a sample, in order, without the one whose output is the model's."""
    with outputs_of(subject.model) as seen:
        final = subject(batch).detach()
    names: list[str] = []

    def visit(module: nn.Module, prefix: str) -> None:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            value = seen[path][-1] if len(seen.get(path, ())) == 1 else None
            if value is None or value.dim() < 2 or len(value) != len(batch) or torch.equal(value, final):
                visit(child, f"{path}.")
            elif not isinstance(module, nn.Sequential) or any(True for _ in child.parameters()):
                names.append(path)  # inside a Sequential, activations and pooling are part of the layer before them

    visit(subject.model, "")
    if not names:
        raise UsageError(
            f"no module of {type(subject.model).__name__} makes one tensor a sample before its outputs; name some with layers="
        )
    return names


def _layers(subject: Subject, batch: Batch, layers: Sequence[str], normalize: bool) -> list[Tensor]:
    found = _features(subject, batch, layers)
    if normalize:
        norms = [features.norm(dim=1, keepdim=True) for features in found]
        zero = [k for k, norm in enumerate(norms) if bool((norm == 0).any())]
        if zero:
            raise NumericalError(
                f"layer {layers[min(zero[0], len(layers) - 1)]!r} gives zeros for some sample, which have no direction, so"
                " normalize=True is not defined there; use normalize=False or leave that layer out with layers="
            )
        found = [features / norm for features, norm in zip(found, norms)]
    return found


def _features(subject: Subject, batch: Batch, layers: Sequence[str]) -> list[Tensor]:
    """The flattened outputs of the named modules, a module called twice counted twice."""
    with outputs_of(subject.model, layers) as seen:
        subject(batch)
    found = []
    for name in layers:
        for value in seen.get(name, ()):
            if value is None or value.dim() < 2 or len(value) != len(batch):
                shape = None if value is None else tuple(value.shape)
                raise UsageError(
                    f"module {name!r} gives {shape} for {len(batch)} samples; expected one row a sample: choose other layers="
                )
            found.append(value.flatten(1))
    if not found:
        raise UsageError(f"none of layers={list(layers)} was called by the model; expected modules its forward uses")
    return found


def _squares(layers: list[Tensor]) -> Tensor:
    return torch.stack([features.double().square().sum(1) for features in layers]).sum(0)


def _block(memory: int, result: int, each: int, n: int, m: int, largest: int) -> int:
    available = memory * SLACK - result
    if available < 4 * each:
        least = (result + 4 * each) / SLACK * 1.01
        raise MemoryBudgetError(
            f"memory={show_bytes(memory)} came; the smallest budget that works is {show_bytes(least)} ({int(least)} bytes):"
            " raise memory= or choose fewer layers="
        )
    return max(1, min(largest, max(n, m), int(available / (4 * each))))
