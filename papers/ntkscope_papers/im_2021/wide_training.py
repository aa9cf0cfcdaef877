"""Wide networks with a scaled output, trained to convergence and compared with NTK regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope import infinite
from ntkscope.core import NumericalError, generator
from ntkscope_papers.im_2021.wide import dense_ntk, relu_network


def descend(
    model: nn.Module,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    *,
    lr: float,
    kappa: float = 1.0,
    tolerance: float = 1e-3,
    steps: int = 5000,
) -> dict[str, Any]:
    """Full-batch gradient descent of κ f on ½ Σ (κ f − y)² until no residual exceeds `tolerance`; changes `model`.

    The step is halved whenever the loss rises: a network that moves far enough becomes sharper during training.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    worst = before = float("inf")
    for step in range(steps + 1):
        residual = kappa * model(x)[:, 0] - y
        worst = float(residual.detach().abs().max())
        if worst < tolerance:
            return {"steps": step, "residual": worst}
        if not np.isfinite(worst):
            break
        loss = residual.square().sum() / 2
        lr, before = lr / 2 if float(loss.detach()) > before else lr, float(loss.detach())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, g in zip(parameters, gradients):
                p.sub_(g, alpha=lr)
    raise NumericalError(
        f"a residual of {worst:.3g} was left after {step} steps of {lr:.3g}; expected less than {tolerance:g}:"
        " take a smaller learning rate, or a wider network"
    )


@dataclass(frozen=True, eq=False)
class Task:
    """A few unit vectors with random signs, as many unit vectors to test on, and the limit's kernel of all of them."""

    x: Tensor
    y: Tensor
    net: Any
    K: Tensor

    @classmethod
    def of(cls, *, items: int, test_items: int, dimension: int, hidden: int, seed: int) -> Task:
        draw = generator(seed, "task")
        x = torch.randn(items + test_items, dimension, generator=draw, dtype=torch.float64)
        x = x / x.norm(dim=1, keepdim=True)
        y = torch.randint(0, 2, (items,), generator=draw).double() * 2 - 1
        net = relu_network(dimension, hidden)
        return cls(x, y, net, infinite.kernel(net, x).dense())

    def regression(self) -> dict[str, Any]:
        """NTK regression on its own training inputs, and against the closed form of training without end."""
        n = len(self.y)
        H = self.K[:n, :n]
        values = torch.linalg.eigvalsh(H)
        fitted = infinite.kernel_regression(H, self.y, H)
        predicted = infinite.kernel_regression(H, self.y, self.K[n:, :n])
        ended = infinite.dynamics(H, self.y).predict(self.K[n:, :n]).mean[:, 0]
        return {
            "smallest eigenvalue": float(values[0]),
            "largest eigenvalue": float(values[-1]),
            "training error": float((fitted - self.y).abs().max()),
            "against dynamics": float((predicted - ended).abs().max()),
            "spread of predictions": float(predicted.std()),
        }

    def trained(self, width: int, kappa: float, seed: int) -> dict[str, Any]:
        """A network of output κ f trained to convergence: how far from NTK regression, how far its weights and NTK moved."""
        n = len(self.y)
        x, y = self.x.float(), self.y.float()
        model = infinite.finite(self.net, (self.x.shape[1],), width, seed=seed)
        started = [p.detach().clone() for p in model.parameters()]
        before = dense_ntk(model, x)
        top = float(torch.linalg.eigvalsh(before[:n, :n])[-1])
        found = descend(model, x[:n], y, lr=0.5 / (kappa**2 * top), kappa=kappa)
        with torch.no_grad():
            outputs = kappa * model(x[n:])[:, 0].double()
        expected = infinite.kernel_regression(self.K[:n, :n], self.y, self.K[n:, :n])
        after = dense_ntk(model, x)
        return {
            **found,
            "difference": float((outputs - expected).abs().max()),
            "kernel": float((after - before).norm() / before.norm()),
            "weights": [float((p.detach() - w).norm() / w.norm()) for p, w in zip(model.parameters(), started)],
        }
