"""A training recorded on a GPU is replayed there. Skipped without CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.training_problems import classes_part, small_net
from ntkscope.explain import influence
from ntkscope.training import fit, replay
from ntkscope.training.replays.replay import Replay

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05, "momentum": 0.9},
    "adam": {"lr": 0.01, "optimizer": "adam"},
}


def replayed(device: str, folder: Path, optimizer: str, **options: Any) -> Replay:
    part, model = classes_part(12, dtype=torch.float64), small_net(dtype=torch.float64).to(device)
    training = fit(model, part, steps=20, batch_size=5, store=folder / "fit", measure=False, **OPTIMIZERS[optimizer])
    training.final()
    return replay(training, lambda net: net(part.x[:6].to(device))[:, 0], at=0.5, directions=1, **options)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_derivative_is_that_of_a_training_on_the_cpu(optimizer: str, tmp_path: Path) -> None:
    expected = replayed("cpu", tmp_path / "cpu", optimizer)
    in_memory = replayed("cuda", tmp_path / "cuda", optimizer)
    on_disk = [replayed("cuda", tmp_path / "disk", optimizer, memory=30_000, store=tmp_path / "kept") for _ in range(2)]
    for found in (in_memory, *on_disk):  # the last reads what the one before has kept
        assert found.weights.device.type == "cuda"
        for one, other in ((found.weights, expected.weights), (found.rate, expected.rate)):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-6, atol=1e-9)
        assert found.certificate.relative_error < 1e-4


def test_items_on_the_cpu_are_moved_to_where_the_training_was(tmp_path: Path) -> None:
    part, model = classes_part(12), small_net().cuda()
    training = fit(model, part, steps=6, batch_size=5, store=tmp_path / "fit", measure=False, lr=0.05)
    training.final()
    found = influence(training, part.x, part.y, method="replay", remove=0.5, directions=0)
    assert found.margins(part.y).shape == (12, 12)
