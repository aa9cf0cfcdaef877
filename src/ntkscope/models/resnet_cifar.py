"""The CIFAR residual networks with parameter-free shortcuts: ResNet-20 and ResNet-56."""

from __future__ import annotations

import os
from pathlib import Path

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ntkscope.core.checked import Count
from ntkscope.core.errors import DataNotFound
from ntkscope.models._init import seeded
from ntkscope.models._weights import load_weights
from ntkscope.models.registry import MODELS


class PadShortcut(nn.Module):
    """Every second pixel, with `channels` zero channels before and after: "option A" of He et al. (2016)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k u v"]:
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.channels, self.channels))

    def extra_repr(self) -> str:
        return f"channels={self.channels}"


class PadBlock(nn.Module):
    """relu(bn(conv(relu(bn(conv x)))) + shortcut x), the shortcut without parameters."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        halve = fan_in != fan_out
        self.conv1 = nn.Conv2d(fan_in, fan_out, kernel_size=3, stride=2 if halve else 1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(fan_out)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(fan_out, fan_out, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(fan_out)
        self.shortcut = PadShortcut((fan_out - fan_in) // 2) if halve else nn.Identity()
        self.relu2 = nn.ReLU()

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k u v"]:
        residual = self.bn1(self.conv1(x))
        residual = self.bn2(self.conv2(self.relu1(residual)))
        return self.relu2(residual + self.shortcut(x))


class CifarResNet(nn.Sequential):
    """A 3x3 stem, three stages of `blocks` blocks at 16, 32 and 64 channels, global average, readout `linear`."""

    def __init__(self, blocks: int, classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        for stage, (fan_in, fan_out) in enumerate(((16, 16), (16, 32), (32, 64)), start=1):
            rest = [PadBlock(fan_out, fan_out) for _ in range(blocks - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(PadBlock(fan_in, fan_out), *rest))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)


@MODELS.register("resnet20")
def resnet20(*, classes: Count = 10, in_channels: Count = 3, seed: int | None = 0) -> CifarResNet:
    """ResNet-20 of He et al. (2016), section 4.2: 0.27 million parameters.

    Examples:
        >>> sum(p.numel() for p in resnet20().parameters())
        269722
    """
    with seeded(seed, "resnet20"):
        return CifarResNet(3, classes, in_channels)


@MODELS.register("resnet56")
def resnet56(*, classes: Count = 10, in_channels: Count = 3, seed: int | None = 0) -> CifarResNet:
    """ResNet-56 of He et al. (2016), section 4.2: 0.85 million parameters.

    Examples:
        >>> sum(p.numel() for p in resnet56().parameters())
        853018
    """
    with seeded(seed, "resnet56"):
        return CifarResNet(9, classes, in_channels)


def pretrained(name: str, root: str | os.PathLike[str] | None = None) -> nn.Module:
    """The network `name` with the published weights under `root` (default $NTKSCOPE_DATA), in evaluation mode."""
    root = root or os.environ.get("NTKSCOPE_DATA")
    if not root:
        raise DataNotFound(f"no data root for the weights of {name}; set $NTKSCOPE_DATA or give root=")
    return load_weights(MODELS[name](), Path(root) / "resnet_cifar10" / f"{name}.safetensors").eval()
