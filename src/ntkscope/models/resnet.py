"""Residual networks for 32x32 images with projection shortcuts: ResNet-18 and ResNet-34."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.core.checked import Count, Positive
from ntkscope.models._init import seeded, widened
from ntkscope.models.registry import MODELS


class ProjectionBlock(nn.Module):
    """relu(bn(conv(relu(bn(conv x)))) + shortcut x); a 1x1 convolution is the shortcut where shapes change."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(fan_out)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(fan_out, fan_out, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(fan_out)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or fan_in != fan_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(fan_in, fan_out, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(fan_out)
            )
        self.relu2 = nn.ReLU()

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k u v"]:
        residual = self.bn1(self.conv1(x))
        residual = self.bn2(self.conv2(self.relu1(residual)))
        return self.relu2(residual + self.downsample(x))


class ResNet(nn.Sequential):
    """A 3x3 stem, four stages of blocks at 64, 128, 256 and 512 channels, global average, readout `fc`."""

    def __init__(self, blocks: Sequence[int], classes: int, in_channels: int, width: float, max_pool: bool) -> None:
        sizes = [widened(size, width) for size in (64, 128, 256, 512)]
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, sizes[0], kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(sizes[0])
        self.relu = nn.ReLU()
        if max_pool:
            self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        for stage, (count, fan_in, fan_out) in enumerate(zip(blocks, [sizes[0], *sizes], sizes), start=1):
            first = ProjectionBlock(fan_in, fan_out, stride=1 if stage == 1 else 2)
            rest = [ProjectionBlock(fan_out, fan_out, stride=1) for _ in range(count - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(first, *rest))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(sizes[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _registered(name: str, blocks: Sequence[int], doc: str) -> Callable[..., ResNet]:
    @MODELS.register(name)
    def resnet(
        *,
        classes: Count = 10,
        in_channels: Count = 3,
        width: Positive = 1,
        max_pool: bool = False,
        seed: int | None = 0,
    ) -> ResNet:
        with seeded(seed, name):
            return ResNet(blocks, classes, in_channels, width, max_pool)

    resnet.__doc__ = doc
    return resnet


resnet18 = _registered(
    "resnet18",
    (2, 2, 2, 2),
    """ResNet-18 for 32x32 images: 3x3 stem with stride 1 and no pooling after it; 11.17 million parameters.

    Keys are those of torchvision. `max_pool=True` puts the 3x3 pooling after the stem back, as the network behind
    the published weights (Phan 2021) of Engel et al. (2024) has it.

    Examples:
        >>> net = resnet18(width=0.1).eval()
        >>> net(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """,
)
resnet34 = _registered(
    "resnet34",
    (3, 4, 6, 3),
    """ResNet-34 for 32x32 images, options as for `resnet18`; 21.28 million parameters.

    Examples:
        >>> len(resnet34(width=0.1).layer3)
        6
    """,
)
