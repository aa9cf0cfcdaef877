"""A tracked run is killed at random times; its record always opens, has a page, and is continued."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ntkscope as ns
from ntkscope.core import Record
from tracking.runs import rows

KILLS = 10
SCRIPT = """
import sys, torch
import ntkscope as ns
from ntkscope.core import Part
from tracking.runs import data, network
folder = sys.argv[1]
torch.set_num_threads(1)
model = network()
watching = ns.Tracker(model, data(60, 1), folder + "/tracked", when=5, total=400, overhead=1e6)
part = Part(*data())
how = dict(lr=0.02, momentum=0.9, steps=400, batch_size=6, measure=False, snapshots=20)
ns.training.fit(model, part, **how, store=folder + "/snapshots", on_step=watching.on_step).final()
watching.close()
"""


@pytest.mark.guard
def test_kills_at_random_times(tmp_path: Path) -> None:
    """`fit` resumes from its own snapshots, behind the tracker's last moment; moments from there on are measured again."""
    draw = random.Random(0)
    record, kills = tmp_path / "run" / "tracked", 0
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run")]
    before = -1
    for _ in range(60):
        if kills == KILLS:
            break
        with subprocess.Popen(command, env=os.environ.copy()) as process:
            limit = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < limit and _moments(record) <= before:
                time.sleep(0.05)
            time.sleep(draw.uniform(0, 0.6))
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGKILL)
            process.wait()
        kills += 1
        before = _moments(record)
        found = Record.open(record)
        assert found.status == "running"
        steps = [row["step"] for row in found.series("moments")]
        assert steps == [0, *range(5, 5 * len(steps), 5)]
        for name in ("spectra", "alignment"):
            assert all(row["moment"] <= len(steps) for row in found.series(name))
        assert ns.report.write_page(record).exists()
    assert kills == KILLS
    subprocess.run(command, check=True, timeout=120)
    whole = tmp_path / "whole"
    subprocess.run([*command[:-1], str(whole)], check=True, timeout=120)
    assert Record.open(record).status == "done"
    for name in ("moments", "spectra"):
        assert rows(record, name) == rows(whole / "tracked", name)


def _moments(record: Path) -> int:
    path = record / "moments.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else -1
