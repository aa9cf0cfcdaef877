"""Networks that fool engines: sharing, batch axes in odd places, hooks that miss, views, cut gradients."""

from __future__ import annotations

import pytest
from torch import nn
from torch.nn import functional as F

from oracles.against import compare
from strategies.networks import Net, noise, randomize
from strategies.traps import TRAPS


@pytest.mark.parametrize("name", TRAPS)
def test_all_output_pairs(name: str) -> None:
    model, x = TRAPS[name]()
    compare("entk", model, x)


@pytest.mark.parametrize("name", TRAPS)
def test_trace_between_two_sets_in_the_smallest_memory(name: str) -> None:
    model, x = TRAPS[name]()
    compare("trntk0", model, x[:3], x, memory="smallest")


@pytest.mark.parametrize("name", TRAPS)
def test_projected_sum_of_outputs(name: str) -> None:
    model, x = TRAPS[name]()
    compare("proj-pntk", model, x, dim=9, kind="gaussian", normalize=False)


@pytest.mark.parametrize("name", TRAPS)
def test_one_sample(name: str) -> None:
    model, x = TRAPS[name]()
    compare("entk", model, x[:1])


def test_rows_of_an_expanded_parameter() -> None:
    """Its rows are one row in memory, so where a slice begins says nothing."""
    model = randomize(Net(lambda m, x: F.linear(m.a(x).tanh(), m.rows[1:3]) + m.rows[0, :2], a=nn.Linear(5, 4)))
    model.rows = nn.Parameter(noise(4).expand(6, 4))
    for name in ("entk", "trntk0", "pntk"):
        compare(name, model, noise(4, 5))
