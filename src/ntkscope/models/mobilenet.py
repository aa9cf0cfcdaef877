"""MobileNetV2 for 32x32 images."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.core.checked import Count, Positive, Share
from ntkscope.models._init import seeded, widened
from ntkscope.models.registry import MODELS

# expansion, channels, blocks, stride of the first; strides 2 of the ImageNet network's first halvings are 1 here
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _conv_bn_relu(fan_in: int, fan_out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(fan_in, fan_out, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(fan_out), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Expand by a 1x1 convolution, filter each channel by a 3x3 one, project back; added to x where shapes agree."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = fan_in * expansion
        self.residual = stride == 1 and fan_in == fan_out
        self.conv = nn.Sequential(
            *([_conv_bn_relu(fan_in, hidden, kernel=1)] if expansion != 1 else []),
            _conv_bn_relu(hidden, hidden, kernel=3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, fan_out, kernel_size=1, bias=False),
            nn.BatchNorm2d(fan_out),
        )

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k u v"]:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Sequential):
    """A stem, seventeen inverted residuals, a 1x1 convolution to 1280 channels, global average, readout."""

    def __init__(self, classes: int, in_channels: int, width: float, dropout: float) -> None:
        last = 1280 if width <= 1 else widened(1280, width)
        fan_in = widened(32, width)
        blocks: list[nn.Module] = [_conv_bn_relu(in_channels, fan_in, kernel=3)]
        for expansion, channels, count, first_stride in STAGES:
            fan_out = widened(channels, width)
            for i in range(count):
                blocks.append(InvertedResidual(fan_in, fan_out, first_stride if i == 0 else 1, expansion))
                fan_in = fan_out
        super().__init__()
        self.features = nn.Sequential(*blocks, _conv_bn_relu(fan_in, last, kernel=1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        readout = nn.Linear(last, classes)
        self.classifier = nn.Sequential(nn.Dropout(dropout) if dropout else nn.Identity(), readout)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
        nn.init.normal_(readout.weight, std=0.01)
        nn.init.zeros_(readout.bias)


@MODELS.register("mobilenetv2")
def mobilenetv2(
    *,
    classes: Count = 10,
    in_channels: Count = 3,
    width: Positive = 1,
    dropout: Share = 0.2,
    seed: int | None = 0,
) -> MobileNetV2:
    """MobileNetV2 (Sandler et al. 2018) with the strides of the stem and of the second stage 1, for 32x32 images.

    Keys are those of torchvision; 2.24 million parameters, of which the depthwise convolutions hold few.

    Examples:
        >>> net = mobilenetv2(width=0.1).eval()
        >>> net(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    with seeded(seed, "mobilenetv2"):
        return MobileNetV2(classes, in_channels, width, dropout)
