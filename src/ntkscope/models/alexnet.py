"""AlexNet in its one-tower layout, at any width."""

from __future__ import annotations

from torch import nn

from ntkscope.core.checked import Count, Positive, Share
from ntkscope.models._init import seeded, widened
from ntkscope.models.registry import MODELS


class AlexNet(nn.Sequential):
    """Five convolutions, three poolings, a 6x6 average pooling and three linear layers; keys as in torchvision."""

    def __init__(self, classes: int, in_channels: int, width: float, dropout: float) -> None:
        c1, c2, c3, c4, c5, h = (widened(size, width) for size in (64, 192, 384, 256, 256, 4096))
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, c1, kernel_size=11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(c1, c2, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(c2, c3, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(c3, c4, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(c4, c5, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            nn.Dropout(dropout) if dropout else nn.Identity(),  # Identity keeps the keys of the layers after it
            nn.Linear(c5 * 36, h),
            nn.ReLU(),
            nn.Dropout(dropout) if dropout else nn.Identity(),
            nn.Linear(h, h),
            nn.ReLU(),
            nn.Linear(h, classes),
        )


@MODELS.register("alexnet")
def alexnet(
    *,
    classes: Count = 10,
    in_channels: Count = 3,
    width: Positive = 1,
    dropout: Share = 0,
    seed: int | None = 0,
) -> AlexNet:
    """AlexNet as in Krizhevsky (2014), for images of at least 63x63; the papers use 224x224, 10 outputs, no dropout.

    `width` multiplies all channels and hidden units. On 224x224 the average pooling changes nothing. 57.0 million
    parameters with 10 outputs, 61.1 with 1000; Samarin, Roth and Belius (2022), section 3, round to 60.

    Examples:
        >>> net = alexnet(classes=3, width=0.05)
        >>> net(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 3])
    """
    with seeded(seed, "alexnet"):
        return AlexNet(classes, in_channels, width, dropout)
