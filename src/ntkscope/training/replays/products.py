"""Products of vectors with the second derivative of a batch's loss, in the fastest way that a network allows, and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from ntkscope.core import NumericalError, Params, Snapshot, generator
from ntkscope.training.replays.loop import Batch, Loop, padding_rows, precise

T = TypeVar("T")
Product: TypeAlias = tuple[Params, Tensor]
"""Of k vectors u: `∂²L/∂θ² u` for every parameter, (k, …), and `∂²L/∂w∂θ u` for the items of the batch, (k, b)."""
WAYS = ("forward over backward", "backward twice", "backward twice, one by one")
AGREE = {
    torch.float32: 1e-3,
    torch.float64: 1e-8,
}  # of the norm: one product from a plain one, a gradient from a plain one
DIFFERENCE = 1e-8  # of the parameters, in float64, and ten times more at each try: few activations lie so near a kink
DIFFERS = 1e-4  # of what a difference of gradients measures
TRIES = 3  # differences before one is believed: a kink may lie within one of them


class Unfit(Exception):
    """A way that this network does not allow."""


class Products:
    """Products with the second derivative of a loop's loss, `together` vectors at a time.

    Both parts are the derivative along u of the gradient by θ and w: forward over backward for all u at once. Where an
    operation has no forward derivative, or draws other random numbers that way, second backward passes take its place.
    `checks`: a step, how far one of its products was from a plain one, that from one in float64, and that from differences.
    """

    def __init__(self, loop: Loop, together: int) -> None:
        self.loop, self.together = loop, together
        self.way, self.reason = WAYS[0], ""
        self.checks: list[tuple[int, float, float, float]] = []

    def gradient(self, state: Snapshot, batch: Batch, on: Tensor, learning: Sequence[str]) -> Params:
        """The gradient by the parameters that learn, those that the loss reaches."""
        params = {name: value.detach().clone().requires_grad_() for name, value in state.params.items()}
        with torch.enable_grad():
            loss = self.loop.objective(state, batch, params, on)
            every = torch.autograd.grad(loss, [params[name] for name in learning], allow_unused=True)
        return {name: value for name, value in zip(learning, every) if value is not None}

    def __call__(
        self, state: Snapshot, batch: Batch, on: Tensor, gradient: Params, vectors: Params, check: bool
    ) -> Product:
        """The products of a step; with `check`, one of them is computed in other ways too."""
        if not vectors:
            raise NumericalError(
                f"the loss of step {state.step} reaches no parameter that learns; expected one that does"
            )
        while True:
            try:
                if self.way == WAYS[0]:
                    product = self._forward_over_backward(state, batch, on, gradient, vectors)
                else:
                    product = self._backward_twice(state, batch, on, vectors, together=self.way == WAYS[1])
                if not all(_finite(value) for value in (*product[0].values(), product[1])):
                    raise NumericalError(
                        f"the derivative overflowed on its way back to step {state.step}: this training magnifies small changes"
                        " without bound; expected a smaller learning rate, fewer steps, or float64"
                    )
                if check:
                    self._check(state, batch, on, vectors, product)
                return product
            except Unfit as error:
                if self.way == WAYS[-1]:
                    raise NumericalError(
                        f"the second derivative of the loss at step {state.step} differs each time it is computed ({error});"
                        " expected a loss that gives the same numbers every time"
                    ) from error
                self.way, self.reason = WAYS[WAYS.index(self.way) + 1], str(error)

    def _rows(self, vectors: Params) -> Iterator[Params]:
        k = len(next(iter(vectors.values())))
        for start in range(0, k, self.together):
            yield {name: value[start : start + self.together] for name, value in vectors.items()}

    def _forward_over_backward(
        self, state: Snapshot, batch: Batch, on: Tensor, gradient: Params, vectors: Params
    ) -> Product:
        params = {name: value.detach() for name, value in state.params.items()}
        both = grad(lambda p, w: self.loop.objective(state, batch, p, w), argnums=(0, 1))

        def one(u: Params) -> tuple[Product, Params]:
            along = {name: u[name] if name in u else torch.zeros_like(value) for name, value in params.items()}
            (own, _), product = jvp(lambda p: both(p, on), (params,), (along,))  # type: ignore[misc]
            return product, {name: own[name] for name in gradient}

        products = []
        for u in self._rows(vectors):
            product, own = _allowed(vmap(one, out_dims=(0, None), randomness="same"), u)  # type: ignore[arg-type]
            apart = _relative(_flat(own), _flat(gradient))
            if not apart <= AGREE.get(on.dtype, 1e-2):
                raise Unfit(f"the gradient itself was {apart:.2g} apart there")
            products.append(product)
        curved = {name: torch.cat([product[0][name] for product in products]) for name in params}
        return curved, torch.cat([product[1] for product in products])

    def _backward_twice(
        self, state: Snapshot, batch: Batch, on: Tensor, vectors: Params, *, together: bool, fine: bool = False
    ) -> Product:
        """Without `torch.func`; `fine`: in float64."""
        dtype = torch.float64 if fine else on.dtype
        params = {name: value.detach().to(dtype).clone().requires_grad_() for name, value in state.params.items()}
        on = on.detach().to(dtype).requires_grad_()
        with torch.enable_grad():
            loss = self.loop.objective(state, precise(batch, dtype) if fine else batch, params, on)
            gradient = torch.autograd.grad(loss, [params[name] for name in vectors], create_graph=True)
        inputs = [*params.values(), on]

        def back(u: Params) -> list[Tensor]:
            directions = [value.to(dtype) for value in u.values()]
            found = torch.autograd.grad(
                gradient, inputs, directions, retain_graph=True, allow_unused=True, is_grads_batched=together
            )
            head = directions[0].shape[:1] if together else ()
            return [v.new_zeros(*head, *v.shape) if part is None else part for v, part in zip(inputs, found)]

        if not any(value.requires_grad for value in gradient):  # a loss linear in what learns
            k = len(next(iter(vectors.values())))
            parts = [v.new_zeros(k, *v.shape) for v in inputs]
        elif together:
            each = [_allowed(back, u) for u in self._rows(vectors)]
            parts = [torch.cat(part) for part in zip(*each, strict=True)]
        else:
            try:
                rows = [back(dict(zip(vectors, u))) for u in zip(*vectors.values(), strict=True)]
            except RuntimeError as error:
                if fine or isinstance(error, torch.OutOfMemoryError):
                    raise
                raise NumericalError(
                    f"the loss has no second derivative at step {state.step} ({_head(error)}); expected operations that PyTorch"
                    " differentiates twice, without inplace=True"
                ) from error
            parts = [torch.stack(part) for part in zip(*rows, strict=True)]
        return dict(zip(params, parts)), parts[-1]

    def _check(self, state: Snapshot, batch: Batch, on: Tensor, vectors: Params, product: Product) -> None:
        """One product once more: plainly, in float64, and by differences of gradients there."""
        row = state.step % len(product[1])
        one = {name: value[row : row + 1] for name, value in vectors.items()}
        plain = self._backward_twice(state, batch, on, one, together=False)
        apart = _relative(_row(product, row), _row(plain, 0))
        if not apart <= AGREE.get(on.dtype, 1e-2):
            raise Unfit(f"its products were {apart:.2g} apart from plain ones at step {state.step}")
        try:
            fine = self._backward_twice(state, batch, on, one, together=False, fine=True)
        except RuntimeError:  # constants of its own precision
            self.checks.append((state.step, apart, math.nan, math.nan))
            return
        differ = min(self._difference(state, batch, on, one, fine, number) for number in range(TRIES))
        self.checks.append((state.step, apart, _relative(_row(plain, 0), _row(fine, 0)), differ))
        if differ > DIFFERS:
            raise NumericalError(
                f"at step {state.step} the gradient of the loss changes otherwise than its second derivative says, by"
                f" {differ:.2g} of it; expected a model whose gradient PyTorch can differentiate: no detach() or no_grad() in"
                " forward, no autograd.Function with a detached backward, no weight_norm (PyTorch's own second derivative of it"
                " is wrong)"
            )

    def _difference(
        self, state: Snapshot, batch: Batch, on: Tensor, vector: Params, product: Product, number: int
    ) -> float:
        """How far `u · ∂g` is from `∂²L u` along a random direction of parameters and weights, in float64."""
        draw = generator(state.step, "replay", "difference", number)
        params = {name: value.double() for name, value in state.params.items()}
        sizes = {name: float(value.square().mean().sqrt()) + 1e-3 for name, value in params.items()}
        along = {
            n: sizes[n] * torch.randn(v.shape, generator=draw, dtype=v.dtype).to(v.device) for n, v in params.items()
        }
        for name, row in padding_rows(self.loop.model).items():
            along[name][row] = 0
        items, step = torch.randn(on.shape, generator=draw, dtype=torch.float64).to(on.device), DIFFERENCE * 10**number
        batch, changes = precise(batch, torch.float64), []
        for sign in (1, -1):
            moved = {n: (v + sign * step * along[n]).requires_grad_() for n, v in params.items()}
            with torch.enable_grad():
                loss = self.loop.objective(state, batch, moved, on.double() + sign * step * items)
                gradient = torch.autograd.grad(loss, [moved[n] for n in vector])
            changes.append(sum(float((g * u[0]).sum()) for g, u in zip(gradient, vector.values(), strict=True)))
        terms = torch.cat([*((product[0][n][0] * along[n]).flatten() for n in params), product[1][0] * items])
        measured, predicted = (changes[0] - changes[1]) / (2 * step), float(terms.sum())
        # What rounding of the two sums leaves of the difference
        noise = 1e-15 * max(map(abs, changes)) / step
        return max(0.0, abs(measured - predicted) - 10 * noise) / max(float(terms.norm()), abs(measured), 1e-300)


def _allowed(compute: Callable[[Params], T], u: Params) -> T:
    """What `compute` gives, or that this way is not to be had."""
    try:
        return compute(u)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        raise Unfit(_head(error)) from error


def _finite(value: Tensor) -> bool:
    """Whether no number is NaN or infinite, in one pass over them."""
    return not value.numel() or all(bool(torch.isfinite(end)) for end in torch.aminmax(value))


def _head(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _row(product: Product, row: int) -> Tensor:
    return torch.cat([_flat({name: value[row] for name, value in product[0].items()}), product[1][row].double()])


def _flat(params: Params) -> Tensor:
    return torch.cat([value.flatten().double() for value in params.values()])


def _relative(one: Tensor, other: Tensor) -> float:
    """The distance, of the other's norm; 0 where both are 0."""
    distance, size = float((one - other).norm()), float(other.norm())
    return distance / size if size else float(distance > 0)
