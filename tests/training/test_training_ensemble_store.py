"""Ensembles on disk: a killed call continues to the same bits, and nobody else's store is continued."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.training_problems import ENVIRONMENT, HELD, PART, cases, killed, net, norm_net
from ntkscope.core import Snapshot
from ntkscope.core.errors import RecordError
from ntkscope.training import SnapshotStore, StopWhen, fit_ensemble


class Killed(Exception):
    pass


STORED: dict[str, dict[str, Any]] = {
    "own rates": {"lr": [0.01, 0.05, 0.02], "weight_decay": [0.0, 0.1, 0.0], "optimizer": "adam"},
    "validation and a mode": {
        "lr": [0.3, 0.05, 0.001],
        "optimizer": "adadelta",
        "validation": HELD,
        "patience": 4,
        "mode": "reinit",
    },
    "stop and momentum": {"lr": [0.5, 0.1, 0.01], "momentum": 0.9, "stop": StopWhen(accuracy=0.7)},
}


@pytest.mark.parametrize(("name", "at"), cases([("validation and a mode", 8)], STORED, [3, 8]))
def test_a_killed_call_continues_to_the_same_bits(name: str, at: int, tmp_path: Path) -> None:
    settings = {**STORED[name], "seeds": 3, "workers": 2, "epochs": 8, "batch_size": 8, "snapshots": [0, 3, 8, 15]}
    expected = fit_ensemble(norm_net, PART, **settings)
    whole: list[int] = []
    kept = fit_ensemble(
        norm_net, PART, store=tmp_path / "whole", on_snapshot=lambda s: whole.append(s.step), **settings
    )

    def kill(snapshot: Snapshot) -> None:
        if snapshot.step == at:
            raise Killed

    with pytest.raises(Killed):
        fit_ensemble(norm_net, PART, store=tmp_path / "run", on_snapshot=kill, **settings)
    seen: list[int] = []
    resumed = fit_ensemble(
        norm_net, PART, store=tmp_path / "run", on_snapshot=lambda s: seen.append(s.step), **settings
    )
    again = fit_ensemble(norm_net, PART, store=tmp_path / "run", **settings)
    assert seen == whole
    for other in (kept, resumed, again):
        assert torch.equal(other.steps, expected.steps)
        torch.testing.assert_close(other.losses, expected.losses, rtol=0, atol=0, equal_nan=True)
        for stack, found in ((expected.params, other.params), (expected.buffers, other.buffers)):
            assert all(torch.equal(found[key], stack[key]) for key in stack)


def test_a_store_of_another_ensemble_is_refused(tmp_path: Path) -> None:
    settings = {"seeds": 2, "steps": 3, "workers": 1, "store": tmp_path / "run"}
    fit_ensemble(net, PART, lr=[0.1, 0.2], **settings)
    for changes in (
        {"lr": [0.1, 0.3]},
        {"lr": [0.1, 0.2], "weight_decay": [0.1, 0.0]},
        {"lr": [0.1, 0.2], "validation": HELD},
        {"lr": [0.1, 0.2], "seeds": [0, 2]},
        {"lr": [0.1, 0.2], "augment": lambda x, generator: x},
    ):
        with pytest.raises(RecordError, match="another run"):
            fit_ensemble(net, PART, **{**settings, **changes})
    with pytest.raises(RecordError, match="another run"):
        fit_ensemble(lambda seed: net(seed + 1), PART, lr=[0.1, 0.2], **settings)
    with pytest.raises(RecordError, match="data"):
        fit_ensemble(net, HELD, lr=[0.1, 0.2], **settings)


SCRIPT = """
import sys, time
from contracts.training_problems import classes_part, small_net
from ntkscope.training import fit_ensemble
fit_ensemble(small_net, classes_part(), seeds=3, lr=[0.01, 0.02, 0.05], optimizer="adam", epochs=300, batch_size=6,
             store=sys.argv[1], checkpoint_seconds=0.0, snapshots=100, on_snapshot=lambda s: time.sleep(float(sys.argv[2])))
"""


@pytest.mark.guard
@pytest.mark.long
def test_a_process_that_is_killed_continues_to_the_same_bits(tmp_path: Path) -> None:
    latest = killed(SCRIPT, tmp_path / "run", "0.3")
    assert 0 < latest.step < 1200
    for folder in ("run", "whole"):
        subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / folder), "0"], env=ENVIRONMENT, check=True)
    ends = [SnapshotStore(tmp_path / folder)[1200] for folder in ("run", "whole")]
    assert all(torch.equal(ends[0].params[name], ends[1].params[name]) for name in ends[0].params)
    assert not (tmp_path / "run" / "latest.safetensors").exists()
