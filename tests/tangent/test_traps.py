"""Networks that fool engines: sharing, batch axes in odd places, hooks that miss, views, cut gradients."""

from __future__ import annotations

import pytest

from oracles.against import compare
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
