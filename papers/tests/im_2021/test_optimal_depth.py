"""Optimal depth: the contract, the ledger's peaks, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, made_record, readings
from ntkscope.core import UsageError
from ntkscope_papers.im_2021.cube import low_degrees
from ntkscope_papers.im_2021.optimal_depth import KINDS, LEDGER, NETS, OptimalDepth, clear, network, peaks


@pytest.mark.guard
class TestOptimalDepth(ExperimentContract):
    name = "optimal-depth"
    tiny = given(dimension=8, deepest=10, hidden=(1, 2, 3), items=20, test_items=20, seeds=1)


def test_the_ledgers_peaks_with_biases_to_degree_4() -> None:
    """Up to 20 weight layers: the NTK's degrees 5 and 6 peak deeper, and the paper scale looks there."""
    tables = [low_degrees(network("relu sb2=2", layers), 128, 4) for layers in range(2, 21)]
    for short, kind in (("CK", "nngp"), ("NTK", "ntk")):
        found = peaks([table[kind].tolist() for table in tables], 1)
        assert list(found.values()) == LEDGER["relu sb2=2"][short][:4]


@pytest.mark.parametrize(
    ("depths", "holds"), [((2, 2, 3, 3, 4, 4), True), ((3,) * 6, False), ((2, 4, 3, 4, 4, 4), False)]
)
def test_peaks_have_to_move_deeper(depths: tuple[int, ...], holds: bool, tmp_path: Path) -> None:
    shares = [[0.0, *(float(layers == depth) for depth in depths)] for layers in range(2, 6)]
    rows = {f"cube/{name}": dict.fromkeys(KINDS, shares) for name in NETS}
    record = made_record(tmp_path / "run", "optimal-depth", **rows)
    assert readings("optimal-depth")["ntkreview-optimal-depth-grows"](OptimalDepth(), record).holds is holds


def test_differences_are_clear_or_not() -> None:
    assert clear(np.array([1.0, 1.1, 0.9]))
    assert not clear(np.array([1.0, -1.1, 0.3]))
    assert not clear(np.array([-1.0, -1.1]))
    assert not clear(np.array([1.0]))  # one subset says nothing about the spread


def test_too_few_depths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected at least 10 weight layers and three depths"):
        ns.run("optimal-depth", out=tmp_path / "run", device="cpu", deepest=5)
