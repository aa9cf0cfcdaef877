"""Models whose code must not run twice at a time: scratch space that is shared. Two threads, many samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from zoo.case import Made, Net, Smallest, family, free, named

FAMILY = "threads"
exact, refused, either = family(FAMILY)
D, N = 4, 64
SCRATCH: dict[str, Any] = {}
BUSY = {"threads": 2, "options": {"memory": Smallest(4)}}


def slow(x: Tensor) -> Tensor:
    """Work long enough that another thread comes by."""
    for _ in range(20):
        x = x.sin() * 1.5
    return x


class ClassScratch(nn.Module):
    """Keeps the hidden states on its class while it works."""

    hidden: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(D, D), nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        ClassScratch.hidden = self.a(x).tanh()
        slow(x)
        out = self.head(ClassScratch.hidden)
        ClassScratch.hidden = None
        return out


class ListScratch(nn.Module):
    """A stack on the class, pushed and popped."""

    stack: list[Tensor] = []  # noqa: RUF012 - shared on purpose

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(D, D), nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.stack.append(self.a(x).tanh())
        slow(x)
        return self.head(self.stack.pop())


@either("scratch on the class", each={"attribute": (ClassScratch,), "list": (ListScratch,)}, **BUSY)
def class_scratch(kind: type[nn.Module]) -> Made:
    return kind(), torch.randn(N, D)


def _global_scratch(m: Any, x: Tensor) -> Tensor:
    SCRATCH["h"] = m.a(x).tanh()
    slow(x)
    return m.head(SCRATCH.pop("h"))


def _global_sum(m: Any, x: Tensor) -> Tensor:
    SCRATCH["skip"] = x
    h = slow(m.a(x)).tanh()
    return m.head(h + SCRATCH["skip"])


def _seeded(m: Any, x: Tensor) -> Tensor:
    torch.manual_seed(7)
    slow(x)
    return m.head(m.a(x + torch.randn(1, D).to(x)).tanh())


def _self_scratch(m: Any, x: Tensor) -> Tensor:
    m.hidden = m.a(x).tanh()
    slow(x)
    out = m.head(m.hidden)
    m.hidden = None
    return out


def _buffer_scratch(m: Any, x: Tensor) -> Tensor:
    m.space.copy_(x.detach().mean(0) * 0)
    slow(x)
    return m.head(m.a(x).tanh() + m.space)


def _shared_output(m: Any, x: Tensor) -> Tensor:
    m.keep[: len(x)] = x
    slow(x)
    return m.head(m.a(m.keep[: len(x)].clone()).tanh())


RUNS = named(_global_scratch, _global_sum, _seeded, _self_scratch, _buffer_scratch, _shared_output)


def net(run: Callable[..., Any], n: int = N) -> Made:
    model = Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3), space=torch.zeros(D), keep=torch.zeros(n, D))
    model.hidden = None  # type: ignore[assignment]
    return model, torch.randn(n, D)


@either("scratch that two threads share", each=RUNS, **BUSY)
def shared_scratch(run: Callable[..., Any]) -> Made:
    return net(run)


@either("the same in larger blocks", each=RUNS, threads=2)
def shared_scratch_in_large_blocks(run: Callable[..., Any]) -> Made:
    return net(run, 96)


@either("hooks that hold the original model's modules", each={"weight": 0, "module": 1, "state": 2}, **BUSY)
def hook_holds_the_original(kind: int) -> Made:
    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D), nn.Linear(D, 3))
    store: dict[str, Tensor] = {}
    if kind == 0:
        w = model[0].weight
        model[1].register_forward_hook(lambda m, a, out: out + a[0] @ w)
    elif kind == 1:
        first = model[0]
        model[1].register_forward_hook(lambda m, a, out: first(out))
    else:
        model[0].register_forward_hook(lambda m, a, out: store.update(h=out))
        model[2].register_forward_hook(lambda m, a, out: slow(out) * 0 + out + store["h"])
    return model, torch.randn(N, D)


@exact("an ordinary model with two threads", each={"relu": nn.ReLU, "tanh": nn.Tanh}, quick=("relu",), **BUSY)
def ordinary(act: type[nn.Module]) -> Made:
    return nn.Sequential(nn.Linear(D, 8), act(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(N, D)


@exact("a module registered twice with two threads", **BUSY)
def registered_twice() -> Made:
    layer = nn.Linear(D, D)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(D, 3)), torch.randn(N, D)


@either("models that cannot be deep-copied", each={"lock": 0, "generator": 1, "graph": 2}, **BUSY)
def not_copyable(kind: int) -> Made:
    model, x = net(_self_scratch)
    if kind == 0:
        import threading

        model.lock = threading.Lock()  # type: ignore[assignment]
    elif kind == 1:
        model.items = (i for i in range(3))  # type: ignore[assignment]
    else:
        w = free(D)
        model.__dict__["derived"] = w * 2
    return model, x
