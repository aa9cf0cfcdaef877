"""The update rule of stacked networks: PyTorch's own, with one rate for all members or one for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import Params, UsageError
from ntkscope.core.arguments import number
from ntkscope.training.optimizers import forget_state, load_optimizer_state, make_optimizer, optimizer_state
from ntkscope.training.settings import Settings

FUSED = {  # PyTorch has these as one kernel over all parameters
    "cpu": ("adam", "adamw", "sgd", "gd", "adagrad"),
    "cuda": ("adam", "adamw", "sgd", "gd"),
}
RECORDED = {  # rules whose step can be recorded as a CUDA graph, and what they need for it
    "sgd": {},
    "gd": {},
    "adam": {"capturable": True},
    "adamw": {"capturable": True},
    "adadelta": {"capturable": True},
}
# An option that changes how the rate, or the decay, enters the update: members cannot have their own then.
TANGLED = ("lr", "weight_decay", "maximize", "decoupled_weight_decay", "differentiable")


def member_values(name: str, value: Any, members: int) -> tuple[float, ...] | None:
    """One number per member, or None where `value` is a single number.

    >>> member_values("lr", [0.1, 0.2], 2), member_values("lr", 0.1, 2)
    ((0.1, 0.2), None)
    """
    if isinstance(value, Tensor | np.ndarray):
        value = value.tolist()
    if isinstance(value, Set | Mapping):
        raise UsageError(f"got {name}={value!r}, which has no order; expected one number, or a list of one per member")
    if isinstance(value, str) or not isinstance(value, Iterable):
        return None
    values = [number(one, f"{name}[{k}]", low=0) for k, one in enumerate(value)]
    if len(values) != members:
        raise UsageError(f"got {len(values)} values for {name}; expected one number, or {members}, one per member")
    return tuple(values)


class Updates(ABC):
    """An optimizer over stacked parameters, by name. A subclass is final."""

    optimizer: torch.optim.Optimizer
    slots: Params  # the tensors the optimizer acts on

    @abstractmethod
    def scale(self, factor: float) -> None:
        """Set the learning rate to `factor` times what it was at the start."""

    @abstractmethod
    def step(self, gradients: Mapping[str, Tensor | None]) -> None:
        """Update the parameters that have a gradient."""

    @abstractmethod
    def fresh(self) -> torch.optim.Optimizer:
        """An optimizer of the same kind that took no step."""

    def forget(self, names: Iterable[str]) -> None:
        """Drop the state of some parameters."""
        chosen = [self.slots[name] for name in names if name in self.slots]
        if chosen:
            forget_state(self.optimizer, self.fresh(), chosen)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """A copy of the state of every parameter."""
        return optimizer_state(self.optimizer, {tensor: name for name, tensor in self.slots.items()})

    def load(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore what `state` returned."""
        load_optimizer_state(self.optimizer, self.slots, state)
        group = self.optimizer.param_groups[0]
        if group.get("capturable") or group.get("fused"):  # these count their steps where the parameters are
            for tensor, values in self.optimizer.state.items():
                values.update({key: v.to(tensor.device) for key, v in values.items() if v.ndim == 0})


class SharedRate(Updates):
    """One rate for all members: the optimizer acts on the stacked parameters themselves.

    `recorded`: the rate is a tensor, so a recorded step sees it change.
    """

    def __init__(self, settings: Settings, params: Params, recorded: bool = False) -> None:
        self._settings, self.slots, self.recorded = settings, params, recorded
        device = next(iter(params.values())).device
        self._rate = torch.tensor(float(settings.lr), device=device) if recorded else None
        self._factor = 1.0
        self.optimizer = self.fresh()
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def fresh(self) -> torch.optim.Optimizer:
        rule = self._settings.update_rule()
        rule["options"] = _options(self._settings, self.slots, recorded=self.recorded)
        if self._rate is not None:
            rule["lr"] = self._rate
        return make_optimizer(self._settings.optimizer, list(self.slots.values()), **rule)

    def scale(self, factor: float) -> None:
        if self._rate is not None:
            if factor != self._factor:
                self._rate.fill_(self._settings.lr * factor)
                self._factor = factor
            return
        for group, lr in zip(self.optimizer.param_groups, self._rates):
            group["lr"] = lr * factor

    def step(self, gradients: Mapping[str, Tensor | None]) -> None:
        for name, parameter in self.slots.items():
            parameter.grad = gradients.get(name)
        self.optimizer.step()


class OwnRates(Updates):
    """A rate and a decay for each member.

    Every rule of `OPTIMIZERS` moves a parameter by its rate times something that does not depend on the rate or, apart from the
    decay, on the parameter. So the optimizer acts on tensors of zeros at rate 1, which become the moves; member i's is
    multiplied by its rate and added. Decay is added to the gradient, or for "adamw" multiplied onto the parameters, as PyTorch
    does. The rates are a tensor, so a recorded step sees it change.
    """

    def __init__(self, settings: Settings, params: Params, lr: Tensor, weight_decay: Tensor) -> None:
        self._settings, self._params = settings, params
        self.slots = {name: torch.zeros_like(p, requires_grad=False) for name, p in params.items()}
        self.optimizer = self.fresh()
        self._base, self._decay = lr, weight_decay
        self._rates, self._factor = lr.clone(), 1.0
        self._decays = bool((weight_decay != 0).any())

    def fresh(self) -> torch.optim.Optimizer:
        rule = self._settings.update_rule() | {"lr": 1.0, "weight_decay": 0.0}
        rule["options"] = _options(self._settings, self.slots, recorded=True)
        return make_optimizer(self._settings.optimizer, list(self.slots.values()), **rule)

    def scale(self, factor: float) -> None:
        if factor != self._factor:
            torch.mul(self._base, factor, out=self._rates)
            self._factor = factor

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor | None]) -> None:
        decoupled = self._settings.optimizer == "adamw"
        for name, move in self.slots.items():
            gradient, p = gradients.get(name), self._params[name]
            if gradient is not None and self._decays and not decoupled:
                gradient = torch.addcmul(gradient, p, _along(self._decay, p))
            move.grad = gradient
        self.optimizer.step()
        for name, move in self.slots.items():
            if move.grad is None:
                continue
            p = self._params[name]
            rates = _along(self._rates, p)
            if self._decays and decoupled:
                p.mul_(1 - rates * _along(self._decay, p))
            p.addcmul_(move, rates)
        moved = [move for move in self.slots.values() if move.grad is not None]
        if moved:
            torch._foreach_zero_(moved)


def make_updates(
    settings: Settings, params: Params, lr: tuple[float, ...] | None, weight_decay: tuple[float, ...] | None
) -> Updates:
    """The update rule of stacked `params`; `lr` and `weight_decay` of each member, None for those of the settings.

    On a GPU the rate is a tensor, so that a step can be recorded. PyTorch's optimizers read a rate they share in single
    precision, and as a tensor only in some of their ways: otherwise each member has its own there, equal ones perhaps.
    """
    first = next(iter(params.values()))
    given = [values for values in (lr, weight_decay) if values is not None]
    refusal = _tangled(settings)
    if given and refusal:
        raise UsageError(
            f"got lr or weight_decay for each member with {refusal}; expected an optimizer by name whose rate is lr= and whose"
            " decay is weight_decay="
        )
    if all(len(set(values)) == 1 for values in given):
        if first.device.type == "cpu" or refusal:
            return SharedRate(_uniform(settings, lr, weight_decay), params)
        chosen = {"fused", "foreach"} & (settings.optimizer_options or {}).keys()
        if first.dtype == torch.float32 and settings.optimizer in RECORDED and not chosen:
            return SharedRate(_uniform(settings, lr, weight_decay), params, recorded=True)

    def each(values: tuple[float, ...] | None, same: float | int) -> Tensor:
        numbers = [float(same)] * len(first) if values is None else values
        return torch.tensor(numbers, dtype=first.dtype, device=first.device)

    return OwnRates(settings, params, each(lr, settings.lr), each(weight_decay, settings.weight_decay))


def cannot_record(updates: Updates, settings: Settings) -> str | None:
    """Why a step of this rule cannot be recorded as a CUDA graph; None where it can."""
    if isinstance(updates, SharedRate):
        return None if updates.recorded else _tangled(settings)
    return None if settings.optimizer in RECORDED else f"the optimizer {settings.optimizer!r}"


def _uniform(settings: Settings, lr: tuple[float, ...] | None, weight_decay: tuple[float, ...] | None) -> Settings:
    rate = settings.lr if lr is None else lr[0]
    return replace(settings, lr=rate, weight_decay=settings.weight_decay if weight_decay is None else weight_decay[0])


def _tangled(settings: Settings) -> str | None:
    """Why members cannot have rates of their own; None where they can."""
    if not isinstance(settings.optimizer, str):
        return "an optimizer that is a function"
    found = [name for name in TANGLED if name in (settings.optimizer_options or {})]
    return f"optimizer_options {', '.join(found)}" if found else None


def _options(settings: Settings, slots: Params, recorded: bool) -> dict[str, Any]:
    """The options of the optimizer: one kernel for all parameters where PyTorch has one and the caller did not choose."""
    options = dict(settings.optimizer_options or {})
    kind = next(iter(slots.values())).device.type
    if isinstance(settings.optimizer, str):
        if settings.optimizer in FUSED.get(kind, ()) and not {"fused", "foreach"} & options.keys():
            options = {"fused": True, **options}
        if recorded and kind == "cuda":
            options = {**RECORDED.get(settings.optimizer, {}), **options}
    return options


def _along(values: Tensor, like: Tensor) -> Tensor:
    """(k,) as (k, 1, …), to multiply stacked tensors of members."""
    return values.to(like.dtype).reshape(-1, *[1] * (like.ndim - 1))
