"""Small networks on two classes: the contract, the three readings, verdicts that can fail, refusals."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, judged, made_record
from ntkscope.core import Part, Record
from ntkscope.measures.faithfulness import correct_class_log_odds
from ntkscope_papers.engel_2023 import small_training as training
from ntkscope_papers.engel_2023.small_claims import ROWS
from ntkscope_papers.engel_2023.surrogate_small import SurrogateSmall
from ntkscope_papers.shared.networks import trained_together, weights_file


@pytest.mark.guard
class TestSurrogateSmall(ExperimentContract):
    name = "surrogate-small"
    tiny = given(
        train_items=60,
        test_items=30,
        points=30,
        epochs=1,
        sigmoid_epochs=1,
        seeds=1,
        other_seeds=1,
        authors_seeds=1,
        authors_points=30,
        authors_share=0.01,
        sgd_seeds=1,
        compared_points=20,
    )

    def test_the_published_measure_is_judged_and_the_others_stand_beside(self, record: ns.Record) -> None:
        rows = [claim for claim in record.claims if "-table1-" in claim.id and claim.measured is not None]
        assert len(rows) == 2
        for claim in rows:
            assert set(claim.measured) == {"as published", "at the optimum"}
            assert set(claim.measured["at the optimum"]) == {"authors", "softmax", "sigmoid"}
            assert "labels alone score" in claim.note


@pytest.mark.parametrize(
    "changed", [{"points": 100}, {"train_items": 500}, {"sigmoid_channels": (8,)}, {"authors_share": 0.1}]
)
def test_settings_that_change_what_is_claimed_are_not_free(changed: dict[str, object]) -> None:
    config = dataclasses.replace(SurrogateSmall(), **changed)
    assert ns.EXPERIMENTS["surrogate-small"].difference(config)


def network(row: str, tau: float = 0.7, **changed: Any) -> dict[str, Any]:
    """What the record has of one network whose row is as published."""
    fits = {"tau": 0.3, "tad": -0.5, "fixed class": {"tau": tau, "used": 10, "left out": 0}}
    found = {
        "tau": 0.3,
        "tad": 0.0,
        "pearson": 0.95,
        "network_accuracy": ROWS[row][0][0] / 100,
        "sgd": {"tau": 0.3, "tad": -0.5},
        "tau within classes": {"0": 0.5, "1": 0.5},
        "best bias": {"tau": 0.6, "shift": 0.0},
        "label floor, unsaturated": 0.5,
        "stochastic": {"alpha": 1e-4, "seeds": {"0": fits, "1": copy.deepcopy(fits)}},
    }
    return {**found, **changed}


def record_of(folder: Path, readings: tuple[str, ...] = ("softmax", "authors"), **changed: Any) -> Record:
    rows = {f"{row}/{reading}/{s}": network(row, **changed) for row in ROWS for reading in readings for s in range(5)}
    return made_record(folder, "surrogate-small", **rows)


def test_a_row_as_published_is_reproduced_and_says_what_labels_alone_score(tmp_path: Path) -> None:
    found = judged(record_of(tmp_path))
    assert {claim.verdict for claim in found.values()} == {"reproduced"}
    assert "labels alone score 0.500 in this measure, so 0.200" in found["surrogate-table1-mlp-mnist2"].note


@pytest.mark.parametrize("changed", [{"tau": 0.5}, {"network_accuracy": 0.9}, {"tau": float("nan")}])
def test_a_row_that_is_not_as_published_is_not_reproduced(tmp_path: Path, changed: dict[str, Any]) -> None:
    claim = judged(record_of(tmp_path, **changed))["surrogate-table1-mlp-mnist2"]
    assert claim.verdict in ("not reproduced", "stand-in")
    assert not claim.holds


def test_pearson_that_is_no_more_than_tau_explains_fails(tmp_path: Path) -> None:
    """τ = 0.3 of normal scores has a Pearson correlation of sin(0.15 π) = 0.454: above τ without any clouds."""
    found = judged(record_of(tmp_path, pearson=0.44))
    assert found["surrogate-pearson-inflated"].verdict == "not reproduced"


def test_a_record_without_the_published_measure_says_how_to_run_it(tmp_path: Path) -> None:
    claim = judged(record_of(tmp_path, readings=("softmax",)))["surrogate-table1-cnn-cifar2"]
    assert claim.verdict == "stand-in"
    assert "not the published measure" in claim.note
    assert "--set 'legs=[\"cnn-cifar2/authors\"]'" in claim.note


def test_one_output_is_the_log_odds_of_the_second_class() -> None:
    f = np.array([[2.0], [-3.0]])
    np.testing.assert_allclose(correct_class_log_odds(training.class_logits(f), np.array([1, 1])), f[:, 0], rtol=1e-12)
    np.testing.assert_allclose(correct_class_log_odds(training.class_logits(f), np.array([0, 0])), -f[:, 0], rtol=1e-12)
    assert training.class_logits(f, np.array([[0.5], [0.5]]), 0.5).tolist() == [[0.0, 1.0], [0.0, -4.0]]


def test_the_losses_are_those_of_the_authors() -> None:
    found = training.squared_error_of_sigmoid(torch.tensor([[0.0], [100.0]]), torch.tensor([1, 0]))
    torch.testing.assert_close(found, torch.tensor([0.25, 1.0]))
    outputs, y = torch.tensor([[3.0], [1.0]]), torch.tensor([[1.0, 2.0], [0.0, 0.5]])  # label, f₀
    torch.testing.assert_close(training.centred_squared_error(outputs, y), torch.tensor([0.0, 0.25]))
    odds = torch.tensor([1.0, 0.5])
    expected = torch.nn.functional.binary_cross_entropy(torch.sigmoid(odds), y[:, 0], reduction="none")
    torch.testing.assert_close(training.centred_cross_entropy(outputs, y), expected)


def test_networks_trained_together_start_where_their_targets_say(tmp_path: Path) -> None:
    """With f₀ among the targets, what is trained is zero at the start; each network is stored, and trained once."""

    def build(seed: int) -> torch.nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return torch.nn.Linear(2, 1)

    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    part = Part(x, (x[:, 0] > 0).long())
    parts = [training.with_start(part, build(seed)) for seed in (3, 4)]
    for seed, one in zip((3, 4), parts):
        torch.testing.assert_close(one.y[:, 1], build(seed)(x)[:, 0].detach())
    record = made_record(tmp_path / "run", "surrogate-small")
    how = {"optimizer": "sgd", "lr": 0.1, "batch_size": 4, "epochs": 2, "loss": training.centred_squared_error}
    for _ in range(2):
        trained_together(record, "row/authors", build, parts, how, seeds=[3, 4], device=torch.device("cpu"))
    assert record.metrics["training/row/authors"]["steps"] == [4, 4]
    assert all(weights_file(record, f"row/authors/{s}").exists() for s in (0, 1))
    assert not list((tmp_path / "run" / "networks").glob("*.training"))
