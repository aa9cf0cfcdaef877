"""Spectra of a small CNN: the contract, spectra against plain autograd, verdicts that can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract, judged, made_record, run_of
from ntkscope.core import Record
from ntkscope_papers.wang_2023 import cnn_spectra as experiment
from ntkscope_papers.wang_2023.cnn_spectra import CnnSpectra

CPU = torch.device("cpu")


@pytest.mark.guard
class TestCnnSpectra(ExperimentContract):
    name = "cnn-spectra"
    tiny = given(train_items=40, test_items=20, points=20, gd_steps=3, epochs=1, dimension=8, case_epochs=2)


def test_the_spectrum_is_that_of_the_jacobians_gram() -> None:
    config = CnnSpectra.at("smoke")
    split = config.prepare(run_of(config))
    model, x = config.build(split, 0), split.train.x[:12]
    rows = []
    double = config.build(split, 0).double()
    for item in x.double():
        gradients = torch.autograd.grad(double(item[None])[0, 0], list(double.parameters()))
        rows.append(torch.cat([g.flatten() for g in gradients]))
    J = torch.stack(rows)
    expected = torch.linalg.eigvalsh(J @ J.T).flip(0).numpy()
    found = config.spectrum(model, x, CPU)
    assert found == pytest.approx(expected, abs=1e-9 * expected[0])
    assert set(split.train.y.tolist()) == {-1.0, 1.0}


def test_distances_see_shape_with_and_without_scale() -> None:
    values = np.random.default_rng(0).pareto(2.0, 500)
    same = experiment.compared(np.sort(values)[::-1], 8 * np.sort(values)[::-1])
    assert (same["KS over the mean"], same["Q–Q slope"]) == (0.0, 1.0)
    assert same["KS"] > 0.5
    assert same["first over first"] == pytest.approx(8)
    heavier = experiment.compared(np.sort(values)[::-1], np.sort(values**2)[::-1])
    assert heavier["KS over the mean"] > 0.1
    assert heavier["Q–Q slope"] > 1.5


def made_up(folder: Path, **changes: Any) -> Record:
    config = CnnSpectra()
    rows: dict[str, Any] = {}
    for i, name in enumerate(experiment.OPTIMIZERS):
        for s in range(config.seeds):
            rows[f"{name}/{s}"] = {
                "train": 0.9,
                "test": 0.8 + 0.03 * i,
                "KS": 0.1,
                "KS over the mean": 0.05 + 0.05 * i,
                "Q–Q slope": 1.0 + i,
                "first over tenth, before": 50.0,
                "first over first": 1.5,
            }
    rows |= {f"{case}/0": {"first over first": 2.0} for case in experiment.CASES}
    for key, change in changes.items():
        rows[key] = {**rows[key], **change}
    return made_record(folder, "cnn-spectra", **rows)


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        ("fig22-accuracies", {"GD/0": {"test": 0.95}}),
        ("fig22-accuracies", {"SGD/1": {"test": 1.0}}),
        ("fig22-ntk-spectra", {"GD/0": {"KS over the mean": 0.4}}),
        ("fig22-ntk-spectra", {"SGD/2": {"KS over the mean": 0.5}}),
        ("fig22-ntk-spectra", {"Adam/2": {"first over tenth, before": 4.0}}),
        ("top-eigenvalue-grows", {"SGD/2": {"first over first": 0.99}}),
        ("top-eigenvalue-grows", {"case-4/0": {"first over first": 0.99}}),
    ],
)
def test_a_verdict_follows_what_was_measured(claim: str, changes: dict[str, Any], tmp_path: Path) -> None:
    good, bad = judged(made_up(tmp_path / "good")), judged(made_up(tmp_path / "bad", **changes))
    assert {one.verdict for one in good.values()} == {"reproduced"}
    assert bad[f"spectra-{claim}"].verdict == "not reproduced"


def test_only_what_the_statement_is_of_is_judged(tmp_path: Path) -> None:
    """Of SGD and Adam, at steps that are stable: gradient descent may shrink its first eigenvalue, and so may a larger step."""
    record = made_up(tmp_path, **{"GD/0": {"first over first": 0.9}})
    record.put(**{"large-SGD/0": {"first over first": 0.2}})
    claim = judged(record)["spectra-top-eigenvalue-grows"]
    assert (claim.verdict, claim.measured["large-SGD"]) == ("reproduced", [0.2])
