"""AlexNet on small images, which the model itself enlarges: the stand-in for the ten snake classes of ImageNet."""

from __future__ import annotations

from torch import nn

from ntkscope import models

SIDE = 224
STAND_IN = "CIFAR-10, enlarged to 224x224 in the model, in place of ten snake classes of ImageNet, which are not here"


def enlarged_alexnet(width: float, seed: int, *, side: int = SIDE, channels: int = 3) -> nn.Module:
    """AlexNet with ten outputs behind a bilinear enlargement, which has no parameters; in evaluation mode."""
    enlarge = nn.Upsample(size=(side, side), mode="bilinear", align_corners=False)
    return nn.Sequential(enlarge, models.build("alexnet", width=width, in_channels=channels, seed=seed)).eval()
