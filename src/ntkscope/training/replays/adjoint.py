"""The adjoint of a training step: how the end of a training depends on the state before it, and on the step itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, Params, Snapshot
from ntkscope.training.replays.loop import Loop, padding_rows, refuse_moving_buffers
from ntkscope.training.replays.products import Products
from ntkscope.training.replays.updates import updated

ROUNDING = 64  # units in the last place by which a step, computed again, may differ
SAME = {torch.float32: 1e-4, torch.float64: 1e-8}  # and by this share of the update of each parameter
NOISE = 100  # units in the last place of the whole gradient, below which that of a parameter is rounding
SAME_ON_GPU = (
    1e-2  # of the whole update: sums are not in one order there, and Adam enlarges the rounding of what is near 0
)


Key: TypeAlias = tuple[str, str]  # a parameter, and which of its numbers: one of INPUTS, or the name of a moment
INPUTS = PARAMETER, GRADIENT, RATE, DECAY = "", "gradient", "rate", "decay"


@dataclass(frozen=True)
class Adjoint:
    """Derivatives of k functions of the end, with respect to the state before a step."""

    params: Params
    moments: Params = field(default_factory=dict)  # by "parameter/moment"


@dataclass(frozen=True)
class Pulled:
    """One step further back: the adjoint before the step, and the derivatives with respect to what the step was given."""

    before: Adjoint
    weights: Float[Tensor, "k b"]
    rate: Float[Tensor, " k"]
    decay: Float[Tensor, " k"]


def pull(
    loop: Loop, products: Products, state: Snapshot, after: Snapshot, adjoint: Adjoint, weights: Tensor, check: bool
) -> Pulled:
    """One step back, from `after` to `state`; `adjoint` is used up.

    A step is `g = ∂L/∂θ`, then an update of each number alone. The update's own derivative gives the adjoints u of g; then
    `∂²L/∂θ² u` joins those of θ, and `∂²L/∂w∂θ u` is those of the weights of the batch.
    """
    refuse_moving_buffers(loop, state, after)
    batch = loop.batch(state.step)
    on = weights[batch[0]]
    gradient = products.gradient(state, batch, on, sorted(loop.learning(state.step) & loop.rules.keys()))
    cotangents, before, rate, decay = _through_update(loop, state, after, gradient, adjoint)
    for name, row in padding_rows(loop.model).items():  # never learned: the gradient there is 0, whatever the loss is
        if name in cotangents:
            cotangents[name][:, row] = 0
    curved, by_item = products(state, batch, on, gradient, cotangents, check)
    for name, value in before.params.items():
        value.add_(curved[name])
    return Pulled(before, by_item, rate, decay)


def _through_update(
    loop: Loop, state: Snapshot, after: Snapshot, gradient: Params, adjoint: Adjoint
) -> tuple[Params, Adjoint, Tensor, Tensor]:
    """The adjoints of gradients, parameters and moments, of the rate's logarithm and of the decay."""
    params, raw = _leaves(state.params), _leaves(gradient)
    moments = {
        name: {key: value if key == "step" else value.detach().requires_grad_() for key, value in one.items()}
        for name, one in state.optimizer.items()
    }
    factors, decays = ({n: torch.full_like(v, at, requires_grad=True) for n, v in raw.items()} for at in (1.0, 0.0))
    with torch.enable_grad():
        clipped = loop.clipped(raw)
        given = _leaves(clipped)
        rates = {name: value * loop.factor(state.step) for name, value in factors.items()}
        new, made = updated(loop.rules, params, given, moments, rates, decays)
    _same_step(state, after, new, gradient)
    inputs = {(n, key): one[n] for key, one in zip(INPUTS, (params, given, factors, decays)) for n in given}
    inputs |= {(n, key): v for n in given for key, v in moments.get(n, {}).items() if v.requires_grad}
    outputs = {(n, PARAMETER): (adjoint.params[n], new[n]) for n in given}
    others = dict(adjoint.moments)  # of parameters that this step leaves alone
    for name in given:
        for key, value in made.get(name, {}).items():
            cotangent = others.pop(f"{name}/{key}", None)
            if cotangent is not None:
                outputs[name, key] = cotangent, value
    found = _pulled(outputs, inputs)
    cotangents = {name: found[name, GRADIENT] for name in given}
    if clipped is not raw:
        by = torch.autograd.grad(
            list(clipped.values()), list(raw.values()), list(cotangents.values()), is_grads_batched=True
        )
        cotangents = dict(zip(cotangents, by))
    before = Adjoint(
        adjoint.params | {name: found[name, PARAMETER] for name in given},
        others | {f"{n}/{key}": value for (n, key), value in found.items() if key not in INPUTS},
    )
    rate, decay = (torch.stack([found[name, key] for name in given]).sum(0) for key in (RATE, DECAY))
    return cotangents, before, rate, decay


def _pulled(outputs: Mapping[Key, tuple[Tensor, Tensor]], inputs: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """The adjoints of `inputs` from those of `outputs`, each with its value; of rates and decays, their sum over a parameter.

    An update changes each number alone. So the derivative of an output is a vector, the same for all functions, and autograd
    gives it for ones.
    """
    found: dict[Key, Tensor] = {}
    for kind in dict.fromkeys(key for _, key in outputs):
        values = [value for (_, key), (_, value) in outputs.items() if key == kind]
        slopes = torch.autograd.grad(
            values, list(inputs.values()), [torch.ones_like(v) for v in values], retain_graph=True, allow_unused=True
        )
        for (name, key), slope in zip(inputs, slopes, strict=True):
            if slope is None:
                continue
            cotangent = outputs[name, kind][0]
            if key in (RATE, DECAY):
                part = cotangent.reshape(len(cotangent), slope.numel()) @ slope.flatten()
                found[name, key] = found[name, key] + part if (name, key) in found else part
            elif (name, key) in found:
                found[name, key].addcmul_(cotangent, slope)
            else:
                found[name, key] = cotangent * slope
    return found


def _leaves(values: Mapping[str, Tensor]) -> Params:
    return {name: value.detach().requires_grad_() for name, value in values.items()}


def _same_step(state: Snapshot, after: Snapshot, new: Mapping[str, Tensor], gradient: Params) -> None:
    """The differentiable step is the one that was taken, or nothing said about it would hold.

    Where a gradient is nothing but rounding, as that of the biases of attention's keys, Adam still makes steps of it.
    """

    def norm(one: Mapping[str, Tensor], other: Mapping[str, Tensor], names: list[str]) -> float:
        return sum(float((one[n].detach() - other[n]).double().square().sum()) for n in names) ** 0.5

    some = next(iter(new.values()))
    on_gpu, eps = some.device.type == "cuda", torch.finfo(some.dtype).eps
    sizes = {name: float(value.detach().double().norm()) for name, value in gradient.items()}
    noise = NOISE * eps * sum(size**2 for size in sizes.values()) ** 0.5
    real = [name for name in new if name not in sizes or sizes[name] > noise]
    for names in [real] if on_gpu else [[name] for name in real]:
        moved, apart = norm(after.params, state.params, names), norm(new, after.params, names)
        size = sum(float(after.params[n].double().square().sum()) for n in names) ** 0.5
        allowed = (SAME_ON_GPU if on_gpu else SAME.get(some.dtype, 1e-2)) * moved + ROUNDING * eps * (size + moved)
        if not apart <= allowed:
            raise NumericalError(
                f"step {state.step}, computed again to be differentiated, differs by {apart:.3g} from the update that training"
                f" made of {', '.join(names[:3])}, of size {moved:.3g}; expected a training that gives the same numbers every"
                " time: random numbers with a seed, the same batches, gradients that nothing else changes"
            )
