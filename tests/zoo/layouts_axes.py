"""Samples on other axes: folded with positions, on the second axis, doubled, tiled, windowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Made, Net, Smallest, free, ids, named
from zoo.layouts import D, N, T, exact, net


def _siamese(m: Any, x: Tensor) -> Tensor:
    left, right = m.a(torch.cat([x, x.flip(-1)])).tanh().chunk(2)
    return m.head((left * right).mean(1))


def _triplets(m: Any, x: Tensor) -> Tensor:
    h = m.a(torch.cat([x, 2 * x, x.flip(1)])).tanh()
    return m.head((h[: len(x)] + h[len(x) : 2 * len(x)] * h[2 * len(x) :]).mean(1))


def _interleaved(m: Any, x: Tensor) -> Tensor:
    h = m.a(x.repeat_interleave(2, 0)).tanh()
    return m.head((h[0::2] * h[1::2]).mean(1))


def _tiled(m: Any, x: Tensor) -> Tensor:
    h = m.a(x.repeat(3, 1, 1)).tanh().view(3, len(x), T, D)
    return m.head((h * torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1, 1).to(h)).sum(0).mean(1))


def _last_axis(m: Any, x: Tensor) -> Tensor:
    h = torch.einsum("ed,dtn->etn", m.a.weight, x.permute(2, 1, 0))
    return m.head(h.tanh().mean(1).t())


def _folded_middle(m: Any, x: Tensor) -> Tensor:
    h = x.view(len(x), T, 2, D // 2).permute(2, 0, 1, 3).reshape(2 * len(x) * T, D // 2)
    return m.head(F.linear(h, m.a.weight[:, : D // 2]).tanh().view(2, len(x), T, D).sum(0).mean(1))


def _batch_as_channels(m: Any, x: Tensor) -> Tensor:
    n = len(x)
    h = F.conv1d(x.transpose(1, 2).reshape(1, n * D, T), m.a.weight[:, None, :1].repeat(n, 1, 1), groups=n * D)
    return m.head(h.view(n, D, T).tanh().mean(2))


def _batch_as_length(m: Any, x: Tensor) -> Tensor:
    h = F.conv1d(x.mean(1).t()[None], m.a.weight[:, :, None], m.a.bias)
    return m.head(h[0].t().tanh())


def _windows(m: Any, x: Tensor) -> Tensor:
    h = m.a(x.unfold(1, 2, 1).permute(0, 1, 3, 2).reshape(-1, 2, D)).tanh()
    return m.head(h.view(len(x), -1, D).mean(1))


def _square(m: Any, x: Tensor) -> Tensor:
    gram = x @ x.transpose(1, 2)  # (n, T, T)
    return m.head((gram.flatten(1)[:, :D] @ m.a.weight).tanh())


def _padded_batch(m: Any, x: Tensor) -> Tensor:
    extra = (-len(x)) % 4
    h = m.a(F.pad(x, (0, 0, 0, 0, 0, extra))).tanh()
    return m.head(h[: len(x)].mean(1))


def _anchored(m: Any, x: Tensor) -> Tensor:
    h = m.a(torch.cat([m.anchor.expand(1, T, D), x])).tanh()
    return m.head((h[1:] * h[:1]).mean(1))


def _diagonal(m: Any, x: Tensor) -> Tensor:
    pairs = (x.mean(1) @ m.a.weight) @ x.mean(1).t()  # all pairs of samples, of which one's own is used
    return m.head(pairs.diagonal()[:, None] * x.mean(1))


AXES = {
    **named(
        _siamese,
        _triplets,
        _interleaved,
        _tiled,
        _last_axis,
        _folded_middle,
        _batch_as_channels,
        _batch_as_length,
        _windows,
        _square,
        _padded_batch,
        _anchored,
        _diagonal,
    ),
    "second_axis": lambda m, x: m.head(m.a(x.transpose(0, 1)).tanh().mean(0)),
    "folded": lambda m, x: m.head(m.a(x.reshape(-1, D)).tanh().view(len(x), T, D).mean(1)),
    "folded_behind": lambda m, x: m.head(m.a(x.transpose(0, 1).reshape(-1, D)).tanh().view(T, len(x), D).mean(0)),
    "row_vector": lambda m, x: m.head(m.a(x.reshape(1, -1, D)).tanh().view(len(x), T, D).mean(1)),
    "swap_roles": lambda m, x: m.head((m.a.weight @ x.mean(1).t()).t().tanh()),
}


@exact("samples on other axes, or several rows per sample", each=AXES)
def samples_on_another_axis(run: Callable[..., Tensor]) -> Made:
    return net(run, anchor=free(1, T, D)), torch.randn(N, T, D)


@exact("three samples of three positions: sizes that coincide", each=AXES)
def as_many_samples_as_positions(run: Callable[..., Tensor]) -> Made:
    return net(run, anchor=free(1, T, D)), torch.randn(T, T, D)


@exact("one sample", each=AXES)
def one_sample_on_another_axis(run: Callable[..., Tensor]) -> Made:
    return net(run, anchor=free(1, T, D)), torch.randn(1, T, D)


@exact("sizes drawn at random", each=range(6), options={"memory": Smallest()})
def random_shapes(seed: int) -> Made:
    draw = torch.Generator().manual_seed(seed)
    n, t, d, e = (int(torch.randint(1, 7, (), generator=draw)) for _ in range(4))

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x.transpose(0, 1)).tanh() if seed % 2 else m.a(x).tanh()
        h = h.transpose(0, 1) if seed % 2 else h
        h = m.b(h.reshape(-1, e)).relu().view(len(x), t, e)
        return m.head(h.flatten(1))

    return Net(run, a=nn.Linear(d, e), b=nn.Linear(e, e), head=nn.Linear(t * e, 2)), torch.randn(n + 2, t, d)


@exact("words looked up once per distinct word")
def distinct_words() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        words, back = x.unique(return_inverse=True)
        return m.head(m.a(m.table(words)).tanh()[back].mean(1))

    return net(run, table=nn.Embedding(7, D)), ids(N, T)


@exact("words counted per sample with bincount")
def counted_words() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        flat = (x + 7 * torch.arange(len(x))[:, None]).flatten()
        counts = torch.bincount(flat, minlength=7 * len(x)).view(len(x), 7).to(m.a.weight)
        return m.head(m.a(counts @ m.table.weight).tanh())

    return net(run, table=nn.Embedding(7, D)), ids(N, T)
