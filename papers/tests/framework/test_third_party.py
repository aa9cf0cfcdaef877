"""An experiment of somebody else's package is found by its entry point, run, judged and drawn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ntkscope.core import Record

PACKAGE = """
from dataclasses import dataclass
from ntkscope_papers.framework import Experiment, Reading, claim, drawing, figure, leg

@dataclass(frozen=True)
class Mean(Experiment):
    name = "mean-of-two"
    items: int = 100
    smoke = {"items": 2}

    @leg()
    def mean(self, run):
        return {"value": sum(range(self.items)) / self.items}

    @claim("mine-mean", "Table 1", 49.5, needs=["mean"])
    def table(self, record):
        "49 to 50"
        return Reading(value := record.metrics["mean"]["value"], 49 <= value <= 50)

    @figure
    def nothing(self, record):
        return drawing.canvas()[0]
"""
METADATA = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: somebody\nVersion: 1\n",
    "entry_points.txt": "[ntkscope.experiments]\nmean-of-two = somebody:Mean\n",
}


@pytest.mark.guard
def test_it_is_found_and_run(tmp_path: Path) -> None:
    (tmp_path / "somebody.py").write_text(PACKAGE)
    (tmp_path / "somebody.egg-info").mkdir()
    for name, text in METADATA.items():
        (tmp_path / "somebody.egg-info" / name).write_text(text)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "ntkscope", *f"run mean-of-two --scale paper --out {tmp_path / 'run'}".split()]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "mine-mean: reproduced" in done.stdout
    record = Record.open(tmp_path / "run")
    assert (record.metrics["mean"]["value"], record.claims[0].tolerance) == (49.5, "49 to 50")
    assert (tmp_path / "run" / "figures" / "nothing.png").exists()
