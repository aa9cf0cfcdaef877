"""A tracked run is killed at random times; its record always opens, has a page, and is continued."""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path

import pytest

import ntkscope as ns
from ntkscope.core import Record
from tracking.killed import EVERY, STEPS, run
from tracking.runs import rows


@pytest.mark.parametrize(
    "kills", [pytest.param(3, marks=pytest.mark.guard), pytest.param(10, marks=pytest.mark.nightly)]
)
def test_kills_at_random_times(tmp_path: Path, kills: int) -> None:
    """`fit` resumes from its own snapshots, behind the tracker's last moment; moments from there on are measured again."""
    draw = random.Random(0)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tracking.killed", "ntkscope.kernels", "ntkscope.tracking"])
    record = tmp_path / "run" / "tracked"
    for _ in range(kills):
        before, limit = moments(record), time.monotonic() + 300
        process = context.Process(target=run, args=(str(tmp_path / "run"),))
        process.start()
        while process.is_alive() and time.monotonic() < limit and moments(record) <= before:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.2))
        assert process.is_alive(), "the run was over before it could be killed: make it longer"
        process.kill()
        process.join()
        found = Record.open(record)
        assert found.status == "running"
        steps = [row["step"] for row in found.series("moments")]
        assert steps == [EVERY * k for k in range(len(steps))]
        for name in ("spectra", "alignment"):
            assert all(row["moment"] <= len(steps) for row in found.series(name))
        assert ns.report.write_page(record).exists()
    for folder in ("run", "whole"):
        process = context.Process(target=run, args=(str(tmp_path / folder),))
        process.start()
        process.join(300)
        assert process.exitcode == 0
    assert Record.open(record).status == "done"
    assert len(rows(record, "moments")) == 1 + STEPS // EVERY
    for name in ("moments", "spectra"):
        assert rows(record, name) == rows(tmp_path / "whole" / "tracked", name)


def moments(record: Path) -> int:
    """How many moments are on disk."""
    path = record / "moments.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else -1
