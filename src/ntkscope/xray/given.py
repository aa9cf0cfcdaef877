"""Checks of an X-ray's arguments: a device, inputs the model runs on, labels and names of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ntkscope.core import NtkscopeError, UsageError
from ntkscope.tangent.certify.auditor import CERTIFY
from ntkscope.xray.items import Items
from ntkscope.xray.network import outputs


def certify(value: str | bool) -> str | bool:
    """Which blocks of a kernel are checked: "every" one, "sampled" (one in eight), or False.

    >>> certify("sampled")
    'sampled'
    """
    if not (value is False or (isinstance(value, str) and value in CERTIFY)):
        raise UsageError(f"got certify={value!r}; expected 'every', 'sampled' or False")
    return value


def tried(model: nn.Module, items: Items, what: str, device: torch.device | None) -> Any:
    """Outputs for the first items; an error raised by the model is reported with the inputs it got."""
    few = items.take(torch.arange(min(2, len(items))))
    try:
        return outputs(model, few.x, device)
    except NtkscopeError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in few.tensors)
        raise UsageError(
            f"the model could not be run on inputs of {what} of shape {shapes} ({type(error).__name__}: {error}); expected"
            " inputs as the model was trained with"
        ) from error


def class_names(classes: Sequence[str] | None, count: int) -> tuple[str, ...]:
    if not classes:
        return tuple(map(str, range(count)))
    if len(classes) != count:
        raise UsageError(f"got {len(classes)} class names for a network of {count} classes; expected one per class")
    return tuple(map(str, classes))


def output_names(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """The names of a regression's outputs; numbers if they have none.

    >>> output_names(None, 1), output_names(None, 2), output_names(["price"], 1)
    (('output',), ('output 0', 'output 1'), ('price',))
    """
    if not names:
        return ("output",) if count == 1 else tuple(f"output {k}" for k in range(count))
    if len(names) != count:
        raise UsageError(f"got {len(names)} names (classes=) for a network of {count} outputs; expected one per output")
    return tuple(map(str, names))


def check_targets(train: Items, test: Items, count: int) -> None:
    """Refuse real targets that are not one per output of the network, or that do not vary."""
    for what, items in (("train", train), ("test", test)):
        if items.y.shape[1] != count:
            raise UsageError(
                f"{what} has {items.y.shape[1]} real targets per item, and the network has {count} outputs; expected one target"
                " per output. If these are labels of classes, pass class numbers or task='classification' (--task"
                " classification)"
            )
        if len(items) < 2:
            raise UsageError(f"{what} has 1 item; expected at least 2: rankings of the items are compared")
        if not bool((items.y != items.y[0]).any()):
            raise UsageError(f"{what} has the same target for every item; expected targets that vary")


def check_labels(train: Items, test: Items, count: int) -> None:
    for what, items in (("train", train), ("test", test)):
        low, high = int(items.y.min()), int(items.y.max())
        if low < 0 or high >= count:
            raise UsageError(
                f"{what} has labels {low} to {high}, and the network has {count} classes; expected 0 to {count - 1}:"
                " number the classes from 0, in the order of the network's outputs; if these are values to predict, pass"
                " task='regression' (--task regression)"
            )
    if len(test) < 2:
        raise UsageError("test has 1 item; expected at least 2: rankings of the test items are compared")
    if len(train.y.unique()) < 2:
        raise UsageError("train has items of one class only; expected at least two classes to tell apart")
