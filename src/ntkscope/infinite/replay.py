"""A translation checked against the network: the layers, run at the network's own weights, must give the same outputs.

A tree of modules tells what is in a network, not what its forward pass does with it. Both are run in float64 on a few
inputs, on a copy; where they differ the translation is refused, and the first module that differs is named.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ntkscope.core import UsageError
from ntkscope.infinite.layer import Layer, Shape
from ntkscope.infinite.registry import Step
from ntkscope.infinite.rules.concat import Concat
from ntkscope.infinite.rules.conv import Conv, convolve
from ntkscope.infinite.rules.dense import Dense
from ntkscope.infinite.rules.residual import Sum
from ntkscope.infinite.rules.serial import Serial
from ntkscope.models._layers import NTKLinear

DRAWN = 3  # inputs drawn besides the caller's, of the sizes 1, 1/8 and 8 times theirs
TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-3}  # of a sample's largest output; rounding is far below
REFUSED = (RuntimeError, ValueError, TypeError, IndexError)


def hold_to_network(net: nn.Module, layers: Layer, steps: Sequence[Step], samples: Sequence[Tensor]) -> None:
    """Raise an error if `layers`, made from `net` in `steps`, compute something other than `net` does on `samples`.

    `net` is not touched: a copy runs, once, and the random state is restored. O(one forward pass of a few inputs).
    """
    x = _inputs(samples, net)
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        copied, own, x, said = _run(net, steps, x)
        replay = Replay.of(own)
        if not same(said, replay(layers, x)):
            raise UsageError(_difference(copied, own, replay, x, type(net).__name__))


def _run(net: nn.Module, steps: Sequence[Step], x: Tensor) -> tuple[nn.Module, list[Step], Tensor, Any]:
    """A copy of the network, its steps, the inputs and its outputs for them: in float64, or else in its own precision."""
    for dtype in (torch.float64, next((p.dtype for p in net.parameters()), torch.float32)):
        copied, own = _copies(net, steps)
        copied, x = copied.to(dtype), x.to(dtype)
        try:
            return copied, own, x, copied(x.clone())
        except REFUSED as error:
            # Tensors that are neither parameters nor buffers stay in the precision they have.
            if dtype == torch.float64 and any(words in str(error) for words in ("dtype", "same type", "scalar type")):
                continue
            raise UsageError(
                f"{type(net).__name__} itself does not run on inputs of shape {tuple(x.shape)}: {error}; expected a network"
                " that PyTorch runs on them"
            ) from error
    raise UsageError(
        f"{type(net).__name__} runs neither in float64 nor in its own precision; expected it to take its own dtype"
    )


def _copies(net: nn.Module, steps: Sequence[Step]) -> tuple[nn.Module, list[Step]]:
    try:
        copied, modules = copy.deepcopy((net, [step.module for step in steps]))
    except REFUSED as error:
        raise UsageError(
            f"{type(net).__name__} could not be copied, so its layers cannot be checked: {error}; expected a module that"
            " copy.deepcopy copies"
        ) from error
    return copied, [Step(step.path, module, step.layer) for step, module in zip(steps, modules)]


def _inputs(samples: Sequence[Tensor], net: nn.Module) -> Tensor:
    """The caller's samples and a few drawn ones of their size."""
    where = next((p.device for p in net.parameters()), samples[0].device)
    x = torch.cat([s.detach().to(where, torch.float64) for s in samples])
    size = x.square().mean().sqrt()
    size = size if bool(torch.isfinite(size)) and float(size) > 0 else torch.ones_like(size)
    drawn = torch.randn(DRAWN, *x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(where)
    factors = torch.tensor([1.0, 0.125, 8.0], dtype=torch.float64, device=where).reshape(-1, *[1] * (x.dim() - 1))
    return torch.cat([x, drawn * factors * size])


def same(one: Any, two: Tensor) -> bool:
    """Equal up to rounding, sample by sample; a mean over the image may be (n, c) or (n, c, 1, 1)."""
    if not isinstance(one, Tensor) or len(one) != len(two) or one.numel() != two.numel():
        return False
    if one.dim() == two.dim() and one.shape != two.shape:
        return False
    a, b = one.double().flatten(1), two.double().flatten(1)
    scale = torch.maximum(a.abs().amax(1, keepdim=True), b.abs().amax(1, keepdim=True))
    off = (a - b).abs() <= TOLERANCES.get(one.dtype, 1e-3) * scale
    return bool((off | (a == b) | (a.isnan() & b.isnan())).all())


def _difference(net: nn.Module, steps: Sequence[Step], replay: Replay, x: Tensor, name: str) -> str:
    """Which module is the first to differ from its layer, on what it is given in the network."""
    calls: dict[int, list[tuple[Tensor, Any]]] = {}
    inputs: dict[int, list[Tensor]] = {}

    def before(module: nn.Module, given: tuple[Any, ...]) -> None:
        inputs.setdefault(id(module), []).append(given[0].clone())

    def after(module: nn.Module, given: tuple[Any, ...], out: Any) -> None:
        out = out.clone() if isinstance(out, Tensor) else out
        calls.setdefault(id(module), []).append((inputs[id(module)].pop(), out))

    for module in {id(step.module): step.module for step in steps}.values():
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
    net(x.clone())
    for step in steps:
        where = f"{type(step.module).__name__} (at {step.path!r})" if step.path else name
        if id(step.module) not in calls:
            return f"{where} is in the network but its forward pass does not call it; expected a forward pass that does"
        for given, out in calls[id(step.module)]:
            if not same(out, replay(step.layer, given)):
                return (
                    f"{where} computes something other than its infinite-width layer {step.layer!r} does at the same weights;"
                    " expected PyTorch's own forward pass, without hooks or patches, or a rule of yours that says what it is:"
                    " see docs/howto/add-an-infinite-rule.md"
                )
    return (
        f"{name} computes something other than its layers do at the same weights; expected a forward pass that calls each"
        " module once, in the order of the tree, and changes nothing in between"
    )


@dataclass
class Replay:
    """Layers run at the weights of the modules they stand for.

    Where a rule makes affine layers of its own, nothing says at which weights they would be: the module itself runs there,
    and the rule is trusted.
    """

    bound: dict[int, nn.Module] = field(default_factory=dict)
    opaque: dict[int, tuple[int, nn.Module]] = field(default_factory=dict)
    _kept: list[Layer] = field(default_factory=list)

    @staticmethod
    def of(steps: Sequence[Step]) -> Replay:
        made = Replay()
        covered: set[int] = set()
        for step in steps:
            made._kept.append(step.layer)
            affine = [each for each in _leaves(step.layer) if isinstance(each, Dense | Conv)]
            if isinstance(step.module, nn.Linear | nn.Conv1d | nn.Conv2d | NTKLinear) and affine == [step.layer]:
                made.bound[id(step.layer)] = step.module
            elif any(id(each) not in made.bound and id(each) not in covered for each in affine):
                parts = step.layer.layers if isinstance(step.layer, Serial) else (step.layer,)
                made.opaque[id(parts[0])] = (len(parts), step.module)
            covered |= {id(each) for each in affine}
        return made

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        layers = layer.layers if isinstance(layer, Serial) else (layer,)
        i = 0
        while i < len(layers):
            each = layers[i]
            count, module = self.opaque.get(id(each), (1, None))
            x = module(x.clone()) if module is not None else self._one(each, x)
            i += count
        return x

    def _one(self, layer: Layer, x: Tensor) -> Tensor:
        if isinstance(layer, Sum):
            return reduce(lambda a, b: a + b, [self(branch, x) for branch in layer.branches])
        if isinstance(layer, Concat):
            return torch.cat([self(branch, x) for branch in layer.branches], dim=1)
        if isinstance(layer, Dense | Conv):
            weight, bias = _weights(self.bound[id(layer)])
            return functional.linear(x, weight, bias) if isinstance(layer, Dense) else convolve(layer, x, weight, bias)
        return layer.finite(Shape(x.shape[1], tuple(x.shape[2:])), 1, None)(x.clone())


def _weights(module: Any) -> tuple[Tensor, Tensor | None]:
    """The weight and the bias an affine module multiplies with and adds."""
    if isinstance(module, NTKLinear):
        return module.weight * module.weight_scale, None if module.bias is None else module.bias * module.sigma_b
    return module.weight, module.bias


def _leaves(layer: Layer) -> Iterator[Layer]:
    """The layers inside that have none inside themselves."""
    inside = (*getattr(layer, "layers", ()), *getattr(layer, "branches", ()))
    if not inside:
        yield layer
    for each in inside:
        yield from _leaves(each)
