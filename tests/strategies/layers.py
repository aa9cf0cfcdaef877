"""One small network a layer kind and option: what each rule must get right. All in float64 and eval mode.

`LAYERS[name]()` gives `(model, x)` with three samples; outputs are (n, 3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from strategies.networks import Case, Net, noise, randomize, tokens

N, C = 3, 3

LAYERS: dict[str, Callable[[], Case]] = {}


class Spread(nn.Module):
    """Parameters that are spread over the samples, in every way to say so."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(1, 1, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = self.parts
        size = (len(x), 1, x.shape[2])
        tokens = [a.expand(len(x), -1, -1), b.broadcast_to(size), torch.broadcast_to(c, size)]
        return torch.cat([*tokens, x * d.expand_as(x)], 1)


class Conv1D(nn.Module):
    """The transposed linear layer of GPT-2: y = x W + b with W (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.randn(nx, nf) / nx**0.5)
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


class Weights(nn.Module):
    """Several parameters of one shape, which a network uses by functions and operators."""

    def __init__(self, count: int, *shape: int) -> None:
        super().__init__()
        self.w = nn.ParameterList([nn.Parameter(torch.randn(*shape)) for _ in range(count)])


class Scaled(Weights):
    """By every spelling of a product."""

    def __init__(self, width: int) -> None:
        super().__init__(5, width)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d, e = self.w
        return e * (torch.multiply(torch.mul(x, a).tanh(), b).tanh().mul(c).tanh() * d).tanh()


class Shifted(Weights):
    """By every spelling of a sum."""

    def __init__(self, width: int) -> None:
        super().__init__(4, width)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = self.w
        return d + (torch.add(x, a).tanh().add(b).tanh() + c).tanh()


class Multiplied(Weights):
    """By every spelling of a matrix product."""

    def __init__(self, width: int) -> None:
        super().__init__(6, width, width)
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d, e, f = self.w
        x = (torch.matmul(x, a).tanh().matmul(b).tanh() @ c).tanh()
        rows = x.flatten(0, -2)
        return self.bias.addmm(torch.mm(rows, d).tanh().mm(e).tanh(), f).view(x.shape)


def direct(function: Callable[..., Tensor], m: Any, x: Tensor) -> Tensor:
    """The function of PyTorch on the weights of a layer, not the layer's own call of it."""
    return m.head(function(m.layer, x).tanh().reshape(len(x), -1))


def pooled(m: Any, x: Tensor) -> Tensor:
    """The layer, a nonlinearity, and a linear head on everything it put out."""
    h = m.layer(x)
    return m.head((h if isinstance(h, Tensor) else h[0]).tanh().reshape(len(x), -1))


def attended(m: Any, x: Tensor, **options: Any) -> Tensor:
    h, _ = m.layer(x, x, x, **options)
    return m.head(h.tanh().mean(1))


def attended_across(m: Any, x: Tensor) -> Tensor:
    key = torch.cat([x, x.flip(1)], 1)
    h, _ = m.layer(x, m.key(key), m.value(key))
    return m.head(h.tanh().mean(1))


def attended_first(m: Any, x: Tensor) -> Tensor:
    h, _ = m.layer(*[x.transpose(0, 1)] * 3)
    return m.head(h.tanh().mean(0))


def recurrent(m: Any, x: Tensor) -> Tensor:
    return m.head(m.layer(x)[0][:, -1])


def sequence_first(m: Any, x: Tensor) -> Tensor:
    return m.head(m.layer(x.transpose(0, 1)).mean(0))


def bag(m: Any, x: Tensor) -> Tensor:
    return m.head(m.layer(x).tanh())


def entry(name: str, run: Callable[..., Tensor], width: int, x: Tensor, **parts: Callable[[], nn.Module]) -> None:
    """Register a network of `parts` with a linear head on `width` features."""

    def build() -> Case:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = {key: make() for key, make in parts.items()}
            model = Net(run, **made, head=nn.Linear(width, C))
        return randomize(model), x

    LAYERS[name] = build


def convolution(name: str, kind: type[nn.Module], x: Tensor, *args: Any, **options: Any) -> None:
    with torch.random.fork_rng():
        width = kind(*args, **options)(x[:1].float()).numel()
    entry(name, pooled, width, x, layer=partial(kind, *args, **options))


V, S = noise(N, 4), noise(N, 5, 4)
LINE, IMAGE, VOLUME = noise(N, 4, 7), noise(N, 4, 6, 5), noise(N, 2, 4, 3, 4)

entry("linear", pooled, 6, V, layer=partial(nn.Linear, 4, 6))
entry("linear without bias", pooled, 6, V, layer=partial(nn.Linear, 4, 6, bias=False))
entry("linear on sequences", pooled, 30, S, layer=partial(nn.Linear, 4, 6))
entry("linear on grids", pooled, 24, noise(N, 2, 3, 4), layer=partial(nn.Linear, 4, 4))
entry("bilinear", lambda m, x: m.head(m.layer(x, x.flip(1))), 3, V, layer=partial(nn.Bilinear, 4, 4, 3))
entry("transposed linear", pooled, 30, S, layer=partial(Conv1D, 6, 4))

entry("scaled", pooled, 20, S, layer=partial(Scaled, 4))
entry("shifted", pooled, 20, S, layer=partial(Shifted, 4))
entry("spread", pooled, 32, S, layer=partial(Spread, 4))
entry("multiplied", pooled, 4, V, layer=partial(Multiplied, 4))
entry("multiplied sequences", pooled, 20, S, layer=partial(Multiplied, 4))

convolution("conv1d", nn.Conv1d, LINE, 4, 3, 3)
convolution("conv1d strided dilated", nn.Conv1d, LINE, 4, 3, 2, stride=2, padding=1, dilation=2)
convolution("conv1d grouped", nn.Conv1d, LINE, 4, 6, 3, groups=2, bias=False)
convolution("conv2d", nn.Conv2d, IMAGE, 4, 3, 3, padding=1)
convolution("conv2d strided", nn.Conv2d, IMAGE, 4, 3, 3, stride=(2, 1), padding=(1, 2))
convolution("conv2d dilated", nn.Conv2d, IMAGE, 4, 3, (2, 3), dilation=(2, 1), bias=False)
convolution("conv2d grouped", nn.Conv2d, IMAGE, 4, 6, 3, groups=2)
convolution("conv2d depthwise", nn.Conv2d, IMAGE, 4, 4, 3, padding=1, groups=4)
convolution("conv2d depthwise multiplied", nn.Conv2d, IMAGE, 4, 8, 3, groups=4, stride=2)
convolution("conv2d one by one", nn.Conv2d, IMAGE, 4, 5, 1, bias=False)
convolution("conv2d one position", nn.Conv2d, IMAGE, 4, 5, (6, 5))
convolution("conv2d padded to same size", nn.Conv2d, IMAGE, 4, 3, (2, 4), padding="same")
convolution("conv2d circular", nn.Conv2d, IMAGE, 4, 3, 3, padding=1, padding_mode="circular")
convolution("conv2d reflected", nn.Conv2d, IMAGE, 4, 3, 3, padding=(2, 1), padding_mode="reflect")
convolution("conv3d", nn.Conv3d, VOLUME, 2, 3, 2)
convolution("conv3d strided grouped", nn.Conv3d, VOLUME, 2, 4, (2, 1, 3), stride=(1, 2, 1), padding=1, groups=2)
convolution("transposed conv1d", nn.ConvTranspose1d, LINE, 4, 3, 3, stride=2, padding=1, output_padding=1)
convolution("transposed conv2d", nn.ConvTranspose2d, IMAGE, 4, 3, 3, stride=2, padding=1, output_padding=1)
convolution("transposed conv2d grouped", nn.ConvTranspose2d, IMAGE, 4, 6, 2, groups=2, dilation=2, bias=False)
convolution("transposed conv3d", nn.ConvTranspose3d, VOLUME, 2, 2, 2)

entry("layer norm", pooled, 4, V, layer=partial(nn.LayerNorm, 4))
entry("layer norm on sequences", pooled, 20, S, layer=partial(nn.LayerNorm, 4, bias=False))
entry("layer norm over two axes", pooled, 20, S, layer=partial(nn.LayerNorm, (5, 4)))
entry("rms norm", pooled, 20, S, layer=partial(nn.RMSNorm, 4))
entry("group norm", pooled, 4 * 30, IMAGE, layer=partial(nn.GroupNorm, 2, 4))
entry("group norm on vectors", pooled, 4, V, layer=partial(nn.GroupNorm, 2, 4))
entry("batch norm on vectors", pooled, 4, V, layer=partial(nn.BatchNorm1d, 4))
entry("batch norm on sequences", pooled, 28, LINE, layer=partial(nn.BatchNorm1d, 4))
entry("batch norm on images", pooled, 120, IMAGE, layer=partial(nn.BatchNorm2d, 4))
entry("batch norm on volumes", pooled, 96, VOLUME, layer=partial(nn.BatchNorm3d, 2))
entry("instance norm", pooled, 120, IMAGE, layer=partial(nn.InstanceNorm2d, 4, affine=True))
FUNCTIONS: dict[str, tuple[Callable[..., Tensor], int, Tensor, Callable[[], nn.Module]]] = {
    "batch norm": (
        lambda m, x: torch.batch_norm(x, m.weight, m.bias, m.running_mean, m.running_var, False, 0.1, 1e-5, False),
        120, IMAGE, partial(nn.BatchNorm2d, 4),
    ),
    "instance norm": (
        lambda m, x: torch.instance_norm(x, m.weight, m.bias, None, None, True, 0.1, 1e-5, False),
        120, IMAGE, partial(nn.BatchNorm2d, 4),
    ),
    "layer norm": (lambda m, x: torch.layer_norm(x, [4], m.weight, m.bias), 20, S, partial(nn.LayerNorm, 4)),
    "rms norm": (lambda m, x: torch.rms_norm(x, [4], m.weight), 20, S, partial(nn.RMSNorm, 4)),
    "group norm": (lambda m, x: torch.group_norm(x, 2, m.weight, m.bias), 120, IMAGE, partial(nn.GroupNorm, 2, 4)),
}  # fmt: skip
for _name, (_function, _width, _x, _layer) in FUNCTIONS.items():
    entry(f"{_name} by its function", partial(direct, _function), _width, _x, layer=_layer)
entry("prelu", pooled, 120, IMAGE, layer=partial(nn.PReLU, 4))

entry("embedding", pooled, 20, tokens(N, 5), layer=partial(nn.Embedding, 7, 4))
entry(
    "embedding with padding", pooled, 20, tokens(N, 5, vocabulary=3), layer=partial(nn.Embedding, 7, 4, padding_idx=0)
)
entry("embedding with sparse gradients", pooled, 20, tokens(N, 5), layer=partial(nn.Embedding, 7, 4, sparse=True))
entry("embedding of one token", pooled, 4, tokens(N), layer=partial(nn.Embedding, 7, 4))
entry("bag of embeddings", bag, 4, tokens(N, 5), layer=partial(nn.EmbeddingBag, 7, 4, mode="mean"))

attention = partial(nn.MultiheadAttention, 4, 2, batch_first=True)
entry("attention", attended, 4, S, layer=attention)
entry("attention without weights", partial(attended, need_weights=False), 4, S, layer=attention)
entry("attention without bias", attended, 4, S, layer=partial(attention, bias=False))
entry("attention with added keys", attended, 4, S, layer=partial(attention, add_bias_kv=True, add_zero_attn=True))
entry("attention sequence first", attended_first, 4, S, layer=partial(nn.MultiheadAttention, 4, 2))
entry(
    "attention across widths",
    attended_across,
    4,
    S,
    layer=partial(attention, kdim=3, vdim=2),
    key=partial(nn.Linear, 4, 3),
    value=partial(nn.Linear, 4, 2),
)
encoder = partial(nn.TransformerEncoderLayer, 4, 2, dim_feedforward=6)
entry("encoder layer", pooled, 20, S, layer=partial(encoder, batch_first=True))
entry("encoder layer norm first", pooled, 20, S, layer=partial(encoder, batch_first=True, norm_first=True))
entry("encoder layer sequence first", sequence_first, 4, S, layer=encoder)
entry("lstm", recurrent, 4, S, layer=partial(nn.LSTM, 4, 4, num_layers=2, batch_first=True))
entry("bidirectional gru", recurrent, 6, S, layer=partial(nn.GRU, 4, 3, bidirectional=True, batch_first=True))
entry("rnn", recurrent, 4, S, layer=partial(nn.RNN, 4, 4, batch_first=True))
