"""What the parameters of a readout see: features φ(x) with outputs `f(x) = φ(x) V U + b`, V the readout's weights and bias.

A readout that acts at many positions (a 1 × 1 convolution before pooling, a head per token before a mean) has one parameter
for all of them, so what it sees of an input is its input combined over positions as the outputs combine its results, and
not that input flattened.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import UsageError, generator
from ntkscope.core.model.copies import duplicate
from ntkscope.tangent.forward.readout import Locator, Readout, locate
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.guards import OUTPUTS, differs
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.rules.convolution import channels_outermost, sides, spread, unfold

TIED = (
    "the readout's parameter {name} of {model} is used elsewhere too (tied weights): what the readout sees changes with it;"
    " expected a readout with parameters of its own: replace it by a copy, such as head.weight ="
    " torch.nn.Parameter(head.weight.detach().clone())"
)
BENT = (
    "the outputs of {model} are not an affine function of its readout's parameters {names}: {why}; expected outputs of one"
    " linear readout, with plain weights: return them before anything that follows, and remove parametrisations of the readout"
    " (torch.nn.utils.parametrize.remove_parametrizations)"
)


@dataclass(frozen=True, eq=False)
class ReadoutFeatures:
    """Features of the readout's parameters for any batch; the last is that of the bias, where it has one.

    `f = φ V mix + offset`, with V (features, results) from `stack`. `positions`: how much of each position's result the
    outputs take.
    """

    locator: Locator
    readout: Readout
    positions: Float[Tensor, " s"]
    mix: Float[Tensor, "o c"]
    offset: Float[Tensor, " c"]

    @property
    def names(self) -> tuple[str, ...]:
        """The weight's name, and the bias's."""
        assert self.readout.weight_name is not None
        return (self.readout.weight_name, *([self.readout.bias_name] if self.readout.bias_name else []))

    def __call__(self, batch: Batch) -> tuple[Float[Tensor, "n p"], Float[Tensor, "n c"]]:
        """Features and outputs of a batch; the outputs are compared with what the features say they are."""
        subject = self.locator.subject
        readout = self.locator(batch)
        features = self._of(readout)
        outputs = readout.result.flatten(1) @ self.locator.slope + self.locator.offset
        if differs(features @ self.stack(subject.model) @ self.mix + self.offset, outputs, _tolerance(subject)):
            raise UsageError(
                BENT.format(
                    model=type(subject.original).__name__,
                    names=", ".join(self.names),
                    why="they do not follow from what its parameters see of the inputs",
                )
            )
        return features, outputs

    def stack(self, model: torch.nn.Module) -> Float[Tensor, "p o"]:
        """V: the weight of a model as a matrix (features, results), the bias below it."""
        parameters = dict(model.named_parameters())
        weight = parameters[self.names[0]].detach()
        matrix = weight if self.readout.kind == "product" else weight.flatten(1).T
        return torch.cat([matrix, *(parameters[name].detach()[None] for name in self.names[1:])])

    def write(self, model: torch.nn.Module, values: Float[Tensor, "p o"]) -> None:
        """Put V in the place of a model's readout parameters, in their dtypes."""
        parameters = dict(model.named_parameters())
        weight = parameters[self.names[0]]
        matrix = values[: weight.numel() // values.shape[1]]
        with torch.no_grad():
            weight.copy_((matrix if self.readout.kind == "product" else matrix.T).reshape(weight.shape))
            for name in self.names[1:]:
                parameters[name].copy_(values[-1])

    def _of(self, readout: Readout) -> Tensor:
        features = torch.einsum("nsi,s->ni", _inputs(readout, self._kernel), self.positions)
        if not self.readout.bias_name:
            return features
        return torch.cat([features, self.positions.sum().expand(len(features), 1)], dim=1)

    @property
    def _kernel(self) -> tuple[int, ...]:
        return tuple(dict(self.locator.subject.model.named_parameters())[self.names[0]].shape[2:])


def readout_features(subject: Subject, batch: Batch) -> ReadoutFeatures:
    """Find the readout on a few samples and what its parameters see; that the outputs are affine in them is checked."""
    model = type(subject.original).__name__
    locator = locate(subject, batch)
    readout = locator(batch)
    if readout.weight_name is None:
        raise UsageError(
            BENT.format(
                model=model,
                names=", ".join(readout.names) or "(none)",
                why="its weight is computed from other parameters, or is none",
            )
        )
    if readout.kind == "conv" and int(readout.options.get("groups", 1)) != 1:
        raise UsageError(
            f"the readout of {model} is a convolution in {readout.options['groups']} groups; expected one group: use a Linear"
        )
    positions, mix = _separated(locator, readout, model)
    _check_own(locator, readout, batch)
    found = ReadoutFeatures(locator, readout, positions, mix, torch.zeros_like(locator.offset))
    features = found._of(readout)
    outputs = readout.result.flatten(1) @ locator.slope + locator.offset
    rest = (outputs - features @ found.stack(subject.model) @ mix)[0]
    negligible = float(rest.abs().max()) <= _tolerance(subject) * float(outputs.abs().max())
    whole = ReadoutFeatures(locator, readout, positions, mix, torch.zeros_like(rest) if negligible else rest)
    whole(batch)
    return whole


def _separated(locator: Locator, readout: Readout, model: str) -> tuple[Tensor, Tensor]:
    """`slope[(s, o), c] = positions[s] mix[o, c]`: every position's results enter the outputs alike."""
    shape = readout.result.shape[1:]
    results = shape[0] if readout.kind == "conv" else shape[-1]
    slope = locator.slope
    if readout.kind == "conv":
        slope = slope.reshape(results, -1, slope.shape[1]).transpose(0, 1)
    else:
        slope = slope.reshape(-1, results, slope.shape[1])
    leading = slope[int(slope.square().sum((1, 2)).argmax())]
    weights = torch.einsum("soc,oc->s", slope, leading) / leading.square().sum()
    held_out = slope - weights[:, None, None] * leading
    tolerance = _tolerance(locator.subject)
    if float(held_out.abs().max()) > tolerance * float(slope.abs().max()):
        raise UsageError(
            f"the outputs of {model} combine the results of its readout ({', '.join(readout.names)}) differently at"
            f" different positions ({prod(shape) // results} of them); expected a sum or mean over positions, or one"
            " position: pool before the outputs are made"
        )
    if int(torch.linalg.matrix_rank(leading.double(), rtol=tolerance)) < leading.shape[1]:
        raise UsageError(
            f"the {leading.shape[1]} outputs of {model} are combinations of fewer than {leading.shape[1]} results of its"
            " readout; expected a readout with a result for each output: drop the outputs that follow from others"
        )
    scale = leading.abs().max()  # goes to the features, so that the mix of a plain readout is the identity
    return weights * scale, leading / scale


def _check_own(locator: Locator, readout: Readout, batch: Batch) -> None:
    """Move the parameters, in a copy: what the readout sees must stay, and the outputs follow the result as before."""
    subject = locator.subject
    names = [name for name in (readout.weight_name, readout.bias_name) if name is not None]
    for number, name in enumerate(names):
        other = duplicate(subject.model)
        parameter = dict(other.named_parameters())[name]
        with torch.no_grad():
            size = float(parameter.abs().max()) or 1.0
            draw = torch.randn(parameter.shape, generator=generator(number, "readout moved"), dtype=torch.float64)
            parameter.add_(size * draw.to(parameter))
        moved, outputs = locator.within(Subject(other, still=True)).watch(batch)
        said = {"name": name, "model": type(subject.original).__name__}
        if moved is None or differs(moved.x, readout.x, _tolerance(subject)):
            raise UsageError(TIED.format(**said))
        if not locator.holds(moved, outputs):
            why = "they do not follow its result when its parameters move"
            raise UsageError(BENT.format(model=said["model"], names=", ".join(names), why=why))


def _inputs(readout: Readout, kernel: tuple[int, ...]) -> Float[Tensor, "n s i"]:
    """The inputs at every position, in the order of the weight's columns; of a convolution the patches."""
    x = readout.x
    if readout.kind != "conv":
        return x.reshape(len(x), -1, x.shape[-1])
    dims, options = len(kernel), readout.options
    dilation = spread(options.get("dilation", 1), dims)
    padding = sides(options.get("padding", 0), kernel, dilation)
    seen = unfold(x[:, None], kernel, spread(options.get("stride", 1), dims), padding, dilation, 1)
    return channels_outermost(seen[:, 0], prod(kernel))


def _tolerance(subject: Subject) -> float:
    return 10 * subject.loosest(OUTPUTS)
