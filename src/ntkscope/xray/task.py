"""The task of a network: to tell classes apart, or to predict real values; told by the caller, or by its labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ntkscope.core import UsageError

CLASSIFICATION, REGRESSION = TASKS = ("classification", "regression")
STRATA = 10  # parts of equal size, by value, that a sample of real targets takes its items from in equal shares


def checked_task(task: str | None) -> str | None:
    """`task` if it is one, None for "whatever the labels say".

    >>> checked_task("regression"), checked_task(None)
    ('regression', None)
    """
    if task is not None and task not in TASKS:
        raise UsageError(f"got task={task!r}; expected one of {', '.join(TASKS)}, or None to tell it from the labels")
    return task


def told_by(labels: Sequence[Tensor]) -> str:
    """The task that labels show: regression for values that are not whole; what could be either is asked for.

    >>> told_by([torch.tensor([0.5, 2.0])]), told_by([torch.tensor([0.0, 2.0])]), told_by([torch.tensor([0, 1])])
    ('regression', 'classification', 'classification')
    """
    real = [y for y in labels if y.is_floating_point()]
    fractions = any(bool((y != y.round()).any()) for y in real)
    wide = any(y.ndim == 2 and y.shape[1] > 1 for y in real)
    if wide and (not fractions or all(_probabilities(y) for y in labels)):
        kind = "probabilities of classes" if fractions else "whole numbers, such as one-hot or multi-label classes"
        raise UsageError(
            f"got labels of shape {tuple(real[0].shape)} that look like {kind}; expected one class number per item, or"
            " task='regression' (--task regression) if the network was trained to predict these values"
        )
    return REGRESSION if fractions else CLASSIFICATION


def _probabilities(y: Tensor) -> bool:
    sums = y.double().sum(-1)
    return y.ndim == 2 and bool((y >= 0).all()) and bool(torch.allclose(sums, torch.ones_like(sums), atol=1e-4))


def real_targets(y: Tensor, what: str) -> Float64[Tensor, "n d"]:
    """Targets of a regression as (n, outputs) in double precision."""
    if y.ndim not in (1, 2) or y.is_complex() or (y.ndim == 2 and not y.shape[1]):
        raise UsageError(
            f"{what} has targets of shape {tuple(y.shape)} and dtype {y.dtype}; expected real numbers, (n,) or (n, outputs)"
        )
    wide = (y[:, None] if y.ndim == 1 else y).to(torch.float64)
    bad = torch.nonzero(~wide.isfinite().all(1)).flatten().tolist()
    if bad:
        raise UsageError(
            f"{what} holds NaN or infinity in the targets of {len(bad)} items, the first at index {bad[0]}; expected finite"
            " targets: clean or drop them"
        )
    return wide


def strata(y: Tensor) -> Int64[np.ndarray, " n"]:
    """What samples are stratified by: class numbers themselves; the tenth of the data that a first target is in.

    >>> strata(torch.tensor([[0.3], [9.0], [0.1]])).tolist(), strata(torch.tensor([1, 0])).tolist()
    ([3, 6, 0], [1, 0])
    """
    if not y.is_floating_point():
        return np.asarray(y.numpy())
    first = y[:, 0].numpy()
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank * STRATA // len(first)
