"""The small convolutional network of the two-class tasks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ntkscope.core import UsageError
from ntkscope.models._init import seeded
from ntkscope.models.registry import MODELS


class SmallCNN(nn.Sequential):
    """Blocks of 3x3 convolution, ReLU and 2x2 max-pooling, then one linear readout on the flattened features."""

    def __init__(self, classes: int, in_channels: int, image_size: int, channels: Sequence[int]) -> None:
        side = image_size >> len(channels)
        if side < 1 or not channels:
            raise UsageError(
                f"{len(channels)} poolings of a {image_size}x{image_size} image leave nothing; expected between 1 and"
                f" {max(image_size.bit_length() - 1, 0)} channels for this size"
            )
        super().__init__()
        for i, (fan_in, fan_out) in enumerate(zip([in_channels, *channels], channels), start=1):
            self.add_module(f"conv{i}", nn.Conv2d(fan_in, fan_out, kernel_size=3, padding=1))
            self.add_module(f"relu{i}", nn.ReLU())
            self.add_module(f"pool{i}", nn.MaxPool2d(2))
        self.add_module("flatten", nn.Flatten())
        self.add_module("readout", nn.Linear(channels[-1] * side**2, classes))


@MODELS.register("small_cnn")
def small_cnn(
    *,
    classes: int = 2,
    in_channels: int = 1,
    image_size: int = 28,
    channels: Sequence[int] = (16, 32, 64),
    seed: int | None = 0,
) -> SmallCNN:
    """Three convolutions and a linear readout, for square images of at least 2^len(channels) pixels a side.

    The paper's own layout (its appendix H) is lost; this is the ledger's default for `surrogate-table1-cnn-*`, and
    `channels=(16, 32)` its default for `spectra-cnn-*`.

    >>> sum(p.numel() for p in small_cnn(image_size=8, classes=10).parameters())
    23946
    """
    with seeded(seed, "small_cnn"):
        return SmallCNN(classes, in_channels, image_size, channels)
