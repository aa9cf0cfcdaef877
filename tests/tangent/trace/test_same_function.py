"""Two programs of one function have one kernel: samples reordered, looped, chunked or doubled inside, for every kernel.

The parameters have the same names and values, so projections are the same too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from oracles.closeness import relative_error
from zoo.case import Net
from zoo.layouts import ORDERS

KERNELS: dict[str, dict[str, Any]] = {
    "entk": {},
    "trntk": {},
    "pntk": {},
    "proj-trntk": {"dim": 16, "normalize": False},
    "proj-pntk": {"dim": 16, "kind": "sparse", "sparsity": 4},
    "ck": {},
    "em": {"layers": ["a"]},
    "ptk": {"layer": "a"},
}
N, D = 7, 4


def plain(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh())


def model(run: Callable[..., Tensor]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3)).double().eval()


def inputs() -> Tensor:
    return torch.randn(N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.guard
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("order", ["sort", "unique", "split_by_sign", "shuffle", "loop_rows", "chunks", "odd_and_even"])
def test_the_same_function_has_the_same_kernel(order: str, name: str) -> None:
    """Equal, or refused: a module that sees the samples in another order has no outputs one could name by sample."""
    expected = ns.kernel(name, model(plain), inputs(), **KERNELS[name]).dense()
    try:
        actual = ns.kernel(name, model(ORDERS[order]), inputs(), **KERNELS[name]).dense()
    except ns.NtkscopeError:
        assert name in ("ck", "em", "ptk"), "gradients do not depend on how the samples pass through"
        return
    assert relative_error(actual, expected) <= 1e-9
