"""Networks to linearise, in float64 with smooth activations, and their Jacobian one output at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ntkscope as ns
from strategies.named import used
from strategies.networks import Net, randomize


class Sine(torch.autograd.Function):
    """sin, with a backward pass that can be differentiated and no forward mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0].cos()


class SineModule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Sine.apply(x)


def smooth(model: nn.Module) -> nn.Module:
    """ReLU as SiLU and max-pooling as average pooling, everywhere."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.SiLU())
            elif isinstance(child, nn.MaxPool2d):
                setattr(module, name, nn.AvgPool2d(child.kernel_size))
    return model


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lenet() -> tuple[nn.Module, Any]:
    return smooth(ns.models.build("lenet")), noise(2, 1, 28, 28)


def resnet20() -> tuple[nn.Module, Any]:
    return used(smooth(ns.models.build("resnet20"))), noise(2, 3, 32, 32)


def tied() -> tuple[nn.Module, Any]:
    """One matrix, as a layer and transposed in the readout."""
    parts = {"first": nn.Linear(4, 4), "second": nn.Linear(4, 3)}
    again = nn.Linear(4, 4, bias=False)
    again.weight = parts["first"].weight
    model = Net(
        lambda m, x: m.second(torch.tanh(F.linear(torch.tanh(m.first(x)), m.again.weight.T))), again=again, **parts
    )
    return randomize(model), noise(5, 4)


def twice() -> tuple[nn.Module, Any]:
    model = Net(
        lambda m, x: m.head(torch.tanh(m.body(torch.tanh(m.body(x))))), body=nn.Linear(4, 4), head=nn.Linear(4, 3)
    )
    return randomize(model), noise(5, 4)


def no_forward_mode() -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(4, 6), SineModule(), nn.Linear(6, 3))
    return randomize(model), noise(5, 4)


def hidden_from_autograd() -> tuple[nn.Module, Any]:
    """A scale computed without gradients: forward mode sees through `no_grad`, reverse mode does not."""

    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = m.body(x).square().mean(1, keepdim=True)
        return m.head(torch.tanh(m.body(x)) * (1 + scale))

    return randomize(Net(forward, body=nn.Linear(4, 5), head=nn.Linear(5, 3))), noise(5, 4)


def attention() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation="gelu", batch_first=True)
    model = Net(lambda m, x: m.head(m.layer(x).mean(1)), layer=layer, head=nn.Linear(8, 3))
    return randomize(model), noise(3, 4, 8)


SMALL: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "tied": tied,
    "twice": twice,
    "no_forward_mode": no_forward_mode,
    "hidden_from_autograd": hidden_from_autograd,
    "attention": attention,
}
LARGE: dict[str, Callable[[], tuple[nn.Module, Any]]] = {"lenet": lenet, "resnet20": resnet20}


def build(name: str) -> tuple[nn.Module, Any]:
    """A case in float64, in evaluation mode."""
    model, x = {**SMALL, **LARGE}[name]()
    return model.double().eval(), x


def explicit_gradient(model: nn.Module, x: Any, weights: Tensor) -> dict[str, Tensor]:
    """`Σ_il weights_il ∇f^l(x_i)`, one output of one sample at a time (Eq. 3)."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for i in range(len(weights)):
        one = {k: v[i : i + 1] for k, v in x.items()} if isinstance(x, dict) else x[i : i + 1]
        outputs = call(model, one)[0]
        for k in range(len(outputs)):
            grads = torch.autograd.grad(outputs[k], list(parameters.values()), retain_graph=True, allow_unused=True)
            for name, grad in zip(parameters, grads):
                total[name] += weights[i, k] * (torch.zeros_like(total[name]) if grad is None else grad)
    return total


def call(model: nn.Module, x: Any) -> Tensor:
    found = model(**x) if isinstance(x, dict) else model(x)
    return found if isinstance(found, Tensor) else found.logits


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """J, (n c) × p, one output of one sample at a time."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(len(x)):
        for output in model(x[i : i + 1])[0]:
            grads = torch.autograd.grad(output, parameters, retain_graph=True, allow_unused=True)
            rows.append(
                torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(grads, parameters)])
            )
    return torch.stack(rows)
