"""Deeper attacks: what shows in no output, in one pair of samples only, or in one sample's gradient only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from zoo.case import Made, Net, Smallest, family, free, mixed, named, shared

FAMILY = "deep"
exact, refused, either = family(FAMILY)
D = 4


def net(run: Callable[..., Any], **parts: Any) -> Net:
    return Net(run, a=nn.Linear(D, D), b=nn.Linear(D, D), head=nn.Linear(D, 3), **parts)


def special(n: int, *where: int) -> Tensor:
    x = torch.randn(n, D).clamp(-2, 2)
    x[list(where), 0] = 4.0
    return x


# -- gradients that cross samples while outputs do not -------------------------------------------------------------
def _hidden_pair(m: Any, x: Tensor) -> Tensor:
    h, marked = m.a(x), x[:, 0] > 3
    mean = h[marked].sum(0) if int(marked.sum()) > 1 else torch.zeros_like(h[0])
    return m.head((h + marked[:, None] * (mean - mean.detach())).tanh())


def _hidden_in_head(m: Any, x: Tensor) -> Tensor:
    out = m.head(m.a(x).tanh())
    return out + ghost(out.mean(0))


def ghost(value: Tensor) -> Tensor:
    """Zero, with a gradient."""
    return value - value.detach()


HIDDEN = {
    **named(_hidden_pair, _hidden_in_head),
    "hidden_all": mixed(lambda h, x: (h + 0.1 * ghost(h.sum(0))).tanh()),
    "hidden_neighbour": mixed(lambda h, x: (h + 0.3 * ghost(h.roll(1, 0))).tanh()),
    "hidden_far": mixed(lambda h, x: (h + 0.3 * ghost(h.roll(len(x) // 2, 0) if len(x) > 16 else h)).tanh()),
}


@either("gradients cross samples, outputs do not show it", each=HIDDEN)
def gradients_cross_samples(run: Callable[..., Any]) -> Made:
    return net(run), special(9, 4, 7)


@either("one pair among many samples", each=HIDDEN)
@either(
    "the same for the sum of the outputs, many samples",
    each=HIDDEN,
    kernel="pntk",
    name="gradients_cross_pntk_among_many",
)
def gradients_cross_in_one_pair(run: Callable[..., Any]) -> Made:
    return net(run), special(60, 31, 47)


@either("one pair among many samples, in small blocks", each=HIDDEN, options={"memory": Smallest(1.02)})
def gradients_cross_in_small_blocks(run: Callable[..., Any]) -> Made:
    return net(run), special(60, 31, 32)


@either("the same for all pairs of outputs", each=HIDDEN, kernel="entk")
@either("the same for the sum of the outputs", each=HIDDEN, kernel="pntk", name="gradients_cross_pntk")
def gradients_cross_entk(run: Callable[..., Any]) -> Made:
    return net(run), special(20, 11, 17)


PAIRS = {
    f"{i} {j} of {n}": (n, i, j)
    for n, i, j in ((5, 1, 3), (9, 0, 8), (16, 6, 7), (33, 20, 32), (48, 2, 40), (64, 13, 50))
}


@either("one pair of one output, wherever it sits", each=PAIRS, options={"outputs": [1]})
@either(
    "one pair, wherever it sits, in small blocks",
    each=PAIRS,
    kernel="pntk",
    options={"memory": Smallest()},
    name="gradients_cross_wherever",
)
def gradients_cross_one_output(n: int, i: int, j: int) -> Made:
    return net(_hidden_pair), special(n, i, j)


# -- outputs that mix in one pair only -----------------------------------------------------------------------------
def _equal_merge(m: Any, x: Tensor) -> Tensor:
    close = (torch.cdist(x, x) < 0.05).to(x)  # samples close to each other share their states
    return m.head(((close @ m.a(x)) / close.sum(1, keepdim=True)).tanh())


def _last_leaks(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head(torch.cat([h[:-1], h[-1:] + 0.1 * h[:1]]).tanh()) if len(x) > 1 else m.head(h.tanh() + 0)


MIXED = {
    **named(_equal_merge, _last_leaks),
    "mixed_pair": mixed(lambda h, x: (h + 0.1 * shared(h, x[:, 0] > 3)).tanh()),
    "large_batches": mixed(lambda h, x: (h + (0.05 * h.mean(0) if len(x) > 8 else 0)).tanh()),
}


@refused("two of many samples mix", each=MIXED)
def outputs_mix_in_one_pair(run: Callable[..., Any]) -> Made:
    x = special(60, 31, 47)
    x[20] = x[50] + 0.01
    return net(run), x


# -- one sample's gradient -----------------------------------------------------------------------------------------
def _norm(m: Any, x: Tensor) -> Tensor:
    return m.head(m.c(x).norm(dim=1, keepdim=True) * m.a(x).tanh())


def _where(m: Any, x: Tensor) -> Tensor:
    z = m.c(x)
    return m.head(m.a(x).tanh() + torch.where(z == 0, torch.zeros_like(z), z.abs().sqrt()))


UNDEFINED = {
    "root": lambda m, x: m.head(m.a(x).tanh() * (m.c(x).square().sum(1, keepdim=True)).sqrt()),
    "where": _where,
}


@refused("one sample whose gradient is not a number", each=UNDEFINED)
def undefined_gradient(run: Callable[..., Any]) -> Made:
    x = torch.randn(9, D)
    x[6] = 0
    return net(run, c=nn.Linear(D, D, bias=False)), x


@exact("a norm at zero has the gradient zero by convention")
def norm_at_zero() -> Made:
    x = torch.randn(9, D)
    x[6] = 0
    return net(_norm, c=nn.Linear(D, D, bias=False)), x


def _kinks(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).relu() + m.b(x).abs() + x.clamp(-1, 1) + m.a(x).max(1, keepdim=True).values)


@exact("samples that sit on kinks", each={"zeros": 0.0, "ones": 1.0})
def on_a_kink(value: float) -> Made:
    model = net(_kinks)
    nn.init.zeros_(model.a.bias)
    nn.init.zeros_(model.b.bias)
    x = torch.randn(9, D)
    x[5] = value
    return model, x


@exact("scales that differ by many orders between samples", each={"1e-6": 1e-6, "1e5": 1e5})
def scales_apart(scale: float) -> Made:
    x = torch.randn(9, D)
    x[4] *= scale
    return nn.Sequential(nn.Linear(D, D, bias=False), nn.ReLU(), nn.Linear(D, 3, bias=False)), x


@exact("scales that differ between parameters", each={"1e6": 1e6, "1e-6": 1e-6})
def parameters_apart(scale: float) -> Made:
    return net(lambda m, x: m.head((m.a(x) * m.s).tanh() + m.b(x) * scale), s=free(D, scale=0.1)), torch.randn(9, D)


# -- a small wrong part in a large kernel --------------------------------------------------------------------------
class Quiet(torch.autograd.Function):
    """The identity, with a small extra gradient."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return w.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (1 + 1e-4)


def _tiny_slot(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h[:, 0] = 0.01 * m.w[0, 0]
    return m.head(h.tanh())


SMALL = {
    "slightly_off": lambda m, x: 100 * m.head(m.a(x).tanh()) + (x @ Quiet.apply(m.w)),
    "tiny_alias": lambda m, x: m.head(m.a(x).tanh()) + 1e-3 * (x @ m.__dict__["held"][0]),
    "tiny_slot": _tiny_slot,
}


@exact("a small share of the kernel on an unseen method", each=SMALL)
def small_unseen_share(run: Callable[..., Any]) -> Made:
    model = net(run, w=free(D, 3))
    model.__dict__["held"] = [model.w]
    return model, torch.randn(9, D)


# -- an attribute that decides ------------------------------------------------------------------------------------
DECIDES = {
    "grad_mode": mixed(lambda h, x: h.tanh() if torch.is_grad_enabled() else h.tanh() * 1.5),
    "requires_grad": mixed(lambda h, x: h.tanh() if h.requires_grad else 0 * h.tanh()),
    "identity_of_weight": lambda m, x: m.head(m.a(x).tanh() if isinstance(m.a.weight, nn.Parameter) else x),
    "is_leaf": lambda m, x: m.head(m.a(x).tanh() * (1.0 if m.a.weight.is_leaf else 2.0)),
    "same_object": lambda m, x: m.head(m.a(x).tanh() if m.__dict__["mine"] == id(m.a.weight) else x),
    "in_state_dict": lambda m, x: m.head(m.a(x).tanh()) * len(list(m.parameters())),
    "function_mode": lambda m, x: m.head(m.a(x).tanh() if torch._C._len_torch_function_stack() == 0 else m.b(x)),
}


@either("the model asks how it is being run", each=DECIDES)
def model_that_looks_around(run: Callable[..., Any]) -> Made:
    model = net(run)
    model.__dict__["mine"] = id(model.a.weight)
    return model, torch.randn(9, D)
