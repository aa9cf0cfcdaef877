"""Outputs that no parameter reaches: a kernel of zeros that nobody meant is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from zoo.case import Made, Net, family, named

FAMILY = "zeros"
exact, refused, either = family(FAMILY)
D, N = 4, 6


def body() -> dict[str, nn.Module]:
    return {"a": nn.Linear(D, D), "head": nn.Linear(D, 3)}


@torch.no_grad()
def _decorated(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh())


def _inference(m: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return m.head(m.a(x).tanh())


def _set_grad(m: Any, x: Tensor) -> Tensor:
    with torch.set_grad_enabled(False):
        return m.head(m.a(x).tanh())


CUT = {
    **named(_decorated, _inference, _set_grad),
    "detached": lambda m, x: m.head(m.a(x).tanh()).detach(),
    "numpy": lambda m, x: torch.from_numpy(m.head(m.a(x).tanh()).detach().numpy()),
    "through_data": lambda m, x: m.head(m.a(x).tanh()).data,
    "fresh": lambda m, x: torch.tensor(m.head(m.a(x).tanh()).tolist(), dtype=x.dtype),
    "constant": lambda m, x: x[:, :3] * 2,
    "rounded": lambda m, x: m.head(m.a(x)).argmax(1, keepdim=True).to(x),
}


@refused(
    "no output depends on a parameter as far as autograd sees", each=CUT, quick=("decorated", "detached", "inference")
)
@refused("the same for all pairs of outputs", each=CUT, kernel="entk", name="cut_off_entk")
def cut_off(run: Callable[..., Tensor]) -> Made:
    return Net(run, **body()), torch.randn(N, D)


@refused("no parameter was chosen", each={"list": ([],), "tuple": ((),)}, options={"params": []})
def no_parameters_chosen(kind: Any) -> Made:
    return Net(lambda m, x: m.head(m.a(x).tanh()), **body()), torch.randn(N, D)


@refused("every parameter is frozen")
def all_frozen() -> Made:
    return Net(lambda m, x: m.head(m.a(x).tanh()), **body()).requires_grad_(False), torch.randn(N, D)


@refused("a predicate that chooses nothing", options={"params": lambda name: False})
def predicate_chooses_nothing() -> Made:
    return Net(lambda m, x: m.head(m.a(x).tanh()), **body()), torch.randn(N, D)


@refused("the chosen parameters reach no output", options={"params": "idle.*"})
def chosen_parameters_unused() -> Made:
    return Net(lambda m, x: m.head(m.a(x).tanh()), idle=nn.Linear(2, 2), **body()), torch.randn(N, D)


@exact("one output is detached, the others are not")
def one_output_detached() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        out = m.head(m.a(x).tanh())
        return torch.cat([out[:, :1].detach(), out[:, 1:]], 1)

    return Net(run, **body()), torch.randn(N, D)


@exact("a part runs without gradients: a frozen backbone", each={"no_grad": torch.no_grad})
def frozen_backbone(mode: Any) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        with mode():
            h = m.a(x).tanh()
        return m.head(h)

    return Net(run, **body()), torch.randn(N, D)


@either("a part runs in inference mode")
def backbone_in_inference_mode() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        with torch.inference_mode():
            h = m.a(x).tanh()
        return m.head(h.clone())

    return Net(run, **body()), torch.randn(N, D)


@exact("samples whose gradient is zero: dead units for some inputs")
def some_samples_without_gradient() -> Made:
    model = nn.Sequential(nn.Linear(D, D, bias=False), nn.ReLU(), nn.Linear(D, 3, bias=False))
    nn.init.constant_(model[0].weight, 1.0)
    x = torch.randn(N, D).abs()
    x[2:4] *= -1
    return model, x


@either("inputs of zeros give gradients by biases only, or none")
def inputs_of_zeros() -> Made:
    return nn.Sequential(nn.Linear(D, D, bias=False), nn.Linear(D, 3, bias=False)), torch.zeros(N, D)


@exact("gradients switched on inside a function that switched them off")
def gradients_switched_on_again() -> Made:
    @torch.no_grad()
    def run(m: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return m.head(m.a(x).tanh())

    return Net(run, **body()), torch.randn(N, D)
