"""A network's stages, its outermost modules that make one tensor per sample, and what named modules put out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.model.calling import logits
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.state import ours
from ntkscope.tangent.model.subject import Subject


def tensor_in(value: Any) -> Tensor | None:
    """The tensor a module's output stands for: itself, the hidden state it carries, or its first member."""
    if isinstance(value, Tensor):
        return value
    hidden = getattr(value, "last_hidden_state", None)
    if isinstance(hidden, Tensor):
        return hidden
    if isinstance(value, tuple | list) and value:
        return tensor_in(value[0])
    if isinstance(value, Mapping) and value:
        return tensor_in(next(iter(value.values())))
    return None


@contextlib.contextmanager
def outputs_of(model: nn.Module, names: Sequence[str] | None = None) -> Iterator[dict[str, list[Tensor | None]]]:
    """While open, every call of the named modules (all when None) adds a copy of its output, in order of calls."""
    modules = dict(model.named_modules())
    unknown = [name for name in names or () if name not in modules]
    if unknown:
        known = ", ".join(name for name in modules if name) or "(none)"
        raise UsageError(f"no module called {', '.join(map(repr, unknown))}; there are: {known}")
    seen: dict[str, list[Tensor | None]] = {}
    handles = []
    for name in names if names is not None else [name for name in modules if name]:

        def keep(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            value = tensor_in(output)
            kept = None if value is None else value.detach().clone()  # what follows may work in place
            seen.setdefault(name, []).append(kept)

        handles.append(modules[name].register_forward_hook(ours(keep)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def stages(subject: Subject, batch: Batch) -> list[str]:
    """The outermost modules that make one tensor per sample, in order, without the one whose output is the model's."""
    with outputs_of(subject.model) as seen:
        final = _final(subject.run(batch))
    names: list[str] = []

    def visit(module: nn.Module, prefix: str) -> None:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            value = seen[path][-1] if len(seen.get(path, ())) == 1 else None
            last = value is not None and final is not None and torch.equal(value, final)
            if value is None or value.dim() < 2 or len(value) != len(batch) or last:
                visit(child, f"{path}.")
            elif not isinstance(module, nn.Sequential) or any(True for _ in child.parameters()):
                names.append(path)  # inside a Sequential, activations and pooling are part of the layer before them

    visit(subject.model, "")
    if not names:
        raise UsageError(
            f"no module of {type(subject.model).__name__} makes one tensor per sample before its outputs; name some with"
            " layers="
        )
    return names


def _final(result: Any) -> Tensor | None:
    """The model's outputs; of an encoder without any, its hidden state."""
    try:
        return logits(result).detach()
    except UsageError:
        return tensor_in(result)


def layer_outputs(subject: Subject, batch: Batch, layers: Sequence[str]) -> dict[str, list[Tensor]]:
    """What each named module put out, (n, …), once for each of its calls; modules that were not called are left out."""
    with outputs_of(subject.model, layers) as seen:
        subject.run(batch)
    found: dict[str, list[Tensor]] = {}
    for name in layers:
        for value in seen.get(name, ()):
            if value is None or value.dim() < 2 or len(value) != len(batch):
                shape = None if value is None else tuple(value.shape)
                raise UsageError(
                    f"module {name!r} gives {shape} for {len(batch)} samples; expected one row per sample: choose other"
                    " layers="
                )
            found.setdefault(name, []).append(value)
    if not found:
        raise UsageError(f"none of layers={list(layers)} was called by the model; expected modules its forward uses")
    return found
