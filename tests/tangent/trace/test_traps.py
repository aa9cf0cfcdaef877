"""Networks that fool engines: sharing, batch axes in odd places, hooks that miss, views, cut gradients."""

from __future__ import annotations

import pytest
from torch import nn
from torch.nn import functional as F

from oracles.against import compare
from oracles.unchanged import assert_unchanged, state
from strategies.networks import Net, noise, randomize
from strategies.traps import TRAPS


@pytest.mark.parametrize("name", TRAPS)
def test_every_trap(name: str) -> None:
    """All pairs of outputs, one sample alone, two sets in the smallest memory, projections; and the model as it was."""
    model, x = TRAPS[name]()
    before = state(model)
    compare("entk", model, x)
    compare("entk", model, x[:1])
    compare("trntk0", model, x[:3], x, memory="smallest")
    compare("proj-pntk", model, x, dim=9, kind="gaussian", normalize=False)
    assert_unchanged(model, before)


def test_rows_of_an_expanded_parameter() -> None:
    """Its rows are one row in memory, so where a slice begins says nothing."""
    model = randomize(Net(lambda m, x: F.linear(m.a(x).tanh(), m.rows[1:3]) + m.rows[0, :2], a=nn.Linear(5, 4)))
    model.rows = nn.Parameter(noise(4).expand(6, 4))
    for name in ("entk", "trntk0", "pntk"):
        compare(name, model, noise(4, 5))
