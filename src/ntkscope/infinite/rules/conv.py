"""Convolutions of one or two dimensions: `Conv`, `nn.Conv1d`, `nn.Conv2d`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, CountOrZero, NonNegative
from ntkscope.infinite.field import Field
from ntkscope.infinite.layer import Context, Layer, Need, Shape, Weighted
from ntkscope.infinite.registry import Affine, Sides, Translator, affine_scales, layer, module_rule, whole
from ntkscope.infinite.rules.dense import check_fan_in, gradient_scales, scales_shown

PADDINGS = ("same", "valid", "circular")


@dataclass(frozen=True)
class Taps:
    """One dimension of a convolution: output P sees inputs P·stride + δ·dilation − before, δ = 0 … size − 1."""

    size: int
    stride: int
    dilation: int
    before: int
    output: int
    """How many outputs the whole image has."""


@layer
@final
@dataclass(frozen=True)
class Conv(Weighted):
    """A convolution with standard normal weights and biases, scaled by σ_w / √(taps · channels) and by σ_b.

    `Σ′(p, p′) = σ_w² A[Σ](p, p′) + σ_b²` with `A[Σ](p, p′)` the mean over the taps δ of Σ(sp + δ, sp′ + δ), nothing outside
    the image; Θ′ = σ_w² A[Θ] + Σ′ in the NTK parametrisation. A is a sum of shifted copies, one dimension after the
    other, so it costs the sum and not the product of the kernel's sides. Arora et al. (2019), section 4.

    `padding`: "same" (zeros; ceil(size / stride) outputs, the odd zero at the end), "valid", "circular", or the number of
    zeros on each side.

    Examples:
        >>> from ntkscope.infinite import Flatten, kernel, serial
        >>> x = torch.eye(4, dtype=torch.float64).reshape(1, 1, 4, 4)
        >>> kernel(serial(Conv(3, padding="circular"), Flatten()), x, kind="nngp").dense().item()
        0.25
    """

    kernel: Sides
    stride: Sides = 1
    padding: Annotated[str, PADDINGS] | CountOrZero | tuple[CountOrZero, ...] = "same"
    W_std: NonNegative = 1.0
    b_std: NonNegative = 0.0
    width: Count | None = None
    dilation: Sides = 1
    train_weight: bool = True
    train_bias: bool = True
    module: Affine | None = None
    """What else a module says about itself, if the layer was made from one."""

    def __repr__(self) -> str:
        dilated = "" if self.dilation == 1 else f"dilation={self.dilation}, "
        return f"Conv({self.kernel}, stride={self.stride}, padding={self.padding!r}, {dilated}{scales_shown(self)})"

    @property
    def circular(self) -> bool:
        return self.padding == "circular"

    def taps(self, spatial: Sequence[int]) -> list[Taps]:
        """The geometry of each dimension on images of this size."""
        n = len(spatial)
        result = []
        padding = self.padding if isinstance(self.padding, str) else whole(self.padding, n)
        sizes = zip(spatial, whole(self.kernel, n), whole(self.stride, n), whole(self.dilation, n))
        for axis, (length, size, stride, dilation) in enumerate(sizes):
            span = (size - 1) * dilation + 1
            if padding in ("same", "circular"):
                output = -(-length // stride)
                total = max((output - 1) * stride + span - length, 0)
                before = total // 2 if padding == "same" else (span - 1) // 2
            else:
                before = 0 if isinstance(padding, str) else padding[axis]
                output = (length + 2 * before - span) // stride + 1
            result.append(Taps(size, stride, dilation, before, output))
        return result

    def shape(self, given: Shape, path: str) -> Shape:
        if not given.spatial:
            raise UsageError(f"{self} (at {path!r}) follows vectors {given}; expected images (n, c, h, w) or (n, c, l)")
        check_fan_in(self, given, path)
        taps = self.taps(given.spatial)
        if any(t.output < 1 for t in taps):
            raise UsageError(
                f"{self} (at {path!r}) leaves nothing of images {given}; expected a smaller kernel or padding"
            )
        if self.circular and any(length % t.stride for length, t in zip(given.spatial, taps)):
            raise UsageError(
                f"{self} (at {path!r}) winds a stride round images {given}; expected sizes that are its multiples"
            )
        return Shape(self.width, tuple(t.output for t in taps), gaussian=True)

    def follows_shifts(self, wrap: bool) -> bool:
        return self.circular == wrap

    def propagate(self, given: Field, context: Context, path: str, need: Need) -> Field | None:
        taps = self.taps(given.spatial)
        count = math.prod(t.size for t in taps)
        weights, biases = gradient_scales(self, context, path, count)
        scale, offset = float(self.W_std) ** 2, float(self.b_std) ** 2

        def mean(values: Tensor, factor: float, constant: float) -> Tensor:
            """factor · A[values] + constant."""
            return patch_sum(values, given, taps, self.circular, factor / count, constant)

        ntk = None
        if context.tangent and (weights or biases or given.ntk is not None):
            if given.ntk is None:
                ntk = mean(given.nngp, weights, biases)
            elif weights == scale:
                ntk = mean(given.nngp + given.ntk, scale, biases)
            else:
                ntk = mean(given.nngp * weights + given.ntk * scale, 1.0, biases)
        shifts = given.shifts and tuple(
            tuple(delta // t.stride for delta, t in zip(shift, taps)) for shift in given.shifts
        )
        spatial = tuple(t.output for t in taps)
        return Field(mean(given.nngp, scale, offset), ntk, spatial, given.double, shifts, given.wrap)

    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        if given.features is None:
            raise UsageError(f"{self} follows an unknown number of channels; give the input's shape")
        return NTKConv(self, given, outputs or self.width or width)


def patch_sum(
    values: Tensor, given: Field, taps: Sequence[Taps], circular: bool, scale: float, constant: float
) -> Tensor:
    """constant + scale · the sum over taps of the values at each output's inputs, dimension by dimension; a fresh tensor.

    With paired axes (h, h′) both move together, so a shift runs along their diagonal.
    """
    for dimension, tap in enumerate(taps):
        output, last = tap.output, dimension == len(taps) - 1
        if given.shifts is not None and not given.wrap:
            output -= abs(given.shifts[0][dimension]) // tap.stride  # 0 where a dimension is double
        along = Along(given.axes(dimension), tap, output, circular)
        values = along.sum(values, scale if last else 1.0, constant if last else 0.0)
    return values


@dataclass(frozen=True)
class Along:
    """One dimension of a patch sum: which axes move together, and how many outputs there are."""

    axes: tuple[int, ...]
    tap: Taps
    output: int
    circular: bool

    def sum(self, values: Tensor, scale: float, constant: float) -> Tensor:
        """The first copy carries scale and constant, the others are added to it: as many passes as taps."""
        start = torch.full((), constant, dtype=values.dtype, device=values.device)
        shape = [self.output if axis in self.axes else size for axis, size in enumerate(values.shape)]
        total: Tensor | None = None
        for source, first, last in self.pieces(values):
            if total is None and last - first == self.output:
                total = torch.add(start, source, alpha=scale)
                continue
            total = values.new_full(shape, constant) if total is None else total
            target = total
            for axis in self.axes:
                target = target.narrow(axis, first, last - first)
            target.add_(source, alpha=scale)
        return values.new_full(shape, constant) if total is None else total

    def pieces(self, values: Tensor) -> Iterator[tuple[Tensor, int, int]]:
        """For each tap the values it picks and the outputs first … last − 1 that have it; the largest piece first."""
        tap, length = self.tap, values.shape[self.axes[0]]
        starts = [delta * tap.dilation - tap.before for delta in range(tap.size)]
        if self.circular:
            for start in starts:
                moved = values.roll([-start] * len(self.axes), self.axes) if start else values
                yield self.picked(moved, slice(None, None, tap.stride)), 0, self.output
            return
        found = []
        for start in starts:
            first, last = max(0, -(start // tap.stride)), min(self.output, (length - 1 - start) // tap.stride + 1)
            if first < last:
                found.append((first, last, start))
        for first, last, start in sorted(found, key=lambda piece: piece[0] - piece[1]):
            inside = slice(first * tap.stride + start, (last - 1) * tap.stride + start + 1, tap.stride)
            yield self.picked(values, inside), first, last

    def picked(self, values: Tensor, chosen: slice) -> Tensor:
        for axis in self.axes:
            values = values[(slice(None),) * axis + (chosen,)]
        return values


def convolve(kind: Conv, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What `kind` does to images (n, c, *spatial) with these weights."""
    spatial = tuple(x.shape[2:])
    taps = kind.taps(spatial)
    edges: list[int] = []
    for length, t in reversed(list(zip(spatial, taps))):
        after = (t.output - 1) * t.stride + (t.size - 1) * t.dilation + 1 - t.before - length
        edges += [t.before, after]
    x = functional.pad(x, edges, mode="circular" if kind.circular else "constant")
    run: Any = functional.conv1d if len(taps) == 1 else functional.conv2d
    return run(x, weight, bias, stride=[t.stride for t in taps], dilation=[t.dilation for t in taps])


class NTKConv(nn.Module):
    """A convolution with its scales outside the parameters: σ_w / √(taps · channels) and σ_b."""

    def __init__(self, kind: Conv, given: Shape, width: int) -> None:
        super().__init__()
        assert given.features is not None
        self.kind, self.taps = kind, kind.taps(given.spatial)
        self.spatial = given.spatial
        sizes = [t.size for t in self.taps]
        self.weight = nn.Parameter(torch.randn(width, given.features, *sizes))
        self.bias = nn.Parameter(torch.randn(width)) if kind.b_std else None
        self.weight_scale = float(kind.W_std) / math.sqrt(given.features * math.prod(sizes))

    def forward(self, x: Float[Tensor, "n c *s"]) -> Float[Tensor, "n k *t"]:
        bias = None if self.bias is None else float(self.kind.b_std) * self.bias
        return convolve(self.kind, x, self.weight_scale * self.weight, bias)

    def extra_repr(self) -> str:
        return f"{self.kind}, channels {self.weight.shape[1]} to {self.weight.shape[0]}"


@module_rule(nn.Conv1d, nn.Conv2d)
def conv(module: nn.Conv1d | nn.Conv2d, translate: Translator, path: str) -> Layer:
    """Zero and circular padding, strides and dilation; no groups."""
    if module.groups != 1:
        raise UsageError(
            f"{type(module).__name__} (at {path!r}) has {module.groups} groups; expected 1: a group of finitely many channels"
            " does not average over its weights"
        )
    if module.padding_mode not in ("zeros", "circular"):
        raise UsageError(
            f"{type(module).__name__} (at {path!r}) pads by {module.padding_mode!r}; expected 'zeros' or 'circular'"
        )
    padding: Any = module.padding
    if module.padding_mode == "circular":
        half = tuple((k - 1) * d // 2 for k, d in zip(module.kernel_size, module.dilation))
        even = any((k - 1) * d % 2 for k, d in zip(module.kernel_size, module.dilation))
        if padding != "same" and (even or tuple(padding) != half):
            raise UsageError(
                f"{type(module).__name__} (at {path!r}) pads circularly by {padding}; expected {half} for an odd kernel"
            )
        padding = "circular"
    fan_in = module.in_channels * math.prod(module.kernel_size)
    scales = affine_scales(module, fan_in, translate.init, path)
    return Conv(
        tuple(module.kernel_size),
        tuple(module.stride),
        padding if isinstance(padding, str) else tuple(padding),
        scales.weight,
        scales.bias,
        module.out_channels,
        tuple(module.dilation),
        scales.train_weight,
        scales.train_bias,
        Affine(module.in_channels, scales.has_bias),
    )
