"""LeNet-5 with ReLU and max-pooling, at any width."""

from __future__ import annotations

from torch import nn

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, CountOrZero, Positive
from ntkscope.models._init import seeded, widened
from ntkscope.models.registry import MODELS


class LeNet(nn.Sequential):
    """Two 5x5 convolutions with pooling, two hidden linear layers and the readout: 6, 16, 120 and 84 units wide."""

    def __init__(self, classes: int, in_channels: int, image_size: int, padding: int, width: float) -> None:
        side = ((image_size + 2 * padding - 4) // 2 - 4) // 2
        if side < 1:
            raise UsageError(
                f"a {image_size}x{image_size} image padded by {padding} is too small for LeNet-5;"
                f" expected at least 16 pixels per side after padding: raise padding or use small_cnn"
            )
        c1, c2, h1, h2 = (widened(size, width) for size in (6, 16, 120, 84))
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, c1, kernel_size=5, padding=padding)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(c1, c2, kernel_size=5)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(c2 * side**2, h1)
        self.relu3 = nn.ReLU()
        self.fc2 = nn.Linear(h1, h2)
        self.relu4 = nn.ReLU()
        self.readout = nn.Linear(h2, classes)


@MODELS.register("lenet")
def lenet(
    *,
    classes: Count = 10,
    in_channels: Count = 1,
    image_size: Count = 28,
    padding: CountOrZero | None = None,
    width: Positive = 1,
    seed: int | None = 0,
) -> LeNet:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling; `width` multiplies all channels and hidden units.

    The network was designed for 32x32 images; 28x28 ones are padded by 2 (`padding=None`), the reading under which the
    parameters number about 60,000 · width² as in Samarin, Roth and Belius (2022), section 3.

    Examples:
        >>> sum(p.numel() for p in lenet().parameters())
        61706
        >>> sum(p.numel() for p in lenet(image_size=32, in_channels=3).parameters())
        62006
    """
    if padding is None:
        padding = 2 if image_size == 28 else 0
    with seeded(seed, "lenet"):
        return LeNet(classes, in_channels, image_size, padding, width)
