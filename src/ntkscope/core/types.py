"""What flows between the rooms: parameters, parts of a data set, splits, snapshots.

Axis names used in shapes throughout: `n` and `m` samples, `c` outputs (classes), `p` parameters, `s` positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ntkscope.core.errors import UsageError
from ntkscope.core.model.tree import Inputs, length, move, take
from ntkscope.core.shown import Shown

Params: TypeAlias = dict[str, Tensor]


def _digest(hasher: Any, value: Any) -> None:
    """Feed the bytes of nested tensors, arrays, strings and numbers to `hasher`, with their types and shapes."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        if value.dtype == torch.bfloat16:  # NumPy has no such numbers
            hasher.update(b"bfloat16")
            value = value.view(torch.int16)
        value = value.numpy()
    if isinstance(value, np.ndarray):
        hasher.update(f"{value.dtype.str}{value.shape}".encode())
        contiguous = np.ascontiguousarray(value)
        whole = contiguous.tobytes() if value.dtype.hasobject else contiguous.reshape(-1).view(np.uint8)  # no copy
        hasher.update(whole)
    elif isinstance(value, Mapping):
        for key in sorted(value):
            hasher.update(str(key).encode() + b"\0")
            _digest(hasher, value[key])
    elif isinstance(value, (list, tuple)):
        hasher.update(f"[{len(value)}]".encode())
        for item in value:
            _digest(hasher, item)
    else:
        hasher.update(repr(value).encode() + b"\0")


def fingerprint(*values: Any) -> str:
    """A sha256 over the contents (bytes, shapes, dtypes) of nested tensors, arrays, strings and numbers.

    >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(2))
    True
    >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(2, 1))
    False
    """
    hasher = hashlib.sha256()
    _digest(hasher, list(values))
    return hasher.hexdigest()


@dataclass(frozen=True, eq=False, repr=False)
class Part(Shown):
    """One part of a data set: inputs, targets, and per-item extras (weights, masks, clean labels, texts).

    It is a map-style `torch.utils.data.Dataset`: `part[i]` is `(x_i, y_i)`.

    Examples:
        >>> part = Part(torch.eye(3), torch.tensor([0, 1, 2]))
        >>> len(part), part[1][1].item(), len(part.take([0, 2]))
        (3, 1, 2)
    """

    x: Inputs
    y: Tensor
    extras: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if length(self.x) != length(self.y):
            raise UsageError(f"got {length(self.x)} inputs with {len(self.y)} targets; expected one target per input")
        for name, value in self.extras.items():
            if len(value) != len(self.y):
                raise UsageError(f"extra {name!r} has {len(value)} items; expected {len(self.y)}, one per input")

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Inputs, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return take(self.x, index), self.y[index]

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        return (self[i] for i in range(len(self)))

    def take(self, index: Sequence[int] | Tensor) -> Part:
        """The items at `index` (integers or a boolean mask), in that order, extras included."""
        index = torch.as_tensor(index) if len(index) else torch.empty(0, dtype=torch.long)
        if index.dtype == torch.bool:
            index = index.nonzero().flatten()
        return Part(take(self.x, index), self.y[index], take(self.extras, index))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Part:
        """The same part on `device`, floating-point tensors as `dtype`."""
        return Part(*(move(value, device, dtype) for value in (self.x, self.y, self.extras)))


@dataclass(frozen=True, eq=False, repr=False)
class Split(Shown):
    """A data set ready to use: `train`, `test`, perhaps `validation`; class names; how it was made.

    `extras` holds what belongs to the whole data set (the hidden vectors of a teacher, a projection matrix).

    Examples:
        >>> split = Split(train=Part(x[:8], y[:8]), test=Part(x[8:], y[8:]), classes=("left", "right"))
        >>> len(split.train), len(split.test), split.validation
        (8, 4, None)
        >>> split.fingerprint == split.replace(name="halves").fingerprint
        True
    """

    train: Part
    test: Part
    validation: Part | None = None
    classes: tuple[str, ...] = ()
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the contents of every part; equal exactly when the data are equal byte for byte."""
        parts = [None if p is None else [p.x, p.y, p.extras] for p in (self.train, self.validation, self.test)]
        return fingerprint(parts, self.classes, self.extras)

    def replace(self, **changes: Any) -> Split:
        """A copy with some fields replaced."""
        return replace(self, **changes)


@dataclass(frozen=True, eq=False, repr=False)
class Snapshot(Shown):
    """A network at one moment of its training: everything needed to measure it or to resume from it.

    `params` and `buffers` are detached copies; `optimizer` and `random` are what `fit` needs to resume.

    Examples:
        >>> from ntkscope.core import Part
        >>> snapshot = ns.training.fit(model, Part(x, y), lr=0.1, steps=2).final()
        >>> snapshot.step, list(snapshot.params)[:2], snapshot.metrics["accuracy"]
        (2, ['layer1.weight', 'layer1.bias'], 1.0)
    """

    step: int
    epoch: float
    params: Params
    buffers: Params
    metrics: Mapping[str, float] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    random: Mapping[str, Any] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> Snapshot:
        """The same moment on `device`; single numbers and the states of generators stay, where optimizers keep them."""
        optimizer = {
            name: {key: value.to(device) if value.ndim else value for key, value in one.items()}
            for name, one in self.optimizer.items()
        }
        return replace(self, params=move(self.params, device), buffers=move(self.buffers, device), optimizer=optimizer)
