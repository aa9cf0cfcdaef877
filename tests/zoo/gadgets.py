"""Combinations: several traps in one network, drawn at random. Every gadget maps hidden states (n, T, D) to the same shape."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from zoo.case import Made, case, free, ids

FAMILY = "combinations"
D, T = 4, 3
Gadget = type[nn.Module]
GADGETS: list[Gadget] = []
STEADY: list[Gadget] = []  # nothing but ordinary use of parameters: exact is what a user demands


def gadget(kind: Gadget) -> Gadget:
    GADGETS.append(kind)
    STEADY.append(kind)
    return kind


def awkward(kind: Gadget) -> Gadget:
    GADGETS.append(kind)
    return kind


@gadget
class Affine(nn.Linear):
    def __init__(self) -> None:
        super().__init__(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


@gadget
class TimeFirst(Affine):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


@gadget
class Folded(Affine):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(0, 1).reshape(-1, D)).view(T, len(x), D).transpose(0, 1)


@gadget
class Sorted(Affine):
    def forward(self, x: Tensor) -> Tensor:
        order = x.detach()[:, 0, 0].argsort()
        return super().forward(x[order])[order.argsort()]


@gadget
class Convolved(nn.Conv1d):
    def __init__(self) -> None:
        super().__init__(D, D, 3, padding=1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x.transpose(1, 2)).transpose(1, 2).relu()


@gadget
class Slot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = free(D)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 0] = self.token
        return x


@gadget
class MaskedSlot(Slot):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[x.detach()[..., 1] > 0.3] = self.token
        return x


@gadget
class Attended(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(D), nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.attend(h, h, h, need_weights=False)[0]


@gadget
class Encoded(nn.TransformerEncoderLayer):
    def __init__(self) -> None:
        super().__init__(D, 2, 6, batch_first=True)


@gadget
class Recurrent(nn.GRU):
    def __init__(self) -> None:
        super().__init__(D, D, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


@gadget
class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = random.choice([Affine, Slot, Sorted, Convolved])()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


@gadget
class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = parametrizations.weight_norm(nn.Linear(D, D))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).tanh()


@gadget
class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = random.choice([Affine, Folded, Convolved])()
        self.parts = nn.Sequential(layer, nn.Tanh(), layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


@gadget
class TiedTransposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = free(D, D, scale=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w).tanh() @ self.w.t()


@gadget
class Rounded(nn.Module):
    """Straight through, by an autograd function."""

    class Apply(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, w: Tensor) -> Tensor:
            return (8 * w).round() / 8

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    def __init__(self) -> None:
        super().__init__()
        self.w = free(D, D, scale=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.Apply.apply(self.w)).tanh()


@gadget
class Routed(nn.Module):
    """Experts by sample; one that few samples take."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        chosen = (x.detach().mean((1, 2)) > 0.2).long() + (x.detach().mean((1, 2)) > 0.5).long()
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            if bool((chosen == k).any()):
                out[chosen == k] = expert(x[chosen == k]).tanh()
        return out


@gadget
class Unpadded(Affine):
    def forward(self, x: Tensor) -> Tensor:
        mask = x.detach().sum(-1) > -0.5
        out = torch.zeros_like(x)
        out[mask] = super().forward(x[mask])
        return x + out


@gadget
class Siamese(Affine):
    def forward(self, x: Tensor) -> Tensor:
        left, right = super().forward(torch.cat([x, x.flip(1)])).chunk(2)
        return left * right + x


@gadget
class Looped(Affine):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([super(Looped, self).forward(row) for row in x])


@gadget
class Relative(nn.Module):
    """A table of relative positions, looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = free(2 * T - 1)

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(T)
        return (x @ x.transpose(1, 2) / 4 + self.table[place[:, None] - place + T - 1]).softmax(-1) @ x


@gadget
class Counting(Affine):
    """Moves attributes and a buffer that the outputs do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.seen = 0, []  # type: ignore[var-annotated]
        self.register_buffer("average", torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(x.shape)
        self.average.lerp_(x.detach().mean((0, 1)), 0.1)
        return super().forward(x)


@awkward
class Aliased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = free(D, D, scale=0.5)
        self.held = [self.w]

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.held[0]).tanh()


@awkward
class HookedGradient(Affine):
    def __init__(self) -> None:
        super().__init__()
        self.weight.register_hook(lambda g: 0.5 * g)


@awkward
class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.trace(nn.Sequential(nn.Linear(D, D), nn.Tanh()), torch.randn(2, T, D))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@awkward
class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = free(D, D)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.w.clamp_(-0.6, 0.6)
        return (x @ self.w).tanh()


@awkward
class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: self.inner(row).tanh())(x)


def spoiled(kind: str) -> nn.Module:
    """A gadget that mixes samples, or draws at random: with it no kernel exists."""

    class Spoiled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if kind == "mean":
                return x + 0.2 * x.mean(0)
            if kind == "late":
                return x + (0.2 * x.mean(0) if len(x) > 3 else 0)
            if kind == "noise":
                return x + 0.05 * torch.randn_like(x)
            return x / x.abs().amax((0, 2), keepdim=True)

    return Spoiled()


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
        parts.insert(draw.randint(0, len(parts)), spoiled(spoil))
    words = draw.random() < 0.3
    n = draw.randint(4, 12)
    return Stack(parts, words), ids(n, T) if words else torch.randn(n, T, D)


def seeds(first: int, count: int) -> dict[str, tuple[int]]:
    return {str(seed): (seed,) for seed in range(first, first + count)}


@case(
    FAMILY,
    "exact",
    "ordinary uses of parameters, several in one network",
    each=seeds(30, 50),
    quick=("30", "31"),
)
def steady_combination(seed: int) -> Made:
    return drawn(seed, STEADY)


@case(FAMILY, "either", "awkward uses of parameters among ordinary ones", each=seeds(500, 40))
def awkward_combination(seed: int) -> Made:
    return drawn(seed, GADGETS)


@case(FAMILY, "exact", "all pairs of outputs", each=seeds(1000, 12), kernel="entk")
def steady_combination_entk(seed: int) -> Made:
    return drawn(seed, STEADY)


SPOILS: dict[str, tuple[Callable[..., Any] | int | str, ...]] = {
    f"{kind} {seed}": (kind, seed) for kind in ("mean", "late", "noise", "max") for seed in range(4)
}


@case(FAMILY, "refused", "one part mixes samples or draws at random", each=SPOILS)
def spoiled_combination(kind: str, seed: int) -> Made:
    return drawn(2000 + seed, STEADY, kind)
