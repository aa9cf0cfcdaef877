"""Going on: from a snapshot, from a file, after a kill, always to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.training_problems import ALL_OPTIMIZERS, classes_part, killed, small_net
from ntkscope.core import Snapshot, UsageError
from ntkscope.core.errors import DataCorrupt, DataNotFound
from ntkscope.training import CropFlip, SnapshotStore, StopWhen, Triangular, fit, load_snapshot, restore, save_snapshot


def same(a: Snapshot, b: Snapshot) -> bool:
    """Equal to the bit: parameters, buffers, optimizer state, random state."""
    optimizer = all(
        torch.equal(value, b.optimizer[name][key])
        for name, state in a.optimizer.items()
        for key, value in state.items()
    )
    return (
        a.step == b.step
        and all(torch.equal(a.params[k], b.params[k]) for k in a.params)
        and all(torch.equal(a.buffers[k], b.buffers[k]) for k in a.buffers)
        and torch.equal(a.random["cpu"], b.random["cpu"])
        and optimizer
    )


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_resuming_in_the_middle_of_an_epoch_is_the_uninterrupted_run(name: str, tmp_path: Path) -> None:
    part, settings = classes_part(), dict[str, Any](ALL_OPTIMIZERS[name])
    settings |= {"optimizer": name, "steps": 11, "schedule": Triangular(), "seed": 4, "snapshots": [4]}
    settings["batch_size"] = None if name == "gd" else 6
    middle, end = fit(small_net(dropout=0.2, norm=True), part, **settings)
    assert middle.step == 4
    model = small_net(seed=99, dropout=0.2, norm=True)
    assert same(end, fit(model, part, resume=middle, **settings).final())
    save_snapshot(middle, tmp_path / "a.safetensors")
    assert same(middle, load_snapshot(tmp_path / "a.safetensors"))
    model = small_net(seed=99, dropout=0.2, norm=True)
    assert same(end, fit(model, part, resume=tmp_path / "a.safetensors", **settings).final())
    assert not same(middle, end)  # the comparison can fail


@pytest.mark.parametrize("mode", ["reg", "stop-first", "first-last", "reinit"])
@pytest.mark.parametrize("step", [3, 4, 5])
def test_resuming_around_a_change_of_phase(mode: str, step: int) -> None:
    part = classes_part(20)
    settings = {"lr": 0.01, "optimizer": "adam", "epochs": 3, "batch_size": 5, "mode": mode, "snapshots": [step]}
    middle, end = fit(small_net(), part, **settings)
    assert same(end, fit(small_net(seed=9), part, resume=middle, **settings).final())


def test_augmentation_is_part_of_the_stream() -> None:
    from ntkscope.core import Part

    x = torch.randn(12, 1, 5, 5)
    part = Part(x, torch.arange(12) % 3)

    def net() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(25, 3))

    settings = {"lr": 0.1, "epochs": 3, "batch_size": 5, "augment": CropFlip(padding=2), "snapshots": [4]}
    middle, end = fit(net(), part, **settings)
    assert same(end, fit(net(), part, resume=middle, **settings).final())
    plain = fit(net(), part, **{**settings, "augment": None}).final()
    assert not torch.equal(plain.params["1.weight"], end.params["1.weight"])


def test_a_store_is_read_back_lazily_and_a_second_call_trains_nothing(tmp_path: Path) -> None:
    part, settings = classes_part(), {"lr": 0.1, "steps": 6, "snapshots": 2, "store": tmp_path / "run"}
    first = list(fit(small_net(), part, **settings))
    store = SnapshotStore(tmp_path / "run")
    assert list(store) == [0, 2, 4, 6]
    assert all(same(store[s.step], s) and store[s.step].metrics == s.metrics for s in first)
    model, steps = small_net(), []
    trajectory = fit(model, part, on_step=lambda report: steps.append(report.step), **settings)
    again = list(trajectory)
    assert steps == []
    assert [s.step for s in again] == [0, 2, 4, 6]
    assert all(map(same, first, again))
    assert torch.equal(model[0].weight, first[-1].params["0.weight"])
    with pytest.raises(UsageError, match="already iterated"):
        iter(trajectory)


def test_a_store_of_a_run_that_stopped_early(tmp_path: Path) -> None:
    part = classes_part()
    settings = {"lr": 0.5, "epochs": 300, "stop": StopWhen(accuracy=0.9), "snapshots": 40, "store": tmp_path / "run"}
    first = fit(small_net(), part, **settings).final()
    assert SnapshotStore(tmp_path / "run").final_step == first.step < 300
    assert same(first, fit(small_net(), part, **settings).final())


SCRIPT = """
import sys, time
from contracts.training_problems import classes_part, small_net
from ntkscope.training import fit
slow = float(sys.argv[2])
run = fit(small_net(dropout=0.2), classes_part(), lr=0.01, optimizer="adam", epochs=30, batch_size=6, seed=1,
          store=sys.argv[1], snapshots="final", checkpoint_seconds=0.05, on_step=lambda report: time.sleep(slow))
run.final()
"""


@pytest.mark.guard
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    latest, store = killed(SCRIPT, tmp_path / "run", "0.02"), SnapshotStore(tmp_path / "run")
    assert 0 < latest.step < 120
    assert store.final_step is None
    done: list[int] = []
    settings = {"lr": 0.01, "optimizer": "adam", "epochs": 30, "batch_size": 6, "seed": 1, "snapshots": "final"}
    run = fit(
        small_net(dropout=0.2),
        classes_part(),
        store=tmp_path / "run",
        on_step=lambda r: done.append(r.step),
        **settings,
    )
    final = run.final()
    assert done[0] == latest.step + 1
    assert same(final, fit(small_net(dropout=0.2), classes_part(), **settings).final())
    assert not (tmp_path / "run" / "latest.safetensors").exists()


def test_what_cannot_be_resumed_says_so(tmp_path: Path) -> None:
    part = classes_part()
    final = fit(small_net(), part, lr=0.1, steps=4, seed=1).final()
    with pytest.raises(UsageError, match=r"seed 1.*seed 2"):
        fit(small_net(), part, lr=0.1, steps=8, seed=2, resume=final)
    with pytest.raises(UsageError, match="step 4"):
        fit(small_net(), part, lr=0.1, steps=3, seed=1, resume=final)
    with pytest.raises(UsageError, match=r"does not fit Linear: its parameters differ"):
        restore(torch.nn.Linear(2, 2), final)
    with pytest.raises(DataNotFound, match="no snapshot"):
        load_snapshot(tmp_path / "nothing.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    with pytest.raises(DataCorrupt, match=r"not a complete safetensors.*delete it and train again"):
        load_snapshot(tmp_path / "torn.safetensors")
    with pytest.raises(KeyError, match="no snapshot of step 5"):
        SnapshotStore(tmp_path)[5]
