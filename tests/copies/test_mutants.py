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

Mutant = Callable[[Any, Any], None]
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


def weight_of_the_original(made: Any, model: Any) -> None:
    made.b.weight = model.b.weight


def part_of_the_original(made: Any, model: Any) -> None:
    made.a = model.a


def stale_number(made: Any, model: Any) -> None:
    made.scale = 1.0


def stale_tensor(made: Any, model: Any) -> None:
    made.t = made.t * 1.01


def stale_array(made: Any, model: Any) -> None:
    made.t = made.t + 0.05


def functions_of_the_original(made: Any, model: Any) -> None:
    made.middle = model.middle


def no_patched_forward(made: Any, model: Any) -> None:
    vars(made).pop("forward")


def untied(made: Any, model: Any) -> None:
    made.d.weight = nn.Parameter(made.d.weight.detach().clone() * 1.1)


def untied_alike(made: Any, model: Any) -> None:
    made.d.weight = nn.Parameter(made.d.weight.detach().clone())


def other_statistics(made: Any, model: Any) -> None:
    made.norm.running_var.mul_(1.1)


def another_class(made: Any, model: Any) -> None:
    made.__class__ = type("Another", (type(made),), {"forward": lambda self, x: type(model).forward(self, 1.1 * x)})


def detached_weight(made: Any, model: Any) -> None:
    """The numbers are right, the gradient of one weight is lost."""
    before, weight = made.a.forward, made.a.weight
    made.a.forward = lambda x: before(x) + (x @ weight.detach().T - x @ weight.T)


MUTANTS: list[tuple[str, Mutant]] = [
    ("ia3_by_hook", no_hooks),
    ("pre_hook_over_a_parameter", no_hooks),
    ("gradient_hook_that_scales", no_gradient_hooks),
    ("gradient_hook_that_masks", no_gradient_hooks),
    ("plain", other_weight),
    ("plain", weight_of_the_original),
    ("plain", part_of_the_original),
    ("plain", another_class),
    ("plain", detached_weight),
    ("attribute_number", stale_number),
    ("plain_tensor", stale_tensor),
    ("numpy_array", stale_array),
    ("lambda_over_self", functions_of_the_original),
    ("default_argument", functions_of_the_original),
    ("patched_forward", no_patched_forward),
    ("tied_weights", untied),
    ("tied_weights", untied_alike),
    ("batch_norm", other_statistics),
]
FEW = {(0, "dtype"), (12, "kept")}


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
    pytest.param(
        entry,
        name,
        mutant,
        marks=() if (k, entry) in FEW else pytest.mark.guard,
        id=f"{entry}-{name}-{mutant.__name__}",
    )
    for k, (name, mutant) in enumerate(MUTANTS)
    for entry in ("dtype", "linearize", "kept")
]


@pytest.mark.parametrize(("entry", "name", "mutant"), CELLS)
def test_a_broken_copy_is_noticed(entry: str, name: str, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken(monkeypatch, mutant)
    found = compared(entry, name)
    assert not [cell for cell in found if cell.verdict in (WRONG, RAW)], found
    assert made or entry == "linearize", "no copy was made, so nothing was tried"
