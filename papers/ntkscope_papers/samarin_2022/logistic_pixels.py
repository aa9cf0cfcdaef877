"""Multinomial logistic regression on pixels, the yardstick of Samarin, Roth & Belius (2022), section 4.1."""

from __future__ import annotations

from typing import Any

import torch

from ntkscope_papers.shared.lenet_tasks import Task


def pixel_regression(task: Task, steps: int, device: torch.device) -> dict[str, Any]:
    """Percent right after `steps` iterations of L-BFGS from zero, without a penalty."""
    x, y = task.train.x.flatten(1).to(device, torch.float32), task.train.y.to(device)
    model = torch.nn.Linear(x.shape[1], task.classes).to(device)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=steps, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(model(x), y)
        value.backward()
        return value

    optimizer.step(loss)
    found: dict[str, Any] = {"loss": float(loss().detach()), "iterations": steps}
    with torch.no_grad():
        for where, part in (("train", task.train), ("test", task.test)):
            right = model(part.x.flatten(1).to(device, torch.float32)).argmax(1).cpu() == part.y
            found[where] = round(100 * float(right.double().mean()), 4)
    return found
