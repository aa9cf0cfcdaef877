"""A training written out as one function of everything it depends on, so that autograd differentiates it as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

EachLoss = Callable[[Tensor, Tensor], Tensor]


def _smoothed(outputs: Tensor, targets: Tensor, share: float = 0.0) -> Tensor:
    logs = outputs - outputs.exp().sum(1, keepdim=True).log()
    return -(1 - share) * logs[torch.arange(len(targets)), targets] - share * logs.mean(1)


LOSSES: dict[str, EachLoss] = {
    "cross_entropy": _smoothed,
    "smoothed": lambda o, y: _smoothed(o, y, 0.1),
    "mse": lambda o, y: ((o - torch.eye(o.shape[1], dtype=o.dtype)[y]) ** 2).mean(1),
    "l1": lambda o, y: (o - torch.eye(o.shape[1], dtype=o.dtype)[y]).abs().mean(1),
    "bce": lambda o, y: (torch.log1p(o.exp()) - o * y).mean(1),
    "function": lambda o, y: (o[torch.arange(len(y)), y] - 1).cosh() - 1,
}


@dataclass(frozen=True)
class Training:
    """What a training does at each step: rows, inputs and targets, the factor on the rate, and who learns."""

    model: nn.Module
    batches: Sequence[tuple[Tensor, Any, Tensor]]
    factors: Sequence[float]
    learning: Sequence[set[str]]
    loss: EachLoss
    items: Tensor | None  # weights that the training had of its own
    seed: int  # of the stream that dropout draws from


@dataclass(frozen=True)
class Optimizer:
    """Numbers of an update, by PyTorch's names."""

    kind: str
    lr: float
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


def derivatives(
    training: Training, optimizer: Optimizer, of: Callable[[Callable[..., Tensor]], Tensor], at: Tensor
) -> dict[str, Any]:
    """Values of `of(call)` after the training, and their derivatives; `call(x)` is the network, in evaluation mode."""
    model = training.model
    initial = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    weights = at.clone().requires_grad_()
    rates = torch.zeros(len(training.batches), dtype=at.dtype, requires_grad=True)
    decay = torch.tensor(optimizer.weight_decay, dtype=at.dtype, requires_grad=True)
    end = _end(training, optimizer, initial, weights, rates, decay)

    def call(*args: Any, **named: Any) -> Tensor:
        model.eval()
        return functional_call(model, end, args, named)

    values = of(call)
    inputs = [weights, rates, decay, *initial.values()]
    rows = [
        torch.autograd.grad(v, inputs, retain_graph=True, materialize_grads=True, allow_unused=True) for v in values
    ]
    by = [torch.stack(part) for part in zip(*rows)]
    return {
        "values": values.detach(),
        "weights": by[0],
        "rate": by[1],
        "decay": by[2],
        "initial": dict(zip(initial, by[3:])),
        "end": {name: value.detach() for name, value in end.items()},
    }


def _end(
    training: Training,
    optimizer: Optimizer,
    initial: Mapping[str, Tensor],
    weights: Tensor,
    rates: Tensor,
    decay: Tensor,
) -> dict[str, Tensor]:
    model, theta = training.model, dict(initial)
    first: dict[str, Tensor] = {}
    second: dict[str, Tensor] = {}
    count = dict.fromkeys(theta, 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        for step, (rows, x, y) in enumerate(training.batches):
            model.train()
            here = {name: value.clone() for name, value in theta.items()}  # its own gradient, without the past's
            outputs = functional_call(model, here, (), x) if isinstance(x, dict) else functional_call(model, here, (x,))
            each = training.loss(outputs, y) * weights[rows]
            if training.items is None:
                total = each.sum() / len(rows)
            else:
                total = (each * training.items[rows]).sum() * len(weights) / len(rows)
            names = sorted(training.learning[step])
            gradients = torch.autograd.grad(total, [here[n] for n in names], create_graph=True)
            rate = optimizer.lr * training.factors[step] * rates[step].exp()
            for name, g in zip(names, gradients):
                count[name] += 1
                theta[name] = _update(optimizer, theta[name], g, name, first, second, count[name], rate, decay)
    return theta


def _update(
    o: Optimizer,
    theta: Tensor,
    g: Tensor,
    name: str,
    first: dict[str, Tensor],
    second: dict[str, Tensor],
    t: int,
    rate: Tensor,
    decay: Tensor,
) -> Tensor:
    if o.kind == "sgd":
        g = g + decay * theta
        if o.momentum:
            first[name] = g if t == 1 else o.momentum * first[name] + (1 - o.dampening) * g
            g = g + o.momentum * first[name] if o.nesterov else first[name]
        return theta - rate * g
    if o.kind == "adamw":
        theta = theta - rate * decay * theta
    else:
        g = g + decay * theta
    a, b = o.betas
    first[name] = (1 - a) * g + (a * first[name] if t > 1 else 0)
    second[name] = (1 - b) * g**2 + (b * second[name] if t > 1 else 0)
    seen = second[name] > 0  # where no gradient ever came nothing moves
    root = torch.where(seen, second[name], 1.0).sqrt() * seen / math.sqrt(1 - b**t)
    return theta - rate * (first[name] / (1 - a**t)) / (root + o.eps)
