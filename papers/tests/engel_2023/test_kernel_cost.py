"""Cost of kernels: the contract, the paper's counts, the tail of residuals, when a network is trained, figures."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from statistics import linear_regression
from typing import Any

import numpy as np
import pytest

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, judged, made_record
from ntkscope_papers.engel_2023.kernel_cost import BENT, TIMED, KernelCost, carried_on, residual_figures
from ntkscope_papers.framework import experiment as _runner
from ntkscope_papers.shared.networks import weights_file

SMALL = given(train_items=60, epochs=1, batch=30, points=(10, 20), dims=(16, 64), repeats=1)


@pytest.mark.guard
class TestKernelCost(ExperimentContract):
    name = "kernel-cost"
    tiny = {**SMALL, "dense_points": 10, "residual_points": 30, "dim": 32, "outputs": (1, 10), "output_points": 10}
    timed = ("time/", "dense/", "outputs/")
    identities = ("surrogate-projection-saves-when", "surrogate-memory-factor")


def test_seconds_are_carried_on_by_what_they_are_made_of() -> None:
    n = [1000, 2000, 4000]
    assert carried_on(n, [2e-3 * k for k in n], 50_000) == pytest.approx(100)  # grows with the points
    assert carried_on(n, [3e-7 * k**2 for k in n], 50_000) == pytest.approx(750)  # with the pairs
    assert carried_on(n, [1.0, 0.9, 1.1], 50_000) > 0  # noise never makes it negative


def test_a_gaussian_tail_falls_faster_than_an_exponential_one() -> None:
    draw = np.random.default_rng(0)
    gaussian = residual_figures(draw.normal(size=200_000), 100)
    laplace = residual_figures(draw.laplace(size=200_000), 100)
    assert gaussian["std sqrt K"] == pytest.approx(10, rel=0.01)
    assert gaussian["faster"] > 1 > abs(laplace["faster"])
    assert laplace["slope"] == pytest.approx(-(2**0.5), rel=0.1)
    assert laplace["faster"] >= BENT > residual_figures(draw.standard_t(3, size=80_000), 1)["faster"]
    assert not residual_figures(draw.normal(size=20), 1)["faster"] >= BENT  # too few to say


def made_up(config: KernelCost) -> dict[str, Any]:
    """A result of every leg: times of a line 3 + 2 C for the trace-NTK, of C alone for its projection."""
    best = {f"time/{k}/{n}": 1e-3 * n * (5 - i) for i, k in enumerate(TIMED) for n in config.points}
    best |= {"dense/proj-trntk": 9.0, "dense/proj-pntk": 1.0}
    for c in config.outputs:
        best |= {f"outputs/trntk/{c}": 3.0 + 2.0 * c, f"outputs/proj-trntk/{c}": 0.5 * c}
    tails = dict.fromkeys(("std", "std sqrt K", "largest", "kurtosis", "faster"), 0.1) | {"slope": -1.0}
    residuals = {f"residual/{dim}": {"seconds": 1.0, **tails} for dim in config.dims}
    return {key: {"seconds": 1.0, "best": value} for key, value in best.items()} | residuals


@pytest.mark.guard
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("lost", ["", "time/ck/10", "residual/16"])
def test_a_network_is_trained_only_if_a_leg_needs_it(
    lost: str, gathered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_runner, "save_figures", lambda draw, record: [])
    config = dataclasses.replace(KernelCost.at("smoke"), **SMALL)
    settings = {"scale": "smoke", **{k: v for k, v in dataclasses.asdict(config).items() if k != "legs"}}
    done = ns.Record.create(
        tmp_path / "done", kind="experiment", name="kernel-cost", config=settings, seeds={"seed": 0}
    )
    done.put(**{key: value for key, value in made_up(config).items() if key != lost})
    out, others = (tmp_path / "run", [tmp_path / "done"]) if gathered else (tmp_path / "done", [])
    record = ns.run("kernel-cost", "smoke", out=out, device="cpu", gather_from=others, **SMALL)
    assert weights_file(record, "small_cnn").exists() == ("training/small_cnn" in record.metrics) == bool(lost)
    assert made_up(config).keys() <= set(record.metrics)
    assert None not in [claim.measured for claim in record.claims]
    assert (record.metrics["classes"], record.metrics["parameters"] > 1000) == (10, True)


def test_times_for_all_outputs_and_for_each_are_told_apart(tmp_path: Path) -> None:
    """Of made-up times 3 + 2 C and C / 2; the slope of the first is far from 1, though it is linear in C."""
    record = made_record(tmp_path, "kernel-cost", **made_up(KernelCost()))
    found = judged(record)["surrogate-cost-formulas"]
    assert found.measured["seconds for all outputs, for each"] == {"trntk": [3.0, 2.0], "proj-trntk": [0.0, 0.5]}
    outputs, seconds = ([math.log(value) for value in values] for values in ((1, 2, 5, 10), (5, 7, 13, 23)))
    slope = linear_regression(outputs, seconds).slope
    assert found.measured["log-log slope"] == {"trntk": pytest.approx(slope, abs=5e-4), "proj-trntk": 1.0}  # rounded
    assert found.verdict == "not reproduced"
    record.put(**{f"outputs/trntk/{c}": {"best": 2.0 * c} for c in KernelCost().outputs})
    assert judged(record)["surrogate-cost-formulas"].verdict == "reproduced"
