"""Optimizers by name: PyTorch's own, with the options that make sense for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, optim

from ntkscope.core import Registry, UsageError

OptimizerFactory = Callable[[Iterable[Tensor]], optim.Optimizer]


@dataclass(frozen=True)
class Rule:
    """An update rule: its PyTorch class and whether it has a heavy ball. All rules act on each number alone,

    so stacking the parameters of several networks and updating the stack updates every network.
    """

    make: Callable[..., optim.Optimizer]
    momentum: bool = False
    full_batch: bool = False


OPTIMIZERS: Registry[Rule] = Registry("optimizer")
for _name, _rule in (
    ("gd", Rule(optim.SGD, momentum=True, full_batch=True)),
    ("sgd", Rule(optim.SGD, momentum=True)),
    ("adam", Rule(optim.Adam)),
    ("adamw", Rule(optim.AdamW)),
    ("adagrad", Rule(optim.Adagrad)),
    ("adadelta", Rule(optim.Adadelta)),
):
    OPTIMIZERS.add(_name, _rule)


def make_optimizer(
    optimizer: str | OptimizerFactory,
    parameters: Iterable[Tensor],
    *,
    lr: float | int,
    momentum: float | int = 0.0,
    nesterov: bool = False,
    weight_decay: float | int = 0.0,
    options: Mapping[str, Any] | None = None,
) -> optim.Optimizer:
    """The optimizer `optimizer` of `OPTIMIZERS` over `parameters`; `options` go to PyTorch's class as they are.

    >>> make_optimizer("adam", [torch.zeros(1)], lr=0.1).defaults["lr"]
    0.1
    """
    if not isinstance(optimizer, str):
        return optimizer(parameters)
    rule = OPTIMIZERS[optimizer]
    keywords: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, **(options or {})}
    if rule.momentum:
        keywords |= {"momentum": momentum, "nesterov": nesterov}
    elif momentum or nesterov:
        raise UsageError(
            f"got {optimizer} with momentum={momentum}, nesterov={nesterov}; only sgd and gd have them: set"
            " optimizer_options={'betas': ...} for adam and adamw"
        )
    try:
        return rule.make(list(parameters), **keywords)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{optimizer} does not take {keywords}: {error}") from error


def check_optimizer(optimizer: str | OptimizerFactory, full_batch: bool, **settings: Any) -> None:
    """Raise for a name, option or batch size the optimizer cannot have, before anything is trained."""
    if isinstance(optimizer, str):
        make_optimizer(optimizer, [torch.zeros(1)], **settings)
        if OPTIMIZERS[optimizer].full_batch and not full_batch:
            raise UsageError("got optimizer 'gd' with a batch_size; gradient descent uses all items: use 'sgd'")


def optimizer_state(optimizer: optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, dict[str, Tensor]]:
    """A copy of the state of each parameter, by its name."""
    return {
        names[parameter]: {key: value.detach().clone() for key, value in state.items() if isinstance(value, Tensor)}
        for parameter, state in optimizer.state.items()
    }


def forget_state(optimizer: optim.Optimizer, fresh: optim.Optimizer, parameters: Iterable[Tensor]) -> None:
    """Reset the state of `parameters` to that of `fresh`, an optimizer of the same kind that took no step."""
    for parameter in parameters:
        optimizer.state.pop(parameter, None)
        if parameter in fresh.state:
            optimizer.state[parameter] = fresh.state[parameter]


def load_optimizer_state(
    optimizer: optim.Optimizer, parameters: Mapping[str, Tensor], state: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Restore what `optimizer_state` returned; parameters it does not mention start afresh."""
    optimizer.state.clear()
    for name, values in state.items():
        parameter = parameters[name]
        optimizer.state[parameter] = {
            key: value.clone().to(value.device if value.ndim == 0 else parameter.device)
            for key, value in values.items()
        }
