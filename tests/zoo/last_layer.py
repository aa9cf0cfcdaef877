"""Which layer is the last: auxiliary heads, heads evaluated early, heads followed by something. `ck` and `params="last"`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import CASES, Case, Expect, Made, Net, Sample, case, family, free
from zoo.judge import gradient_rows

FAMILY = "the last layer"
exact, refused, either = family(FAMILY)
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


def on(read: Callable[[Any, Tensor], Any]) -> Callable[..., Any]:
    """A network that reads its outputs from the hidden states h."""
    return lambda m, x: read(m, m.a(x).tanh())


def both(
    label: str, ck: Expect, last: Expect, why: str, run: Callable[..., Any], *names: tuple[str, ...], **parts: Any
) -> None:
    """Two cases: the conjugate kernel, and the gradients by the last layer; `names`: what that may mean.

    Sizes among the parts make a linear layer, and functions are called.
    """

    def build() -> Made:
        made = {key: nn.Linear(*part) if isinstance(part, tuple) else part() for key, part in parts.items()}
        model = Net(run, a=nn.Linear(D, D), **{"head": nn.Linear(D, 3), **made})
        return model, torch.randn(N, T, D) if "token" in label else torch.randn(N, D)

    case(FAMILY, ck, why, kernel="ck", rows=hidden_before(), name=f"ck[{label}]")(build)
    ways = tuple(gradients_of(*each) for each in names or (HEAD,))
    case(FAMILY, last, why, options={"params": "last"}, rows=ways, name=f"last[{label}]")(build)


def _auxiliary_after(m: Any, h: Tensor) -> Tensor:
    out = m.head(h)
    m.aux(h)
    return out


def _auxiliary_on_outputs(m: Any, h: Tensor) -> Tensor:
    out = m.head(h)
    m.aux3(out)
    return out


def _first_used_last(m: Any, x: Tensor) -> Tensor:
    early = m.head(x)
    return early + 0 * m.aux(m.a(x).tanh())


both("plain", "exact", "exact", "one head", on(lambda m, h: m.head(h)))
both("called with one layer twice", "exact", "exact", "a body layer used twice", on(lambda m, h: m.head(m.a(h).tanh())))
both("auxiliary head after", "either", "either", "an unused head runs last", on(_auxiliary_after), aux=(D, 5))
both(
    "auxiliary on the outputs",
    "either",
    "either",
    "an unused head on the outputs",
    on(_auxiliary_on_outputs),
    aux3=(3, 3),
)
both(
    "auxiliary detached", "either", "either", "a detached head adds nothing",
    on(lambda m, h: m.head(h) + 0 * m.aux(h).detach()), aux=(D, 3),
)  # fmt: skip
both(
    "two heads", "either", "either", "logits computed before another head",
    on(lambda m, h: {"logits": m.head(h), "extra": m.aux(h)}), aux=(D, 5),
)  # fmt: skip
both(
    "two heads, logits last", "exact", "exact", "logits computed last",
    on(lambda m, h: {"extra": m.aux(h), "logits": m.head(h)}), aux=(D, 5),
)  # fmt: skip
both("unused head", "exact", "exact", "a head that never runs", on(lambda m, h: m.head(h)), spare=(D, 7))
both("scaled", "either", "exact", "a constant factor behind the head", on(lambda m, h: 0.1 * m.head(h)))
both("log-softmax", "either", "exact", "a softmax behind the head", on(lambda m, h: m.head(h).log_softmax(1)))
both("temperature", "either", "either", "a learned temperature", on(lambda m, h: m.head(h) / m.t), t=lambda: free(1))
both(
    "two linears added", "either", "either", "two readouts of one input",
    on(lambda m, h: m.head(h) + m.aux(h)), HEAD, BOTH, aux=(D, 3),
)  # fmt: skip
both(
    "skip to the outputs", "refused", "either", "two readouts of different inputs",
    lambda m, x: m.head(m.a(x).tanh()) + m.aux(x), BOTH, aux=(D, 3),
)  # fmt: skip
both("first, used last", "either", "either", "the readout ran first", _first_used_last, aux=(D, 3))
both(
    "normalised", "either", "either", "a norm with parameters behind the head",
    on(lambda m, h: m.norm3(m.head(h))), norm3=lambda: nn.LayerNorm(3),
)  # fmt: skip
both(
    "einsum", "either", "either", "the head is an einsum",
    on(lambda m, h: torch.einsum("nd,cd->nc", h, m.head.weight) + m.head.bias),
)  # fmt: skip
both(
    "functional", "either", "exact", "the head is called as a function",
    on(lambda m, h: F.linear(h, m.head.weight, m.head.bias)),
)  # fmt: skip
both(
    "tied",
    "either",
    "either",
    "the head is used twice",
    on(lambda m, h: m.head(m.head(h) @ m.head.weight)),
    head=(D, 3),
)
both("per token, then mean", "either", "exact", "a head per token", on(lambda m, h: m.head(h).mean(1)))
both("token mean first", "exact", "exact", "a mean, then the head", on(lambda m, h: m.head(h.mean(1))))
both(
    "tokens flattened", "exact", "exact", "tokens side by side", on(lambda m, h: m.head(h.flatten(1))), head=(T * D, 3)
)
both("no bias", "exact", "exact", "a head without bias", on(lambda m, h: m.head(h)), HEAD[:1], head=(D, 3, False))
both(
    "samples reversed", "either", "exact", "the readout sees another order", on(lambda m, h: m.head(h.flip(0)).flip(0))
)
both(
    "constant branch", "either", "either", "a second readout on a constant",
    on(lambda m, h: m.head(h) + m.aux(torch.ones(1, D, dtype=h.dtype))), HEAD, BOTH, aux=(D, 3),
)  # fmt: skip


@either("a convolution as the head", kernel="ck", rows=hidden_before())
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
