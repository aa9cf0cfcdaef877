"""Runs are killed at random moments, each continued by the next, and come to the same bits as one that was left alone."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from oracles.killed_runs import RUNS, run

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["oracles.killed_runs", "ntkscope.kernels", "ntkscope.storage", "zarr", "sklearn.svm"])


def start(name: str, folder: Path) -> BaseProcess:
    process = CONTEXT.Process(target=run, args=(name, str(folder)))
    process.start()
    return process


def finish(name: str, folder: Path) -> str:
    process = start(name, folder)
    process.join(300)
    assert process.exitcode == 0
    return Path(f"{folder}.answer").read_text()


GUARD = [pytest.param(3, signal.SIGKILL, marks=pytest.mark.guard, id="3-kill")]
NIGHTLY = [
    pytest.param(12, number, marks=pytest.mark.nightly, id=f"12-{name}")
    for name, number in (("kill", signal.SIGKILL), ("interrupt", signal.SIGINT))
]
NAMES = [
    pytest.param(name, marks=[pytest.mark.nightly, pytest.mark.long] if name == "command" else []) for name in RUNS
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kills", "number"), [*GUARD, *NIGHTLY])
def test_a_killed_run_comes_to_the_same(tmp_path: Path, name: str, kills: int, number: int) -> None:
    draw = random.Random(kills)
    finish(name, tmp_path / "first")  # what is imported and compiled once
    began = time.monotonic()
    whole = finish(name, tmp_path / "whole")
    took = time.monotonic() - began
    stopped, folder = 0, tmp_path / "run"
    for k in range(4 * kills):
        process = start(name, folder)
        time.sleep(draw.uniform(0.02, 0.6 * took))
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, number)
            stopped += 1
        process.join(60)
        assert not process.is_alive()
        if stopped == kills:
            break
        if Path(f"{folder}.answer").exists():  # it was quicker than the one that was timed
            assert finish(name, folder) == whole
            took, folder = took / 2, tmp_path / f"run {k}"
    assert stopped >= min(kills, 3)
    assert finish(name, folder) == whole


@pytest.mark.guard
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_at_one_folder(tmp_path: Path, name: str) -> None:
    """One of them, or both, come to the right end; one may be refused; nothing is damaged."""
    whole = finish(name, tmp_path / "whole")
    both = [start(name, tmp_path / "run") for _ in range(2)]
    for process in both:
        process.join(300)
    assert 0 in [process.exitcode for process in both]
    assert finish(name, tmp_path / "run") == whole
