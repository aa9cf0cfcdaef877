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
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.guards import OUTPUTS
from ntkscope.tangent.reference import dense
from ntkscope.tangent.rules import RULES
from ntkscope.tangent.rules.registry import bind
from ntkscope.tangent.subject import Subject

WEIGHTS = {"weight", "mat2", "other"}
AFFINE = (F.linear, F.conv1d, F.conv2d, F.conv3d)  # always a layer; a matrix product only when it holds a parameter
SLIDING = ("stride", "padding", "dilation", "groups")  # how a convolution reads its input
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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func not in RULES:
            return output
        bound = bind(RULES[func][1], args, kwargs)
        weight = next((bound[key] for key in WEIGHTS if key in bound), None)
        if not (func in AFFINE or (id(weight) in self.names and "mat1" in bound) or self._product(bound)):
            return output
        x = bound["mat1"] if "mat1" in bound else bound["input"]
        bias = bound["input"] if "mat1" in bound else bound.get("bias")
        names = tuple(self.names[id(t)] for t in (weight, bias) if id(t) in self.names)
        if self.moved == len(self.found) and self.shift is not None:
            output = output + self.shift
        if self.moved == len(self.found) and self.fixed:
            output = output.detach()
        kind = "product" if "weight" not in bound else "linear" if func is F.linear else "conv"
        self.found.append(
            Readout(
                x.detach().clone(),
                bias is not None,
                names,
                output.detach().clone(),
                kind,
                self.names.get(id(weight)),
                self.names.get(id(bias)),
                {key: bound[key] for key in SLIDING if key in bound},
            )
        )
        return output

    def _product(self, bound: dict[str, Any]) -> bool:
        return "other" in bound and id(bound["other"]) in self.names and bound["other"].dim() == 2


@dataclass(frozen=True, eq=False)
class Locator:
    """Which of a model's affine maps is its readout, and how the outputs follow from its result: `f = z A + b`."""

    subject: Subject
    names: dict[int, str]
    number: int
    slope: Tensor
    offset: Tensor
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
        scale = outputs.abs().amax().clamp_min(1e-30)
        return bool(((said - outputs).abs() <= 10 * self.subject.loosest(OUTPUTS) * scale).all())


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
            return Locator(subject, names, number, *found, mode.found[number].names)
    raise UsageError(
        f"the outputs of {type(subject.original).__name__} are an affine function of none of its last layers alone (a softmax"
        " after the last one, several heads added, a product of heads); expected outputs of one linear readout: return its"
        " outputs, or use the 'em' kernel with layers="
    )


def _affine_in(
    subject: Subject, batch: Batch, names: dict[int, str], number: int, calls: Sequence[Readout], outputs: Tensor
) -> tuple[Tensor, Tensor] | None:
    """`(A, b)` with outputs = z A + b for the result z of call `number`, or None where there are none."""
    result = calls[number].result
    if result.dim() < 2 or len(result) != len(batch) or not result.is_floating_point():
        return None
    tolerance = 10 * subject.loosest(OUTPUTS)
    flat = result.flatten(1)
    if flat.shape == outputs.shape and torch.allclose(
        flat, outputs, rtol=0, atol=float(outputs.abs().max()) * tolerance
    ):
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
    slope = _slope(subject, batch, names, number, flat, outputs)
    rest = outputs - flat @ slope
    spread = (rest - rest[:1]).abs().amax()
    if len(batch) < 2 or not bool(spread <= 10 * tolerance * outputs.abs().amax()):
        return None
    return slope, rest[0]


def _slope(subject: Subject, batch: Batch, names: dict[int, str], number: int, flat: Tensor, outputs: Tensor) -> Tensor:
    """How the outputs follow the result of a call, (numbers of the result, outputs), from one backward pass per output."""
    zero = torch.zeros(flat.shape[1], dtype=flat.dtype, device=flat.device, requires_grad=True)
    shape = (len(batch), *_shape_of(subject, batch, names, number))
    with _Affine(names, number, zero.view(shape[1:])):
        values = subject(batch)
    grads = [
        torch.autograd.grad(values[0, k], zero, retain_graph=True, allow_unused=True)[0] for k in range(values.shape[1])
    ]
    return torch.stack([torch.zeros_like(zero) if g is None else g for g in grads], dim=1).detach()


def _shape_of(subject: Subject, batch: Batch, names: dict[int, str], number: int) -> torch.Size:
    with _Affine(names) as mode:
        subject(batch)
    return mode.found[number].result.shape[1:]


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
