"""Networks that were trained again are the same, or refused: results of two must not pass for those of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from contracts.experiment import run_of
from ntkscope import models
from ntkscope.core import Part, Record, UsageError
from ntkscope_papers.framework.gather import gather
from ntkscope_papers.framework.results import once
from ntkscope_papers.shared import networks as _network
from ntkscope_papers.shared.networks import trained, trained_together, weights_file

CPU = torch.device("cpu")
PART = Part(torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2)
HOW: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "epochs": 2, "batch_size": 4}


def build(seed: int = 0) -> nn.Module:
    return models.build("mlp", in_features=3, classes=2, widths=[4], seed=seed)


def alone(record: Record, seed: int = 0) -> None:
    trained(run_of(None, record), "net-0", partial(build, seed), PART, HOW, seed=seed)


def together(record: Record, seed: int = 0) -> None:
    trained_together(record, "net", build, [PART, PART], HOW, seeds=[seed, seed + 1], device=CPU)


def new(folder: Path) -> Record:
    return Record.create(folder, kind="experiment", name="some", config={}, seeds={"seed": 0})


WAYS = pytest.mark.parametrize(
    ("make", "key", "files"), [(alone, "net-0", ["net-0"]), (together, "net", ["net/0", "net/1"])]
)


@WAYS
def test_the_same_network_may_be_trained_again_and_another_is_refused(
    make: Callable[..., None], key: str, files: list[str], tmp_path: Path
) -> None:
    record = new(tmp_path / "run")
    make(record)
    told = dict(record.metrics[f"training/{key}"])
    paths = [weights_file(record, name) for name in files]
    first = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    make(record)
    assert [path.read_bytes() for path in paths] == first
    assert dict(record.metrics[f"training/{key}"]) == told
    for path in paths:
        path.unlink()
    with pytest.raises(UsageError, match=rf"network {key} has weights .*, expected {told['weights']}, of which"):
        make(record, seed=5)
    assert not any(path.exists() for path in paths)
    other = new(tmp_path / "other")
    make(other, seed=5)
    for path, name in zip(paths, files):
        path.write_bytes(weights_file(other, name).read_bytes())
    with pytest.raises(UsageError, match=f"expected {told['weights']}, of which"):
        make(record)
    assert dict(record.metrics[f"training/{key}"]) == told


@WAYS
def test_a_run_killed_before_the_mark_is_marked_when_it_goes_on(
    make: Callable[..., None], key: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = new(tmp_path / "whole")
    make(whole)
    killed = new(tmp_path / "killed")

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_network, "keep_mark", dies)
        with pytest.raises(KeyboardInterrupt):
            make(killed)
    assert "weights" not in killed.metrics[f"training/{key}"]
    make(killed)
    assert killed.metrics[f"training/{key}"]["weights"] == whole.metrics[f"training/{key}"]["weights"]


def test_results_of_two_networks_are_not_gathered(tmp_path: Path) -> None:
    records = {}
    for name, seed in (("first", 0), ("same", 0), ("other", 5)):
        records[name] = new(tmp_path / name)
        alone(records[name], seed)
        once(records[name], f"leg of {name}", lambda: {"x": 1})
    gather(records["first"], [tmp_path / "same"])
    assert "leg of same" in records["first"].metrics
    with pytest.raises(UsageError, match="its network net-0 is another one"):
        gather(records["first"], [tmp_path / "other"])
    assert "leg of other" not in records["first"].metrics
