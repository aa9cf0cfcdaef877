"""What every data set of this room must satisfy: finite inputs and targets, labels in range."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ntkscope.core import Split
from ntkscope.core.checked import checked
from ntkscope.core.errors import DataCorrupt
from ntkscope.core.model.tree import leaves


def check_finite(value: Any, where: str = "x") -> None:
    """Raise `DataCorrupt` when a floating-point tensor inside `value` holds NaN or infinity; O(size).

    >>> check_finite(torch.tensor([[0.0, float("nan")]]), "train.x")
    Traceback (most recent call last):
    ...
    ntkscope.core.errors.DataCorrupt: train.x holds 1 value that is NaN or infinite (the first in item 0); expected
    finite numbers: drop those items or repair their source
    """
    for name, tensor in leaves(value, where):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        bad = ~torch.isfinite(tensor)
        if bad.any():
            count, first = int(bad.sum()), int(bad.reshape(len(bad), -1).any(dim=1).nonzero()[0])
            values = "value that is" if count == 1 else "values that are"
            raise DataCorrupt(
                f"{name} holds {count} {values} NaN or infinite (the first in item {first}); expected finite numbers:"
                " drop those items or repair their source"
            )


def check_labels(y: Tensor, classes: int, where: str = "y") -> None:
    """Raise `DataCorrupt` unless `y` holds integers from 0 to `classes` - 1.

    >>> check_labels(torch.tensor([0, 2, 1]), 2, "train.y")
    Traceback (most recent call last):
    ...
    ntkscope.core.errors.DataCorrupt: train.y holds the label 2 (item 1); expected 0 to 1 for 2 classes: relabel the
    items or name every class
    """
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.ndim != 1:
        raise DataCorrupt(
            f"{where} has dtype {y.dtype} and shape {tuple(y.shape)}; expected integer class labels of shape"
            f" ({len(y)},) for {classes} classes"
        )
    outside = ((y < 0) | (y >= classes)).nonzero()
    if len(outside):
        item = int(outside[0])
        raise DataCorrupt(
            f"{where} holds the label {int(y[item])} (item {item}); expected 0 to {classes - 1} for {classes} classes:"
            " relabel the items or name every class"
        )


@checked
def validate(split: Split) -> Split:
    """The same split, after the inputs and real targets of each part were found finite and its class labels in range."""
    for name in ("train", "validation", "test"):
        part = getattr(split, name)
        if part is not None:
            check_finite(part.x, f"{name}.x")
            if split.classes:
                check_labels(part.y, len(split.classes), f"{name}.y")
            else:
                check_finite(part.y, f"{name}.y")
    return split
