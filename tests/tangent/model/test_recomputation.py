"""Networks that run a backward pass inside a backward pass: parameters used there alone have their gradients."""

from __future__ import annotations

import pytest

import ntkscope as ns
from oracles.closeness import assert_kernel_close
from zoo.catalogue import CASES


@pytest.mark.parametrize("params", [["body.0.*", "head.*"], ["body.*"], ["first.*", "body.1.*"], ["head.*"]], ids=str)
@pytest.mark.parametrize("network", ["one", "each", "nested"])
def test_some_parameters_of_re_entrant_checkpoints(network: str, params: list[str]) -> None:
    twin, _ = CASES[f"recomputed[{network}]"].make()
    model, x = CASES[f"with_reentry[{network}]"].make()
    twin.load_state_dict(model.state_dict())
    found = ns.kernel("trntk0", model, x, params=params)
    assert_kernel_close(found.dense(), ns.kernel("trntk0", twin, x, params=params).dense(), 1e-10)
