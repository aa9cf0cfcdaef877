"""Building blocks random networks are grown from; shapes in, shapes out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from strategies.layers import Conv1D
from strategies.networks import Net
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
def residual(*branch: nn.Module) -> nn.Module:
    return Net(lambda m, x: x + m.branch(x.clone()), branch=nn.Sequential(*branch))


def tied(width: int, inner: int) -> nn.Module:
    """Encode with a layer, decode with the transpose of its weight."""
    run = lambda m, x: F.linear(torch.tanh(m.encode(x)), m.encode.weight.t())  # noqa: E731
    return Net(run, encode=nn.Linear(width, inner))


def scaled_twice(width: int) -> nn.Module:
    """A bare parameter used twice: s ∘ tanh(s ∘ x)."""
    return Net(lambda m, x: m.scale * torch.tanh(m.scale * x), scale=nn.Parameter(torch.ones(width)))


def self_bilinear(width: int) -> nn.Module:
    """xᵀ A_k x, a module without a rule."""
    return Net(lambda m, x: torch.tanh(m.form(x, x)), form=nn.Bilinear(width, width, width))


def learned_positions(length: int, width: int) -> nn.Module:
    """Adds an embedding of 0 … T-1, which has no batch axis."""
    run = lambda m, x: x + m.table(torch.arange(x.shape[1], device=x.device))  # noqa: E731
    return Net(run, table=nn.Embedding(length, width))


def attention(width: int, batch_first: bool) -> nn.Module:
    """Self-attention with a residual; axes in the order the attention module wants."""

    def run(m: Any, x: Tensor) -> Tensor:
        y = x if batch_first else x.transpose(0, 1)
        h, _ = m.attend(y, y, y, need_weights=False)
        return x + (h if batch_first else h.transpose(0, 1))

    return Net(run, attend=nn.MultiheadAttention(width, 2, batch_first=batch_first))


def recurrent(cell: nn.Module) -> nn.Module:
    """All states of a recurrent layer."""
    return Net(lambda m, x: m.cell(x)[0], cell=cell)


def over_time(width: int, depthwise: bool) -> nn.Module:
    """A causal convolution along the sequence."""
    run = lambda m, x: torch.tanh(m.conv(F.pad(x.transpose(1, 2), (1, 0)))).transpose(1, 2)  # noqa: E731
    return Net(run, conv=nn.Conv1d(width, width, 2, groups=width if depthwise else 1))


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


class DetachedGate(nn.Module):
    """A layer whose second use is cut off from the gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.layer(x.flip(-1)).sigmoid().detach()


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


def make_mixer(kind: str, width: int, flag: bool) -> nn.Module:
    if kind == "attention":
        return attention(width, batch_first=flag)
    if kind.startswith("encoder"):
        return nn.TransformerEncoderLayer(
            width, 2, 5, batch_first=True, norm_first="first" in kind, layer_norm_eps=1e-3
        )
    if kind == "gru":
        return recurrent(nn.GRU(width, width, batch_first=True, bias=flag))
    if kind == "lstm":
        return recurrent(nn.LSTM(width, width // 2, batch_first=True, bidirectional=True, bias=flag))
    if kind == "folded":
        return Folded(width)
    return TimeFirst(width) if kind == "sequence first" else over_time(width, depthwise=flag)


# -- pooling -------------------------------------------------------------------------------------------------------
POOLS: dict[str, Callable[..., Tensor]] = {"mean": lambda m, x: x.mean(1), "last": lambda m, x: x[:, -1]}


def global_average() -> nn.Module:
    return Net(lambda m, x: x.flatten(2).mean(2))


def make_pool(kind: str, length: int, width: int) -> tuple[nn.Module, int]:
    return (nn.Flatten(), length * width) if kind == "flatten" else (Net(POOLS[kind]), width)


def make_downsampling(kind: str, dims: int) -> nn.Module:
    average = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
    largest = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
    return (average if kind == "avg" else largest)[dims](2)
