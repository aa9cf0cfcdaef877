"""Definitions and limits of the surrogate paper: the contract, attacks that stay in reach, verdicts that can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from contracts.dataset import given
from contracts.experiment import ExperimentContract, judged, made_record, readings
from ntkscope_papers.engel_2023.surrogate_definitions import attacked

READINGS = readings("surrogate-definitions", "surrogate-")


@pytest.mark.guard
class TestSurrogateDefinitions(ExperimentContract):
    name = "surrogate-definitions"
    tiny = given(trials=3, widths=(8, 16), width_seeds=1, train_items=100, test_items=30, points=30, items=10)
    identities = tuple(
        claim.id
        for key, claim in READINGS.items()
        if key not in ("pntk-width-bound", "svm-adversarial-limit", "kglm-training-setting")
    )


@pytest.mark.parametrize("steps", [1, 5])
def test_an_attack_raises_the_loss_and_stays_within_reach(steps: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).double().eval()
    x, y = torch.rand(6, 3, 2, 2, dtype=torch.float64), torch.arange(6) % 3
    reach = torch.full((3, 1, 1), 0.1, dtype=torch.float64)
    box = (torch.zeros(3, 1, 1, dtype=torch.float64), torch.ones(3, 1, 1, dtype=torch.float64))
    moved = attacked(model, x, y, reach, box, steps=steps)
    before, after = (cross_entropy(model(z), y, reduction="none") for z in (x, moved))
    assert bool((after > before).all())
    assert float((moved - x).abs().max()) <= 0.1 + 1e-12
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    assert all(parameter.grad is None for parameter in model.parameters())


def result(above: float, tau: float) -> dict[str, object]:
    clean = {"network_accuracy": 0.9, "surrogate_accuracy": 0.9, "tau": 0.7, "agreement": 1.0}
    moved = {"network_accuracy": 0.1, "surrogate_accuracy": 0.1 + above, "tau": tau, "agreement": 0.5}
    return {name: {"clean": clean, "fgsm": moved, "pgd": moved} for name in ("svm", "glm")}


@pytest.mark.parametrize(
    ("above", "tau", "verdict"), [(0.2, 0.7, "reproduced"), (0.0, 0.4, "reproduced"), (0.05, 0.6, "not reproduced")]
)
def test_the_limit_of_svms_can_fail(tmp_path: Path, above: float, tau: float, verdict: str) -> None:
    results = {f"attack/{name}": result(above, tau) for name in ("resnet20", "resnet56")}
    found = judged(made_record(tmp_path, "surrogate-definitions", **results))
    assert found["surrogate-svm-adversarial-limit"].verdict == verdict
