"""What must hold whatever the network: kernels of one model in many ways, each computed apart, tied by identities.

No reference is needed here, so the networks may be as odd as the zoo has them. A call may refuse by name, but then every
way of asking must.
"""

from __future__ import annotations

import contextlib
import random
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import ntkscope as ns
from oracles.closeness import relative_error
from zoo.catalogue import CASES, Case

FAMILIES = ("unseen", "layouts", "combinations", "recomputation")
ODD = [
    case
    for case in CASES.values()
    if case.family in FAMILIES and case.expect == "exact" and case.kernel == "trntk0" and "dtype" not in case.options
]
CHOSEN = random.Random(7).sample([case for case in ODD if not case.name.startswith("one_sample")], 6)
TOLERANCE = 1e-9  # float64, sums in another order


def indexed(inputs: Any, index: Any) -> Any:
    if isinstance(inputs, Tensor):
        return inputs[index]
    if isinstance(inputs, dict):
        return {key: value[index] for key, value in inputs.items()}
    return tuple(value[index] for value in inputs)


def kernel(case: Case, name: str = "trntk0", x1: Any = slice(None), x2: Any = None, **options: Any) -> Tensor:
    """One kernel of a fresh model on some of its inputs."""
    model, inputs = case.make()
    right = None if x2 is None else indexed(inputs, x2)
    return ns.kernel(name, model, indexed(inputs, x1), right, **options).dense()


def parameters(case: Case) -> list[str]:
    return [name for name, p in case.make()[0].named_parameters() if p.requires_grad]


def size(case: Case) -> int:
    inputs = case.make()[1]
    return len(
        inputs if isinstance(inputs, Tensor) else next(iter(inputs.values() if isinstance(inputs, dict) else inputs))
    )


def smallest(case: Case) -> int:
    with pytest.raises(ns.NtkscopeError) as caught:
        kernel(case, memory=1)
    return max(int(number) for number in re.findall(r"\((\d+) bytes\)", str(caught.value)))


pytestmark = pytest.mark.guard


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_one_kernel_asked_in_many_ways(case: Case) -> None:
    whole, pairs, n = kernel(case), kernel(case, "entk"), size(case)
    order = list(range(n))
    random.Random(3).shuffle(order)
    modes = {
        "samples in another order": (kernel(case, x1=order), whole[order][:, order]),
        "two sets of inputs": (kernel(case, x1=slice(0, 2), x2=slice(1, None)), whole[:2, 1:]),
        "one sample at a time": (kernel(case, x1=slice(n - 1, n), x2=slice(0, n)), whole[-1:]),
        "the smallest memory": (kernel(case, memory=smallest(case)), whole),
        "a sample twice": (kernel(case, x1=[0, 0, *order]), whole[[0, 0, *order]][:, [0, 0, *order]]),
        "by outputs": (sum(kernel(case, outputs=[k]) for k in range(len(pairs) // n)), whole),
        "traces of all pairs": (_traces(pairs, n), whole),
        "sums of all pairs": (_sums(pairs, n), kernel(case, "pntk")),
        "cosines": (kernel(case, "trntk"), whole / torch.outer(whole.diagonal(), whole.diagonal()).sqrt()),
    }
    wrong = {mode: relative_error(actual, expected) for mode, (actual, expected) in modes.items()}
    assert {mode: error for mode, error in wrong.items() if not error <= TOLERANCE} == {}


@pytest.mark.parametrize("case", CHOSEN[:5], ids=lambda case: case.name)
def test_parameters_add_up(case: Case) -> None:
    total = torch.zeros(())
    for name in parameters(case):
        with contextlib.suppress(ns.NtkscopeError):  # a parameter that reaches no output is refused alone
            total = total + kernel(case, params=re.sub(r"([\[\]*?])", r"[\1]", name))
    assert relative_error(total, kernel(case)) <= TOLERANCE


def _traces(entk: Tensor, n: int) -> Tensor:
    return entk.view(n, -1, n, entk.shape[1] // n).diagonal(dim1=1, dim2=3).sum(-1)


def _sums(entk: Tensor, n: int) -> Tensor:
    blocks = entk.view(n, -1, n, entk.shape[1] // n)
    return blocks.sum((1, 3)) / blocks.shape[1]
