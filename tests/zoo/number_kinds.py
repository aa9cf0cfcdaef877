"""Mixed number kinds: islands of float64, half-precision bodies, casts and autocast inside forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from zoo.case import Made, Net, family, free, named

FAMILY = "number kinds"
exact, refused, either = family(FAMILY)
D, N = 4, 7
SINGLE = torch.float32


def _double_norm(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).double()
    return m.head(((h - h.mean(1, keepdim=True)) / (h.std(1, keepdim=True) + 1e-6)).float())


def mixed(run: Callable[..., Any]) -> Made:
    parts = {"b": nn.Linear(D, D, dtype=torch.float64), "last": nn.Linear(D, 3, dtype=torch.float64)}
    scale = torch.randn(D, dtype=torch.float64)
    model = Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3), **parts)
    model.register_buffer("scale", scale)
    return model, torch.randn(N, D)


SINGLE_EACH = {
    **named(_double_norm),
    "double_island": lambda m, x: m.head(m.b(m.a(x).tanh().double()).tanh().float()),
    "double_buffer": lambda m, x: m.head((m.a(x) * m.scale).tanh().float()),
    "double_head": lambda m, x: m.last(m.a(x).tanh().double()),
    "double_softmax": lambda m, x: m.head(m.a(x)).double().log_softmax(1),
    "cast_to_weight": lambda m, x: m.head(m.a(x.to(m.a.weight.dtype)).tanh()),
    "type_as": lambda m, x: m.head(m.a(x.double().type_as(x)).tanh()),
    "weight_cast": lambda m, x: m.head((x.double() @ m.a.weight.double()).tanh().float()),
    "long_and_back": lambda m, x: m.head(m.a(x).tanh() + x.round().long().float()),
}


@exact("float64 islands in float32 networks", each=SINGLE_EACH, dtype=SINGLE, tolerance=1e-4)
@either(
    "float64 islands asked in one dtype",
    each={key: SINGLE_EACH[key] for key in ("double_island", "double_buffer", "double_head", "cast_to_weight")},
    dtype=SINGLE,
    tolerance=1e-4,
    options={"dtype": torch.float64},
    name="islands_in_another_dtype",
)
def islands(run: Callable[..., Any]) -> Made:
    return mixed(run)


@exact("float32 parameters before float64 ones, the first parameter double", dtype=SINGLE, tolerance=1e-4)
def first_parameter_double() -> Made:
    run = lambda m, x: m.head(m.a(x.double()).tanh().float())  # noqa: E731
    return Net(run, a=nn.Linear(D, D, dtype=torch.float64), head=nn.Linear(D, 3)), torch.randn(N, D)


@exact("a float64 model that casts float32 inputs itself")
def inputs_cast_inside() -> Made:
    run = lambda m, x: m.head(m.a(x.to(torch.float64)).tanh())  # noqa: E731
    return Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3)), torch.randn(N, D, dtype=torch.float32)


@exact("integer images scaled inside", dtype=SINGLE)
def bytes_scaled_inside() -> Made:
    model = Net(lambda m, x: m.head(x.float().flatten(1) / 255), head=nn.Linear(D * D, 3))
    return model, torch.randint(256, (N, D, D), dtype=torch.uint8)


@exact(
    "half-precision bodies with float32 heads",
    each={"bf16": torch.bfloat16, "fp16": torch.float16},
    dtype=SINGLE,
    tolerance=5e-2,
)
def half_body(kind: torch.dtype) -> Made:
    run = lambda m, x: m.head(m.body(x.to(kind)).float())  # noqa: E731
    body = nn.Sequential(nn.Linear(D, 16), nn.Tanh(), nn.Linear(16, D), nn.Tanh()).to(kind)
    return Net(run, body=body, head=nn.Linear(D, 3)), torch.randn(N, D)


@exact(
    "whole models in half precision", each={"bf16": torch.bfloat16, "fp16": torch.float16}, dtype=SINGLE, tolerance=5e-2
)
def half_model(kind: torch.dtype) -> Made:
    model = nn.Sequential(nn.Linear(D, 16), nn.Tanh(), nn.Linear(16, 3)).to(kind)
    return model, torch.randn(N, D).to(kind)


@either("autocast inside forward", each={"bf16": torch.bfloat16, "fp16": torch.float16}, dtype=SINGLE, tolerance=5e-2)
def autocast_inside(kind: torch.dtype) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", kind):
            h = m.a(x).tanh()
        return m.head(h.float())

    return Net(run, a=nn.Linear(D, 16), head=nn.Linear(16, 3)), torch.randn(N, D)


@either("autocast around everything; weights are cast once and cached", dtype=SINGLE, tolerance=5e-2)
def autocast_with_its_cache() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return m.head(m.a(m.a(x).tanh()).tanh()).float()

    return Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3)), torch.randn(N, D)


@exact("autocast switched off inside", dtype=SINGLE)
def autocast_switched_off_inside() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return m.head(m.a(x).tanh())

    return Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3)), torch.randn(N, D)


@either("a module cast back and forth in forward", dtype=SINGLE, tolerance=1e-4)
def module_cast_in_forward() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a.double()(x.double()).float()
        m.a.float()
        return m.head(h.tanh())

    return Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3)), torch.randn(N, D)


@exact("gradients that underflow float32: a tiny scale", dtype=SINGLE, tolerance=1e-4)
def tiny_gradients() -> Made:
    run = lambda m, x: m.head(m.a(x).tanh()) * 1e-15  # noqa: E731
    return Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3)), torch.randn(N, D)


@either("gradients whose squares overflow float32", dtype=SINGLE, tolerance=1e-4)
def huge_gradients() -> Made:
    run = lambda m, x: m.head(m.a(x).tanh()) * 1e18  # noqa: E731
    return Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3)), torch.randn(N, D)


@exact("float64 buffers in a float64 model with a float32 constant", each={"cpu": ()})
def single_constant() -> Made:
    constant = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float32)
    run = lambda m, x: m.head((m.a(x) * constant).tanh())  # noqa: E731
    return Net(run, a=nn.Linear(D, D), w=free(1), head=nn.Linear(D, 3)), torch.randn(N, D)
