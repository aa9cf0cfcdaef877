"""Losses: the loss of an item, which targets make sense, and what counts as a correct answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from ntkscope.core import Registry, UsageError
from ntkscope.core.arguments import one_hot
from ntkscope.core.checked import Share

LossFunction = Callable[[Tensor, Tensor], Tensor]


class Loss(ABC):
    """ℓ(f(x), y) of each item. A subclass is final; a new loss is one subclass and one line in `LOSSES`."""

    @abstractmethod
    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each item, shape (n,), or one number for the batch where items cannot be told apart."""

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise `UsageError` unless `targets` (of any number of items) can be compared with `outputs`."""

    @abstractmethod
    def names_classes(self, targets: Tensor) -> bool:
        """Whether `targets` name classes, so that accuracy means something."""

    @abstractmethod
    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Which items are classified as their target says, shape (n,)."""


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """-log softmax(f(x))_y; targets are class numbers (n,) or probabilities (n, c).

    Examples:
        >>> import torch
        >>> round(CrossEntropy().each(torch.zeros(1, 4), torch.tensor([2])).item(), 4)  # log 4
        1.3863
    """

    label_smoothing: Share = 0.0

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=self.label_smoothing)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        if outputs.ndim != 2 or outputs.shape[1] < 2:
            raise UsageError(
                f"cross-entropy got outputs of shape {tuple(outputs.shape)}; expected (n, classes) with two classes or"
                " more: use loss='bce' for one logit per item"
            )
        classes = outputs.shape[1]
        if targets.is_floating_point():
            if targets.ndim != 2 or targets.shape[1] != classes:
                raise UsageError(
                    f"cross-entropy got real targets of shape {tuple(targets.shape)} for {classes} outputs; expected"
                    f" class numbers (n,) of an integer type, or probabilities (n, {classes})"
                )
            return
        check_class_numbers(targets, classes)

    def names_classes(self, targets: Tensor) -> bool:
        return True

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.argmax(1) == (targets.argmax(1) if targets.is_floating_point() else targets)


class _Regression(Loss):
    """What the losses between real numbers share: outputs and targets of one shape, (n, 1) and (n,) being the same.

    Class numbers, of an integer type, stand for one-hot rows.
    """

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        if not targets.is_floating_point():
            check_class_numbers(targets, _columns(outputs).shape[1])
        elif _columns(outputs).shape[1:] != _columns(targets).shape[1:]:
            raise UsageError(
                f"{type(self).__name__} got outputs of shape {tuple(outputs.shape)} and targets of shape"
                f" {tuple(targets.shape)}; expected the same shape after the first axis"
            )

    def names_classes(self, targets: Tensor) -> bool:
        """Class numbers, one-hot rows of several columns, or a single column of -1 and 1."""
        if not targets.is_floating_point():
            return True
        columns = _columns(targets)
        if columns.ndim == 2 and columns.shape[1] > 1:
            return bool(((columns == 0) | (columns == 1)).all() and (columns.sum(1) == 1).all())
        return bool((columns.abs() == 1).all())

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs, targets = _rows(outputs, targets)
        if outputs.shape[1] > 1:
            return outputs.argmax(1) == targets.argmax(1)
        return (outputs > 0).flatten() == (targets > 0).flatten()


@dataclass(frozen=True)
class MeanSquared(_Regression):
    """(f(x) - y)², averaged over the outputs."""

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs, targets = _rows(outputs, targets)
        return (outputs - targets).square().flatten(1).mean(1)


@dataclass(frozen=True)
class MeanAbsolute(_Regression):
    """|f(x) - y|, averaged over the outputs."""

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs, targets = _rows(outputs, targets)
        return (outputs - targets).abs().flatten(1).mean(1)


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """-y log σ(f(x)) - (1-y) log σ(-f(x)), averaged over the outputs; targets in [0, 1]."""

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs, targets = _columns(outputs), _columns(targets).to(outputs.dtype)
        return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").flatten(1).mean(1)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        if _columns(outputs).shape[1:] != _columns(targets).shape[1:]:
            raise UsageError(
                f"binary cross-entropy got outputs of shape {tuple(outputs.shape)} and targets of shape"
                f" {tuple(targets.shape)}; expected one logit per target: use loss='cross_entropy' for class numbers"
            )
        low, high = float(targets.min()), float(targets.max())
        if low < 0 or high > 1:
            raise UsageError(
                f"targets run from {low:g} to {high:g}; binary cross-entropy expects 0 ... 1: map -1/1 labels by"
                " (y + 1) / 2"
            )

    def names_classes(self, targets: Tensor) -> bool:
        return bool(((targets == 0) | (targets == 1)).all())

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((_columns(outputs) > 0) == (_columns(targets) > 0.5)).flatten(1).all(1)


@dataclass(frozen=True)
class FunctionLoss(Loss):
    """Any function of (outputs, targets) that returns a number or one number per item."""

    function: LossFunction

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.function(outputs, targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        value = self.function(outputs, targets[: len(outputs)])
        if not isinstance(value, Tensor) or value.shape not in ((), (len(outputs),)):
            raise UsageError(
                f"the loss function returned {tuple(value.shape) if isinstance(value, Tensor) else type(value)};"
                f" expected a tensor of shape () or ({len(outputs)},)"
            )

    def names_classes(self, targets: Tensor) -> bool:
        return targets.ndim == 1 and not targets.is_floating_point()

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) if outputs.ndim == 2 and outputs.shape[1] > 1 else outputs.flatten() > 0) == targets


LOSSES: Registry[type[Loss]] = Registry("loss")
for _name, _kind in (
    ("cross_entropy", CrossEntropy),
    ("mse", MeanSquared),
    ("l1", MeanAbsolute),
    ("bce", BinaryCrossEntropy),
):
    LOSSES.add(_name, _kind)


def as_loss(loss: str | Loss | LossFunction) -> Loss:
    """The loss named, given, or made of a function.

    >>> as_loss("mse")
    MeanSquared()
    """
    if isinstance(loss, Loss):
        return loss
    return LOSSES[loss]() if isinstance(loss, str) else FunctionLoss(loss)


def objective(
    loss: Loss, outputs: Tensor, targets: Tensor, weights: Tensor | None = None, items: int | None = None
) -> Tensor:
    """The batch's estimate of the training loss: mean ℓᵢ, or Σ wᵢ ℓᵢ over the data set with weights.

    With weights, a batch of b out of `items` items is scaled by items / b, so that its expectation is the whole sum;
    wᵢ = 1 / items is the plain mean.
    """
    each = loss.each(outputs, targets)
    if weights is None:
        return each.mean()
    if each.ndim == 0:
        raise UsageError("got item weights with a loss that returns one number; return one number per item instead")
    return (weights * each).sum() * ((items or len(each)) / len(each))


def check_class_numbers(targets: Tensor, outputs: int) -> None:
    """Raise `UsageError` unless these name classes, each of which has an output."""
    if targets.ndim != 1:
        raise UsageError(
            f"got class numbers of shape {tuple(targets.shape)}; expected (n,), or floating-point targets (n, {outputs})"
        )
    if outputs == 1:
        raise UsageError(
            "got class numbers for a network with one output; expected numbers, such as -1.0 and 1.0: convert them with"
            " 2.0 * y - 1.0"
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= outputs:
        raise UsageError(
            f"labels run from {low} to {high} but the network has {outputs} outputs; expected labels in"
            f" 0 ... {outputs - 1}: renumber the labels, or build the network with classes={high + 1}"
        )


def _rows(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and targets of one shape: class numbers as one-hot rows."""
    outputs = _columns(outputs)
    if targets.is_floating_point():
        return outputs, _columns(targets)
    return outputs, one_hot(targets, outputs.shape[1]).to(outputs.dtype)


def _columns(x: Tensor) -> Tensor:
    """(n,) as (n, 1): a single output may be written either way."""
    return x.unsqueeze(1) if x.ndim == 1 else x
