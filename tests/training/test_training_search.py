"""Search: folds that partition, scores that can be recomputed by hand."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from torch import nn

from contracts.training_problems import classes_part, regression_part
from ntkscope import models
from ntkscope.core import Part, UsageError, derive_seed
from ntkscope.training import evaluate, fit, fit_ensemble, folds, search
from ntkscope.training.ensembles.ensemble import Ensemble


def build(seed: int, width: int = 4) -> nn.Module:
    return models.build("mlp", in_features=5, classes=3, widths=[width], seed=seed)


def test_folds_partition_and_keep_the_class_balance() -> None:
    part = Part(torch.arange(60.0)[:, None], torch.arange(60) % 3, {"id": torch.arange(60)})
    pairs = list(folds(part, 5, seed=1))
    left_out = torch.cat([fold.extras["id"] for _, fold in pairs])
    assert sorted(left_out.tolist()) == list(range(60))
    for rest, fold in pairs:
        assert not set(rest.extras["id"].tolist()) & set(fold.extras["id"].tolist())
        assert torch.bincount(fold.y).tolist() == [4, 4, 4]
    assert [f.y.tolist() for _, f in folds(part, 5, seed=1)] == [f.y.tolist() for _, f in pairs]
    assert [f.extras["id"].tolist() for _, f in folds(part, 5, seed=2)] != [f.extras["id"].tolist() for _, f in pairs]


def test_a_search_is_the_loop_it_stands_for() -> None:
    part = classes_part(60)
    result = search(build, part, {"lr": [0.01, 0.5], "model.width": [2, 8]}, folds_count=3, steps=30, seed=7)
    assert [dict(row.options) for row in result.rows] == [
        {"lr": lr, "model.width": width} for lr in (0.01, 0.5) for width in (2, 8)
    ]
    scores = []
    for number, (rest, fold) in enumerate(folds(part, 3, 7)):
        seed = derive_seed(7, "fold", number)
        model = build(seed, width=8)
        fit(model, rest, lr=0.5, steps=30, seed=seed).final()
        scores.append(evaluate(model, fold)["accuracy"])
    row = result.rows[3]
    assert row.scores == tuple(scores)
    mean = sum(scores) / 3
    spread = math.sqrt(sum((s - mean) ** 2 for s in scores) / 2)
    assert row.mean == pytest.approx(mean)
    assert row.standard_error == pytest.approx(spread / math.sqrt(3))
    assert result.best.options["lr"] == 0.5
    assert str(result).splitlines()[0].split() == ["lr", "model.width", "accuracy", "s.e."]


def test_a_setting_that_diverges_scores_nan_and_is_never_best() -> None:
    part = regression_part(20)

    def linear(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Linear(4, 1, dtype=torch.float64)

    settings = {"folds_count": 4, "steps": 20, "loss": "mse", "score": "loss"}
    loop, together = (search(linear, part, {"lr": [1e200, 0.05]}, vectorised=v, **settings) for v in (False, True))
    for found in (loop, together):
        assert all(math.isnan(score) for score in found.rows[0].scores)
        assert found.best.options == {"lr": 0.05}
    assert together.rows[1].scores == pytest.approx(loop.rows[1].scores, rel=1e-9)
    settings |= {"score": lambda model, part: 1.0, "larger_is_better": True}
    assert search(linear, part, {"lr": [0.05]}, **settings).best.mean == 1.0


def test_a_vectorised_search_has_the_scores_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    part = classes_part(61, dtype=torch.float64)  # folds of 20 and 21 items: parts of two lengths
    grid = {"lr": [0.01, 0.5], "model.width": [2, 8], "weight_decay": [0.0, 0.1], "batch_size": [None, 16]}
    calls = []

    def counted(*args: Any, **options: Any) -> Ensemble:
        calls.append(len(options["seeds"]))
        return fit_ensemble(*args, **options)

    monkeypatch.setattr(sys.modules["ntkscope.training.search"], "fit_ensemble", counted)

    def double(seed: int, width: int) -> nn.Module:
        return build(seed, width).double()

    settings = {"folds_count": 3, "epochs": 2, "seed": 7, "optimizer": "adam", "score": "loss"}
    loop, together = (search(double, part, grid, vectorised=v, **settings) for v in (False, True))
    assert [row.options for row in loop.rows] == [row.options for row in together.rows]
    for one, other in zip(loop.rows, together.rows, strict=True):
        assert other.scores == pytest.approx(one.scores, rel=1e-8)
    assert loop.best.options == together.best.options
    # two widths, two batch sizes, two lengths of folds; two rates and two decays on one or two folds at once
    assert sorted(calls) == [4] * 4 + [8] * 4
    accuracy = {"folds_count": 3, "epochs": 2, "lr": 0.1}
    scores = [
        search(double, part, {"model.width": [4]}, vectorised=v, **accuracy).rows[0].scores for v in (False, True)
    ]
    assert scores[0] == scores[1]


def test_a_vectorised_search_takes_modes_and_optimizers_that_are_functions() -> None:
    part = classes_part(60, dtype=torch.float64)

    def double(seed: int) -> nn.Module:
        return build(seed).double()

    def heavy(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.1, momentum=0.5)

    settings = {"folds_count": 3, "epochs": 2, "batch_size": 8, "lr": 0.1, "score": "loss"}
    for grid, options in (
        ({"mode": ["first-last", "reinit"], "lr": [0.1, 0.3]}, {}),
        ({"batch_size": [8, 40]}, {"optimizer": heavy}),
    ):
        loop, together = (
            search(double, part, grid, vectorised=vectorised, **{**settings, **options}) for vectorised in (False, True)
        )
        for one, other in zip(loop.rows, together.rows, strict=True):
            assert other.scores == pytest.approx(one.scores, rel=1e-8)
    with pytest.raises(UsageError, match="an optimizer that is a function"):
        search(double, part, {"lr": [0.1, 0.2]}, vectorised=True, **{**settings, "optimizer": heavy})


def test_errors() -> None:
    part = classes_part(60)
    with pytest.raises(UsageError, match="nothing to try"):
        search(build, part, {"lr": []}, steps=1)
    with pytest.raises(UsageError, match="got score='f1'"):
        search(build, part, {"lr": [0.1]}, steps=1, score="f1")
    with pytest.raises(UsageError, match="larger_is_better"):
        search(build, part, {"lr": [0.1]}, steps=1, score=lambda m, p: 0.0)
    with pytest.raises(UsageError, match=r"expected 2 \.\.\. 60"):
        list(folds(part, 1))
    with pytest.raises(UsageError, match="a class has"):
        list(folds(Part(part.x, torch.cat([torch.zeros(58), torch.ones(2)]).long()), 3))
    with pytest.raises(UsageError, match="extras"):
        search(build, part, {"lr": [0.1]}, steps=1, weights=torch.ones(60))
    with pytest.raises(UsageError, match="not class labels"):
        search(
            lambda seed: nn.Linear(4, 1).double(), regression_part(), {"lr": [0.1]}, steps=1, loss="mse", folds_count=2
        )
