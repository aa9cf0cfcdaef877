"""Updates of plain optimizers as differentiable functions of parameters, gradients and moments.

PyTorch's own `differentiable=True` detaches the first momentum buffer from its gradient, so later steps would miss a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ntkscope.core import UsageError

Moments: TypeAlias = dict[str, Tensor]
Rule: TypeAlias = Callable[[Mapping[str, Any], Tensor, Tensor, Moments, Any, Any], tuple[Tensor, Moments]]
"""Of the options, a parameter, its gradient, its moments, a rate and a weight decay: the parameter and moments after it."""
REFUSED = ("maximize", "amsgrad", "capturable", "differentiable")


def sgd(
    options: Mapping[str, Any], theta: Tensor, gradient: Tensor, moments: Moments, rate: Any, decay: Any
) -> tuple[Tensor, Moments]:
    """`b ← μ b + (1 - τ) g`, `θ ← θ - η b`, or `θ - η (g + μ b)` for Nesterov; g with the weight decay's part."""
    gradient = gradient + decay * theta
    mu = options["momentum"]
    if not mu:
        return theta - rate * gradient, {}
    before = moments.get("momentum_buffer")
    buffer = gradient if before is None else mu * before + (1 - options["dampening"]) * gradient
    return theta - rate * (gradient + mu * buffer if options["nesterov"] else buffer), {"momentum_buffer": buffer}


def adam(
    options: Mapping[str, Any], theta: Tensor, gradient: Tensor, moments: Moments, rate: Any, decay: Any
) -> tuple[Tensor, Moments]:
    """`m ← β₁ m + (1 - β₁) g`, `v ← β₂ v + (1 - β₂) g²`, `θ ← θ - η m̂ / (√v̂ + ε)`."""
    return _adam(options, theta, gradient + decay * theta, moments, rate)


def adamw(
    options: Mapping[str, Any], theta: Tensor, gradient: Tensor, moments: Moments, rate: Any, decay: Any
) -> tuple[Tensor, Moments]:
    """Adam after `θ ← (1 - η λ) θ`."""
    return _adam(options, theta * (1 - rate * decay), gradient, moments, rate)


def _adam(
    options: Mapping[str, Any], theta: Tensor, gradient: Tensor, moments: Moments, rate: Any
) -> tuple[Tensor, Moments]:
    first, second = options["betas"]
    zero = torch.zeros_like(theta)
    step = moments.get("step", torch.zeros(())).detach() + 1
    mean = first * moments.get("exp_avg", zero) + (1 - first) * gradient
    square = second * moments.get("exp_avg_sq", zero) + (1 - second) * gradient.square()
    positive = square > 0  # where no gradient ever came the root has no derivative, and the mean is 0 too
    root = torch.where(positive, square, 1.0).sqrt() * positive
    size = 1 - second ** float(step)
    theta = theta - rate / (1 - first ** float(step)) * mean / (root / size**0.5 + options["eps"])
    return theta, {"step": step, "exp_avg": mean, "exp_avg_sq": square}


RULES: dict[type[torch.optim.Optimizer], Rule] = {
    torch.optim.SGD: sgd,
    torch.optim.Adam: adam,
    torch.optim.AdamW: adamw,
}


def update_rules(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, tuple[Rule, Mapping[str, Any]]]:
    """The rule of every parameter that `optimizer` holds, and its options; any other optimizer is refused by name.

    >>> model = nn.Linear(1, 1)
    >>> sorted(update_rules(torch.optim.SGD(model.parameters(), lr=0.1), model))
    ['bias', 'weight']
    """
    rule = RULES.get(type(optimizer))
    if rule is None:
        raise UsageError(
            f"got {type(optimizer).__name__}, whose update has no derivative here; expected one of"
            f" {', '.join(kind.__name__ for kind in RULES)}: train with one of them to replay the training"
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise UsageError("got an optimizer with hooks, which change its steps; expected one without")
    names = {parameter: name for name, parameter in model.named_parameters()}
    rules: dict[str, tuple[Rule, Mapping[str, Any]]] = {}
    for group in optimizer.param_groups:
        on = [name for name in REFUSED if group.get(name)]
        if rule is adam and group.get("decoupled_weight_decay"):
            on.append("decoupled_weight_decay")
        if on:
            raise UsageError(f"got {type(optimizer).__name__} with {on[0]}=True, which is not replayed; leave it out")
        options = {key: value for key, value in group.items() if key != "params"}
        options |= {"lr": float(group.get("initial_lr", group["lr"])), "weight_decay": float(group["weight_decay"])}
        for parameter in group["params"]:
            if parameter not in names:
                raise UsageError(
                    "the optimizer holds a tensor that is no parameter of the model; expected its parameters"
                )
            rules[names[parameter]] = (rule, options)
    return rules


def updated(
    rules: Mapping[str, tuple[Rule, Mapping[str, Any]]],
    params: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    moments: Mapping[str, Mapping[str, Tensor]],
    factor: Any,
    decay: Any,
) -> tuple[dict[str, Tensor], dict[str, Moments]]:
    """The parameters and moments after an update of those with a gradient: rates times `factor`, decays plus `decay`."""
    new, after = dict(params), {name: dict(state) for name, state in moments.items()}
    for name, gradient in gradients.items():
        rule, options = rules[name]
        rate, strength = options["lr"] * factor, options["weight_decay"] + decay
        new[name], made = rule(options, params[name], gradient, after.get(name, {}), rate, strength)
        if made:
            after[name] = made
    return new, after
