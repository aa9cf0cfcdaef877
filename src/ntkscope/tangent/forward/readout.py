"""The readout: the affine map whose result the outputs are, its input and its parameters.

It is found by what the outputs do, not by the order of calls: a candidate's result is moved a little, and the outputs must
follow it linearly, by the same amount for every sample, and depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ntkscope.core import UsageError, generator
from ntkscope.tangent.model.autograd import dense
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.guards import OUTPUTS
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.rules import RULES, broadcast
from ntkscope.tangent.trace.rules.matmul import addmm, matmul
from ntkscope.tangent.trace.rules.registry import bind

WEIGHTS = {"weight", "mat2", "other"}
AFFINE = (F.linear, F.conv1d, F.conv2d, F.conv3d)  # always a layer
PRODUCTS = (matmul, addmm)  # a layer when they hold a parameter
SUMS = {*broadcast.SUMS, Tensor.add_, Tensor.__iadd__}
SLIDING = ("stride", "padding", "dilation", "groups")  # how a convolution reads its input
EPSILON = {kind: torch.finfo(kind).eps for kind in OUTPUTS}
CANDIDATES = 12  # affine maps tried, the last one first


@dataclass(frozen=True, eq=False)
class Readout:
    """The input and the result of an affine map, whether it adds a bias, and the names of its parameters.

    `kind`: "linear" (weight (out, in)), "product" (weight (in, out)) or "conv", with `options` that say how it slides.
    """

    x: Tensor
    bias: bool
    names: tuple[str, ...]
    result: Tensor
    kind: str = "linear"
    weight_name: str | None = None
    bias_name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class _Affine(TorchFunctionMode):
    """Keeps what affine maps are called with; the result of call `moved` is shifted."""

    def __init__(
        self, names: dict[int, str], moved: int | None = None, shift: Tensor | None = None, *, fixed: bool = False
    ) -> None:
        super().__init__()
        self.names, self.moved, self.shift, self.fixed = names, moved, shift, fixed
        self.found: list[Readout] = []
        self.last: Tensor | None = None  # the result of the last of them

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func in SUMS:
            return self._with_bias(output, *bind(("input", "other"), args, kwargs).values())
        if func not in RULES:
            return output
        entry, order = RULES[func]
        bound = bind(order, args, kwargs)
        weight = next((bound[key] for key in WEIGHTS if key in bound), None)
        matrix = isinstance(weight, Tensor) and weight.dim() == 2
        product = entry in PRODUCTS and matrix and self._name(weight) is not None
        if not (func in AFFINE or product):
            return output
        x = bound["mat1"] if "mat1" in bound else bound["input"]
        bias = bound["input"] if "mat1" in bound else bound.get("bias")
        names = tuple(dict.fromkeys(name for t in (weight, bias) if (name := self._name(t)) is not None))
        if self.moved == len(self.found) and self.shift is not None:
            output = output + self.shift
        if self.moved == len(self.found) and self.fixed:
            output = output.detach()
        flipped = _transposes(weight)
        kind = "conv" if func in AFFINE[1:] else "product" if (func is not F.linear) != flipped else "linear"
        self.found.append(
            Readout(
                x.detach().clone(),
                bias is not None,
                names,
                output.detach().clone(),
                kind,
                self._name(weight) if flipped else self.names.get(id(weight)),
                self.names.get(id(bias)),
                {key: bound[key] for key in SLIDING if key in bound},
            )
        )
        self.last = output
        return output

    def _with_bias(self, output: Any, *terms: Any) -> Any:
        """A sum of the last map's result and a parameter, one number per column, is that map with a bias."""
        for result, bias in (terms[:2], terms[1::-1]):
            if result is not self.last or self.found[-1].bias or (name := self._name(bias)) is None:
                continue
            if bias.dim() == 1 and len(bias) == output.shape[-1] and output.shape == self.found[-1].result.shape:
                alone, plain = self.found[-1], self.names.get(id(bias))
                changed = {"bias": True, "bias_name": plain, "result": output.detach().clone()}
                self.found[-1] = replace(alone, names=(*alone.names, name), **changed)
                self.last = output
        return output

    def _name(self, value: Any) -> str | None:
        """The parameter that a tensor is, or is a view of."""
        base = value._base if isinstance(value, Tensor) else None
        return self.names.get(id(value), self.names.get(id(base)))


def _transposes(value: Any) -> bool:
    """Whether a tensor is the transpose of the matrix it is a view of."""
    base = value._base if isinstance(value, Tensor) else None
    if base is None or (value.dim(), base.dim()) != (2, 2):
        return False
    return value.shape == base.shape[::-1] and value.stride() == base.stride()[::-1]


@dataclass(frozen=True, eq=False)
class Locator:
    """Which of a model's affine maps is its readout, and how the outputs follow from its result: `f = z A + b`."""

    subject: Subject
    names: dict[int, str]
    number: int
    slope: Tensor
    offset: Tensor
    varying: float
    parameters: tuple[str, ...]

    def __call__(self, batch: Batch) -> Readout:
        """The readout of a batch; the outputs are compared with what it says they are."""
        readout, outputs = self.watch(batch)
        if readout is None or not self.holds(readout, outputs):
            raise UsageError(
                f"the outputs of {type(self.subject.original).__name__} do not follow from its readout for all inputs as they"
                " did for the first ones, so it has no conjugate kernel; use the 'em' kernel with layers="
            )
        return readout

    def watch(self, batch: Batch) -> tuple[Readout | None, Tensor]:
        """The same call for a batch, if there is one, and the outputs; not compared."""
        with _Affine(self.names) as mode:
            outputs = self.subject(batch).detach()
        return (mode.found[self.number] if self.number < len(mode.found) else None), outputs

    def within(self, subject: Subject) -> Locator:
        """The same readout of another copy of the model."""
        names = {id(value): name for name, value in subject.model.named_parameters()}
        return replace(self, subject=subject, names=names)

    def holds(self, readout: Readout, outputs: Tensor) -> bool:
        """Whether the outputs follow from the readout's result as they did for the samples it was found on."""
        result = readout.result
        if len(result) != len(outputs) or result[0].numel() != len(self.slope):
            return False
        said = result.flatten(1) @ self.slope + self.offset
        return float((said - outputs).abs().amax()) <= _allowed(self.subject, outputs, self.varying)


def locate(subject: Subject, batch: Batch) -> Locator:
    """Find the readout on a few samples, at least two if they can be had."""
    names = {id(value): name for name, value in subject.model.named_parameters()}
    with _Affine(names) as mode:
        outputs = subject(batch).detach()
    if not mode.found:
        raise UsageError(
            f"{type(subject.original).__name__} calls no affine map (Linear, Conv, a product with a parameter), so it has no"
            " readout; name a layer with layers= and use the 'em' kernel, or wrap the model with a linear head"
        )
    for number in range(len(mode.found) - 1, max(-1, len(mode.found) - 1 - CANDIDATES), -1):
        found = _affine_in(subject, batch, names, number, mode.found, outputs)
        if found is not None:
            return Locator(subject, names, number, *found, _varying(outputs), mode.found[number].names)
    raise UsageError(
        f"the outputs of {type(subject.original).__name__} are an affine function of none of its last layers alone (a softmax"
        " after the last one, several heads added, a product of heads, a readout that is not a Linear, a Conv or x @ W);"
        " expected outputs of one linear readout: return its outputs, or use the 'em' kernel with layers="
    )


def _affine_in(
    subject: Subject, batch: Batch, names: dict[int, str], number: int, calls: Sequence[Readout], outputs: Tensor
) -> tuple[Tensor, Tensor] | None:
    """`(A, b)` with outputs = z A + b for the result z of call `number`, or None where there are none."""
    result = calls[number].result
    if result.dim() < 2 or len(result) != len(batch) or not result.is_floating_point():
        return None
    tolerance, allowed = 10 * subject.loosest(OUTPUTS), _allowed(subject, outputs)
    flat = result.flatten(1)
    if flat.shape == outputs.shape and torch.allclose(flat, outputs, rtol=0, atol=allowed):
        return torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device), flat.new_zeros(flat.shape[1])
    draw = generator(0, "readout", number)
    size = float(result.abs().amax()) or 1.0
    shift = torch.randn(result.shape[1:], generator=draw, dtype=torch.float64).to(result) * size
    moves = []
    for factor in (1.0, 2.0):
        with _Affine(names, number, factor * shift) as mode:
            moved = subject(batch).detach()
        if len(mode.found) != len(calls):
            return None
        moves.append(moved - outputs)
    scale = moves[0].abs().amax()
    if not float(scale) > 0:
        return None
    straight = (moves[1] - 2 * moves[0]).abs().amax() <= 4 * tolerance * scale
    alike = (moves[0] - moves[0][:1]).abs().amax() <= 4 * tolerance * scale
    if not (straight and alike):
        return None
    slope = _slope(subject, batch, names, number, result)
    rest = outputs - flat @ slope
    spread = (rest - rest[:1]).abs().amax()
    if len(batch) < 2 or not bool(spread <= 10 * allowed):
        return None
    return slope, rest[0]


def _varying(outputs: Tensor) -> float:
    """How far outputs of different samples are apart; a constant that all of them share is no part of it."""
    return float((outputs - outputs[:1]).abs().amax())


def _allowed(subject: Subject, outputs: Tensor, varying: float = 0.0) -> float:
    """How far outputs may be from what a readout says of them."""
    varying = max(varying, _varying(outputs))
    return 10 * subject.loosest(OUTPUTS) * varying + 64 * subject.loosest(EPSILON) * float(outputs.abs().amax())


def _slope(subject: Subject, batch: Batch, names: dict[int, str], number: int, result: Tensor) -> Tensor:
    """How the outputs follow the result of a call, (numbers of the result, outputs), from one backward pass per output."""
    zero = torch.zeros(result[0].numel(), dtype=result.dtype, device=result.device, requires_grad=True)
    with _Affine(names, number, zero.view(result.shape[1:])):
        values = subject(batch)
    grads = [torch.autograd.grad(value, zero, retain_graph=True, allow_unused=True)[0] for value in values[0]]
    return torch.stack([torch.zeros_like(zero) if g is None else g for g in grads], dim=1).detach()


def last_parameters(subject: Subject, batch: Batch) -> tuple[str, ...]:
    """The parameters of the last affine map that everything the outputs depend on goes through."""
    names = {id(value): name for name, value in subject.model.named_parameters()}
    with _Affine(names) as mode:
        outputs = subject(batch).detach()
    leaves = list(subject.leaves.values())
    for number in range(len(mode.found) - 1, max(-1, len(mode.found) - 1 - CANDIDATES), -1):
        found = mode.found[number].names
        own = [leaf for name, leaf in subject.leaves.items() if name in found]
        if not own or not _follows(subject, batch, names, number, mode.found[number].result, outputs):
            continue
        others = [leaf for leaf in leaves if not any(leaf is mine for mine in own)]
        if not _reaches(subject, batch, names, others, number):
            return found
        break
    raise UsageError(
        f'got params="last", but the outputs of {type(subject.original).__name__} do not all go through one last affine layer'
        " with parameters (several heads added, a skip to the outputs); name the parameters, params='head.*'"
    )


def _follows(
    subject: Subject, batch: Batch, names: dict[int, str], number: int, result: Tensor, outputs: Tensor
) -> bool:
    """Whether the outputs move with the result of call `number`, whatever it was called with (features may all be zero)."""
    draw = torch.randn(result.shape, generator=generator(0, "follows", number), dtype=torch.float64)
    with _Affine(names, number, draw.to(result) * (float(result.abs().amax()) or 1.0)):
        return not torch.equal(subject(batch).detach(), outputs)


def _reaches(subject: Subject, batch: Batch, names: dict[int, str], leaves: list[Tensor], cut: int | None) -> bool:
    """Whether the outputs depend on any of these, also where the result of call `cut` is held fixed."""
    with _Affine(names, cut, None, fixed=cut is not None):
        outputs = subject(batch)
    if not outputs.requires_grad or not leaves:
        return False
    draw = torch.randn(outputs.shape, generator=generator(0, "last"), dtype=torch.float64).to(outputs)
    grads = torch.autograd.grad(outputs, leaves, draw, allow_unused=True, retain_graph=True)
    return any(grad is not None and bool(dense(grad, grad).any()) for grad in grads)
