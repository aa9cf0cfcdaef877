"""Copies that are broken on purpose: what a package computes with them is right all the same, or refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from copies.law import RAW, WRONG, Cell, kept, kernels, linearized
from copies.models import CASES
from ntkscope.core.model import copies
from ntkscope.kernels import tangent_machine
from ntkscope.surrogates import linearized as linear_networks
from ntkscope.tangent.model import subject

Mutant = Callable[[Any, Any], Any]
COPYING = (copies, subject, linear_networks, tangent_machine)  # loaded here: what is imported later keeps a mutant


def no_hooks(made: Any, model: Any) -> None:
    for module in made.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()


def no_gradient_hooks(made: Any, model: Any) -> None:
    for parameter in made.parameters():
        parameter._backward_hooks = None


def other_weight(made: Any, model: Any) -> None:
    with torch.no_grad():
        next(made.parameters()).mul_(1.01)


def another_class(made: Any, model: Any) -> None:
    made.__class__ = type("Another", (type(made),), {"forward": lambda self, x: type(model).forward(self, 1.1 * x)})


def detached_weight(made: Any, model: Any) -> None:
    """The numbers are right, the gradient of one weight is lost."""
    before, weight = made.a.forward, made.a.weight
    made.a.forward = lambda x: before(x) + (x @ weight.detach().T - x @ weight.T)


def copied(made: Any, factor: float) -> nn.Parameter:
    return nn.Parameter(made.d.weight.detach().clone() * factor)


MUTANTS: dict[str, tuple[tuple[str, ...], Mutant]] = {  # the models it is tried on, and what becomes of their copies
    "no_hooks": (("ia3_by_hook", "pre_hook_over_a_parameter"), no_hooks),
    "no_gradient_hooks": (("gradient_hook_that_scales", "gradient_hook_that_masks"), no_gradient_hooks),
    "other_weight": (("plain",), other_weight),
    "weight_of_the_original": (("plain",), lambda made, model: setattr(made.b, "weight", model.b.weight)),
    "part_of_the_original": (("plain",), lambda made, model: setattr(made, "a", model.a)),
    "another_class": (("plain",), another_class),
    "detached_weight": (("plain",), detached_weight),
    "stale_number": (("attribute_number",), lambda made, model: setattr(made, "scale", 1.0)),
    "stale_tensor": (("plain_tensor",), lambda made, model: setattr(made, "t", made.t * 1.01)),
    "stale_array": (("numpy_array",), lambda made, model: setattr(made, "t", made.t + 0.05)),
    "functions_of_the_original": (
        ("lambda_over_self", "default_argument"),
        lambda made, model: setattr(made, "middle", model.middle),
    ),
    "no_patched_forward": (("patched_forward",), lambda made, model: made.__dict__.pop("forward")),
    "untied": (("tied_weights",), lambda made, model: setattr(made.d, "weight", copied(made, 1.1))),
    "untied_alike": (("tied_weights",), lambda made, model: setattr(made.d, "weight", copied(made, 1.0))),
    "other_statistics": (("batch_norm",), lambda made, model: made.norm.running_var.mul_(1.1)),
}
FEW = {("dtype", "ia3_by_hook"), ("kept", "lambda_over_self")}


def broken(monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> list[int]:
    """Every copy that the package makes is broken by `mutant`; the list has one entry for each."""
    made: list[int] = []
    original = copies.duplicate

    def duplicate(model: Any, **options: Any) -> Any:
        result = original(model, **options)
        mutant(result, model)
        made.append(1)
        return result

    for module in [m for name, m in sys.modules.items() if name.startswith("ntkscope")]:
        if vars(module).get("duplicate") is original:
            monkeypatch.setattr(module, "duplicate", duplicate)
    return made


def compared(entry: str, name: str) -> list[Cell]:
    case = CASES[name]
    if entry == "dtype":
        return [kernels(case, "dtype=float64")]
    return linearized(case, {}) if entry == "linearize" else kept(case, "kept dtype=float32", {})


CELLS = [
    pytest.param(entry, name, of, marks=() if (entry, name) in FEW else pytest.mark.guard, id=f"{entry}-{name}-{of}")
    for of, (names, _) in MUTANTS.items()
    for name in names
    for entry in ("dtype", "linearize", "kept")
]


@pytest.mark.parametrize(("entry", "name", "mutant"), CELLS)
def test_a_broken_copy_is_noticed(entry: str, name: str, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken(monkeypatch, MUTANTS[mutant][1])
    found = compared(entry, name)
    assert not [cell for cell in found if cell.verdict in (WRONG, RAW)], found
    assert made or entry == "linearize", "no copy was made, so nothing was tried"
