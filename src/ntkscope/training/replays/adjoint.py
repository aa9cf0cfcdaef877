"""The adjoint of a training step: how the end of a training depends on the state before it, and on the step itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, jvp, vmap

from ntkscope.core import Inputs, NumericalError, Params, Snapshot
from ntkscope.training.replays.loop import Loop, precise
from ntkscope.training.replays.updates import updated

Batch = tuple[Tensor, Inputs, Tensor]
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-8}  # of the norm of one product with the second derivative
FAST = "forward over backward"
FORWARD = 1e-3  # of the norm of an update: a differentiable step against the optimizer's own


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


class Puller:
    """Pulls adjoints back through the steps of a loop; `checks` says what was compared, and how far it was apart.

    A step is `g = ∂L/∂θ`, then an update of each number alone. Of k adjoints u of g it needs `∂²L/∂θ² u` and, for every
    item of the batch, `∂²L/∂w∂θ u = ∇ℓ · u / b`: both are the derivative along u of the gradient by θ and w, for `together`
    of the u at a time. Where an operation has no forward derivative they are second backward passes, one u after another.
    """

    def __init__(self, loop: Loop, together: int) -> None:
        self.loop, self.together = loop, together
        self.way = FAST
        self.checks: list[tuple[int, float, float]] = []  # step, apart from plain, plain apart from float64

    def pull(self, state: Snapshot, after: Snapshot, adjoint: Adjoint, weights: Tensor, check: bool) -> Pulled:
        """One step back from `after` to `state`; with `check`, one adjoint is pulled back in a plain way too."""
        loop, step = self.loop, state.step
        batch, learning = loop.batch(step), sorted(loop.learning(step) & loop.rules.keys())
        on = weights[batch[0]]
        gradient = {name: value for name, value in self._gradient(state, batch, on).items() if name in learning}
        cotangents, before, rate, decay = self._through_update(state, after, gradient, adjoint, learning)
        curved, by_item = self._second(state, batch, on, cotangents)
        if check:
            curved, by_item = self._checked(state, batch, on, cotangents, curved, by_item)
        params = {name: before.params[name] + curved[name] for name in before.params}
        return Pulled(Adjoint(params, before.moments), by_item, rate, decay)

    def _gradient(self, state: Snapshot, batch: Batch, on: Tensor) -> Params:
        return grad(lambda params: self.loop.objective(state, batch, params, on))(dict(state.params))

    def _through_update(
        self, state: Snapshot, after: Snapshot, gradient: Params, adjoint: Adjoint, learning: list[str]
    ) -> tuple[Params, Adjoint, Tensor, Tensor]:
        """The adjoints of gradients, parameters and moments, rate and decay: the update's own derivative."""
        params = {name: value.detach().clone().requires_grad_() for name, value in state.params.items()}
        gradient = {name: value.detach().clone().requires_grad_() for name, value in gradient.items()}
        moments = {
            name: {key: value.detach().clone().requires_grad_(key != "step") for key, value in one.items()}
            for name, one in state.optimizer.items()
        }
        some = next(iter(params.values()))
        factor, decay = (torch.full((), v, dtype=some.dtype, device=some.device).requires_grad_() for v in (1.0, 0.0))
        with torch.enable_grad():
            rated = factor * self.loop.rate(state.step)
            new, made = updated(self.loop.rules, params, gradient, moments, rated, decay, learning)
        self._same_step(state, after, new, learning)
        outputs, cotangents = [], []
        for name, value in new.items():
            outputs.append(value)
            cotangents.append(adjoint.params[name])
        for key, cotangent in adjoint.moments.items():
            name, _, moment = key.rpartition("/")
            outputs.append(made[name][moment])
            cotangents.append(cotangent)
        flat = {f"{name}/{key}": v for name, one in moments.items() for key, v in one.items() if v.requires_grad}
        inputs = [*params.values(), *gradient.values(), *flat.values(), factor, decay]
        found = torch.autograd.grad(outputs, inputs, grad_outputs=cotangents, is_grads_batched=True, allow_unused=True)
        k = len(cotangents[0])
        parts = iter(v.new_zeros(k, *v.shape) if part is None else part for v, part in zip(inputs, found))
        by_params = {name: next(parts) for name in params}
        by_gradient = {name: next(parts) for name in gradient}
        by_moments = {key: next(parts) for key in flat}
        return by_gradient, Adjoint(by_params, by_moments), next(parts), next(parts)

    def _same_step(self, state: Snapshot, after: Snapshot, new: Mapping[str, Tensor], learning: list[str]) -> None:
        """The differentiable step is the one that was taken, or nothing said about it would hold."""
        moved = sum(float((after.params[n] - state.params[n]).double().square().sum()) for n in learning) ** 0.5
        size = max((float(after.params[n].abs().max()) for n in learning), default=0.0)
        apart = sum(float((new[n].detach() - after.params[n]).double().square().sum()) for n in learning) ** 0.5
        rounding = (
            64 * torch.finfo(next(iter(new.values())).dtype).eps * size * sum(map(Tensor.numel, new.values())) ** 0.5
        )
        if not apart <= FORWARD * moved + rounding:
            raise NumericalError(
                f"step {state.step}, computed again to be differentiated, differs by {apart:.3g} from the update that training"
                f" made, of size {moved:.3g}; expected a training that gives the same numbers every time: random numbers with a"
                " seed, the same batches, an optimizer that nothing else changes"
            )

    def _second(self, state: Snapshot, batch: Batch, on: Tensor, cotangents: Params) -> tuple[Params, Tensor]:
        if self.way == FAST:
            try:
                return self._forward_over_backward(state, batch, on, cotangents)
            except (RuntimeError, NotImplementedError) as error:
                if "out of memory" in str(error):
                    raise
                self.way = f"backward twice, since {str(error).strip().splitlines()[0][:200]}"
        return self._backward_twice(state, batch, on, cotangents)

    def _forward_over_backward(
        self, state: Snapshot, batch: Batch, on: Tensor, cotangents: Params
    ) -> tuple[Params, Tensor]:
        params = dict(state.params)
        gradient = grad(lambda p, w: self.loop.objective(state, batch, p, w), argnums=(0, 1))

        def one(u: Params) -> tuple[Params, Tensor]:
            along = {name: u[name] if name in u else torch.zeros_like(value) for name, value in params.items()}
            return jvp(lambda p: gradient(p, on), (params,), (along,))[1]

        return vmap(one, randomness="same", chunk_size=self.together)(cotangents)

    def _backward_twice(
        self, state: Snapshot, batch: Batch, on: Tensor, cotangents: Params, dtype: torch.dtype | None = None
    ) -> tuple[Params, Tensor]:
        """The same without `torch.func`, perhaps in another precision."""
        real = next(iter(state.params.values())).dtype if dtype is None else dtype
        params = {name: value.detach().to(real).requires_grad_() for name, value in state.params.items()}
        on = on.detach().to(real).requires_grad_()
        with torch.enable_grad():
            loss = self.loop.objective(state, batch if dtype is None else precise(batch, real), params, on)
            gradient = torch.autograd.grad(
                loss, [params[n] for n in cotangents], create_graph=True, allow_unused=True, materialize_grads=True
            )
        rows: list[Any] = []
        for row in range(len(next(iter(cotangents.values())))):
            directions = [value[row].to(real) for value in cotangents.values()]
            rows.append(
                torch.autograd.grad(
                    gradient,
                    [*params.values(), on],
                    grad_outputs=directions,
                    retain_graph=True,
                    allow_unused=True,
                    materialize_grads=True,
                )
            )
        parts = [torch.stack(part) for part in zip(*rows, strict=True)]
        return dict(zip(params, parts)), parts[-1]

    def _checked(
        self, state: Snapshot, batch: Batch, on: Tensor, cotangents: Params, curved: Params, by_item: Tensor
    ) -> tuple[Params, Tensor]:
        """One adjoint once more, plainly and in float64; where the fast way differs, plain passes take its place."""
        row = state.step % len(by_item)
        one = {name: value[row : row + 1] for name, value in cotangents.items()}
        plain = _flat(*self._backward_twice(state, batch, on, one))
        fine = _flat(*self._backward_twice(state, batch, on, one, torch.float64))
        fast = _flat({name: value[row : row + 1] for name, value in curved.items()}, by_item[row : row + 1])
        apart = _relative(fast, plain)
        self.checks.append((state.step, apart, _relative(plain, fine)))
        if apart <= TOLERANCE.get(by_item.dtype, 1e-2):
            return curved, by_item
        if self.way != FAST:
            raise NumericalError(
                f"the second derivative of the loss at step {state.step}, computed twice, differs by {apart:.2g} of its norm;"
                " expected a loss that gives the same numbers every time"
            )
        self.way = f"backward twice, since the fast way was {apart:.2g} apart at step {state.step}"
        return self._backward_twice(state, batch, on, cotangents)


def _flat(params: Params, by_item: Tensor) -> Tensor:
    return torch.cat([*(value.flatten().double() for value in params.values()), by_item.flatten().double()])


def _relative(one: Tensor, other: Tensor) -> float:
    """The distance, of the other's norm; 0 where both are 0."""
    distance, size = float((one - other).norm()), float(other.norm())
    return distance / size if size else float(distance > 0)
