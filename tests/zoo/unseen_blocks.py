"""Blocks of the literature and of PyTorch's own machinery: vmap in forward, scripts, compiled parts, experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Made, Net, free, ids, named
from zoo.unseen import D, T, either, exact, head


# -- machinery inside forward --------------------------------------------------------------------------------------
def _own_gradient(m: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        return torch.autograd.grad(m.a(z).tanh().sum(), z, create_graph=True)[0]


def _ensemble(m: Any, x: Tensor) -> Tensor:
    weights = torch.stack([m.a.weight, m.w])
    return torch.vmap(lambda w: F.linear(x, w).tanh())(weights).mean(0)


MACHINERY = {
    "vmapped": lambda m, x: torch.vmap(lambda row: m.a(row).tanh())(x),
    "vmapped_weight": lambda m, x: torch.vmap(lambda w: x @ w)(m.w.view(2, D, D // 2)).movedim(0, 1).flatten(1).tanh(),
    "functional": lambda m, x: torch.func.functional_call(
        m.a, {name: 2 * p for name, p in m.a.named_parameters()}, (x,)
    ).tanh(),
    "input_gradient": lambda m, x: torch.vmap(torch.func.grad(lambda row: m.a(row).tanh().sum()))(x),
    **named(_own_gradient, _ensemble),
    "double_backward_penalty": lambda m, x: m.a(x).tanh() * _own_gradient(m, x),
}


@either("torch.func, vmap and gradients inside forward", each=MACHINERY)
def machinery_in_forward(apply: Callable[..., Tensor]) -> Made:
    return Net(lambda m, x: m.head(apply(m, x)), a=nn.Linear(D, D), w=free(D, D), head=head()), torch.randn(6, D)


@either("parts without Python code", each={"scripted": True, "traced": False})
def without_python(scripted: bool) -> Made:
    part = nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 5))
    made = torch.jit.script(part) if scripted else torch.jit.trace(part, torch.randn(2, D))
    return nn.Sequential(made, nn.Tanh(), head(5)), torch.randn(6, D)


@either("a compiled part (the eager backend)", each={"part": False, "whole": True})
def compiled(whole: bool) -> Made:
    part = nn.Sequential(nn.Linear(D, 5), nn.Tanh())
    if whole:
        return torch.compile(nn.Sequential(part, head(5)), backend="eager"), torch.randn(6, D)  # type: ignore[return-value]
    compiled: Any = torch.compile(part, backend="eager")
    return nn.Sequential(compiled, head(5)), torch.randn(6, D)


@either("a wrapper for several devices on a machine without any")
def data_parallel() -> Made:
    return nn.DataParallel(nn.Sequential(nn.Linear(D, 5), nn.Tanh(), head(5))), torch.randn(6, D)


@exact("lists and dictionaries of parameters", each={"list": True, "dict": False})
def parameter_containers(as_list: bool) -> Made:
    values = [free(D, D), free(D, D)]
    store: Any = nn.ParameterList(values) if as_list else nn.ParameterDict({"0": values[0], "1": values[1]})

    def run(m: Any, x: Tensor) -> Tensor:
        for w in m.store if as_list else m.store.values():
            x = (x @ w).tanh()
        return m.head(x)

    return Net(run, store=store, head=head()), torch.randn(6, D)


@either("complex parameters", each={"product": "product", "fft": "fft", "modulus": "modulus", "real view": "real"})
def complex_parameters(kind: str) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        z = torch.fft.fft(x) if kind == "fft" else x.to(torch.complex128)
        y = z * m.w[0] if kind == "fft" else z @ m.w
        h = torch.fft.ifft(y).real if kind == "fft" else y.abs() if kind == "modulus" else torch.view_as_real(y)[..., 0]
        return m.head(h)

    w = nn.Parameter(torch.randn(D, D, dtype=torch.complex128))
    return Net(run, w=w, head=head()), torch.randn(6, D)


# -- blocks of the literature --------------------------------------------------------------------------------------
@exact("layer scale, stochastic depth switched off")
def layer_scale() -> Made:
    run = lambda m, x: m.head((x + m.gamma * m.a(m.norm(x))).mean(1))  # noqa: E731
    return Net(run, gamma=free(D), a=nn.Linear(D, D), norm=nn.LayerNorm(D), head=head()), torch.randn(6, T, D)


def _vit(m: Any, x: Tensor) -> Tensor:
    h = m.patch(x).flatten(2).transpose(1, 2)
    h = torch.cat([m.token.expand(len(x), -1, -1), h], 1) + m.place
    return m.head(m.block(h)[:, 0])


@exact("patches, a class token and positions", each=(2, 4))
def vision_transformer(patch: int) -> Made:
    block = nn.TransformerEncoderLayer(D, 2, 6, batch_first=True, norm_first=True)
    places = (8 // patch) ** 2 + 1
    parts = {"patch": nn.Conv2d(1, D, patch, patch), "token": free(1, 1, D), "place": free(1, places, D)}
    return Net(_vit, block=block, head=head(), **parts), torch.randn(6, 1, 8, 8)


@exact("windows folded into the batch, a table of relative positions (Swin)", each=(2, 4))
def windowed_attention(window: int) -> Made:
    places = window * window
    steps = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
    relative = (steps[:, :, None] - steps[:, None]).permute(1, 2, 0) + window - 1
    index = relative[..., 0] * (2 * window - 1) + relative[..., 1]

    def run(m: Any, x: Tensor) -> Tensor:
        n, size = len(x), x.shape[1]
        w = x.view(n, size // window, window, size // window, window, D).transpose(2, 3).reshape(-1, places, D)
        q, k, v = m.qkv(w).chunk(3, -1)
        bias = m.table[m.index.flatten()].view(places, places)
        h = ((q @ k.transpose(1, 2) + bias).softmax(-1) @ v).reshape(n, -1, D)
        return m.head(m.out(h).tanh().mean(1))

    parts = {"qkv": nn.Linear(D, 3 * D), "out": nn.Linear(D, D), "table": free((2 * window - 1) ** 2)}
    return Net(run, index=index, head=head(), **parts), torch.randn(6, 4, 4, D)


@exact("squeeze and excite: a gate from the sample's own mean")
def squeeze_excite() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.conv(x)
        return m.head((h * m.up(m.down(h.mean((2, 3), keepdim=True)).relu()).sigmoid()).mean((2, 3)))

    parts = {"conv": nn.Conv2d(2, 4, 3), "down": nn.Conv2d(4, 2, 1), "up": nn.Conv2d(2, 4, 1)}
    return Net(run, head=head(4), **parts), torch.randn(6, 2, 5, 5)


@exact("a soft mixture of experts", each=(2, 5))
def soft_experts(count: int) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        gates = m.gate(x).softmax(-1)
        return m.head(sum(gates[:, [k]] * expert(x) for k, expert in enumerate(m.experts)))

    experts = nn.ModuleList(nn.Linear(D, D) for _ in range(count))
    return Net(run, gate=nn.Linear(D, count), experts=experts, head=head()), torch.randn(6, D)


@exact("experts in one tensor, picked per sample")
def experts_in_one_tensor() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        chosen = m.gate(x).argmax(-1)
        return m.head(torch.bmm(x[:, None], m.w[chosen])[:, 0].tanh())

    return Net(run, gate=nn.Linear(D, 3), w=free(3, D, D), head=head()), torch.randn(9, D)


@exact("a factored softmax over many classes")
def adaptive_softmax() -> Made:
    part = nn.AdaptiveLogSoftmaxWithLoss(D, 6, cutoffs=[2, 4], div_value=1.0)
    return Net(lambda m, x: m.s.log_prob(m.a(x).tanh()), a=nn.Linear(D, D), s=part), torch.randn(6, D)


@exact("matrix products of parameters", each={"chain": 0, "baddbmm": 1, "tensordot": 2, "outer": 3})
def products_of_parameters(kind: int) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        if kind == 0:
            h = x @ (m.w @ m.w.t())
        elif kind == 1:
            h = torch.baddbmm(m.b, x[:, None], m.w.expand(len(x), D, D))[:, 0]
        elif kind == 2:
            h = torch.tensordot(x, m.w, dims=([1], [0]))
        else:
            h = x @ torch.outer(m.b, m.w[0])
        return m.head(h.tanh())

    return Net(run, w=free(D, D), b=free(D), head=head()), torch.randn(6, D)


@exact("an implicit layer: a fixed point by iteration", each=(5, 20))
def fixed_point(steps: int) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        z = torch.zeros_like(x)
        for _ in range(steps):
            z = (m.a(z) * 0.3 + x).tanh()
        return m.head(z)

    return Net(run, a=nn.Linear(D, D), head=head()), torch.randn(6, D)


@exact("a state space scan with a learned decay")
def state_space_scan() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        state, decay = torch.zeros_like(x[:, 0]), m.decay.sigmoid()
        for t in range(x.shape[1]):
            state = decay * state + m.inp(x[:, t]) * F.softplus(m.step(x[:, t]))
        return m.head(state)

    return Net(run, decay=free(D), inp=nn.Linear(D, D), step=nn.Linear(D, D), head=head()), torch.randn(6, 5, D)


@exact("a graph network: every sample is a graph with its own adjacency")
def graph_network() -> Made:
    run = lambda m, x, a: m.head((a @ m.b((a @ m.a(x)).relu())).mean(1))  # noqa: E731
    adjacency = (torch.rand(6, 4, 4) > 0.5).to(torch.get_default_dtype())
    return Net(run, a=nn.Linear(D, 5), b=nn.Linear(5, D), head=head()), (torch.randn(6, 4, D), adjacency)


@either("quantised activations and a table of codes: the nearest code, straight through")
def vector_quantiser() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        code = m.codes[torch.cdist(h, m.codes).argmin(-1)]
        return m.head(h + (code - h).detach() + 0.1 * code)

    return Net(run, a=nn.Linear(D, D), codes=free(5, D), head=head()), torch.randn(6, D)


@exact("positions as many as samples, tokens as many as features", each=(4, 7))
def sizes_that_coincide(n: int) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.word(x) + m.place(torch.arange(x.shape[1]))
        return m.head((m.mix.weight @ h).tanh().mean(1))

    return Net(run, word=nn.Embedding(7, n), place=nn.Embedding(n, n), mix=nn.Linear(n, n), head=head(n)), ids(n, n)
