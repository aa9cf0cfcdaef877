"""The networks and inputs every candidate of a comparison gets: real data where it is there, else noise, and said so."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import generator
from ntkscope.core.errors import DataNotFound

SIZES = {"lenet": 1024, "mlp": 256, "resnet20": 256}
QUICK_SIZES = {"lenet": 48, "mlp": 32, "resnet20": 8}


@dataclass(frozen=True, eq=False)
class Case:
    """A network with fixed weights and its inputs, float32, evaluation mode; `source` says what they are."""

    name: str
    model: nn.Module
    x: Tensor
    source: str

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)


def case(name: str, n: int) -> Case:
    """The case `name` with its first `n` inputs; the same in every process.

    `lenet` is LeNet-5 on MNIST, `lenet4` the same four times as wide, `mlp` is 784-512-512-512-10 on MNIST, `resnet20`
    is ResNet-20 on CIFAR-10 with the published weights where `$NTKSCOPE_DATA` has them.
    """
    if name in ("lenet", "lenet4"):
        x, source = images("mnist", n)
        model: nn.Module = ns.models.build("lenet", width=4 if name == "lenet4" else 1)
    elif name == "mlp":
        x, source = images("mnist", n)
        x, model = x.flatten(1), mlp(784, 512, 512, 512, 10)
    elif name == "resnet20":
        model = ns.models.build("resnet20")
        weights = Path(os.environ.get("NTKSCOPE_DATA", "")) / "resnet_cifar10" / "resnet20.safetensors"
        x, source = images("cifar10", n, normalise="imagenet")
        if weights.is_file():
            ns.models.load_weights(model, weights)
        source += ", published weights" if weights.is_file() else ", initial weights"
    else:
        raise KeyError(f"no case {name!r}; there are lenet, lenet4, mlp and resnet20")
    return Case(name, model.eval().requires_grad_(True), x.float().contiguous(), source)


def mlp(*widths: int) -> nn.Sequential:
    """A plain ReLU network, seeded, so that every process draws the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def images(name: str, n: int, **options: Any) -> tuple[Tensor, str]:
    """The first `n` training images of `name`, or as many of noise of the same shape."""
    try:
        x = ns.data.load(name, **options).train.x
    except DataNotFound:
        shape = (1, 28, 28) if name == "mnist" else (3, 32, 32)
        return torch.randn(n, *shape, generator=generator(0, "benchmark", name)), f"noise shaped as {name}"
    if len(x) < n:
        raise ValueError(f"{name} has {len(x)} training images; expected at least {n}")
    return x[:n], name


def save(case: Case, path: Path) -> None:
    """Weights, buffers, inputs and outputs as plain arrays, for a peer that has no torch."""
    with torch.no_grad():
        outputs = case.model(case.x[:8])
    arrays = {key: value.detach().numpy() for key, value in case.model.state_dict().items()}
    np.savez(path, **arrays, __x=case.x.numpy(), __outputs=outputs.numpy())


def oracle_trace_ntk(model: nn.Module, x: Tensor) -> Tensor:
    """Σ_c <∂f_c(x_i), ∂f_c(x_j)> by one backward pass an input and output, in float64: what every candidate must meet."""
    import copy

    model = copy.deepcopy(model).double()
    params = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for xi in x.double():
        outputs = model(xi[None])[0]
        gradients = [torch.autograd.grad(output, params, retain_graph=True) for output in outputs]
        rows.append(torch.cat([torch.cat([g.flatten() for g in one]) for one in gradients]))
    jacobian = torch.stack(rows)
    return jacobian @ jacobian.T


def relative_error(K: Tensor, reference: Tensor) -> float:
    """‖K − reference‖_F / ‖reference‖_F."""
    reference = reference.double()
    return float((K.double() - reference).norm() / reference.norm())
