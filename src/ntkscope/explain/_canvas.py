"""What the pictures share: colours that colour-blind readers can tell apart, and items (images or texts) drawn into axes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ntkscope.core import UsageError
from ntkscope.core.arguments import plain_array

# Okabe & Ito (2008)
BLUE, ORANGE, GREEN, VERMILLION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#999999"
DIVERGING = "PuOr_r"  # purple below zero, orange above


@dataclass(frozen=True, eq=False)
class Items:
    """Things that can be drawn: images (n, h, w) or (n, channels, h, w) with channels 1 or 3, or texts."""

    values: Any
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    @staticmethod
    def of(values: Any) -> Items:
        """`values` with the range of each channel, so that normalised images are shown in their colours."""
        if values is None or _are_texts(values):
            return Items(values)
        images = plain_array(values)
        images = images[:, None] if images.ndim == 3 else images
        if images.ndim != 4 or images.shape[1] not in (1, 3):
            raise UsageError(
                f"got items of shape {images.shape}; expected texts, or images (n, h, w) or (n, channels, h, w) with 1 or 3"
                " channels"
            )
        some = images[:2000]
        return Items(images, some.min((0, 2, 3)), some.max((0, 2, 3)))

    @property
    def texts(self) -> bool:
        return self.values is not None and self.low is None

    def draw(self, axes: Axes, index: int, *, width: int = 24, size: float | int = 9, lines: int = 12) -> None:
        """Item `index` in the axes, without ticks."""
        axes.set_xticks([])
        axes.set_yticks([])
        if self.texts:
            shown = textwrap.wrap(str(self.values[index]), width)
            shown = [*shown[: lines - 1], "…"] if len(shown) > lines else shown
            axes.text(0.5, 0.5, "\n".join(shown), ha="center", va="center", fontsize=size, transform=axes.transAxes)
            return
        assert self.low is not None
        assert self.high is not None
        spread = np.where(self.high > self.low, self.high - self.low, 1)
        pixels = ((self.values[index].transpose(1, 2, 0) - self.low) / spread).clip(0, 1).astype(float)
        grey = pixels.shape[2] == 1
        axes.imshow(pixels[:, :, 0] if grey else pixels, cmap="gray" if grey else None, vmin=0, vmax=1)


def frame(axes: Axes, colour: str, width: float | int = 2.0) -> None:
    """A border of one colour around the axes."""
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_edgecolor(colour)
        spine.set_linewidth(width)


def class_names(classes: Sequence[str] | None, count: int) -> list[str]:
    """A short name for each class: the given one, or its number."""
    if classes is None:
        return [str(number) for number in range(count)]
    if len(classes) < count:
        raise UsageError(f"got {len(classes)} class names for {count} classes; expected one each")
    return [textwrap.shorten(str(name), 14, placeholder="…") for name in classes]


def power_of_ten(values: np.ndarray) -> tuple[float, str]:
    """The factor that gives the largest value one or two digits, and its text for a label."""
    largest = float(np.nanmax(np.abs(values))) if np.size(values) else 0.0
    if largest == 0 or 0.1 <= largest < 100:
        return 1.0, ""
    exponent = int(np.floor(np.log10(largest)))
    return 10.0**-exponent, rf" ($\times 10^{{{exponent}}}$)"


def _are_texts(values: Any) -> bool:
    return isinstance(values, Sequence | np.ndarray) and len(values) > 0 and isinstance(values[0], str)
