"""Combinations: several traps in one network, drawn at random. Every gadget maps hidden states (n, T, D) to the same shape."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from zoo.case import Made, Net, family, free, ids

FAMILY = "combinations"
exact, refused, either = family(FAMILY)
D, T = 4, 3
Gadget = Callable[[], nn.Module]


def net(run: Callable[..., Tensor], **parts: Callable[[], Any]) -> Gadget:
    """A network of freshly made parts."""
    return lambda: Net(run, **{name: part() for name, part in parts.items()})


def linear(run: Callable[..., Tensor], **more: Any) -> nn.Module:
    return Net(run, **dict(nn.Linear(D, D).named_parameters()), **more)


def tanh(m: Any, h: Tensor) -> Tensor:
    return F.linear(h, m.weight, m.bias).tanh()


def affine(run: Callable[..., Tensor]) -> Gadget:
    """`run(f, x)` with f an affine map and tanh."""
    return lambda: linear(lambda m, x: run(partial(tanh, m), x))


def one_of(*gadgets: Gadget) -> Callable[[], nn.Module]:
    return lambda: random.choice(gadgets)()


def _sorted(f: Any, x: Tensor) -> Tensor:
    order = x.detach()[:, 0, 0].argsort()
    return f(x[order])[order.argsort()]


def _slot(m: Any, x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 0] = m.token
    return x


def _masked_slot(m: Any, x: Tensor) -> Tensor:
    x = x.clone()
    x[x.detach()[..., 1] > 0.3] = m.token
    return x


def _attended(m: Any, x: Tensor) -> Tensor:
    h = m.norm(x)
    return x + m.attend(h, h, h, need_weights=False)[0]


class Round(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return (8 * w).round() / 8

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


def _routed(m: Any, x: Tensor) -> Tensor:
    """Experts by sample; one that few samples take."""
    chosen = (x.detach().mean((1, 2)) > 0.2).long() + (x.detach().mean((1, 2)) > 0.5).long()
    out = torch.zeros_like(x)
    for k, expert in enumerate(m.experts):
        if bool((chosen == k).any()):
            out[chosen == k] = expert(x[chosen == k]).tanh()
    return out


def _unpadded(f: Any, x: Tensor) -> Tensor:
    mask = x.detach().sum(-1) > -0.5
    out = torch.zeros_like(x)
    out[mask] = f(x[mask])
    return x + out


def _siamese(f: Any, x: Tensor) -> Tensor:
    left, right = f(torch.cat([x, x.flip(1)])).chunk(2)
    return left * right + x


def _relative(m: Any, x: Tensor) -> Tensor:
    """A table of relative positions, looked up."""
    place = torch.arange(T)
    return (x @ x.transpose(1, 2) / 4 + m.table[place[:, None] - place + T - 1]).softmax(-1) @ x


def _counting(m: Any, x: Tensor) -> Tensor:
    """Moves attributes and a buffer that the outputs do not use."""
    m.calls += 1
    m.seen.append(x.shape)
    m.average.lerp_(x.detach().mean((0, 1)), 0.1)
    return tanh(m, x)


def _clamped(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.w.clamp_(-0.6, 0.6)
    return (x @ m.w).tanh()


def weight() -> nn.Parameter:
    return free(D, D, scale=0.5)


def layer() -> nn.Linear:
    return nn.Linear(D, D)


def aliased() -> nn.Module:
    model = Net(lambda m, x: (x @ m.held[0]).tanh(), w=weight())
    model.held = [model.w]  # type: ignore[assignment]
    return model


def hooked() -> nn.Module:
    model = AFFINE()
    model.weight.register_hook(lambda g: 0.5 * g)
    return model


def counting() -> nn.Module:
    return linear(_counting, calls=0, seen=[], average=torch.zeros(D))


class Recurrent(nn.GRU):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


def convolved() -> nn.Module:
    parts = dict(nn.Conv1d(D, D, 3, padding=1, groups=2).named_parameters())
    conv: Callable[..., Tensor] = lambda m, x: F.conv1d(x, m.weight, m.bias, padding=1, groups=2)  # noqa: E731
    return Net(lambda m, x: x + conv(m, x.transpose(1, 2)).transpose(1, 2).relu(), **parts)


def twice() -> nn.Module:
    part = one_of(AFFINE, FOLDED, convolved)()
    return nn.Sequential(part, nn.Tanh(), part)


AFFINE = affine(lambda f, x: f(x))
FOLDED = affine(lambda f, x: f(x.transpose(0, 1).reshape(-1, D)).view(T, len(x), D).transpose(0, 1))
SORTED = affine(_sorted)
SLOT = net(_slot, token=lambda: free(D))
STEADY: list[Gadget] = [  # nothing but ordinary use of parameters: exact is what a user demands
    AFFINE,
    affine(lambda f, x: f(x.transpose(0, 1)).transpose(0, 1)),
    FOLDED,
    SORTED,
    convolved,
    SLOT,
    net(_masked_slot, token=lambda: free(D)),
    net(_attended, norm=lambda: nn.LayerNorm(D), attend=lambda: nn.MultiheadAttention(D, 2, batch_first=True)),
    lambda: nn.TransformerEncoderLayer(D, 2, 6, batch_first=True),
    lambda: Recurrent(D, D, batch_first=True),
    net(lambda m, x: checkpoint(m.inner, x, use_reentrant=False), inner=one_of(AFFINE, SLOT, SORTED, convolved)),
    net(lambda m, x: m.inner(x).tanh(), inner=lambda: parametrizations.weight_norm(nn.Linear(D, D))),
    net(lambda m, x: m.parts(x), parts=twice),
    net(lambda m, x: (x @ m.w).tanh() @ m.w.t(), w=weight),  # tied through a transpose
    net(lambda m, x: F.linear(x, Round.apply(m.w)).tanh(), w=weight),
    net(_routed, experts=lambda: nn.ModuleList(layer() for _ in range(3))),
    affine(_unpadded),
    affine(_siamese),
    affine(lambda f, x: torch.stack([f(row) for row in x])),
    net(_relative, table=lambda: free(2 * T - 1)),
    counting,
]
GADGETS: list[Gadget] = [
    *STEADY,
    aliased,
    hooked,
    net(
        lambda m, x: m.inner(x), inner=lambda: torch.jit.trace(nn.Sequential(layer(), nn.Tanh()), torch.randn(2, T, D))
    ),
    net(_clamped, w=lambda: free(D, D)),
    net(lambda m, x: torch.vmap(lambda row: m.inner(row).tanh())(x), inner=layer),
]
SPOILT: dict[str, Callable[..., Tensor]] = {  # mixes samples, or draws at random: with it no kernel exists
    "mean": lambda m, x: x + 0.2 * x.mean(0),
    "late": lambda m, x: x + (0.2 * x.mean(0) if len(x) > 3 else 0),
    "noise": lambda m, x: x + 0.05 * torch.randn_like(x),
    "max": lambda m, x: x / x.abs().amax((0, 2), keepdim=True),
}


class Stack(nn.Module):
    """Words or numbers in, a stack of gadgets, a head."""

    def __init__(self, parts: list[nn.Module], words: bool) -> None:
        super().__init__()
        self.enter = nn.Embedding(7, D) if words else nn.Linear(D, D)
        self.parts, self.head = nn.ModuleList(parts), nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for part in self.parts:
            x = part(x)
        return self.head(x.mean(1))


def drawn(seed: int, pool: list[Gadget], spoil: str = "") -> Made:
    """A stack of two to five gadgets of the pool, drawn by `seed`; some used twice."""
    draw = random.Random(seed)
    random.seed(seed)
    torch.manual_seed(seed)
    parts = [draw.choice(pool)() for _ in range(draw.randint(2, 4))]
    if draw.random() < 0.3:
        parts.append(parts[0])  # one module under two names
    if spoil:
        parts.insert(draw.randint(0, len(parts)), Net(SPOILT[spoil]))
    words = draw.random() < 0.3
    n = draw.randint(4, 12)
    return Stack(parts, words), ids(n, T) if words else torch.randn(n, T, D)


@exact("ordinary uses of parameters, several in one network", each=range(30, 80), quick=("30", "31"))
@exact("all pairs of outputs", each=range(1000, 1012), kernel="entk", name="steady_combination_entk")
def steady_combination(seed: int) -> Made:
    return drawn(seed, STEADY)


@either("awkward uses of parameters among ordinary ones", each=range(500, 540))
def awkward_combination(seed: int) -> Made:
    return drawn(seed, GADGETS)


SPOILS = {f"{kind} {seed}": (kind, seed) for kind in SPOILT for seed in range(4)}


@refused("one part mixes samples or draws at random", each=SPOILS)
def spoiled_combination(kind: str, seed: int) -> Made:
    return drawn(2000 + seed, STEADY, kind)
