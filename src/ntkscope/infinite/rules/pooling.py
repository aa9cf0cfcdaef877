"""Average pooling, over windows and over the whole image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.infinite.field import Field
from ntkscope.infinite.layer import Context, Layer, Need, Shape, Spatial
from ntkscope.infinite.registry import Sides, Translator, layer, module_rule, whole


class Pooling(Spatial):
    """Means over positions, which need the covariances of unequal ones. Abstract."""

    def need(self, out: Need, single: bool) -> Need:
        return Need.FULL if out else out

    def follows_shifts(self, wrap: bool) -> bool:
        return False


@layer
@final
@dataclass(frozen=True)
class AvgPool(Pooling):
    """Means of windows, without padding: Σ′(P, P′) is the mean of Σ over both windows, so unequal positions are needed.

    Examples:
        >>> from ntkscope.infinite import Conv, Flatten, kernel, serial
        >>> net = serial(Conv(3), AvgPool(2), Flatten())
        >>> kernel(net, torch.ones(1, 1, 4, 4), kind="nngp").dense().item()
        0.5625
    """

    window: Sides
    stride: Sides | None = None

    def sizes(self, spatial: tuple[int, ...]) -> list[tuple[int, int, int]]:
        """Window, stride and number of outputs of each dimension."""
        n = len(spatial)
        windows = whole(self.window, n)
        strides = windows if self.stride is None else whole(self.stride, n)
        return [(w, s, (length - w) // s + 1) for length, w, s in zip(spatial, windows, strides)]

    def shape(self, given: Shape, path: str) -> Shape:
        if not given.spatial or any(outputs < 1 for *_, outputs in self.sizes(given.spatial)):
            raise UsageError(f"{self} (at {path!r}) follows {given}; expected images at least as large as its window")
        # Sums of a Gaussian unit's positions are Gaussian, so it stays so.
        return Shape(
            given.features, tuple(outputs for *_, outputs in self.sizes(given.spatial)), given.gaussian, given.mixed
        )

    def propagate(self, given: Field, context: Context, path: str, need: Need) -> Field | None:
        sizes = self.sizes(given.spatial)

        def pool(values: Tensor) -> Tensor:
            for axis, (window, stride, _) in enumerate(sizes):
                for side in (0, 1):
                    values = values.unfold(2 * axis + side, window, stride).mean(-1)
            return values

        return given.mapped(pool, spatial=tuple(outputs for *_, outputs in sizes))

    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        kind: Any = nn.AvgPool1d if len(given.spatial) == 1 else nn.AvgPool2d
        return kind(self.window, self.stride)


@layer
@final
@dataclass(frozen=True)
class GlobalAvgPool(Pooling):
    """The mean of the image: Σ′ is the mean of Σ(p, p′) over all pairs of positions.

    Examples:
        >>> from ntkscope.infinite import Conv, kernel, serial
        >>> x = torch.tensor([[[1.0, 3.0]]], dtype=torch.float64)
        >>> kernel(serial(Conv(1), GlobalAvgPool()), x, kind="nngp").dense().item()
        4.0
    """

    def shape(self, given: Shape, path: str) -> Shape:
        if not given.spatial:
            raise UsageError(f"{self} (at {path!r}) follows vectors {given}; expected images")
        return Shape(given.features, gaussian=given.gaussian, mixed=given.mixed)

    def propagate(self, given: Field, context: Context, path: str, need: Need) -> Field | None:
        axes = tuple(range(given.position_axes))
        return given.mapped(lambda values: values.mean(axes), spatial=(), double=())

    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        kind: Any = nn.AdaptiveAvgPool1d if len(given.spatial) == 1 else nn.AdaptiveAvgPool2d
        return nn.Sequential(kind(1), nn.Flatten())

    @staticmethod
    def share(given: Field) -> Field:
        """What the positions of these shifts add to the mean over all pairs of positions."""
        axes, count = tuple(range(given.position_axes + 1)), math.prod(given.spatial) ** 2
        return given.mapped(lambda values: values.sum(axes) / count, spatial=(), double=(), shifts=None)


@module_rule(nn.AvgPool1d, nn.AvgPool2d)
def average(module: nn.AvgPool1d | nn.AvgPool2d, translate: Translator, path: str) -> Layer:
    dimensions = 1 if isinstance(module, nn.AvgPool1d) else 2
    padded = any(whole(module.padding, dimensions)) or module.ceil_mode
    if padded or getattr(module, "divisor_override", None) is not None:
        raise UsageError(
            f"{type(module).__name__} (at {path!r}) has padding, ceil_mode or divisor_override; expected plain windows"
        )
    return AvgPool(whole(module.kernel_size, dimensions), whole(module.stride, dimensions))


@module_rule(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
def adaptive(module: nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d, translate: Translator, path: str) -> Layer:
    if module.output_size not in (1, (1,), (1, 1)):
        raise UsageError(
            f"{type(module).__name__}({module.output_size}) (at {path!r}); expected output size 1, or AvgPool with a window"
        )
    return GlobalAvgPool()
