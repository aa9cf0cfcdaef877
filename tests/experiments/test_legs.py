"""Legs: several runs, one record."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import ntkscope as ns
from ntkscope.core import RecordError, UsageError
from ntkscope.experiments._legs import Leg, chosen

OPTIONS = {
    "device": "cpu",
    "items": 10,
    "large": 12,
    "widths": (0.5,),
    "large_widths": (),
    "alexnet_widths": (),
    "enlarge": 2,
}


@pytest.mark.guard
def test_runs_of_different_legs_fill_one_record_and_other_settings_are_refused(tmp_path: Path) -> None:
    first = ns.run("effective-rank", "smoke", out=tmp_path / "run", legs=["lenet/standard"], **OPTIONS)
    assert [key for key in first.metrics if "/" in key] == ["lenet/standard/x0.5"]
    assert "legs" not in first.config
    second = ns.run("effective-rank", "smoke", out=tmp_path / "run", legs=["lenet/shifted"], **OPTIONS)
    assert [key for key in second.metrics if "/" in key] == ["lenet/standard/x0.5", "lenet/shifted/x0.5"]
    assert second.metrics["lenet/standard/x0.5"] == first.metrics["lenet/standard/x0.5"]
    with pytest.raises(RecordError, match="items"):
        ns.run("effective-rank", "smoke", out=tmp_path / "run", legs=["lenet/shifted"], **{**OPTIONS, "items": 11})


def test_a_setting_called_legs_is_declared_as_such() -> None:
    for experiment in ns.EXPERIMENTS.values():
        names = [field.name for field in dataclasses.fields(experiment.config)]
        assert ("legs" in names) == ("legs" in experiment.legs), experiment.name


def test_a_leg_that_does_not_exist_is_refused_and_a_beginning_is_a_whole_word() -> None:
    legs = [Leg("train/x1/a", dict), Leg("train/x10/a", dict)]
    assert [leg.key for leg in chosen(legs, ["train/x1"])] == ["train/x1/a"]
    with pytest.raises(UsageError, match=r"expected the beginning of one of: train/x1/a, train/x10/a"):
        chosen(legs, ["train/x2"])
