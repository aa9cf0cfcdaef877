"""Logistic regression: the contract, the linear programme, Newton's method with its ridge, instances of Theorem 5.1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression as Linear

from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope_papers.qadeer_2023.logistic_claims import LEAST_MARGIN
from ntkscope_papers.qadeer_2023.logistic_regression import (
    LogisticRegression,
    Task,
    corner_instances,
    margin,
    newton,
    plain_newton,
)
from ntkscope_papers.qadeer_2023.networks import Cell


@pytest.mark.guard
class TestLogisticRegression(ExperimentContract):
    name = "logistic-regression"
    tiny = given(
        boundaries=("F1",),
        architectures=("tanh-128",),
        networks=1,
        epochs=3,
        checkpoints=(0, 3),
        ridges=(1.0,),
        instances=20,
    )


@pytest.mark.parametrize(("columns", "separable"), [((0, 1), False), ((0, 1, 2), True)])
def test_the_linear_programme_sees_separable_classes(columns: tuple[int, ...], separable: bool) -> None:
    """The corners of a square with opposite classes: a plane through them needs the product of both coordinates."""
    x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    features = torch.cat([x, x.prod(1, keepdim=True), torch.ones(4, 1, dtype=torch.float64)], 1)[:, [*columns, 3]]
    found = margin(features, np.array([1, 0, 0, 1]))
    assert (found > LEAST_MARGIN) == separable
    assert found >= -1e-12


def test_newton_minimises_the_summed_loss_with_the_ridge() -> None:
    """scikit-learn's objective in feature space: Σ ln(1 + exp ψ̂) + |β|² / (2 C), C = 1 / (2 ridge)."""
    config = LogisticRegression()
    task = Task(config, "F1")
    x = task.inputs
    features = torch.cat([x, x**2, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    ridge = 1e-2
    scores, converged = newton(task, features @ features[task.nodes].T, ridge)
    linear = Linear(C=1 / (2 * ridge), fit_intercept=False, tol=1e-12, max_iter=10_000)
    linear.fit(features[task.nodes].numpy(), task.train_labels)
    assert converged
    np.testing.assert_allclose(scores, linear.decision_function(features.numpy()), rtol=1e-4, atol=1e-4)  # lbfgs


def test_scores_are_positive_for_class_1() -> None:
    task = Task(LogisticRegression(), "F2")
    right = task.measures(np.where(task.labels.ravel() == 1, 9.0, -9.0))
    assert right["accuracy"] == right["accuracy train"] == 1
    assert right["loss"] == pytest.approx(506 * np.log1p(np.exp(-9)))
    assert right["loss train"] == pytest.approx(96 * np.log1p(np.exp(-9)))
    assert task.measures(np.where(task.labels.ravel() == 1, -1.0, 1.0))["accuracy"] == 0
    machines = task.config.machines(task, Cell("F2", "tanh-8"))
    with torch.no_grad():
        both = machines.model(task.inputs)
    torch.testing.assert_close(machines.outputs(), both[:, 1] - both[:, 0])
    assert machines.ck_features().shape == (506, 9)


def test_nodes_are_the_training_grid() -> None:
    task = Task(LogisticRegression(), "F1")
    assert (task.shape, len(task.nodes)) == ((23, 22), 96)
    single = task.load("float32").train
    torch.testing.assert_close(task.inputs[task.nodes].float(), single.x, rtol=0, atol=1e-7)
    assert (task.train_labels == single.y.numpy()).all()


@pytest.mark.guard
def test_instances_have_the_corner_condition_and_not_always() -> None:
    found = corner_instances(40, 0)
    assert 0 < found["corner"] < found["drawn"]
    assert found["5.1 holds"] == found["corner"]
    assert found["5.2 holds"] == found["matching"] > 0


def test_newton_without_a_ridge_finds_the_minimum_where_there_is_one() -> None:
    random = np.random.default_rng(0)
    phi = random.normal(size=(60, 4))
    labels = (phi @ random.normal(size=4) + 2 * random.normal(size=60) > 0).astype(int)
    alpha, steps, slope = plain_newton(phi @ phi.T, labels)
    linear = Linear(C=1e9, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(phi, labels)
    assert steps < 20
    assert slope < 1e-6
    np.testing.assert_allclose(phi.T @ alpha, linear.coef_[0], rtol=1e-3, atol=1e-3)  # lbfgs
    apart = (phi[:, 0] > 0).astype(int)  # separable: scores grow until the gradient is small
    scores = phi @ phi.T @ plain_newton(phi @ phi.T, apart)[0]
    assert ((scores > 0) == apart).all()
    assert np.abs(scores).max() > 30
