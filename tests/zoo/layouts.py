"""Layouts that the first few samples do not show: sorting, unpadding, routing, gating, samples on other axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import rnn

from zoo.case import Made, Net, Smallest, family, named

FAMILY = "layouts"
exact, refused, either = family(FAMILY)
D, T, N = 4, 3, 9


def head(d: int = D) -> nn.Linear:
    return nn.Linear(d, 3)


def net(run: Callable[..., Any], **parts: Any) -> Net:
    return Net(run, a=nn.Linear(D, D), head=head(), **parts)


# -- the order of the samples --------------------------------------------------------------------------------------
def _sort(m: Any, x: Tensor) -> Tensor:
    order = x[:, 0].argsort()
    return m.head(m.a(x[order]).tanh())[order.argsort()]


def _shuffle(m: Any, x: Tensor) -> Tensor:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    return m.head(m.a(x[order]).tanh())[order.argsort()]


def _unique(m: Any, x: Tensor) -> Tensor:
    rows, back = torch.unique(x, dim=0, return_inverse=True)
    return m.head(m.a(rows).tanh())[back]


def _split_by_sign(m: Any, x: Tensor) -> Tensor:
    up = x[:, 0] > 0
    h = torch.cat([m.a(x[up]).tanh(), m.a(x[~up]).tanh()])
    order = torch.cat([up.nonzero(), (~up).nonzero()]).flatten()
    return m.head(h)[order.argsort()]


def _backwards_loop(m: Any, x: Tensor) -> Tensor:
    rows = [m.a(x[i]).tanh() for i in reversed(range(len(x)))]
    return m.head(torch.stack(rows[::-1]))


def _recursion(m: Any, x: Tensor) -> Tensor:
    if len(x) > 2:
        return torch.cat([_recursion(m, x[:2]), _recursion(m, x[2:])])
    return m.head(m.a(x).tanh())


def _odd_and_even(m: Any, x: Tensor) -> Tensor:
    out = x.new_empty(len(x), 3)
    out[0::2] = m.head(m.a(x[0::2]).tanh())
    if len(x) > 1:
        out[1::2] = m.head(m.a(x[1::2]).tanh())
    return out


ORDERS = {
    **named(_sort, _shuffle, _unique, _split_by_sign, _backwards_loop, _recursion, _odd_and_even),
    "flip": lambda m, x: m.head(m.a(x.flip(0)).tanh()).flip(0),
    "roll": lambda m, x: m.head(m.a(x.roll(1, 0)).tanh()).roll(-1, 0),
    "loop": lambda m, x: torch.cat([m.head(m.a(x[i : i + 1]).tanh()) for i in range(len(x))]),
    "loop_rows": lambda m, x: torch.stack([m.head(m.a(row).tanh()) for row in x]),
    "chunks": lambda m, x: torch.cat([m.head(m.a(part).tanh()) for part in x.split(2)]),
    "chunks_of_four": lambda m, x: m.head(torch.cat([m.a(part).tanh() for part in x.split(4)])),
}


@exact("samples in another order inside the model", each=ORDERS, quick=("sort", "split_by_sign", "loop", "flip"))
def samples_reordered(run: Callable[..., Tensor]) -> Made:
    return net(run), torch.randn(N, D)


@exact("the order learned from sorted first samples holds no longer", each=ORDERS)
def samples_reordered_later(run: Callable[..., Tensor]) -> Made:
    x = torch.randn(N, D)
    x[:3, 0] = torch.tensor([1.0, 2.0, 3.0])  # the first three are in order already
    return net(run), x


@exact("samples in another order, small blocks", each=ORDERS, options={"memory": Smallest()})
def samples_reordered_in_small_blocks(run: Callable[..., Tensor]) -> Made:
    return net(run), torch.randn(2 * N, D)


@exact("equal samples are merged by unique and keep their rows")
def duplicates_merged() -> Made:
    x = torch.randn(N, D)
    x[5], x[7] = x[0], x[1]
    return net(_unique), x


# -- padding -------------------------------------------------------------------------------------------------------
LENGTHS = torch.tensor([3, 1, 2, 5, 4, 1, 5, 2, 3])


def _unpad(m: Any, x: Tensor, length: Tensor) -> Tensor:
    mask = torch.arange(x.shape[1])[None] < length[:, None]
    tokens = m.a(x[mask]).tanh()
    sums = torch.zeros(len(x), D, dtype=x.dtype).index_add(0, mask.nonzero()[:, 0], tokens)
    return m.head(sums / length[:, None])


def _packed(m: Any, x: Tensor, length: Tensor) -> Tensor:
    pack = rnn.pack_padded_sequence(x, length, batch_first=True, enforce_sorted=False)
    return m.head(m.rnn(pack)[1][0])


def _packed_layer(m: Any, x: Tensor, length: Tensor) -> Tensor:
    pack = rnn.pack_padded_sequence(x, length, batch_first=True, enforce_sorted=False)
    pack = rnn.PackedSequence(m.a(pack.data).tanh(), *pack[1:])
    back = rnn.pad_packed_sequence(pack, batch_first=True)[0]
    return m.head(back.sum(1))


def _trim(m: Any, x: Tensor, length: Tensor) -> Tensor:
    x = x[:, : int(length.max())]
    mask = (torch.arange(x.shape[1])[None] < length[:, None])[..., None]
    return m.head((m.a(x).tanh() * mask).sum(1))


def _per_length(m: Any, x: Tensor, length: Tensor) -> Tensor:
    out = x.new_zeros(len(x), D)
    for each in length.unique():
        rows = length == each
        out[rows] = m.a(x[rows, : int(each)]).tanh().sum(1)
    return m.head(out)


def _nested(m: Any, x: Tensor, length: Tensor) -> Tensor:
    parts = [m.a(row[: int(k)]).tanh().sum(0) for row, k in zip(x, length)]
    return m.head(torch.stack(parts))


PADDED = {
    **named(_unpad, _packed, _packed_layer, _trim, _per_length, _nested),
    "last_token": lambda m, x, length: m.head(m.a(x).tanh()[torch.arange(len(x)), length - 1]),
}


@exact("texts of several lengths, unpadded inside the model", each=PADDED)
def padded(run: Callable[..., Tensor]) -> Made:
    return net(run, rnn=nn.GRU(D, D, batch_first=True)), (torch.randn(N, 5, D), LENGTHS.clone())


@exact("the first three texts are full, later ones are not", each=PADDED, options={"memory": Smallest()})
def padded_later(run: Callable[..., Tensor]) -> Made:
    length = torch.cat([torch.full((3,), 5), LENGTHS])
    return net(run, rnn=nn.GRU(D, D, batch_first=True)), (torch.randn(N + 3, 5, D), length)


# -- routing and gating --------------------------------------------------------------------------------------------
def _gated(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).tanh()
    if bool((x[:, 0] > 3).any()):
        h = h + (x[:, :1] > 3) * m.b(x)
    return m.head(h)


def _hard_experts(m: Any, x: Tensor) -> Tensor:
    chosen = (x[:, 0] > 3).long() + (x[:, 1] > 3)
    out = torch.zeros_like(x)
    for k, expert in enumerate(m.experts):
        if bool((chosen == k).any()):
            out[chosen == k] = expert(x[chosen == k])
    return m.head(out.tanh())


def _capacity(m: Any, x: Tensor) -> Tensor:
    chosen = F.one_hot((x[:, 0] > 3).long(), 3).to(x)
    routed = torch.einsum("nk,nd->kd", chosen[:0], x[:0]) * 0
    return m.head(sum(chosen[:, [k]] * e(x) for k, e in enumerate(m.experts)) + routed.sum())


def _early_exit(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).tanh()
    more = x[:, 0] > 3
    deeper = h.clone()
    deeper[more] = m.b(h[more]).tanh()
    return m.head(deeper)


GATES = {**named(_gated, _hard_experts, _capacity, _early_exit), "relu_dead": lambda m, x: m.head(m.b((x - 3).relu()))}


def gated_inputs(n: int, special: list[int]) -> Tensor:
    x = torch.randn(n, D).clamp(-1.5, 1.5)
    for i in special:
        x[i, i % 2] = 4.0
    return x


@exact("a branch that the first three samples do not take", each=GATES)
def branch_taken_later(run: Callable[..., Tensor]) -> Made:
    experts = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
    return net(run, b=nn.Linear(D, D), experts=experts), gated_inputs(N, [4, 7])


@exact("a branch that one late block takes", each=GATES, options={"memory": Smallest()})
def branch_taken_in_a_late_block(run: Callable[..., Tensor]) -> Made:
    experts = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
    return net(run, b=nn.Linear(D, D), experts=experts), gated_inputs(3 * N, [20, 25, 26])


@exact("a branch that only the first sample takes", each=GATES)
def branch_taken_first(run: Callable[..., Tensor]) -> Made:
    experts = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
    return net(run, b=nn.Linear(D, D), experts=experts), gated_inputs(N, [0])


@exact("the depth depends on the sample", each=(3, 6))
def depth_per_sample(most: int) -> Made:
    def run(m: Any, x: Tensor, depth: Tensor) -> Tensor:
        for k in range(int(depth.max())):
            x = torch.where((depth > k)[:, None], m.a(x).tanh(), x)
        return m.head(x)

    return net(run), (torch.randn(N, D), torch.arange(N) % most + 1)
