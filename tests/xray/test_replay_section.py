"""The training in an X-ray: replayed for a few predictions, beside the kernel; refused if it is of another network or data."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from contracts.section import RATES, SectionContract
from ntkscope.cli import main
from ntkscope.core import Part, UsageError
from ntkscope.measures.datamodeling import random_subsets
from ntkscope.xray.registry import SECTIONS
from ntkscope.xray.sections import computed, explain, replay, summary, surrogates
from ntkscope.xray.workload import Workload
from xray.small import blobs, network, only

OPTIONS: dict[str, Any] = {"kernels": ["ck"], "progress": False}
HOW: dict[str, Any] = {"lr": 0.1, "steps": 40, "measure": False}


class TestReplay(SectionContract):
    name = "replay"


@pytest.fixture
def few() -> Iterator[None]:
    """The section, what it needs, and nothing that takes longer."""
    with only(summary.SECTION, surrogates.SECTION, explain.SECTION, replay.SECTION, computed.SECTION):
        yield


def recorded(folder: Path, train: Part, model: nn.Module | None = None) -> tuple[nn.Module, Any]:
    model = network() if model is None else model
    training = ns.training.fit(model, train, store=folder / "fit", **HOW)
    training.final()
    return model, training


@pytest.mark.usefixtures("few")
def test_its_answer_is_that_of_removing_a_point_for_real(tmp_path: Path) -> None:
    """In the record lie the strongest points of each item by replay; trained without one, its margin changes as told."""
    train, test = blobs()
    start = ns.models.build("mlp", in_features=5, classes=3, widths=16, depth=1, activation="tanh")
    model, training = recorded(tmp_path, train, copy.deepcopy(start))
    record = ns.xray(model, train, test, tmp_path / "x", training=training, **OPTIONS)
    found = replay.SECTION.read(record.metrics)
    assert found is not None, record.metrics[replay.SECTION.key]
    assert len(found.items) >= replay.LEAST
    wrong = model(test.x).argmax(1) != test.y
    assert not found.rough
    assert found.wrong == min(len(found.items), int(wrong.sum()))
    assert all(bool(wrong[i]) for i in found.items[: found.wrong])  # mistakes first
    item, point = found.items[0], int(record.arrays["replay.replay_index"][0, 0])

    def margin(net: nn.Module) -> float:
        z = net(test.x[[item]])[0].detach().double()
        c = int(model(test.x[[item]]).argmax())
        return float(z[c] - torch.cat([z[:c], z[c + 1 :]]).logsumexp(0))

    def without(weights: Tensor) -> float:
        other = copy.deepcopy(start)
        ns.training.fit(other, Part(train.x, train.y, {"w": weights / len(train)}), weights="w", **HOW).final()
        return margin(other)

    share, moved = (
        0.01,
        torch.zeros(len(train)),
    )  # of the point's weight: the derivative is where half of all weight is gone
    moved[point] = share
    told = float(record.arrays["replay.replay_value"][0, 0])
    difference = (without(0.5 + moved) - without(0.5 - moved)) / (2 * share)
    assert difference == pytest.approx(told, rel=0.01)  # float32; tanh has no kinks
    halves = random_subsets(len(train), found.retrainings)
    for number in (0, found.retrainings - 1):
        retrained = record.arrays["replay.retrained"][number, 0]
        assert without(torch.from_numpy(halves[number]).float()) == pytest.approx(float(retrained), abs=1e-4)
    for one in (found.kernel, found.replay):
        assert len(one.items) == len(found.items)
        assert -1 <= one.low < one.mean < one.high <= 1
    assert found.replay.mean > 0.5  # tanh, few steps: smooth
    page = ns.report.write_page(tmp_path / "x").read_text()
    assert 'id="data-replay"' in page
    assert page.count("what training would have done without some points") == 2  # in the summary and in the section


@pytest.mark.usefixtures("few")
def test_items_that_were_left_out_are_no_points_of_the_page(tmp_path: Path) -> None:
    train, test = blobs()
    model, training = recorded(tmp_path, train)
    record = ns.xray(model, train, test, tmp_path / "x", training=training, max_train=50, **OPTIONS)
    found = replay.SECTION.read(record.metrics)
    assert found is not None, record.metrics[replay.SECTION.key]
    assert record.metrics["data"]["train_items"] == 50
    assert int(np.max(record.arrays["replay.replay_index"])) < 50


@pytest.mark.usefixtures("few")
def test_without_a_training_nothing_changes(tmp_path: Path) -> None:
    train, test = blobs(n=30)
    model, _ = recorded(tmp_path, train)
    record = ns.xray(model, train, test, tmp_path / "x", **OPTIONS)
    assert "replay" not in record.metrics["sections"]
    assert "training" not in record.config
    assert "section replay" not in record.metrics["plan"]["steps"]
    page = ns.report.write_page(tmp_path / "x").read_text()
    assert "what training would have done without some points" not in page


def test_another_training_is_refused(tmp_path: Path) -> None:
    train, test = blobs(n=30)
    model, training = recorded(tmp_path, train)
    other, half = network(seed=1), train.take(range(20))
    for net, part, given, said in (
        (model, train, 3, "a training of type int"),
        (model, half, training, "30 points and an X-ray of 20"),
        (model, Part(train.x.flip(0), train.y.flip(0)), training, "on other inputs"),
        (other, train, training, "ends in other weights"),
    ):
        with pytest.raises(UsageError, match=said):
            ns.xray(net, part, test, tmp_path / "x", training=given, untrained=True, **OPTIONS)


class OwnLoop(ns.training.Loop):
    def __init__(self, model: nn.Module, part: Part, steps: int) -> None:
        super().__init__(model, torch.optim.SGD(model.parameters(), lr=0.1), items=len(part), steps=steps)
        self.part = part

    def batch(self, step: int) -> tuple[Tensor, Any, Tensor]:
        rows = torch.arange(len(self.part))
        return rows, self.part.x, self.part.y

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.usefixtures("few")
def test_a_loop_that_ends_elsewhere_is_said(tmp_path: Path) -> None:
    train, test = blobs(n=30)
    model = network()
    start = copy.deepcopy(model)
    ns.training.fit(model, train, lr=0.1, steps=20, measure=False).final()
    for steps, status in ((20, "done"), (5, "failed")):
        loop = OwnLoop(start, train, steps)
        record = ns.xray(model, train, test, tmp_path / status, training=loop, untrained=True, **OPTIONS)
        entry = record.metrics[replay.SECTION.key]
        assert entry["status"] == status, entry["why"]
    assert "ended in a network whose margins" in entry["why"]


def test_a_longer_training_costs_more() -> None:
    work = [Workload(100, 20, 0, 0, 10, RATES, training=seconds) for seconds in (0.0, 1.0, 2.0)]
    costs = [SECTIONS["replay"].cost(one) for one in work]
    assert costs[0] == 0 < costs[1] < costs[2]


@pytest.mark.usefixtures("few")
def test_the_command_takes_the_call_that_trained_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mytask.py").write_text(
        "import ntkscope as ns\n"
        "from xray.small import blobs, network\n"
        "def build(): return network()\n"
        "def data(): return blobs()\n"
        "def trained():\n"
        f"    training = ns.training.fit(network(), blobs()[0], store='fit', **{HOW!r})\n"
        "    training.final()\n"
        "    return training\n"
    )
    train, _ = blobs()
    model = network()
    ns.training.fit(model, train, **HOW).final()
    ns.models.save_weights(model, tmp_path / "weights.safetensors")
    command = "xray --model mytask:build --weights weights.safetensors --data mytask:data --kernels ck --out x"
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--training", "mytask:trained"])
    assert ended.value.code == 0
    assert ns.Record.open("x").metrics["section:replay"]["status"] == "done"


@pytest.mark.usefixtures("few")
def test_a_training_that_is_too_rough_is_called_so_and_shows_no_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "TRUSTED", 0.0)  # any error is too much
    train, test = blobs()
    model, training = recorded(tmp_path, train)
    record = ns.xray(model, train, test, tmp_path / "x", training=training, **OPTIONS)
    found = replay.SECTION.read(record.metrics)
    assert found is not None
    assert found.rough
    assert "too rough" in found.in_short()[0]
    page = ns.report.write_page(tmp_path / "x").read_text()
    assert page.count("too rough for a replay to say which points matter") == 2
    assert 'id="data-replay"' not in page
