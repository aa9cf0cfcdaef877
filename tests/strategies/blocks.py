"""Building blocks random networks are grown from; shapes in, shapes out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from strategies.layers import Conv1D
from strategies.traps import ScaledLinear

CONVOLUTIONS: dict[int, Callable[..., nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, Callable[..., nn.Module]] = {
    1: nn.ConvTranspose1d,
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}
MIXERS = ["attention", "encoder", "encoder first", "gru", "lstm", "folded", "sequence first", "conv over time"]


def make_linear(kind: str, inner: int, outer: int, bias: bool) -> nn.Module:
    if kind == "weight norm":
        return parametrizations.weight_norm(nn.Linear(inner, outer, bias=bias))
    if kind == "transposed":
        return Conv1D(outer, inner)
    if kind == "scaled":
        return ScaledLinear(inner, outer)
    return nn.Linear(inner, outer, bias=bias)


# -- norms; eps is large enough that a dead layer does not blow rounding errors up ----------------------------------
FEATURE_NORMS: list[Callable[[int], nn.Module]] = [
    partial(nn.LayerNorm, eps=1e-3),
    partial(nn.LayerNorm, eps=1e-3, bias=False),
    partial(nn.RMSNorm, eps=1e-3),
]
VECTOR_NORMS: list[Callable[[int], nn.Module]] = [nn.BatchNorm1d, partial(nn.GroupNorm, 1, eps=1e-3)]


def batch_norm(dims: int, channels: int) -> nn.Module:
    return {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims](channels)


def group_norm(dims: int, channels: int) -> nn.Module:
    return nn.GroupNorm(2 if channels % 2 == 0 else 1, channels, eps=1e-3)


CHANNEL_NORMS: list[Callable[[int, int], nn.Module]] = [batch_norm, group_norm]


# -- wiring --------------------------------------------------------------------------------------------------------
class Residual(nn.Module):
    """x + branch(x)."""

    def __init__(self, *branch: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x.clone())


class Repeat(nn.Module):
    """The same module several times."""

    def __init__(self, module: nn.Module, activation: nn.Module, times: int) -> None:
        super().__init__()
        self.module, self.activation, self.times = module, activation, times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.activation(self.module(x))
        return x

    def extra_repr(self) -> str:
        return f"times={self.times}"


class Tied(nn.Module):
    """Encode with a layer, decode with the transpose of its weight."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.encode = nn.Linear(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.encode(x)), self.encode.weight.t())


class ScaledTwice(nn.Module):
    """A bare parameter used twice: s ∘ tanh(s ∘ x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.tanh(self.scale * x)


class SelfBilinear(nn.Module):
    """xᵀ A_k x, a module without a rule."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.form = nn.Bilinear(width, width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.form(x, x))


class DetachedGate(nn.Module):
    """A layer whose second use is cut off from the gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.layer(x.flip(-1)).sigmoid().detach()


class LearnedPositions(nn.Module):
    """Adds an embedding of 0 … T-1, which has no batch axis."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(torch.arange(x.shape[1], device=x.device))


class Attention(nn.Module):
    """Self-attention with a residual; axes in the order the attention module wants."""

    def __init__(self, width: int, batch_first: bool) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(width, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.attend.batch_first else x.transpose(0, 1)
        h, _ = self.attend(y, y, y, need_weights=False)
        return x + (h if self.attend.batch_first else h.transpose(0, 1))


class Recurrent(nn.Module):
    """All states of a recurrent layer."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


class Folded(nn.Module):
    """A layer on (batch · time, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x.reshape(-1, x.shape[-1]))).view_as(x)


class TimeFirst(nn.Module):
    """A layer on (time, batch, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x.transpose(0, 1))).transpose(0, 1)


class OverTime(nn.Module):
    """A causal convolution along the sequence."""

    def __init__(self, width: int, depthwise: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 2, groups=width if depthwise else 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.conv(F.pad(x.transpose(1, 2), (1, 0)))).transpose(1, 2)


def make_mixer(kind: str, width: int, flag: bool) -> nn.Module:
    if kind == "attention":
        return Attention(width, batch_first=flag)
    if kind.startswith("encoder"):
        return nn.TransformerEncoderLayer(
            width, 2, 5, batch_first=True, norm_first="first" in kind, layer_norm_eps=1e-3
        )
    if kind == "gru":
        return Recurrent(nn.GRU(width, width, batch_first=True, bias=flag))
    if kind == "lstm":
        return Recurrent(nn.LSTM(width, width // 2, batch_first=True, bidirectional=True, bias=flag))
    if kind == "folded":
        return Folded(width)
    return TimeFirst(width) if kind == "sequence first" else OverTime(width, depthwise=flag)


# -- pooling -------------------------------------------------------------------------------------------------------
class Reduce(nn.Module):
    """Mean over the sequence, or its last element."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1) if self.kind == "mean" else x[:, -1]


class GlobalAverage(nn.Module):
    """Mean over all positions of (n, channels, ...)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mean(2)


def make_pool(kind: str, length: int, width: int) -> tuple[nn.Module, int]:
    return (nn.Flatten(), length * width) if kind == "flatten" else (Reduce(kind), width)


def make_downsampling(kind: str, dims: int) -> nn.Module:
    average = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
    largest = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
    return (average if kind == "avg" else largest)[dims](2)
