"""Mistakes and the points that made them: the contract, what is planted, and what a retraining without points is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope.training import fit
from ntkscope_papers.own.attribution_tasks import Recipe, Task
from ntkscope_papers.own.mistakes import PLANTED, TARGET, Mistakes, areas_of, retrained


@pytest.mark.guard
class TestMistakes(ExperimentContract):
    name = "mistakes"
    tiny = given(points=60, wrong=8, items=1, validation=4, epochs=1, removed=(1,))
    own = True


def test_what_is_planted_is_apart_and_as_many_as_said() -> None:
    config = Mistakes.at("smoke")
    part, truth, held = config.planted(0)
    assert [int(truth[name].sum()) for name in PLANTED] == [config.wrong, config.backdoor, 2 * config.twins]
    assert int(sum(truth.values()).max()) == 1  # no point is planted twice
    assert (part.y[torch.from_numpy(truth["backdoor"])] == TARGET).all()
    assert (held.x[-config.triggered :, ..., -2:, -2:] == held.x.max()).all()
    assert (held.y[-config.triggered :] != TARGET).all()


def test_without_points_a_network_is_what_fit_makes_of_the_others() -> None:
    config = Mistakes.at("smoke")
    part, _, held = config.planted(0)
    how = {"lr": 0.02, "momentum": 0.9, "batch_size": 20, "epochs": 3}
    task = Task("mlp-digits", part, held, 10, how, Recipe("digits", len(part), 3, 0.02))
    gone = np.array([3, 5])
    kept = np.setdiff1d(np.arange(len(part)), gone)
    model = task.build(1)
    fit(model, part.take(torch.from_numpy(kept)), seed=1, measure=False, **how).final()
    right = (model(held.x).argmax(1) == held.y).numpy()
    (found,) = retrained(task, 1, [gone], held, same=False)
    assert (found == right).mean() > 0.98  # batched products round otherwise
    (weighted,) = retrained(task, 1, [gone], held, same=True)
    assert weighted.shape == found.shape


def test_areas_know_what_lowers_margins() -> None:
    planted = {name: np.arange(6) == k for k, name in enumerate(PLANTED)}
    planted["near-duplicate"] = np.isin(np.arange(6), [2, 3])
    scores = np.random.default_rng(0).normal(size=(8, 6))
    scores[2:, 0] = -9.0  # lowers the margins of all items
    scores[:2, 1] = -9.0  # those of the triggered ones
    scores[2:, 3] = scores[2:, 2]
    assert areas_of(scores, 2, planted) == dict.fromkeys(PLANTED, 1.0)
