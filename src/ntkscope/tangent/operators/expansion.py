"""The first-order expansion of a network in its parameters, `f(w₀, x)` and `J(x) u`, as a differentiable function of u.

By forward mode: one pass carries the outputs and how they move along u, and since w₀ stands still, autograd follows the
moving part alone, whose backward pass is `Jᵀ r`. So a step costs what the network's own step costs, one more forward pass and
one more product per layer, whatever the number of outputs. Where an operation has no forward mode, `J u` is the derivative of
`Jᵀ v` by v (two backward passes), and `Jᵀ r` one backward pass through the graph that is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ntkscope.core import NtkscopeError, Params, UsageError, generator
from ntkscope.core.machine.threads import alone_with
from ntkscope.core.model.calling import logits
from ntkscope.core.model.copies import address, reached, trainable
from ntkscope.core.model.tree import tensors
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.autograd import compare, dense, pulled
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.state import ModelState
from ntkscope.tangent.model.subject import Subject, place, quiet
from ntkscope.tangent.model.swapped import swapped
from ntkscope.tangent.operators.forward_mode import MATH, jvp, twice_back

Around: TypeAlias = Callable[[], AbstractContextManager[None]]
Road: TypeAlias = Callable[[nn.Module, Params, Batch, Around], tuple[Tensor, Tensor]]
FAILED = (NotImplementedError, RuntimeError, TypeError, AttributeError, AssertionError)
SAMPLES = 3
NEITHER = (
    "J u cannot be computed for {model}: an operation of it has neither forward mode nor second derivatives ({error}); expected"
    " at least one of them: write the operation with PyTorch's own functions, or give its autograd.Function a jvp"
)


class UseLost(RuntimeError):
    """A parameter was used where a road does not replace it."""


def expand(
    network: nn.Module,
    direction: Params,
    batch: Batch,
    road: str,
    *,
    restore: bool = False,
    around: Around = nullcontext,
) -> tuple[Tensor, Tensor]:
    """`f(w₀, x)` and `J(x) u`, (n, c) each, for w₀ the network's own parameters and u = `direction`.

    Differentiable by u, and on the forward road by whatever the inputs require. `road`: a name in `ROADS`. With `restore`, what
    the pass changed in the network's attributes is put back. The network is run inside `around()`.
    """
    recorded = torch.is_grad_enabled()
    if not recorded:  # the pass is all the same, since only a graph shows what it used
        direction = {name: u.detach() for name, u in direction.items()}
        with torch.inference_mode(False):
            batch = batch.map(lambda t: t.clone() if t.is_inference() else t.detach())
    with alone_with(network), around(), MATH, torch.inference_mode(False), torch.enable_grad():
        before = ModelState(network) if restore else None
        moving = [parameter for name, parameter in network.named_parameters() if name in direction]
        frozen = [] if is_transformed(moving) else [p for p in moving if not (p.requires_grad or p.is_inference())]
        try:
            for parameter in frozen:  # so that a use of it that is not replaced is in the graph
                parameter.requires_grad_()
            values, moved = ROADS[road](network, direction, batch, around)
            if values.requires_grad and not is_transformed(values):
                again = partial(ROADS[road], network, direction, batch, around)
                _check_uses(network, values, lambda: again()[0], batch.tensors(), replaced=True)
            return (values, moved) if recorded else (values.detach(), moved.detach())
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)
            if before is not None:
                before.restore()


def _by_forward_mode(
    network: nn.Module, direction: Params, batch: Batch, around: Around, everywhere: bool
) -> tuple[Tensor, Tensor]:
    own = dict(network.named_parameters())
    start = {name: own[name].detach() for name in direction}

    def outputs(state: Params) -> Tensor:
        with swapped(network, state, everywhere=everywhere):
            return logits(network(*batch.args, **batch.kwargs))

    return jvp(outputs, start, direction)


def _by_two_backward_passes(
    network: nn.Module, direction: Params, batch: Batch, around: Around, everywhere: bool
) -> tuple[Tensor, Tensor]:
    if torch.is_grad_enabled() and any(t.requires_grad for t in batch.tensors()):
        raise UsageError(
            "got inputs that require a gradient for a linearised network with an operation that has no forward mode; expected"
            " inputs without: pass x.detach()"
        )
    values, moved = _TwoBackwardPasses.apply(
        network, batch, (everywhere, around), tuple(direction), *direction.values()
    )
    return values, moved


class _TwoBackwardPasses(torch.autograd.Function):
    """The outputs and `J u`; the gradient of u is `Jᵀ r`, through the graph of the outputs.

    Parameters stay replaced while it is differentiated: a checkpointed layer is run again then.
    """

    @staticmethod
    def forward(
        ctx: Any, network: nn.Module, batch: Batch, how: tuple[bool, Around], names: tuple[str, ...], *direction: Tensor
    ) -> Any:
        everywhere, ctx.around = how
        own = dict(network.named_parameters())
        leaves = {name: own[name].detach().requires_grad_() for name in names}
        ctx.replaced = partial(swapped, network, leaves, everywhere=everywhere)
        with torch.enable_grad(), ctx.replaced():
            values = logits(network(*batch.args, **batch.kwargs))
            moved = twice_back(values, list(leaves.values()), [u.detach() for u in direction])
        known = (*leaves.values(), *batch.tensors())
        _check_uses(network, values, lambda: logits(network(*batch.args, **batch.kwargs)), known, replaced=True)
        ctx.values, ctx.leaves = values, list(leaves.values())
        outputs = values.detach()
        ctx.mark_non_differentiable(outputs)
        return outputs, moved.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, _: Tensor, cotangent: Tensor) -> Any:
        with ctx.around(), ctx.replaced():
            grads = torch.autograd.grad(ctx.values, ctx.leaves, cotangent, retain_graph=True, allow_unused=True)
        return None, None, None, None, *(dense(grad, leaf) for grad, leaf in zip(grads, ctx.leaves))


ROADS: dict[str, Road] = {
    "forward mode": partial(_by_forward_mode, everywhere=False),
    "two backward passes": partial(_by_two_backward_passes, everywhere=False),
    "forward mode, parameters replaced everywhere": partial(_by_forward_mode, everywhere=True),
    "two backward passes, parameters replaced everywhere": partial(_by_two_backward_passes, everywhere=True),
}


def second_road(road: str, error: Exception) -> str:
    """The road to take where an operation has no forward mode, or a use of a parameter was not replaced."""
    names = list(ROADS)
    return names[names.index(road) | (2 if isinstance(error, UseLost) else 1)]


def is_transformed(x: Any) -> bool:
    """Whether a tensor of `x` belongs to a transformation (`vmap`, `grad`): its numbers cannot be looked at."""
    return any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors(x))


def admit(model: nn.Module, names: tuple[str, ...], batch: Batch, before: ModelState | None = None) -> tuple[str, bool]:
    """The first road that agrees with plain autograd on a few samples, and whether the model changes its own attributes.

    The guards of a kernel come first: a model whose samples depend on each other or on chance has no Jacobian. Then outputs,
    `J v` along a random v and `Jᵀ r` of random r are compared with reverse mode on the model itself; that catches forward
    modes that see more than it does (`torch.no_grad` inside a model) or are wrong. `before`: what the model is a copy of, as
    it was when it was copied; it must answer in the same way.
    """
    guards.check_mode(model)
    few = batch[: min(SAMPLES, len(batch))].map(lambda t: t.detach().clone())
    with quiet(place(model), model, *([] if before is None else [before.model])):
        subject = Subject(model, params=set(names).__contains__)
        guards.check_inputs_finite(few)
        outputs = guards.first_outputs(subject, few)
        guards.check_differentiable(subject, outputs)
        _check_uses(subject.model, outputs, lambda: subject(few), replaced=False)
        guards.check_used(subject, few)
        guards.check_randomness(subject, few, outputs)
        guards.check_independence(subject, few, outputs)
        if subject.writes:
            raise UsageError(
                f"the model writes to {', '.join(sorted(subject.writes))} during a forward pass, so it has no fixed point to be"
                " linearised at; expected a forward pass that leaves tensors alone: move the update out of forward"
            )
        if before is not None:
            with before.as_it_was(), quiet(place(model)):  # which puts the model back before it is as it is now
                subject.own = Subject(before.model, params=set(names).__contains__)
                subject.cast = subject.own.dtype != subject.dtype
                compare(subject, few)
                subject.own = None
        restore = bool(subject.changes)
        problem = "its results do not agree with plain autograd"
        for road in ROADS:
            try:
                if _agrees(subject, few, road, restore):
                    return road, restore
            except NtkscopeError:
                raise
            except torch.OutOfMemoryError:
                raise
            except FAILED as error:
                problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    raise UsageError(NEITHER.format(model=type(model).__name__, error=problem))


def _check_uses(
    network: nn.Module, values: Tensor, again: Callable[[], Tensor], known: Iterable[Tensor] = (), *, replaced: bool
) -> None:
    """Look for what the outputs depend on besides `known`: uses of a parameter that was to be `replaced`, and tensors that the
    network does not hold, which nobody would keep still. Tensors that are made anew in every pass are neither."""
    places = {address(tensor) for tensor in known}
    found = [leaf for leaf in trainable(values) if address(leaf) not in places]
    parameters = {address(parameter) for parameter in network.parameters()}
    if replaced and any(address(leaf) in parameters for leaf in found):
        raise UseLost("a parameter is used where functions or containers hold it")
    if not found:
        return
    own = parameters | {address(held) for held in reached(network, code=False) if isinstance(held, Tensor)}
    foreign = [leaf for leaf in found if address(leaf) not in own]
    for leaf in trainable(again()) if foreign else ():
        if any(leaf is each for each in foreign):
            raise UsageError(
                f"a copy of {type(network).__name__} uses a trainable tensor of shape {tuple(leaf.shape)} that is not its own"
                " (of the model itself, or a global), so w₀ would not stay as it was; expected a model whose parameters are"
                " reached through its modules, attributes and closures"
            )


def _agrees(subject: Subject, few: Batch, road: str, restore: bool) -> bool:
    """Whether outputs, `J v` and `Jᵀ r` by this road are those of plain autograd."""
    tolerance = 10 * subject.loosest(guards.OUTPUTS)
    draw = generator(0, "linearised", road)

    def drawn(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=draw, dtype=torch.float64).to(like)

    leaves = subject.leaves
    direction = {name: drawn(leaf.detach()).requires_grad_() for name, leaf in leaves.items()}
    values, moved = expand(subject.model, direction, few.map(torch.clone), road, restore=restore)
    if not moved.requires_grad:
        return False
    weights = drawn(moved.detach())
    found = torch.autograd.grad(moved, list(direction.values()), weights, allow_unused=True)
    outputs, expected = pulled(subject, few, lambda f: f, weights)
    if guards.differs(values.detach(), outputs, tolerance):
        return False
    wanted = [dense(g, leaf).double() for g, leaf in zip(expected, leaves.values())]
    made = [dense(g, leaf).double() for g, leaf in zip(found, leaves.values())]
    size = torch.stack([w.norm() for w in wanted]).norm()
    gap = torch.stack([(w - m).norm() for w, m in zip(wanted, made)]).norm()
    right = sum(float((w * v.detach().double()).sum()) for w, v in zip(wanted, direction.values()))
    terms = weights.double() * moved.detach().double()
    scale = float(terms.norm()) + abs(right)
    return bool(gap <= tolerance * size) and abs(float(terms.sum()) - right) <= tolerance * (scale or 1.0)
