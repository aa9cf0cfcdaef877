"""Activations recomputed in the backward pass: every kind of checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from zoo.case import CASES, Expect, Made, Net, Smallest, case, family, free, named

FAMILY = "recomputation"
exact, refused, either = family(FAMILY)
D, N = 4, 7


def blocks(count: int = 3) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(D, D), nn.Tanh()) for _ in range(count)))


def _each(m: Any, x: Tensor, reentrant: bool) -> Tensor:
    h = m.first(x)
    for block in m.body:
        h = checkpoint(block, h, use_reentrant=reentrant)
    return m.head(h)


def _nested(m: Any, x: Tensor, reentrant: bool) -> Tensor:
    def inner(h: Tensor) -> Tensor:
        return checkpoint(m.body[1], m.body[0](h), use_reentrant=reentrant)

    return m.head(checkpoint(inner, m.first(x), use_reentrant=reentrant))


def _shared(m: Any, x: Tensor, reentrant: bool) -> Tensor:
    h = m.first(x)
    for _ in range(2):
        h = checkpoint(m.body[0], h, use_reentrant=reentrant) + m.body[0](h)
    return m.head(h)


def _written_slot(m: Any, x: Tensor, reentrant: bool) -> Tensor:
    def part(h: Tensor) -> Tensor:
        h = h.clone()
        h[:, 0] = m.w[0, 0]
        return m.body(h)

    return m.head(checkpoint(part, m.first(x), use_reentrant=reentrant))


def build(run: Callable[..., Tensor], reentrant: bool) -> Made:
    forward = lambda m, x: run(m, x, reentrant)  # noqa: E731
    return Net(forward, first=nn.Linear(D, D), body=blocks(), w=free(D, D), head=nn.Linear(D, 3)), torch.randn(N, D)


EACH = {
    **named(_each, _nested, _shared, _written_slot),
    "one": lambda m, x, reentrant: m.head(checkpoint(m.body, m.first(x), use_reentrant=reentrant)),
    "everything": lambda m, x, reentrant: checkpoint(lambda z: m.head(m.body(m.first(z))), x, use_reentrant=reentrant),
    "sequential": lambda m, x, reentrant: m.head(checkpoint_sequential(m.body, 2, m.first(x), use_reentrant=reentrant)),
    "head_too": lambda m, x, reentrant: checkpoint(m.head, m.body(m.first(x)), use_reentrant=reentrant),
    "bare_parameter": lambda m, x, reentrant: m.head(
        checkpoint(lambda h: (h @ m.w).tanh(), m.first(x), use_reentrant=reentrant)
    ),
    "keywords": lambda m, x, reentrant: m.head(
        checkpoint(lambda a, b: m.body(a) * b.tanh(), m.first(x), m.first(x), use_reentrant=reentrant)
    ),
    "no_gradient_inputs": lambda m, x, reentrant: m.head(checkpoint(m.body, x, use_reentrant=reentrant)),
}


@exact("activations recomputed without re-entry", each=EACH)
def recomputed(run: Callable[..., Tensor]) -> Made:
    return build(run, False)


def with_reentry(run: Callable[..., Tensor]) -> Made:
    return build(run, True)


for _label, _arguments in EACH.items():
    _expect: Expect = "refused" if _label == "everything" else "either"
    _plain = None if _label == "no_gradient_inputs" else CASES[f"recomputed[{_label}]"].make
    _why = "re-entrant recomputation runs backward inside backward, which autograd.grad refuses, and cuts what has no graph"
    case(FAMILY, _expect, _why, each={_label: _arguments}, twin=_plain)(with_reentry)


@exact("recomputed in small blocks", each={k: EACH[k] for k in ("one", "shared")}, options={"memory": Smallest()})
def recomputed_in_small_blocks(run: Callable[..., Tensor]) -> Made:
    model, _ = build(run, False)
    return model, torch.randn(30, D)


@exact("all output pairs of a recomputed model", kernel="entk")
def recomputed_entk() -> Made:
    return build(_nested, False)


@exact("recomputed convolutions with a frozen batch norm")
def recomputed_convolutions() -> Made:
    part = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU())
    run = lambda m, x: m.head(checkpoint(m.part, m.first(x), use_reentrant=False).mean((2, 3)))  # noqa: E731
    return Net(run, first=nn.Conv2d(1, 2, 1), part=part, head=nn.Linear(2, 3)), torch.randn(N, 1, 4, 4)
