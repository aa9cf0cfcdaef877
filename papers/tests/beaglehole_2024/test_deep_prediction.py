"""Predictions with depth: the contract, one network against autograd, verdicts that can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract, made_record, readings
from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024.deep_prediction import DeepPrediction, linear_slope
from ntkscope_papers.beaglehole_2024.expected_kernel import DUALS

READINGS = readings("deep-prediction", "nfa-")
CPU = torch.device("cpu")
TWO = replace(DeepPrediction(), decays=(0.0, 1.0, 10.0), seeds=10)


class TestDeepPrediction(ExperimentContract):
    name = "deep-prediction"
    tiny = given(widths=(4, 8), items=6, dimension=6, seeds=1)
    identities = ("nfa-appC-spectrum",)


def test_wide_networks_follow_the_first_order() -> None:
    config = replace(DeepPrediction.at("smoke"), items=10, dimension=6)
    for activation in config.activations:
        near, far = (config.one_decay("chain-monomial", activation, w, 1.0, 0, CPU) for w in (2000, 5))
        assert abs(near["observed"] - near["predicted"]) < 0.05
        assert near["predicted"] == far["predicted"]


def test_the_linear_slope_is_the_beginning_of_the_arc_cosine() -> None:
    one = torch.ones((), dtype=torch.float64)
    for cov in (-0.05, 0.0, 0.05):
        c = torch.tensor(cov, dtype=torch.float64)
        values, slope = linear_slope(c, one, one)
        exact = 0.25 + torch.asin(c) / (2 * torch.pi)
        assert float(slope) == pytest.approx(float(exact), abs=1e-5)
        assert float(values) == float(DUALS["relu"](c, one, one)[0])


def test_spectra_at_both_ends() -> None:
    found = DeepPrediction(dimension=5).spectrum(None)
    assert (found["alpha 0"], found["alpha infinite"]) == ([0.5, 0.5], [0.5, 0.0])


def _record(tmp_path: Path, *, depth: float, small: float, large: float, relu: float) -> Record:
    """Curves that dip by `depth` at the middle; predictions of quadratic networks off by `small` and `large`."""
    record = made_record(tmp_path, "deep-prediction")
    for task in TWO.tasks:
        for activation in TWO.activations:
            for width in TWO.widths:
                error = relu if activation == "relu" else small if width == min(TWO.widths) else large
                for seed in range(10):
                    jitter = 1e-4 * (seed % 3)
                    curve: dict[str, Any] = {}
                    for a, rho in zip(TWO.decays, (0.9, 0.9 - depth, 0.95)):
                        made = {"predicted, this width": rho, "predicted, linear slope": rho - error}
                        curve[f"{a:g}"] = {"observed": rho, "predicted": rho - error - jitter, **made}
                    record.put(**{f"{task}/{activation}/{width}/{seed}": {"seconds": 1.0, "decays": curve}})
    record.put(spectrum={"seconds": 0.0, **DeepPrediction(dimension=4).spectrum(None)})
    return record


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {"fig6-dip": True, "fig6-width": True, "fig6-relu": True, "appC-spectrum": True}),
        ({"depth": 0.02}, {"fig6-dip": False}),
        ({"large": 0.3}, {"fig6-width": False, "fig6-relu": False}),
        ({"relu": 0.001}, {"fig6-relu": False}),
    ],
)
def test_verdicts(tmp_path: Path, change: dict[str, float], expected: dict[str, bool]) -> None:
    record = _record(tmp_path, **{"depth": 0.2, "small": 0.1, "large": 0.02, "relu": 0.05, **change})
    for name, holds in expected.items():
        assert READINGS[name](TWO, record).holds is holds, name
