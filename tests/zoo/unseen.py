"""Parameters used where nobody looks: writes into slices, own autograd functions, aliases, hooks on gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from zoo.case import Made, Net, family, free, ids, named

FAMILY = "unseen"
exact, refused, either = family(FAMILY)
D, T = 4, 3


def head(d: int = D) -> nn.Linear:
    return nn.Linear(d, 3)


# -- written into other tensors ------------------------------------------------------------------------------------
def _class_slot(m: Any, h: Tensor) -> Tensor:
    h[:, 0] = m.p
    return h


def _mask_token(m: Any, h: Tensor) -> Tensor:
    h[h.detach()[..., 0] > 0] = m.p
    return h


def _index_put(m: Any, h: Tensor) -> Tensor:
    rows = torch.arange(len(h))
    return h.index_put((rows, torch.zeros_like(rows)), m.p.expand(len(h), -1), accumulate=True)


def _copy(m: Any, h: Tensor) -> Tensor:
    h[:, -1].copy_(m.p)
    return h


def _slice_add(m: Any, h: Tensor) -> Tensor:
    h[:, 1:] += m.p
    return h


def _masked_scatter(m: Any, h: Tensor) -> Tensor:
    mask = torch.zeros_like(h, dtype=torch.bool)
    mask[:, 0] = True
    return h.masked_scatter(mask, m.p.expand(len(h), D).contiguous())


ASSIGN = {
    **named(_class_slot, _mask_token, _index_put, _copy, _slice_add, _masked_scatter),
    "masked_fill_where": lambda m, h: torch.where(h.detach() > 0, h, m.p),
    "scatter": lambda m, h: h.scatter_add(1, torch.zeros(len(h), 1, D, dtype=torch.long), m.p.expand(len(h), 1, D)),
    "add_in_place": lambda m, h: h.add_(m.p),
    "index_fill": lambda m, h: h.index_fill(1, torch.tensor([1]), m.p[0]),
    "new_cat": lambda m, h: torch.cat([m.p.view(1, 1, D).repeat(len(h), 1, 1), h[:, 1:]], 1),
    "out_argument": lambda m, h: torch.addcmul(h, m.p, h, value=0.5),
    "lerp": lambda m, h: torch.lerp(h, h.square(), m.p),
}


@exact("a parameter written into the hidden states", each=ASSIGN, quick=("class_slot", "mask_token", "scatter"))
def parameter_assigned(write: Callable[..., Tensor]) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(write(m, m.a(x)).tanh().mean(1))

    return Net(run, a=nn.Linear(D, D), p=free(D), head=head()), torch.randn(7, T, D)


# -- autograd functions of the user's ------------------------------------------------------------------------------
class Round(torch.autograd.Function):
    """Straight-through rounding."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return (w * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class Clipped(torch.autograd.Function):
    """Sign forward, a window backward, with saved tensors."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        ctx.save_for_backward(w)
        return w.sign()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (w,) = ctx.saved_tensors
        return g * (w.abs() < 1)


class OwnLinear(torch.autograd.Function):
    """A linear map with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.t() + b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return g @ w, g.flatten(0, -2).t() @ x.flatten(0, -2), g.flatten(0, -2).sum(0)


class Reversed(torch.autograd.Function):
    """Gradient reversal on activations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return -0.3 * g


OWN = {
    "ste": lambda m, x: F.linear(x, Round.apply(m.w)),
    "binary": lambda m, x: F.linear(x, Clipped.apply(m.w)),
    "own": lambda m, x: OwnLinear.apply(x, m.w, m.b),
    "reversal": lambda m, x: Reversed.apply(F.linear(x, m.w, m.b)),
    "detach_trick": lambda m, x: F.linear(x, m.w + ((m.w * 4).round() / 4 - m.w).detach()),
}


@exact("an autograd function of the user's on a weight", each=OWN)
def own_autograd_function(apply: Callable[..., Tensor]) -> Made:
    run = lambda m, x: m.head(apply(m, x).tanh())  # noqa: E731
    return Net(run, w=free(D, D), b=free(D), head=head()), torch.randn(7, D)


def _oft(m: Any, x: Tensor) -> Tensor:
    skew = m.s - m.s.t()
    eye = torch.eye(D, dtype=skew.dtype)
    return F.linear(x, torch.linalg.solve(eye + skew, eye - skew) @ m.base.weight, m.base.bias)


def _dora(m: Any, x: Tensor) -> Tensor:
    w = m.base.weight + m.b @ m.a
    return F.linear(x, m.g[:, None] * w / w.norm(dim=1, keepdim=True).detach(), m.base.bias)


ADAPTERS = {
    "lora": lambda m, x: m.base(x) + 0.5 * (x @ m.a.t() @ m.b.t()),
    "loha": lambda m, x: F.linear(x, m.base.weight + (m.b @ m.a) * (m.b.flip(0) @ m.a.flip(0)), m.base.bias),
    **named(_oft, _dora),
    "lokr": lambda m, x: F.linear(x, m.base.weight + torch.kron(m.k, m.k), m.base.bias),
    "ia3": lambda m, x: m.base(x) * m.g,
}


@exact("adapters on a frozen weight", each=ADAPTERS)
def adapter(apply: Callable[..., Tensor]) -> Made:
    base = nn.Linear(D, D).requires_grad_(False)
    parts = {"a": free(2, D), "b": free(D, 2), "s": free(D, D, scale=0.2), "g": free(D), "k": free(2, 2)}
    return Net(lambda m, x: m.head(apply(m, x).tanh()), base=base, head=head(), **parts), torch.randn(7, D)


# -- parameters reached by other names -----------------------------------------------------------------------------
def aliased(run: Callable[..., Tensor], hold: Callable[[nn.Parameter], Any]) -> Made:
    model = Net(run, w=free(D, D), head=head())
    model.__dict__["alias"] = hold(model.w)
    return model, torch.randn(7, D)


ALIASES: dict[str, tuple[Any, Any]] = {
    "list": (lambda m, x: m.head((x @ m.alias[0]).tanh()), lambda w: [w]),
    "tuple": (lambda m, x: m.head((x @ m.alias[0]).tanh()), lambda w: (w,)),
    "dict": (lambda m, x: m.head((x @ m.alias["w"]).tanh()), lambda w: {"w": w}),
    "partial": (lambda m, x: m.head(m.alias(x).tanh()), lambda w: functools.partial(torch.mm, mat2=w)),
    "closure": (lambda m, x: m.head(m.alias(x).tanh()), lambda w: lambda x: x @ w),
    "bound method": (lambda m, x: m.head(m.alias(x).tanh()), lambda w: w.__rmatmul__),
    "view": (lambda m, x: m.head((x @ m.alias.view(D, D)).tanh()), lambda w: w.view(-1)),
    "transpose": (lambda m, x: m.head((x @ m.alias).tanh()), lambda w: w.t()),
    "product": (lambda m, x: m.head((x @ m.alias).tanh()), lambda w: w * 2),
    "chunks": (lambda m, x: m.head((x @ torch.cat(m.alias)).tanh()), lambda w: w.chunk(2)),
    "partly": (lambda m, x: m.head((x @ m.alias[0]).tanh() + x @ m.w), lambda w: [w]),
    "object": (lambda m, x: m.head((x @ m.alias.w).tanh()), lambda w: type("Holder", (), {"w": w})()),
}


@either("a registered parameter reached through another name", each=ALIASES)
def aliased_parameter(run: Any, hold: Any) -> Made:
    return aliased(run, hold)


@either("a parameter that a module-level function closes over and the model registers")
def patched_forward() -> Made:
    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), head())
    original, w = model[0].forward, model[0].weight
    model[0].forward = lambda x: original(x) + x @ w
    return model, torch.randn(7, D)


@either("a layer held in a plain list and registered elsewhere")
def module_in_a_plain_list() -> Made:
    a = nn.Linear(D, D)
    model = Net(lambda m, x: m.head(m.plain[0](x).tanh()), a=a, head=head())
    model.plain = [a]  # type: ignore[assignment]
    return model, torch.randn(7, D)


@exact("parameters nobody registered are constants", each=("list", "module"))
def unregistered_parameters(kind: str) -> Made:
    hidden = nn.Linear(D, D)
    model = Net(lambda m, x: m.head(m.hidden[0](x).tanh()), head=head())
    model.__dict__["hidden"] = [hidden] if kind == "list" else (hidden,)
    return model, torch.randn(7, D)


@exact("a parameter that belongs to another part", each=("weight", "bias"))
def parameter_of_another_module(which: str) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x).tanh()
        return m.head(h @ m.a.weight if which == "weight" else h * m.a.bias)

    return Net(run, a=nn.Linear(D, D), head=head()), torch.randn(7, D)


# -- hooks on gradients --------------------------------------------------------------------------------------------
@either(
    "a hook on a parameter changes its gradient; plain autograd.grad follows it",
    each={"scale": lambda g: 0.5 * g, "clip": lambda g: g.clamp(-0.1, 0.1), "zero": torch.zeros_like},
)
def gradient_hook(hook: Any) -> Made:
    model = nn.Sequential(nn.Linear(D, 5), nn.Tanh(), head(5))
    model[0].weight.register_hook(hook)
    return model, torch.randn(7, D)


@either(
    "a hook on a hidden tensor's gradient, applied to a whole batch at once",
    each={"scale": lambda g: 0.5 * g, "clip": lambda g: g.clamp(-0.1, 0.1), "norm": lambda g: g / (1 + g.norm())},
)
def hidden_gradient_hook(hook: Any) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        if h.requires_grad:
            h.register_hook(hook)
        return m.head(h.tanh())

    return Net(run, a=nn.Linear(D, 5), head=head(5)), torch.randn(7, D)


@either("a full backward hook that changes a layer's gradient")
def module_backward_hook() -> Made:
    model = nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), head(5))
    model[2].register_full_backward_hook(lambda m, i, o: (0.5 * i[0],))
    return model, torch.randn(7, D)


# -- parametrizations ----------------------------------------------------------------------------------------------
class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


class Skewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = free(1)

    def forward(self, w: Tensor) -> Tensor:
        return w * self.scale.exp()


@exact("parametrised weights", each={"symmetric": (Symmetric,), "with a parameter": (Skewed,)})
def parametrized(kind: type[nn.Module]) -> Made:
    layer = nn.Linear(D, D)
    parametrize.register_parametrization(layer, "weight", kind())
    return nn.Sequential(layer, nn.Tanh(), layer, head()), torch.randn(7, D)


@exact(
    "norms of weights",
    each={
        "weight_norm": parametrizations.weight_norm,
        "spectral_norm": parametrizations.spectral_norm,
        "orthogonal": parametrizations.orthogonal,
    },
)
def weight_parametrization(norm: Any) -> Made:
    return nn.Sequential(norm(nn.Linear(D, D)), nn.Tanh(), head()), torch.randn(7, D)


@either("parametrised weights inside parametrize.cached()")
def parametrized_and_cached() -> Made:
    layer = nn.Linear(D, D)
    parametrize.register_parametrization(layer, "weight", Symmetric())

    def run(m: Any, x: Tensor) -> Tensor:
        with parametrize.cached():
            return m.head(m.a(m.a(x).tanh()))

    return Net(run, a=layer, head=head()), torch.randn(7, D)


@exact("a table of words tied to the head through a transpose", each={"t": 0, "permute": 1, "T": 2})
def tied_through_a_transpose(kind: int) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        w = (m.table.weight.t(), m.table.weight.permute(1, 0), m.table.weight.T)[kind]
        return (m.table(x).mean(1).tanh() @ w)[:, :3]

    return Net(run, table=nn.Embedding(7, D)), ids(7, T)
