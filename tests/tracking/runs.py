"""Small training runs, with a tracker or without, and everything a training run leaves behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ntkscope as ns
from oracles.unchanged import bits

ALL = 1e6  # an overhead at which everything due can be afforded


def network(seed: int = 0) -> nn.Module:
    """Convolution, BatchNorm and Dropout: what makes training depend on modes, buffers and random states."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(64, 8),
            nn.ReLU(),
            nn.Linear(8, 3),
        )


def data(n: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, 6, 6, generator=draw), torch.arange(n) % 3


def tracker(model: nn.Module, out: Path, **options: Any) -> ns.Tracker:
    options = {"total": 8, "overhead": ALL, "when": [1, 2, 3, 5, 8], **options}
    return ns.Tracker(model, options.pop("probe", data(12, 1)), out, **options)


def train(
    model: nn.Module,
    told: Callable[[Tensor, int], None] | None = None,
    *,
    steps: int = 8,
    accumulate: int = 1,
    autocast: bool = False,
    run: nn.Module | None = None,
) -> dict[str, Any]:
    """A plain loop with momentum; returns all that it leaves: weights, buffers, optimizer, gradients, modes, random states."""
    x, y = data()
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 - the global state is what is watched
    called = model if run is None else run
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model.train()
        model[1].eval()  # a frozen BatchNorm among the others: modes are restored one by one
        model[1].train()
        rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
        for step in range(steps):
            for part in range(accumulate):
                rows = torch.randperm(len(x))[:12] if part == 0 else torch.arange(12)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                    loss = nn.functional.cross_entropy(called(x[rows]), y[rows]) / accumulate
                loss.backward()
            rule.step()
            if told is not None:
                told(loss, step + 1)  # before the gradients are cleared: they must stay
            grads = {name: bits(p.grad) for name, p in model.named_parameters() if p.grad is not None}
            rule.zero_grad()
        state = torch.get_rng_state()
    return {
        "weights": {name: bits(value) for name, value in model.state_dict().items()},
        "optimizer": [bits(s["momentum_buffer"]) for s in rule.state.values()],
        "gradients": grads,
        "modes": [module.training for module in model.modules()],
        "flags": [p.requires_grad for p in model.parameters()],
        "random": (bits(state), random.random(), float(np.random.rand())),  # noqa: NPY002
    }


def rows(folder: Path, name: str, drop: tuple[str, ...] = ("seconds", "cost", "waited")) -> list[dict[str, Any]]:
    """The rows of a series, without what differs from run to run."""
    return [{k: v for k, v in row.items() if k not in drop} for row in ns.Record.open(folder).series(name)]
