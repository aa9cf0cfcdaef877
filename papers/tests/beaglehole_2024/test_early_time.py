"""Early training: the contract, every check on a few instances, verdicts that can fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contracts.dataset import given
from contracts.experiment import ExperimentContract, readings
from ntkscope_papers.beaglehole_2024 import early_averages as averages
from ntkscope_papers.beaglehole_2024 import early_identities as identities
from ntkscope_papers.beaglehole_2024.early_time import EarlyTimeTheory

STATEMENTS = readings("early-time", "nfa-")


@pytest.mark.guard
class TestEarlyTime(ExperimentContract):
    name = "early-time"
    tiny = given(trials=6, draws=500, rotations=6, rotated=24, dimension=40, networks=4, width=24, sizes=(8, 16))


def holds(statement: Any, found: dict[str, Any]) -> bool:
    (measurement,) = statement.needs
    record: Any = SimpleNamespace(metrics={measurement: found})
    return statement(EarlyTimeTheory(), record).holds is True


def test_every_measurement_is_judged_and_every_statement_has_one() -> None:
    legs = [leg.key for leg in EarlyTimeTheory.at("smoke").legs_of(None)]
    assert {measurement for statement in STATEMENTS.values() for measurement in statement.needs} == set(legs)
    assert len(STATEMENTS) == 26


IDENTITIES: list[tuple[str, Any]] = [
    ("decomposition", lambda: identities.decomposition(6, 0)),
    ("nine terms", lambda: identities.nine_terms(2, 0)),
    ("kernel forms", lambda: identities.kernel_forms(4, 0)),
    ("expansions", lambda: identities.expansions(4, 0)),
    ("isotropic", lambda: identities.isotropic(3, 0)),
    ("alternating words", lambda: averages.alternating_words(24, 60, 0)),
    ("wide limit", lambda: averages.wide_limit(0)),
    ("mean and covariance", lambda: averages.mean_and_covariance(20_000, 0)),
]


@pytest.mark.parametrize(("name", "compute"), IDENTITIES)
def test_checks_hold_on_a_few_instances(name: str, compute: Any) -> None:
    found = compute()
    for statement in STATEMENTS.values():
        if statement.needs == (name,):
            assert holds(statement, found), f"{statement.id}: {found}"


@pytest.mark.parametrize(
    ("name", "compute", "change"),
    [
        ("prop4", lambda: identities.decomposition(3, 0), {"agop": 1e-6}),
        ("prop4", lambda: identities.decomposition(3, 0), {"K with 1/n": 0.0}),
        ("prop3-proof", lambda: identities.nine_terms(1, 0), {"nine terms": 1e-3}),
        ("eq4", lambda: identities.kernel_forms(2, 0), {"Eq. 4": 1e-3}),
        ("eq4-projector", lambda: identities.kernel_forms(2, 0), {"projector": 1e-3}),
        ("eq4-positive", lambda: identities.kernel_forms(2, 0), {"lowest correlation": -0.1}),
        ("eq10", lambda: identities.kernel_forms(2, 0), {"Eq. 10 as printed over Eq. 4": [0.5, 2.0]}),
        ("quadratic-kernel", lambda: identities.kernel_forms(2, 0), {"kernel over the printed one": [1.0, 1.0]}),
        ("eq19", lambda: identities.expansions(2, 0), {"Eq. 19 as printed over the trace": [0.9, 1.0]}),
        ("eq24-27", lambda: identities.expansions(2, 0), {"Eq. 27": 1e-3}),
        ("eq6", lambda: identities.isotropic(2, 0), {"Eq. 6 against Eq. 20": 1e-3}),
        ("ntk-limit", lambda: averages.wide_limit(0), {"numerator slope": -0.5}),
    ],
)
def test_a_check_fails_where_its_statement_does(name: str, compute: Any, change: dict[str, Any]) -> None:
    found = compute()
    assert holds(STATEMENTS[name], found)
    assert set(change) <= set(found)
    assert not holds(STATEMENTS[name], {**found, **change})
