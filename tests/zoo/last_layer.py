"""Which layer is the last: auxiliary heads, heads evaluated early, heads followed by something. `ck` and `params="last"`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import CASES, Case, Expect, Made, Net, Sample, case, free
from zoo.judge import gradient_rows

FAMILY = "the last layer"
D, N, T = 4, 6, 3


def hidden_before(name: str = "head") -> Callable[[nn.Module, Sample], Tensor]:
    """What goes into the module `name`, and a 1 when it has a bias: the features of `ck`, (1, d)."""

    def rows(model: nn.Module, sample: Sample) -> Tensor:
        seen: list[Tensor] = []
        module = model.get_submodule(name)
        handle = module.register_forward_pre_hook(lambda m, args: seen.append(args[0].detach().clone()))
        with torch.no_grad():
            model(*sample[0], **sample[1])
        handle.remove()
        one = torch.ones(int(module.bias is not None), dtype=torch.float64)
        return torch.cat([seen[-1].double().flatten(), one])[None]

    return rows


def gradients_of(*names: str) -> Callable[[nn.Module, Sample], Tensor]:
    """The gradients by the named parameters only."""
    return lambda model, sample: gradient_rows(model, sample, lambda name: name in names)


HEAD = ("head.weight", "head.bias")
BOTH = (*HEAD, "aux.weight", "aux.bias")


def both(
    label: str, run: Callable[..., Any], ck: Expect, last: Expect, why: str, *names: tuple[str, ...], **parts: Any
) -> None:
    """Two cases: the conjugate kernel, and the gradients by the last layer; `names`: what that may mean."""

    def build() -> Made:
        made = {key: part() for key, part in parts.items()}
        model = Net(run, a=nn.Linear(D, D), **{"head": nn.Linear(D, 3), **made})
        return model, torch.randn(N, T, D) if "token" in label else torch.randn(N, D)

    build.__name__ = f"ck[{label}]"
    case(FAMILY, ck, why, kernel="ck", rows=hidden_before())(build)
    build.__name__ = f"last[{label}]"
    ways = tuple(gradients_of(*each) for each in names or (HEAD,))
    case(FAMILY, last, why, options={"params": "last"}, rows=ways)(build)


def linear(*sizes: int) -> Callable[[], nn.Linear]:
    return lambda: nn.Linear(*sizes)


def _plain(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh())


def _auxiliary_after(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).tanh()
    out = m.head(h)
    m.aux(h)
    return out


def _auxiliary_on_outputs(m: Any, x: Tensor) -> Tensor:
    out = m.head(m.a(x).tanh())
    m.aux3(out)
    return out


def _auxiliary_detached(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).tanh()
    out = m.head(h)
    return out + 0 * m.aux(h).detach()


def _two_heads(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).tanh()
    out, extra = m.head(h), m.aux(h)
    return {"logits": out, "extra": extra}  # type: ignore[return-value]


def _two_heads_reversed(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).tanh()
    extra = m.aux(h)
    return {"extra": extra, "logits": m.head(h)}  # type: ignore[return-value]


def _scaled(m: Any, x: Tensor) -> Tensor:
    return 0.1 * m.head(m.a(x).tanh())


def _softmax(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh()).log_softmax(1)


def _temperature(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh()) / m.t


def _added(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).tanh()
    return m.head(h) + m.aux(h)


def _skip(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh()) + m.aux(x)


def _first_used_last(m: Any, x: Tensor) -> Tensor:
    early = m.head(x)
    h = m.a(x).tanh()
    return early + 0 * m.aux(h)


def _normalised_after(m: Any, x: Tensor) -> Tensor:
    return m.norm3(m.head(m.a(x).tanh()))


def _einsum_head(m: Any, x: Tensor) -> Tensor:
    return torch.einsum("nd,cd->nc", m.a(x).tanh(), m.head.weight) + m.head.bias


def _functional_head(m: Any, x: Tensor) -> Tensor:
    return F.linear(m.a(x).tanh(), m.head.weight, m.head.bias)


def _tied_head(m: Any, x: Tensor) -> Tensor:
    return m.head(m.head(m.a(x).tanh()) @ m.head.weight)


def _token_head(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh()).mean(1)


def _token_mean_first(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh().mean(1))


def _token_flat(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh().flatten(1))


def _unused(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh())


def _reversed_samples(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh().flip(0)).flip(0)


def _recursive(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(m.a(x).tanh()).tanh())


def _constant_input(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh()) + m.aux(torch.ones(1, D, dtype=x.dtype))


both("plain", _plain, "exact", "exact", "one head")
both("called with one layer twice", _recursive, "exact", "exact", "a body layer used twice")
both(
    "auxiliary head after",
    _auxiliary_after,
    "either",
    "either",
    "a head that no output uses runs last",
    aux=linear(D, 5),
)
both(
    "auxiliary on the outputs",
    _auxiliary_on_outputs,
    "either",
    "either",
    "a head on the outputs, unused",
    aux3=linear(3, 3),
)
both("auxiliary detached", _auxiliary_detached, "either", "either", "a detached head adds nothing", aux=linear(D, 3))
both("two heads", _two_heads, "either", "either", "logits computed before another head", aux=linear(D, 5))
both("two heads, logits last", _two_heads_reversed, "exact", "exact", "logits computed last", aux=linear(D, 5))
both("unused head", _unused, "exact", "exact", "a head that never runs", spare=linear(D, 7))
both("scaled", _scaled, "either", "exact", "a constant factor behind the head")
both("log-softmax", _softmax, "either", "exact", "a softmax behind the head")
both("temperature", _temperature, "either", "either", "a learned temperature behind the head", t=lambda: free(1))
both("two linears added", _added, "either", "either", "two readouts of one input", HEAD, BOTH, aux=linear(D, 3))
both("skip to the outputs", _skip, "refused", "either", "two readouts of different inputs", BOTH, aux=linear(D, 3))
both("first, used last", _first_used_last, "either", "either", "the readout ran first", aux=linear(D, 3))
both(
    "normalised",
    _normalised_after,
    "either",
    "either",
    "a norm with parameters behind the head",
    norm3=lambda: nn.LayerNorm(3),
)
both("einsum", _einsum_head, "either", "either", "the head is an einsum")
both("functional", _functional_head, "either", "exact", "the head is called as a function")
both("tied", _tied_head, "either", "either", "the head is used twice", head=lambda: nn.Linear(D, 3))
both("per token, then mean", _token_head, "either", "exact", "a head per token")
both("token mean first", _token_mean_first, "exact", "exact", "a mean, then the head")
both("tokens flattened", _token_flat, "exact", "exact", "tokens side by side", head=linear(T * D, 3))
both("no bias", _plain, "exact", "exact", "a head without bias", HEAD[:1], head=lambda: nn.Linear(D, 3, bias=False))
both("samples reversed", _reversed_samples, "either", "exact", "the readout sees the samples in another order")
both(
    "constant branch",
    _constant_input,
    "either",
    "either",
    "a second readout on a constant",
    HEAD,
    BOTH,
    aux=linear(D, 3),
)


@case(FAMILY, "either", "a convolution as the head", kernel="ck", rows=hidden_before())
def ck_convolutional_head() -> Made:
    run = lambda m, x: m.head(m.body(x).tanh()).flatten(1)  # noqa: E731
    return Net(run, body=nn.Conv2d(1, 2, 3), head=nn.Conv2d(2, 3, 2)), torch.randn(N, 1, 4, 4)


def functional_ck(name: str) -> Case:
    """`ck` cases whose head is not called as a module: the features are the tanh of the body."""
    old = CASES[name]

    def rows(model: nn.Module, sample: Sample) -> Tensor:
        with torch.no_grad():
            h = model.get_submodule("a")(*sample[0]).tanh()
        return torch.cat([h.flatten(), torch.ones(1, dtype=h.dtype)])[None]

    return Case(**{**vars(old), "rows": rows})


for _name in ("ck[einsum]", "ck[functional]"):
    CASES[_name] = functional_ck(_name)
