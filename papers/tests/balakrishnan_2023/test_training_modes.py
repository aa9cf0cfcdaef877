"""Training modes on polynomials: the contract, what is frozen, verdicts that can fail."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract, readings
from contracts.made_up import REMOVED, Changes, made_up
from ntkscope.core import Record
from ntkscope_papers.balakrishnan_2023.polynomials.data import Task
from ntkscope_papers.balakrishnan_2023.polynomials.networks import Recipe
from ntkscope_papers.balakrishnan_2023.polynomials.training_modes import (
    MODES,
    VARIANTS,
    TrainingModes,
    networks_key,
    phases,
)
from ntkscope_papers.framework import Run

READINGS = readings("training-modes")


@pytest.mark.guard
class TestTrainingModes(ExperimentContract):
    name = "training-modes"
    tiny = given(train=48, validation=16, test=24, select_items=24, epochs=2, degrees=[3, 6], C=[10.0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("freeze", ["layer", "weights"])
@pytest.mark.parametrize("state", ["kept", "reset"])
def test_only_what_is_frozen_stands_still(mode: str, freeze: str, state: str) -> None:
    config = TrainingModes(dimension=5, train=32, validation=8, test=8, epochs=3, batch=8, seeds=1)
    recipe = Recipe(6, follow=1, mode=phases(mode, freeze, state))
    task = Task("isotropic", 3, "raw")
    found = config.fit(Run(config, cast(Record, None), torch.device("cpu"), None, 0, progress=False), [task], recipe)
    weights, biases, readout = found.changes[0].tolist()
    assert (weights == 0) == (mode != "reg")
    assert (biases == 0) == (mode != "reg" and freeze == "layer")
    assert (readout == 0) == (mode == "first-last")


def test_the_state_of_the_optimiser_matters() -> None:
    assert phases("stop-first", "layer", "reset")[1].reset_optimizer
    assert not phases("stop-first", "layer", "kept")[1].reset_optimizer
    assert phases("reinit", "weights", "kept")[1].reinit == ("last",)


# -- verdicts ----------------------------------------------------------------------------------------------------------------

CONFIG = TrainingModes(seeds=3)


def mode_scores(mode: str, degree: int) -> dict[str, Any]:
    """A network that behaves as published."""
    r2 = 0.95 if mode == "reg" else (0.93 if degree % 2 else 0.1)
    return {"r2 test": [r2, r2 - 0.01, r2 + 0.01], "mse test": [1 - r2] * 3}


def good() -> dict[str, Any]:
    """A record in which every published statement holds, in all readings."""
    rows: dict[str, Any] = {}
    tasks = [Task("isotropic", degree, target) for target in CONFIG.targets for degree in CONFIG.degrees]
    for mode in MODES:
        for freeze, state in VARIANTS:
            changes = {
                "first-layer weights after epoch 1": 0.1 if mode == "reg" else 0.0,
                "first-layer biases after epoch 1": 0.1 if mode == "reg" or freeze == "weights" else 0.0,
                "readout weights in epoch 1": 0.0 if mode == "first-last" else 0.1,
            }
            told = {task.key: mode_scores(mode, task.degree) for task in tasks}
            rows[networks_key(mode, freeze, state)] = {"changes": changes, "tasks": told}
        for degree in (3, 6):
            machines = {"ntk svr": {"mse test": [0.9] * 3}, "learning ntk svr": {"mse test": [0.95] * 3}}
            rows[f"kernels/{mode}/{degree}"] = {"models": machines}
    for degree in (3, 6):
        rows[f"kernels/rbf/{degree}"] = {"models": {"rbf svr": {"mse test": [0.6] * 3}}}
    return rows


def test_all_statements_hold_in_a_made_up_record_that_fits_them() -> None:
    record = made_up(good())
    readings = {name: READINGS[name](CONFIG, record) for name in READINGS}
    assert [name for name, reading in readings.items() if reading.holds is not True] == []
    assert readings["relu-appA-d3-modes"].note == "the verdict is the same in 7 of 7 other readings"


def plain(mode: str, degree: int, what: str) -> tuple[str, ...]:
    """Where the plain reading's scores of a mode are."""
    return networks_key(mode, "layer", "kept"), "tasks", Task("isotropic", degree, "raw").key, what


FIRST, READOUT = "first-layer weights after epoch 1", "readout weights in epoch 1"
ODD_FAILS = {plain("first-last", 3, "r2 test"): [0.7] * 3}
EVEN_WORKS = {plain("stop-first", 6, "r2 test"): [0.9] * 3, plain("stop-first", 6, "mse test"): [0.1] * 3}


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        ("poly-modes", {(networks_key("reinit", "layer", "reset"), "changes", FIRST): 1e-9}),
        ("poly-modes", {("networks/reg", "changes", FIRST): 0.0}),
        ("poly-modes", {(networks_key("first-last", "weights", "kept"), "changes", READOUT): 1e-9}),
        ("poly-modes-odd-even", ODD_FAILS),
        ("poly-modes-odd-even", EVEN_WORKS),
        ("appA-d3-modes", ODD_FAILS),
        ("appA-d3-modes", {plain("stop-first", 3, "r2 test"): [0.99, 0.98, 1.0]}),
        ("appA-d6-modes", EVEN_WORKS),
        ("appA-d6-modes", {("kernels/rbf/6", "models", "rbf svr", "mse test"): [0.92] * 3}),
    ],
)
def test_a_verdict_follows_what_was_measured(claim: str, changes: Changes) -> None:
    assert READINGS[f"relu-{claim}"](CONFIG, made_up(good(), changes)).holds is False


def test_other_readings_that_disagree_are_named() -> None:
    at = networks_key("reinit", "weights", "reset"), "tasks", Task("isotropic", 3, "unit").key, "r2 test"
    reading = READINGS["relu-appA-d3-modes"](CONFIG, made_up(good(), {at: [0.1] * 3}))
    assert reading.holds is True
    assert reading.note.endswith("6 of 7 other readings, not in: weights frozen, state reset, unit")


def test_missing_legs_are_named() -> None:
    gone = "kernels/reinit/6"
    claims = {claim.id: claim for claim in CONFIG.judge(made_up(good(), {(gone,): REMOVED}), "")}
    assert claims["relu-appA-d6-modes"].verdict == "not testable here"
    assert f'"{gone}"' in claims["relu-appA-d6-modes"].note
