"""Feature matrices by plain autograd, float64, one sample and output at a time: gradients by the inputs of every module call.

A module's own input is differentiated by (a convolution's patches, cut out with `F.unfold`), through that call alone; weights
come from the module's Jacobian. Nothing of the engine is used, and nothing is fast.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ntkscope.models._layers import NTKLinear
from oracles.autograd import double, samples

LINEAR: tuple[type, ...] = (nn.Linear, NTKLinear)
CONVOLUTIONS: tuple[type, ...] = (nn.Conv1d, nn.Conv2d)
KNOWN = (*LINEAR, *CONVOLUTIONS)


@dataclass
class Expected:
    """What one module's feature matrices must be, sums over samples divided by n."""

    agop: Tensor
    ptk: Tensor
    nfm: Tensor
    calls: int = 0


@dataclass
class Calls:
    """The inputs (or patches) and outputs of a module's calls in one forward pass."""

    inputs: list[Tensor] = field(default_factory=list)  # (…, in) or (1, in, positions)
    outputs: list[Tensor] = field(default_factory=list)


def fresh(x: Tensor) -> Tensor:
    """Its own node in the graph: what flows through it comes from this call alone."""
    copied = x.clone()
    return copied if copied.requires_grad else copied.requires_grad_()


def patched(module: Any, x: Tensor, calls: Calls) -> Tensor:
    """A convolution written out: patches, a product for each group."""
    one = isinstance(module, nn.Conv1d)
    if module.padding_mode != "zeros":
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
    padding = module.padding if module.padding_mode == "zeros" else tuple(0 for _ in module.padding)
    image, kernel = (x.unsqueeze(2), (1, *module.kernel_size)) if one else (x, module.kernel_size)
    stride, dilation = ((1, *module.stride), (1, *module.dilation)) if one else (module.stride, module.dilation)
    around = (0, *padding) if one else padding
    size = [
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, p, d, k, t in zip(image.shape[2:], around, dilation, kernel, stride)
    ]
    patches = fresh(F.unfold(image, kernel, dilation, around, stride))  # (1, channels · taps, positions)
    groups = module.groups
    weight = module.weight.reshape(groups, module.out_channels // groups, -1)
    y = (weight @ patches.reshape(groups, -1, patches.shape[2])).reshape(1, module.out_channels, *size)
    y = y.squeeze(2) if one else y
    y = y.clone() if module.bias is None else y + module.bias.view(1, -1, *[1] * (y.dim() - 2))
    calls.inputs.append(patches)
    calls.outputs.append(y)
    return y


@contextlib.contextmanager
def watched(modules: dict[str, nn.Module]) -> Iterator[dict[str, Calls]]:
    """While open, the modules' calls are written down."""
    seen = {name: Calls() for name in modules}
    try:
        for name, module in modules.items():

            def forward(x: Tensor, module: Any = module, calls: Calls = seen[name]) -> Tensor:
                if isinstance(module, CONVOLUTIONS):
                    return patched(module, x, calls).clone()
                calls.inputs.append(fresh(x))
                calls.outputs.append(type(module).forward(module, calls.inputs[-1]).clone())
                return calls.outputs[-1].clone()  # what follows may work in place

            module.__dict__["forward"] = forward
        yield seen
    finally:
        for module in modules.values():
            del module.__dict__["forward"]


def columns(module: nn.Module, gradient: Tensor) -> Tensor:
    """Gradients as rows, one for each position."""
    if isinstance(module, CONVOLUTIONS):
        return gradient.flatten(2)[0].T
    return gradient.reshape(-1, gradient.shape[-1])


def jacobian(module: Any) -> Tensor:
    """The weights (out, in) as the module's inputs meet them; groups are blocks."""
    if type(module) in CONVOLUTIONS:
        blocks = module.weight.detach().reshape(module.groups, module.out_channels // module.groups, -1)
        return torch.block_diag(*blocks)
    zero = torch.zeros(module.in_features, dtype=torch.float64)
    return torch.autograd.functional.jacobian(module, zero)


def expected(model: nn.Module, x: Any, outputs: Sequence[int] | None = None) -> dict[str, Expected]:
    """For every module of a known kind that a forward pass calls, by name."""
    model = copy.deepcopy(model).double()
    modules = {name or "weight": m for name, m in model.named_modules() if type(m) in KNOWN}
    found: dict[str, Expected] = {}
    n = 0
    for one in samples(double(x)):
        n += 1
        with watched(modules) as seen, torch.enable_grad():
            values = model(*one) if isinstance(one, tuple) else model(one)
        for name, calls in seen.items():
            if calls.inputs and name not in found:
                W = jacobian(modules[name])
                found[name] = Expected(W.new_zeros(W.shape[1], W.shape[1]), W.new_zeros(len(W), len(W)), W.T @ W)
            for a, h in zip(calls.inputs, calls.outputs):
                found[name].calls += 1
                for c in outputs or range(values.shape[1]):
                    da, dh = torch.autograd.grad(values[0, c], [a, h], retain_graph=True, allow_unused=True)
                    if da is not None:
                        rows = columns(modules[name], da)
                        found[name].agop += rows.T @ rows
                        rows = columns(modules[name], dh)
                        found[name].ptk += rows.T @ rows
    for one_found in found.values():
        one_found.agop /= n
        one_found.ptk /= n
    return found
