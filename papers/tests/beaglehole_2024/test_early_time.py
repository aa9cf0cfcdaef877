"""Early training: the contract, every check on a few instances, verdicts that can fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract, readings
from ntkscope_papers.beaglehole_2024.early_time import EarlyTimeTheory
from ntkscope_papers.framework import Run

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


def measured(key: str, **settings: Any) -> dict[str, Any]:
    config = EarlyTimeTheory.at("paper", settings)
    legs = config.legs_of(Run(config, None, torch.device("cpu"), None, 0, False))
    (compute,) = [leg.compute for leg in legs if leg.key == key]
    return dict(compute())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("decomposition", {"trials": 6}),
        ("descent", {"trials": 30}),
        ("nine terms", {"trials": 2}),
        ("kernel forms", {"trials": 4}),
        ("expansions", {"trials": 4}),
        ("isotropic", {"trials": 3}),
        ("alternating words", {"rotations": 24, "rotated": 60}),
        ("wide limit", {}),
        ("mean and covariance", {"draws": 20_000}),
    ],
)
def test_checks_hold_on_a_few_instances(name: str, settings: dict[str, int]) -> None:
    found = measured(name, **settings)
    for statement in STATEMENTS.values():
        if statement.needs == (name,):
            assert holds(statement, found), f"{statement.id}: {found}"


@pytest.mark.parametrize(("second", "holds_then"), [(0.985, True), (0.975, False), (1.025, False)])
def test_the_second_denominator_is_within_two_percent(second: float, holds_then: bool) -> None:
    one = {"Eq. 28": second, "Eq. 28 as printed": 0.9, "rho": 0.001}
    assert holds(STATEMENTS["eq28"], {"k = d": one, "k = 2d": one}) is holds_then


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("prop4", {"agop": 1e-6}),
        ("prop4", {"K with 1/n": 0.0}),
        ("prop3-proof", {"nine terms": 1e-3}),
        ("eq4", {"Eq. 4": 1e-3}),
        ("eq4-projector", {"projector": 1e-3}),
        ("eq4-positive", {"lowest correlation": -0.1}),
        ("eq10", {"Eq. 10 as printed over Eq. 4": [0.5, 2.0]}),
        ("quadratic-kernel", {"kernel over the printed one": [1.0, 1.0]}),
        ("eq19", {"Eq. 19 as printed over the trace": [0.9, 1.0]}),
        ("eq24-27", {"Eq. 27": 1e-3}),
        ("eq6", {"Eq. 6 against Eq. 20": 1e-3}),
        ("ntk-limit", {"numerator slope": -0.5}),
    ],
)
def test_a_check_fails_where_its_statement_does(name: str, change: dict[str, Any]) -> None:
    found = measured(*STATEMENTS[name].needs, trials=2)
    assert holds(STATEMENTS[name], found)
    assert set(change) <= set(found)
    assert not holds(STATEMENTS[name], {**found, **change})
