"""Activations: what the layers of a network put out for each sample, as rows of features in memory or on disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.core import NtkscopeError, NumericalError, UsageError
from ntkscope.core.checked import checked
from ntkscope.core.machine.threads import Together
from ntkscope.core.random import kept_randomness, reseed
from ntkscope.core.sizes import over_budget, parse_bytes
from ntkscope.storage.feature_store import FeatureStore
from ntkscope.tangent.certify.features import AuditedFeatures
from ntkscope.tangent.forward.activation_stores import Layer, filled
from ntkscope.tangent.forward.stages import layer_outputs, stages
from ntkscope.tangent.kernel.plan import CPU_BLOCK, CUDA_BLOCK, CUDA_SLACK, SLACK
from ntkscope.tangent.kernel.products import ranges
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.batches import Batch, as_batch
from ntkscope.tangent.model.subject import Subject, place, quiet

Reduce: TypeAlias = Literal["flatten", "mean"] | Callable[[Tensor], Tensor]
HELD = 6  # times its outputs and inputs, what a sample takes while the network is run
MASK = "attention_mask"
SEQUENCE = (nn.Conv1d, nn.ConvTranspose1d)  # with channels before positions; other layers have positions first


@checked
def activations(
    model: nn.Module,
    x: Any,
    layers: str | Sequence[str] | None = None,
    *,
    reduce: Reduce = "flatten",
    store: str | os.PathLike[str] | None = None,
    memory: str | int | float = "2GiB",
    device: torch.device | str | None = None,
) -> dict[str, Tensor | FeatureStore]:
    """What each layer puts out for each sample, one row (n, width) per layer, in the order of `layers`.

    `layers`: names of modules; default the network's stages, its outermost modules that make one tensor per sample, without
    the one that makes the outputs. A module called several times has the outputs of its calls side by side.

    `reduce`: "flatten" keeps every number. "mean" averages over positions: pixels of (n, channels, height, width), tokens of
    (n, tokens, features), of which those count that an `attention_mask` among the inputs lets through. Anything else is a
    function from the layer's output (n, …) to rows (n, width).

    The network is run once for all layers. It is never changed, and of every block two samples must have the same
    activations alone. `memory` bounds the result and what is held beside it; with `store`, a folder or an
    fsspec URL, each layer is a `FeatureStore` below it under its own name, which a killed run resumes.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> {name: tuple(rows.shape) for name, rows in activations(model, torch.eye(2)).items()}
        {'0': (2, 3)}
    """
    budget = parse_bytes(memory)
    guards.check_mode(model)
    batch = as_batch(x, model)
    guards.check_placement(place(model, device), device is not None, batch)
    guards.check_inputs_finite(batch)
    names = _named(layers)
    with quiet(place(model, device), model), _HOOKABLE, torch.no_grad():
        subject = Subject(model, device=device, still=True)
        few = subject.placed(batch[: min(3, len(batch))])
        with _runs(few):
            names = stages(subject, few) if names is None else names
            audited = AuditedFeatures(subject, partial(_features, layers=tuple(names), reduce=reduce))
            found = _probed(audited, few, names)
        if store is None:
            return dict(_in_memory(audited, batch, found, budget))
        slack = budget * (CUDA_SLACK if subject.device.type == "cuda" else SLACK)
        return dict(filled(audited, batch, found.layers, store, reduce, int(slack), found.passing, _largest(subject)))


@dataclass(frozen=True)
class _Found:
    """What a few samples showed: the layers' widths, and how many bytes a sample takes while it passes."""

    layers: tuple[Layer, ...]
    passing: int


def _named(layers: str | Sequence[str] | None) -> list[str] | None:
    if layers is None:
        return None
    names = [layers] if isinstance(layers, str) else list(layers)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise UsageError(f"got layers={layers!r}; expected different names of modules, or None for the stages")
    return names


@contextlib.contextmanager
def _hookable() -> Iterator[None]:
    """While open, attention does not take the fused path of evaluation mode, which calls none of its modules."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


_HOOKABLE = Together(_hookable)


@contextlib.contextmanager
def _runs(few: Batch) -> Iterator[None]:
    """Failures of the model while this is open are reported in terms of its inputs."""
    try:
        yield
    except NtkscopeError:
        raise
    except (RuntimeError, TypeError, IndexError, ValueError, AssertionError) as error:
        shapes = ", ".join(f"{tuple(t.shape)} {t.dtype}".replace("torch.", "") for t in few.tensors())
        raise UsageError(
            f"the model could not be run on inputs of shape {shapes}: {error}. Check that model(x) runs on these inputs"
        ) from error


def _largest(subject: Subject) -> int:
    return CUDA_BLOCK if subject.device.type == "cuda" else CPU_BLOCK


def _probed(audited: AuditedFeatures, few: Batch, names: Sequence[str]) -> _Found:
    """The layers' widths; refuses a network whose activations depend on chance."""
    subject = audited.subject
    rows = audited.compute(subject, few)
    tolerance = 0.0 if subject.device.type == "cpu" else 1e-6
    with kept_randomness([subject.device] if subject.device.type == "cuda" else []):
        for seed in (1, 2):
            reseed(seed)
            again = audited.compute(subject, few)
            if any(guards.differs(new, old, tolerance) for new, old in zip(again, rows)):
                raise UsageError(guards.RANDOM)
    if subject.draws:
        raise UsageError(guards.RANDOM)
    audited(few)
    outputs = layer_outputs(subject, few, names)
    whole = sum(value[0].numel() * value.element_size() for values in outputs.values() for value in values)
    inputs = sum(t[0].numel() * t.element_size() for t in few.tensors())
    layers = tuple(Layer(name, row.shape[1], row.dtype) for name, row in zip(names, rows))
    return _Found(layers, HELD * (whole + inputs))


def _in_memory(audited: AuditedFeatures, batch: Batch, found: _Found, memory: int) -> dict[str, Tensor]:
    """All rows of all layers on the network's device."""
    device = audited.subject.device
    result = len(batch) * sum(layer.bytes for layer in found.layers)
    left = int(memory * (CUDA_SLACK if device.type == "cuda" else SLACK)) - result
    if left < found.passing:
        least = (result + found.passing) / (CUDA_SLACK if device.type == "cuda" else SLACK)
        raise over_budget(
            memory,
            least,
            f"for the activations of {len(batch)} samples ({', '.join(layer.name for layer in found.layers)})",
            "raise memory=, keep them on disk with store=, name fewer layers=, or average over positions with reduce='mean'",
        )
    block = max(1, min(_largest(audited.subject), left // max(1, found.passing)))
    rows = {
        layer.name: torch.empty(len(batch), layer.width, dtype=layer.dtype, device=device) for layer in found.layers
    }
    for at in ranges(0, len(batch), block):
        for target, values in zip(rows.values(), audited(batch[at.start : at.stop])):
            target[at.start : at.stop] = values
    for name, values in rows.items():
        _check_finite(name, values)
    return rows


def _check_finite(name: str, rows: Float[Tensor, "n width"]) -> None:
    sums = rows.sum(1, dtype=torch.float64)  # NaN and infinity reach the sum of their row
    bad = (~torch.isfinite(sums)).nonzero().flatten()
    if len(bad):
        raise NumericalError(
            f"the activations of {name!r} hold NaN or infinity for {len(bad)} samples, the first {int(bad[0])}; check those"
            " inputs and the layer's weights"
        )


def _features(subject: Subject, batch: Batch, layers: Sequence[str], reduce: Reduce) -> list[Tensor]:
    """Rows of each layer; bfloat16, which stores and decompositions do not take, as float32."""
    with torch.no_grad():
        outputs = layer_outputs(subject, batch, layers)
    silent = [name for name in layers if name not in outputs]
    if silent:
        raise UsageError(
            f"layers {', '.join(map(repr, silent))} were not called by the model; expected modules its forward uses"
        )
    modules = dict(subject.model.named_modules())
    rows = []
    for name in layers:
        made = [_reduced(value, modules[name], name, batch, reduce) for value in outputs[name]]
        row = made[0] if len(made) == 1 else torch.cat(made, dim=1)
        if not row.is_floating_point():
            raise UsageError(f"layer {name!r} puts out {row.dtype}; expected floating-point activations: leave it out")
        rows.append(row.float() if row.dtype == torch.bfloat16 else row)
    return rows


def _reduced(value: Tensor, module: nn.Module, name: str, batch: Batch, reduce: Reduce) -> Float[Tensor, "n width"]:
    if callable(reduce):
        row = reduce(value)
        if not isinstance(row, Tensor) or row.dim() != 2 or len(row) != len(value):
            shape = tuple(row.shape) if isinstance(row, Tensor) else type(row).__name__
            raise UsageError(
                f"reduce= made {shape} of the output {tuple(value.shape)} of {name!r}; expected a tensor of shape"
                f" ({len(value)}, width)"
            )
        return row
    if reduce == "flatten" or value.dim() == 2:
        return value.flatten(1)
    if value.dim() > 3:
        return value.flatten(2).mean(2)
    if any(isinstance(part, SEQUENCE) for part in module.modules()):
        raise UsageError(
            f"layer {name!r} puts out {tuple(value.shape)} and holds a Conv1d, so its last axis may be positions or features;"
            " expected a function that says which: reduce=lambda h: h.mean(2) for (n, channels, positions)"
        )
    mask = _mask(batch, value)
    if mask is None:
        return value.mean(1)
    weights = mask.to(value.device, value.dtype)[:, :, None]
    counts = weights.sum(1)
    if not bool((counts > 0).all()):
        raise UsageError(f"{MASK} lets no token of some sample through; expected at least one per sample")
    return (value * weights).sum(1) / counts


def _mask(batch: Batch, value: Tensor) -> Tensor | None:
    """The inputs' attention mask, if it has one entry for each position of this output."""
    mask = batch.entry(MASK)
    return mask if isinstance(mask, Tensor) and mask.shape == value.shape[:2] else None
