"""The adjoint of a training step: how the end of a training depends on the state before it, and on the step itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """One step back, from `after` to `state`.

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
    params = {name: before.params[name] + curved[name] for name in before.params}
    return Pulled(Adjoint(params, before.moments), by_item, rate, decay)


def _through_update(
    loop: Loop, state: Snapshot, after: Snapshot, gradient: Params, adjoint: Adjoint
) -> tuple[Params, Adjoint, Tensor, Tensor]:
    """The adjoints of gradients, parameters and moments, of the rate's logarithm and of the decay."""
    params = {name: value.detach().clone().requires_grad_() for name, value in state.params.items()}
    gradient = {name: value.detach().clone().requires_grad_() for name, value in gradient.items()}
    moments = {
        name: {key: value.detach().clone().requires_grad_(key != "step") for key, value in one.items()}
        for name, one in state.optimizer.items()
    }
    some = next(iter(params.values()))
    factor, decay = (torch.full((), v, dtype=some.dtype, device=some.device).requires_grad_() for v in (1.0, 0.0))
    with torch.enable_grad():
        new, made = updated(
            loop.rules, params, loop.clipped(gradient), moments, factor * loop.factor(state.step), decay
        )
    _same_step(state, after, new, gradient)
    outputs = list(new.values())
    cotangents = [adjoint.params[name] for name in new]
    for key, cotangent in adjoint.moments.items():
        name, _, moment = key.rpartition("/")
        outputs.append(made[name][moment])
        cotangents.append(cotangent)
    flat = {f"{name}/{key}": v for name, one in moments.items() for key, v in one.items() if v.requires_grad}
    inputs = [*params.values(), *gradient.values(), *flat.values(), factor, decay]
    found = torch.autograd.grad(outputs, inputs, grad_outputs=cotangents, is_grads_batched=True, allow_unused=True)
    k = len(cotangents[0])
    parts = iter(v.new_zeros(k, *v.shape) if part is None else part for v, part in zip(inputs, found))
    by_params, by_gradient, by_moments = ({name: next(parts) for name in one} for one in (params, gradient, flat))
    return by_gradient, Adjoint(by_params, by_moments), next(parts), next(parts)


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
