"""The small convolutional networks of the two-class tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from torch import nn

from ntkscope.core import UsageError
from ntkscope.core.checked import Count
from ntkscope.models._init import seeded
from ntkscope.models._layers import Scale
from ntkscope.models.registry import MODELS

POOLS = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}


class SmallCNN(nn.Sequential):
    """Blocks of 3x3 convolutions with ReLU and one 2x2 pooling; then hidden linear layers, if any, and the readout."""

    def __init__(
        self,
        classes: int,
        in_channels: int,
        image_size: int,
        channels: Sequence[int],
        convolutions: int,
        pool: str,
        hidden: Sequence[int],
        ntk: bool,
    ) -> None:
        side = image_size >> len(channels)  # every pooling halves and rounds down
        if side < 1 or not channels:
            raise UsageError(
                f"got {len(channels)} poolings of a {image_size}x{image_size} image; expected between 1 and"
                f" {max(image_size.bit_length() - 1, 0)}, one for each entry of channels"
            )
        super().__init__()
        fan_in, conv = in_channels, 0
        for block, fan_out in enumerate(channels, start=1):
            for _ in range(convolutions):
                conv += 1
                self._layer(f"conv{conv}", nn.Conv2d(fan_in, fan_out, kernel_size=3, padding=1), 9 * fan_out, ntk)
                fan_in = fan_out
            self.add_module(f"pool{block}", POOLS[pool](2))
        self.add_module("flatten", nn.Flatten())
        fan_in *= side**2
        for i, fan_out in enumerate(hidden, start=1):
            self._layer(f"fc{i}", nn.Linear(fan_in, fan_out), fan_out, ntk)
            fan_in = fan_out
        self.add_module("readout", nn.Linear(fan_in, classes))
        if ntk:
            for parameter in self.parameters():
                nn.init.normal_(parameter)

    def _layer(self, name: str, layer: nn.Module, fan: int, ntk: bool) -> None:
        """Append the layer, its ReLU and, in the NTK parametrisation, the scale 1/√fan."""
        self.add_module(name, layer)
        self.add_module(f"{name}_relu", nn.ReLU())
        if ntk:
            self.add_module(f"{name}_scale", Scale(1 / math.sqrt(fan)))


@MODELS.register("small_cnn")
def small_cnn(
    *,
    classes: Count = 2,
    in_channels: Count = 1,
    image_size: Count = 28,
    channels: Sequence[Count] = (16, 32, 64),
    convolutions: Count = 1,
    pool: Annotated[str, tuple(POOLS)] = "max",
    hidden: Sequence[Count] = (),
    ntk: bool = False,
    seed: int | None = 0,
) -> SmallCNN:
    """Three convolutions with ReLU and pooling and a linear readout, for images of at least 8x8 unless told otherwise.

    `channels` names the width of each block, `convolutions` the number per block, `hidden` the linear layers before
    the readout. `ntk=True` draws every weight and bias from N(0, 1) and divides each activation by √(channels · 9) or
    √units, the parametrisation of Engel et al. (2024). The appendix with their networks is missing from the report;
    their public code has, for MNIST2 and FMNIST2,
    `small_cnn(classes=1, channels=(64, 32, 8), hidden=(128, 64), pool="avg", ntk=True)`, and for CIFAR2 two
    convolutions per block, max-pooling and three input channels.

    Examples:
        >>> sum(p.numel() for p in small_cnn(image_size=8, classes=10).parameters())
        23946
    """
    with seeded(seed, "small_cnn"):
        return SmallCNN(classes, in_channels, image_size, channels, convolutions, pool, hidden, ntk)
