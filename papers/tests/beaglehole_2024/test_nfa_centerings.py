"""Figures 4 and 5 of the feature-ansatz paper: the contract, the expansion, verdicts on made-up paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, made_record, readings, run_of
from ntkscope_papers.beaglehole_2024.feature_runs import array_of, columns, key_of
from ntkscope_papers.beaglehole_2024.nfa_centerings import NFACenterings

READINGS = readings("nfa-centerings", "nfa-")

SCALES = (0.01, 1.0)


@pytest.mark.guard
class TestNFACenterings(ExperimentContract):
    name = "nfa-centerings"
    tiny = given(items=16, dimension=6, width=8, test_items=8, scales=SCALES, steps=10)
    identities = ("nfa-centred-in-numerator",)


def test_the_sixteen_terms_add_up() -> None:
    config = NFACenterings(items=16, dimension=6, width=8, test_items=4, scales=SCALES, steps=30, lr=0.2, seeds=2)
    for one in config.expansion(run_of(config))["scales"].values():
        assert max(one["gap"].values()) < 1e-12
        assert one["terms"] == 16


def test_without_the_half_the_first_steps_move_more() -> None:
    config = NFACenterings(items=64, dimension=10, width=32, test_items=4, scales=SCALES, seeds=2)
    found = config.whole_loss(run_of(config))["losses"]
    assert np.mean(found["MSE"]["ratio"]) > np.mean(found["½·MSE"]["ratio"])


def record_of(tmp_path: Path, ratios: dict[float, tuple[float, float]], tangents: tuple[float, float]) -> ns.Record:
    record = made_record(tmp_path, "nfa-centerings")
    noise = np.random.default_rng(0).normal(size=(10, 1)) * 0.01
    for spectrum in NFACenterings.spectra:
        for scale, (first, last) in ratios.items():
            ratio = np.array([[np.nan, first, first, last]]) + noise
            tangent = np.array([[np.nan, tangents[0], tangents[0], tangents[1]]]) + noise
            record.array(array_of(spectrum, scale), np.stack([ratio, ratio, tangent, tangent, ratio, ratio]))
            told = {"steps": [0, 5, 25, 800], "rows": columns(["ratio", "tangents"]), "diverged": 0, "notes": []}
            record.put(**{key_of(spectrum, scale): told})
    return record


GOOD: dict[float, tuple[float, float]] = {0.01: (0.1, 0.9), 1.0: (0.05, 0.4)}


@pytest.mark.parametrize(
    ("name", "ratios", "tangents", "holds"),
    [
        ("double-centred", {}, (0.6, 0.4), True),
        ("double-centred", {1.0: (0.3, 0.4)}, (0.6, 0.4), False),
        ("double-centred", {1.0: (0.05, 0.03)}, (0.6, 0.4), False),
        ("double-centred", {0.01: (0.1, 0.3)}, (0.6, 0.4), False),
        ("ptk-centred", {}, (0.6, 0.4), True),
        ("ptk-centred", {}, (0.4, 0.6), False),
    ],
)
def test_paths_as_published_reproduce_and_others_do_not(
    tmp_path: Path, name: str, ratios: dict[float, tuple[float, float]], tangents: tuple[float, float], holds: bool
) -> None:
    record = record_of(tmp_path, {**GOOD, **ratios}, tangents)
    assert READINGS[name](NFACenterings(scales=SCALES), record).holds is holds


def test_tangents_that_rise_at_one_scale_are_not_reproduced(tmp_path: Path) -> None:
    record, rising = record_of(tmp_path, GOOD, (0.6, 0.4)), record_of(tmp_path / "rising", GOOD, (0.4, 0.6))
    name = array_of("isotropic", SCALES[-1])
    record.array(name, np.asarray(rising.arrays[name]))
    found = READINGS["ptk-centred"](NFACenterings(scales=SCALES), record)
    assert not found.holds
    assert f"isotropic layer1 s = {SCALES[-1]:g}" in found.note
