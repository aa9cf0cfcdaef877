"""Collapse by layer and epoch: the contract, and a verdict that can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contracts.dataset import given
from contracts.experiment import ExperimentContract, judged, made_record
from ntkscope.core import Record
from ntkscope_papers.harlev_2023 import layer_collapse as experiment
from ntkscope_papers.harlev_2023.layer_collapse import MOMENT, LayerCollapse


@pytest.mark.guard
class TestLayerCollapse(ExperimentContract):
    name = "layer-collapse"
    tiny = given(train_items=60, test_items=20, epochs=1, moments=(0, 1), points=40, near=40, smoothings=(0.0,))


def made_up(folder: Path, nc4: float = 0.02, nc1_last: float = 0.1) -> Record:
    config, rows = LayerCollapse(), dict[str, Any]()
    for s in range(config.seeds):
        layers = {
            layer: {"nc1": 10.0 / (k + 1), "nc4": 0.5, "dimension": 5.0} for k, layer in enumerate(experiment.LAYERS)
        }
        layers[experiment.LAST_BLOCK] |= {"nc1": nc1_last, "nc4": nc4}
        found = {"seconds": 1.0, "accuracy": {"train": 1.0, "test": 0.9}, "layers": layers}
        rows[MOMENT.format(0.0, s, config.epochs)] = found
    return made_record(folder, "layer-collapse", **rows)


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [({}, "reproduced"), ({"nc4": 0.04}, "not reproduced"), ({"nc1_last": 50.0}, "not reproduced")],
)
def test_the_verdict_follows_what_was_measured(measured: dict[str, float], verdict: str, tmp_path: Path) -> None:
    (claim,) = judged(made_up(tmp_path / "run", **measured)).values()
    assert claim.outcome == f"{verdict} on a stand-in"
    (few,) = judged(made_up(tmp_path / "few", **measured), LayerCollapse(seeds=1)).values()
    assert few.verdict == "stand-in"


def test_the_step_falls_twice_and_most_epochs_come_after() -> None:
    how = LayerCollapse().how(0.1)
    schedule, total = how["schedule"], 160
    factors = [round(schedule.factor(epoch, 1, total), 6) for epoch in (63, 64, 95, 96)]
    assert factors == [1, 0.1, 0.1, 0.01]
    assert how["loss"].label_smoothing == 0.1
    assert max(LayerCollapse().moments) == LayerCollapse().epochs
