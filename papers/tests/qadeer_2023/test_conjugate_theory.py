"""Theory of the conjugate kernel: the contract, figures of the ledger, verdicts that can fail."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.dataset import given
from contracts.experiment import ExperimentContract, readings
from ntkscope_papers.qadeer_2023 import theory_grids as grids
from ntkscope_papers.qadeer_2023.conjugate_theory import MEASUREMENTS

CHECKS = readings("conjugate-theory", "conjugate-")


@pytest.mark.guard
class TestConjugateTheory(ExperimentContract):
    name = "conjugate-theory"
    tiny = given(trials=20)
    timed = ("cost",)


def test_the_ledgers_counter_examples() -> None:
    """Errata conjugate-lemma-4-2, -lemma-5-1, -lemma-5-2: the printed constants fail by what the ledger found."""
    tents = grids.lemma_4_2(5, 0)["tents"]
    assert tents["100"]["left"] == pytest.approx(33.5, abs=0.05)
    assert tents["100"]["left"] / tents["100"]["over printed"] == pytest.approx(32.0)
    assert tents["200"]["left"] == pytest.approx(268, abs=0.5)
    assert tents["2"]["over printed"] == pytest.approx(tents["2"]["over corrected"])
    corner = grids.lemma_5_1(5, 0)
    assert corner["one peak"] == pytest.approx(15.0, abs=0.05)
    assert corner["lattice of peaks"] == pytest.approx(18.1, abs=0.05)
    assert grids.lemma_5_2(5, 0)["constant score"] == pytest.approx(14.996, abs=5e-3)


def test_the_sharp_constants() -> None:
    """Errata conjugate-lemma-4-1 and -coarse-by-fine."""
    found = grids.monotone_functions(30, 0)
    assert [round(value, 4) for value in found["attained by a plateau"].values()] == [1.2247, 1.2910, 1.3416]
    assert found["proof's second line over the norm, g = 1"]["3"] == pytest.approx(2 / 3)
    spikes = grids.coarse_by_fine(30, 0)
    assert [round(value, 4) for value in spikes["attained by a spike"].values()] == [1.4142, 1.7321, 2.2361]
    assert spikes["printed equality off by"] > 0.01


def holds(name: str, metrics: Mapping[str, Any]) -> bool:
    return bool(CHECKS[name](None, SimpleNamespace(metrics=metrics)).holds)


def test_every_check_holds_on_a_few_instances_and_every_measurement_is_judged() -> None:
    found = {name: compute(20, 1) for name, compute in MEASUREMENTS.items() if name != "cost"}
    assert len(CHECKS) == 27
    others = [name for name in CHECKS if name != "ck-cost"]
    assert [name for name in others if not holds(name, found)] == []
    for measurement in found:
        without = {key: value for key, value in found.items() if key != measurement}
        assert any(CHECKS[name](None, SimpleNamespace(metrics=without)).lacks == (measurement,) for name in others)


@pytest.mark.parametrize(
    ("name", "measurement", "change"),
    [
        ("weighted-norms", "weighted norms", {"two forms": 1e-9}),
        ("lemma-4-1", "monotone functions", {"worst over the sharp constant": 1.001}),
        ("norm-equivalence", "monotone functions", {"worst over √τ from below": 1.001}),
        ("lemma-4-2", "lemma 4.2", {"worst on any interval, corrected": 1.1}),
        ("coarse-by-fine", "coarse by fine", {"worst over √τ": 1.01}),
        ("elementary-inequalities", "elementary", {"Eq. 62": 1e-3}),
        ("cross-entropy-sign", "summed losses", {"Eq. 11 against 23": 1e-3}),
        ("train-loss-below-test", "summed losses", {"sums above": 1}),
        ("lemma-5-1", "lemma 5.1", {"worst ratio": 36.0}),
        ("lemma-5-1", "lemma 5.1", {"one peak": 5.0}),
        ("lemma-5-2", "lemma 5.2", {"worst over safe": 1.1}),
        ("matching-property", "matching", {"one label inside a cell": True}),
        ("lemma-4-3", "nested projections", {"4.3": 1.001}),
        ("lemma-4-4", "nested projections", {"4.4 with 1/√(1-β²)": 1.001}),
        ("range-identity", "ranges", {"ranks agree": False}),
        ("projection-property", "kernel machines", {"orthogonality": 1e-6}),
    ],
)
def test_a_check_fails_where_its_statement_does(name: str, measurement: str, change: dict[str, object]) -> None:
    found = MEASUREMENTS[measurement](20, 0)
    assert holds(name, {measurement: found})
    assert set(change) <= set(found)
    assert not holds(name, {measurement: {**found, **change}})
