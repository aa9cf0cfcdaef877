"""Layers of PyTorch and of the literature, each a different way to use a parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Made, Net, free, ids, named
from zoo.unseen import D, T, either, exact, head


def pooled(part: nn.Module, d: int = D) -> Net:
    """(n, T, D) through `part`, mean over positions, head."""
    return Net(lambda m, x: m.head(m.part(x).tanh().flatten(1, -2).mean(1)), part=part, head=head(d))


# -- recurrent, attention ------------------------------------------------------------------------------------------
@exact(
    "recurrent layers hold their weights flat",
    each={
        f"{kind.__name__} {label}": (kind, options)
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for label, options in {"plain": {}, "deep": {"num_layers": 2}, "both ways": {"bidirectional": True}}.items()
    }
    | {"LSTM projected": (nn.LSTM, {"proj_size": 2}), "RNN relu": (nn.RNN, {"nonlinearity": "relu", "bias": False})},
)
def recurrent(kind: Any, options: dict[str, Any]) -> Made:
    layer = kind(D, 5, batch_first=True, **options)
    width = layer(torch.randn(1, T, D))[0].shape[-1]
    return Net(lambda m, x: m.head(m.layer(x)[0][:, -1]), layer=layer, head=head(width)), torch.randn(6, T, D)


@exact("samples along the second axis of a recurrent layer")
def recurrent_time_first() -> Made:
    run = lambda m, x: m.head(m.layer(x.transpose(0, 1))[0][-1])  # noqa: E731
    return Net(run, layer=nn.LSTM(D, 5), head=head(5)), torch.randn(6, T, D)


@exact("cells called in a loop", each={"LSTMCell": nn.LSTMCell, "GRUCell": nn.GRUCell, "RNNCell": nn.RNNCell})
def recurrent_cell(kind: Any) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = m.cell(x[:, t], state)
        return m.head(state[0] if isinstance(state, tuple) else state)

    return Net(run, cell=kind(D, 5), head=head(5)), torch.randn(6, T, D)


ATTENTION = {
    "weights": ({"batch_first": True}, True),
    "no weights": ({"batch_first": True}, False),
    "time first": ({}, False),
    "kdim": ({"batch_first": True, "kdim": 3, "vdim": 2}, False),
    "no bias": ({"batch_first": True, "bias": False}, True),
    "bias_kv": ({"batch_first": True, "add_bias_kv": True, "add_zero_attn": True}, True),
}


@exact("attention with packed and separate projections", each=ATTENTION)
def multihead_attention(options: dict[str, Any], weights: bool) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        first = m.a.batch_first
        q = x if first else x.transpose(0, 1)
        k, v = (q[..., : m.a.kdim], q[..., : m.a.vdim])
        out = m.a(q, k, v, need_weights=weights)[0]
        return m.head((out if first else out.transpose(0, 1)).mean(1))

    return Net(run, a=nn.MultiheadAttention(D, 2, **options), head=head()), torch.randn(6, T, D)


@exact(
    "the encoder layer has a fast path in eval mode that bypasses its modules",
    each={"post": {}, "pre": {"norm_first": True}, "gelu": {"activation": "gelu"}, "no bias": {"bias": False}},
    quick=("post",),
)
def transformer_encoder_layer(options: dict[str, Any]) -> Made:
    layer = nn.TransformerEncoderLayer(D, 2, 6, batch_first=True, **options)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options)
    return pooled(encoder), torch.randn(6, T, D)


@exact("decoder layers with a memory")
def transformer_decoder_layer() -> Made:
    layer = nn.TransformerDecoderLayer(D, 2, 6, batch_first=True)
    return Net(lambda m, x, y: m.head(m.d(x, y).mean(1)), d=layer, head=head()), (
        torch.randn(6, T, D),
        torch.randn(6, 2, D),
    )


@either("padding masks and the nested-tensor fast path of the encoder")
def encoder_with_padding() -> Made:
    layer = nn.TransformerEncoderLayer(D, 2, 6, batch_first=True)
    padding = torch.arange(T)[None] >= torch.tensor([3, 2, 3, 1, 2, 3])[:, None]
    run = lambda m, x, p: m.head(m.e(x, src_key_padding_mask=p)[:, 0])  # noqa: E731
    return Net(run, e=nn.TransformerEncoder(layer, 2), head=head()), (torch.randn(6, T, D), padding)


# -- layers that are not affine maps of one input ------------------------------------------------------------------
@exact("a bilinear layer: two inputs, one weight", each=(2, 5))
def bilinear(width: int) -> Made:
    run = lambda m, x: m.head(m.b(x, x.flip(1)).tanh())  # noqa: E731
    return Net(run, b=nn.Bilinear(D, D, width), head=head(width)), torch.randn(6, D)


@exact("bags of words", each=("sum", "mean", "max"))
def embedding_bag(mode: str) -> Made:
    return nn.Sequential(nn.EmbeddingBag(7, D, mode=mode), nn.Tanh(), head()), ids(6, T)


@either("bags cut by offsets that count across the batch")
def embedding_bag_with_offsets() -> Made:
    run = lambda m, x: m.head(m.bag(x.flatten(), torch.arange(0, x.numel(), x.shape[1])).tanh())  # noqa: E731
    return Net(run, bag=nn.EmbeddingBag(7, D, mode="sum"), head=head()), ids(6, T)


@exact("embeddings with options", each={"padding": {"padding_idx": 0}, "sparse": {"sparse": True}})
def embedding_options(options: dict[str, Any]) -> Made:
    return nn.Sequential(nn.Embedding(7, D, **options), nn.Flatten(), head(T * D)), ids(6, T)


@either("gradients divided by how often a word occurs in the batch: alone, in the sample")
def embedding_scaled_by_frequency() -> Made:
    return nn.Sequential(nn.Embedding(4, D, scale_grad_by_freq=True), nn.Flatten(), head(T * D)), ids(
        6, T, vocabulary=4
    )


NORMS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "group": (lambda: nn.GroupNorm(2, 4), (6, 4, 3)),
    "instance": (lambda: nn.InstanceNorm1d(4, affine=True), (6, 4, 3)),
    "instance tracked": (lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True), (6, 4, 3)),
    "layer": (lambda: nn.LayerNorm((4, 3)), (6, 4, 3)),
    "rms": (lambda: nn.RMSNorm(3), (6, 4, 3)),
    "batch": (lambda: nn.BatchNorm1d(4), (6, 4, 3)),
    "local response": (lambda: nn.LocalResponseNorm(2), (6, 4, 3)),
    "prelu": (lambda: nn.PReLU(4), (6, 4, 3)),
    "prelu single": (lambda: nn.PReLU(), (6, 4, 3)),
    "rrelu": (lambda: nn.RReLU(), (6, 4, 3)),
}


@exact("norms and activations with parameters", each=NORMS)
def norm(make: Any, shape: tuple[int, ...]) -> Made:
    part = make()
    for p in part.parameters():
        nn.init.normal_(p, 1.0, 0.3)
    run = lambda m, x: m.head(m.norm(m.a(x)).tanh().flatten(1))  # noqa: E731
    return Net(run, a=nn.Conv1d(4, 4, 1), norm=part, head=head(12)), torch.randn(shape)


CONVOLUTIONS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "1d": (lambda: nn.Conv1d(2, 3, 2), (2, 5)),
    "2d": (lambda: nn.Conv2d(2, 3, 2), (2, 4, 4)),
    "3d": (lambda: nn.Conv3d(2, 3, 2), (2, 3, 3, 3)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 4, 4)),
    "depthwise": (lambda: nn.Conv2d(3, 3, 3, groups=3), (3, 4, 5)),
    "dilated": (lambda: nn.Conv2d(2, 3, 2, dilation=2, stride=2), (2, 6, 6)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 4)),
    "reflect same": (lambda: nn.Conv1d(2, 3, 3, padding="same", padding_mode="reflect"), (2, 5)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(2, 3, 2, stride=2), (2, 4)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1, padding=1), (2, 3, 3)),
    "transposed grouped": (lambda: nn.ConvTranspose2d(4, 4, 2, groups=2, dilation=2), (4, 3, 3)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(1, 2, 2), (1, 2, 2, 2)),
}


@exact("convolutions with every option", each=CONVOLUTIONS)
def convolution(make: Any, shape: tuple[int, ...]) -> Made:
    part = make()
    width = part(torch.randn(1, *shape)).numel()
    return nn.Sequential(part, nn.Tanh(), nn.Flatten(), head(width)), torch.randn(6, *shape)


# -- weights that are computed -------------------------------------------------------------------------------------
def _generated(m: Any, x: Tensor) -> Tensor:
    w = m.maker(m.code).view(3, 2, 2, 2)
    return F.conv2d(x, w)


def _per_sample(m: Any, x: Tensor) -> Tensor:
    w = m.maker(x.mean((2, 3)) @ m.code.view(2, -1)).view(-1, 2, 2, 2)
    n = len(x)
    return F.conv2d(x.reshape(1, -1, *x.shape[2:]), w, groups=n).view(n, 3, 3, 3)


def _standardised(m: Any, x: Tensor) -> Tensor:
    w = m.flat.view(3, 2, 2, 2)
    return F.conv2d(x, (w - w.mean((1, 2, 3), keepdim=True)) / w.std((1, 2, 3), keepdim=True))


GENERATED = {
    **named(_generated, _per_sample, _standardised),
    "reshaped": lambda m, x: F.conv2d(x, m.flat.view(3, 2, 2, 2)),
    "permuted": lambda m, x: F.conv2d(x, m.flat.view(2, 2, 2, 3).permute(3, 2, 0, 1)),
    "unfolded": lambda m, x: (m.flat.view(3, 8) @ F.unfold(x, 2)).view(-1, 3, 3, 3),
    "einsum": lambda m, x: torch.einsum("oc,nchw->nohw", m.flat[:6].view(3, 2), x)[..., 1:, 1:],
}


@exact("convolutions whose weights are computed", each=GENERATED)
def computed_convolution(apply: Callable[..., Tensor]) -> Made:
    run = lambda m, x: m.head(apply(m, x).tanh().flatten(1))  # noqa: E731
    return Net(
        run, maker=nn.Linear(4, 24), code=free(4) if apply is not _per_sample else free(8), flat=free(24), head=head(27)
    ), (torch.randn(6, 2, 4, 4))


EINSUMS = {
    "nd,de->ne": (D, D),
    "ntd,de->nte": (D, D),
    "ntd,tde->nte": (T, D, D),
    "ntd,td->ntd": (T, D),
    "ntd,hde->nhte": (2, D, D),
    "ntd,nsd,de->nte": (D, D),
    "...d,ed->...e": (D, D),
}


@exact("einsum in many shapes", each={key: (key, shape) for key, shape in EINSUMS.items()})
def einsum(equation: str, shape: tuple[int, ...]) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        h = x.mean(1) if equation.startswith("nd,") else x
        h = torch.einsum(equation, h, h, m.w) if equation.count(",") == 2 else torch.einsum(equation, h, m.w)
        return m.head(h.tanh().reshape(len(x), -1, D).mean(1))

    return Net(run, w=free(*shape), head=head()), torch.randn(6, T, D)


LOOKUPS: dict[str, Any] = {
    "index_select": lambda w, i: torch.index_select(w, 0, i.flatten()).view(*i.shape, D),
    "gather": lambda w, i: torch.gather(w, 0, i.flatten()[:, None].expand(-1, D)).view(*i.shape, D),
    "index": lambda w, i: w[i],
    "one hot": lambda w, i: F.one_hot(i, 7).to(w) @ w,
    "take": lambda w, i: torch.take(w, i[..., None] * D + torch.arange(D)),
    "scatter": lambda w, i: torch.zeros(len(i), 7, dtype=w.dtype).scatter_(1, i, 1.0)[:, None] @ w,
    "functional": lambda w, i: F.embedding(i, w, padding_idx=1),
    "unbind": lambda w, i: torch.stack([torch.stack([w.unbind(0)[j] for j in row]) for row in i.tolist()]),
}


@exact("tables looked up in many ways", each=LOOKUPS)
def lookup(read: Any) -> Made:
    return Net(lambda m, i: m.head(read(m.w, i).tanh().mean(1)), w=free(7, D), head=head()), ids(6, T)
