"""Evaluation: loss and accuracy of a network on a part, in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ntkscope.core import Part, UsageError
from ntkscope.core.checked import Count
from ntkscope.core.model.calling import call
from ntkscope.training.losses import Loss, LossFunction, as_loss

Weights = Tensor | str | None


def evaluate(
    model: nn.Module,
    part: Part,
    *,
    loss: str | Loss | LossFunction = "cross_entropy",
    batch_size: Count | None = 1024,
    weights: Weights = None,
    channels_last: bool = False,
) -> dict[str, float]:
    """The loss of `model` on `part` and, where targets name classes, its accuracy; the model's mode is restored.

    The loss is the mean over items, or Σ wᵢ ℓᵢ with item weights. Each batch is moved to the model's device.

    Examples:
        >>> part = Part(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        >>> evaluate(nn.Identity(), part)["accuracy"]
        0.5
    """
    rule, size = as_loss(loss), batch_size or len(part)
    if len(part) == 0:
        raise UsageError("the part to evaluate on is empty; expected at least one item")
    first = next((p for p in model.parameters()), None)
    device = None if first is None else first.device
    scale = item_weights(part, weights)
    lean = Part(part.x, part.y, {} if scale is None else {"weights": scale})
    total, right = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
    counts = rule.names_classes(part.y)
    with evaluating(model), torch.no_grad():
        for start in range(0, len(part), size):
            batch = lean.take(torch.arange(start, min(start + size, len(part)))).to(device)
            x = batch.x.contiguous(memory_format=torch.channels_last) if channels_last else batch.x
            outputs = call(model, x)
            if start == 0:
                rule.check(outputs, part.y)
            each = rule.each(outputs, batch.y)
            if "weights" in batch.extras:
                total += (each.double() * batch.extras["weights"]).sum().cpu()
            else:
                total += each.double().mean().cpu() * len(batch) / len(part)
            if counts:
                right += rule.right(outputs, batch.y).sum().cpu()
    metrics = {"loss": float(total)}
    return metrics | {"accuracy": int(right) / len(part)} if counts else metrics


def item_weights(part: Part, weights: Weights) -> Tensor | None:
    """The weights of the items: given, or the extra of that name."""
    if weights is None:
        return None
    if isinstance(weights, str):
        if weights not in part.extras:
            raise UsageError(f"no extra {weights!r} in the part; it has: {', '.join(part.extras) or 'none'}")
        weights = torch.as_tensor(part.extras[weights])
    if weights.shape != (len(part),):
        raise UsageError(f"item weights of shape {tuple(weights.shape)}; expected ({len(part)},), one per item")
    return weights


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Each module has its own mode again afterwards. By its flag: a module's `train()` may do more, such as merging weights."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`model` in evaluation mode; each module's own mode is restored afterwards."""
    with modes_kept(model):
        model.eval()
        yield
