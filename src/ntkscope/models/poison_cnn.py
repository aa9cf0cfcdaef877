"""The 21-layer convolutional network of the poisoning study."""

from __future__ import annotations

from torch import nn

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, Positive, Share
from ntkscope.models._init import seeded, widened
from ntkscope.models.registry import MODELS


class PoisonCNN(nn.Sequential):
    """Three blocks of two convolutions, each followed by ReLU and batch norm, then two hidden linear layers.

    Convolutions (6), batch norms (8), image poolings (3), dropout (1) and linear layers (3) make the 21.
    """

    def __init__(self, classes: int, in_channels: int, image_size: int, width: float, dropout: float) -> None:
        side = image_size >> 3
        if side < 2:
            raise UsageError(f"got a {image_size}x{image_size} image; expected at least 16x16, three halvings deep")
        super().__init__()
        fan_in, conv = in_channels, 0
        for block, fan_out in enumerate((widened(size, width) for size in (32, 64, 128)), start=1):
            for _ in range(2):
                conv += 1
                self._layer(conv, f"conv{conv}", nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.BatchNorm2d, fan_out)
                fan_in = fan_out
            self.add_module(f"pool{block}", nn.MaxPool2d(2))
        self.add_module("flatten", nn.Flatten())
        self.add_module("pool4", nn.MaxPool1d(4))  # over neighbours of the flattened features
        self.add_module("dropout", nn.Dropout(dropout))
        fan_in, units = fan_in * side**2 // 4, widened(512, width)
        for i in (1, 2):
            self._layer(6 + i, f"fc{i}", nn.Linear(fan_in, units), nn.BatchNorm1d, units)
            fan_in = units
        self.add_module("readout", nn.Linear(fan_in, classes))

    def _layer(self, index: int, name: str, layer: nn.Module, norm: type[nn.Module], units: int) -> None:
        """Append the layer, its ReLU and the batch norm after it."""
        self.add_module(name, layer)
        self.add_module(f"relu{index}", nn.ReLU())
        self.add_module(f"bn{index}", norm(units, eps=1e-3, momentum=0.01))


@MODELS.register("poison_cnn")
def poison_cnn(
    *,
    classes: Count = 10,
    in_channels: Count = 3,
    image_size: Count = 32,
    width: Positive = 1,
    dropout: Share = 0.2,
    seed: int | None = 0,
) -> PoisonCNN:
    """The CIFAR-10 network for BadNets data, as in the public code of Engel et al. (2024), whose appendix is missing.

    Batch norm follows the ReLU, with ε = 10⁻³ and momentum 0.01; the authors train it with SGD, step 0.01, Nesterov
    momentum 0.9, batches of 128.

    Examples:
        >>> sum(p.numel() for p in poison_cnn().parameters())
        820394
    """
    with seeded(seed, "poison_cnn"):
        return PoisonCNN(classes, in_channels, image_size, width, dropout)
