"""The probe: a few labelled items that a network is measured on, the same ones and in the same order at every moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ntkscope.core import Inputs, Part, UsageError, generator
from ntkscope.core.model.calling import parted
from ntkscope.core.model.loading import collect, joined
from ntkscope.core.model.tree import is_branch, length, move, take, tensors
from ntkscope.core.types import fingerprint

EXPECTED = "a Part, a pair (inputs, labels), a Dataset or DataLoader of such pairs, or inputs alone"


@dataclass(frozen=True, eq=False)
class Probe:
    """Inputs in a fixed order, drawn once, so that the first n of them are a sample of all; labels, if there are any."""

    x: Inputs
    y: Tensor | None
    fingerprint: str

    def __len__(self) -> int:
        return length(self.x)

    def first(self, items: int) -> Inputs:
        """The inputs of the first `items` items."""
        return take(self.x, slice(0, items))

    def labels(self, items: int) -> Tensor | None:
        """Their labels."""
        return None if self.y is None else self.y[:items]

    def to(self, device: torch.device) -> Probe:
        """The same items on `device`; labels stay where they are."""
        return Probe(move(self.x, device), self.y, self.fingerprint)

    @property
    def device(self) -> torch.device | None:
        """Where the inputs are."""
        return next((tensor.device for tensor in tensors(self.x)), None)


def as_probe(data: Any, seed: int, device: torch.device | None = None) -> Probe:
    """`data` as a probe, which must lie on `device`; see `EXPECTED` for what it may be."""
    x, y = _pair(data)
    if not tensors(x):
        raise UsageError(f"got a probe whose inputs are {type(x).__name__} without tensors; expected {EXPECTED}")
    if any(tensor.ndim == 0 for tensor in tensors(x)):
        raise UsageError(f"got a probe whose inputs are single numbers; expected {EXPECTED}")
    elsewhere = next((tensor.device for tensor in tensors(x) if device is not None and tensor.device != device), None)
    if elsewhere is not None:
        raise UsageError(
            f"got a probe on {elsewhere} for a model on {device}; expected both on one device: move the probe there with"
            f" .to('{device}')"
        )
    n = length(x)
    if n == 0:
        raise UsageError("got an empty probe; expected at least two items, better a few hundred: take some of the data")
    if n == 1:
        raise UsageError("got a probe of one item; expected at least two: a kernel compares items")
    labels = None if y is None else torch.as_tensor(np.asarray(y) if isinstance(y, list | tuple) else y).detach().cpu()
    if labels is not None and (labels.ndim not in (1, 2) or len(labels) != n):
        raise UsageError(f"got labels of shape {tuple(labels.shape)} for {n} items; expected one label or row per item")
    if labels is not None and labels.is_floating_point() and not bool(torch.isfinite(labels).all()):
        raise UsageError("got a probe whose targets hold NaN or infinity; expected finite numbers: drop those items")
    order = torch.randperm(n, generator=generator(seed, "tracking", "probe"))
    told = fingerprint(x, labels)
    x = move(take(x, order.to(next(iter(tensors(x))).device)), None)
    return Probe(x, None if labels is None else labels[order], told)


def _pair(data: Any) -> tuple[Any, Any]:
    if isinstance(data, Part):
        return data.x, data.y
    if isinstance(data, Tensor):
        return data, None
    if isinstance(data, DataLoader | Dataset):
        xs, ys = zip(*collect(data, _labelled, "the probe"))
        return joined(list(xs), data, "the probe"), None if ys[0] is None else joined(list(ys), data, "the probe")
    if isinstance(data, list | tuple) or is_branch(data):
        return _labelled(data)
    raise UsageError(f"got a probe of type {type(data).__name__}; expected {EXPECTED}")


def _labelled(item: Any) -> tuple[Any, Any]:
    if isinstance(item, list | tuple) and len(item) > 2:
        raise UsageError(f"got items of {len(item)} members in the probe; expected {EXPECTED}")
    return parted(item)
