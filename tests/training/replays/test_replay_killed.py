"""A replay that is killed again and again ends in the bits of one that was not."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts.training_problems import ENVIRONMENT

SCRIPT = """
import sys
from pathlib import Path
import torch
from ntkscope.core.types import fingerprint
from ntkscope.training import fit, replay
from contracts.training_problems import classes_part, small_net
torch.set_num_threads(1)
folder = Path(sys.argv[1])
options = {"sgd": {"lr": 0.05, "momentum": 0.9}, "adam": {"lr": 0.01, "optimizer": "adam"}}[sys.argv[2]]
part = classes_part(12, dtype=torch.float64)
model = small_net(dropout=0.1, dtype=torch.float64)
training = fit(model, part, steps=90, batch_size=5, store=folder / "fit", measure=False, **options)
training.final()
found = replay(training, lambda net: net(part.x[:6])[:, 0], directions=0, memory=30_000, store=folder / "kept")
told = fingerprint(found.values, found.weights, found.rate, found.decay, dict(found.initial))
(folder / "answer").write_text(told)
"""


def changes(folder: Path) -> list[tuple[str, int]]:
    try:
        return sorted((path.name, path.stat().st_mtime_ns) for path in folder.glob("kept/*.safetensors"))
    except FileNotFoundError:  # replaced just now
        return []


def started(folder: Path, optimizer: str) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), optimizer], env=ENVIRONMENT)


def whole(folder: Path, optimizer: str) -> str:
    assert started(folder, optimizer).wait(300) == 0
    return (folder / "answer").read_text()


@pytest.mark.parametrize(
    "optimizer", [pytest.param("sgd", marks=pytest.mark.guard), pytest.param("adam", marks=pytest.mark.nightly)]
)
def test_killed_and_resumed_to_the_same_bits(optimizer: str, tmp_path: Path) -> None:
    expected, folder = whole(tmp_path / "whole", optimizer), tmp_path / "killed"
    draw, kills = random.Random(7), 0
    for _ in range(4):
        process, seen, left = started(folder, optimizer), changes(folder), draw.randint(1, 8)
        deadline = time.monotonic() + 120
        while process.poll() is None and left and time.monotonic() < deadline:
            now = changes(folder)
            left -= now != seen
            seen = now
        time.sleep(draw.random() * 0.01)
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills >= 2
    (folder / "answer").unlink(missing_ok=True)
    assert whole(folder, optimizer) == expected
