"""Polynomials of a hidden direction: the contract, inputs shared by degrees, Damian's algorithm, verdicts that can fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope.core import Record
from ntkscope.kernels import Tangent
from ntkscope_papers.balakrishnan_2023.polynomials import networks
from ntkscope_papers.balakrishnan_2023.polynomials.damian import Start, first_step, learn
from ntkscope_papers.balakrishnan_2023.polynomials.data import PARTS, Inputs, Task, hidden_polynomial
from ntkscope_papers.balakrishnan_2023.polynomials.hidden_polynomial import HiddenPolynomial
from ntkscope_papers.balakrishnan_2023.polynomials.machines import (
    Problem,
    fit_on_all,
    tangent_kernel,
    with_gaussian_kernel,
    with_tangent_kernel,
)
from ntkscope_papers.framework import Run

SIZES: Mapping[str, Any] = {"dimension": 5, "train": 40, "validation": 12, "test": 15}
CPU = torch.device("cpu")


@pytest.mark.guard
class TestHiddenPolynomial(ExperimentContract):
    name = "hidden-polynomial"
    tiny = given(train=48, validation=16, test=24, select_items=24, epochs=2, correlated=[11], C=[10.0])
    identities = ("relu-poly-data", "relu-poly-corr-cov", "relu-poly-even-optimum")


@pytest.mark.parametrize("kind", ["isotropic", "correlated", "direct"])
@pytest.mark.parametrize("target", ["raw", "unit"])
def test_tasks_are_those_of_the_data_set(kind: str, target: str) -> None:
    inputs = Inputs(networks.PolynomialRuns(**SIZES), 7)
    split = hidden_polynomial(seed=8, degree=6, target=target, correlated=kind == "correlated", **SIZES)
    made = inputs.parts(Task(kind, 6, target), 1)
    for name, part in zip(PARTS, (split.train, split.validation, split.test)):
        assert part is not None
        assert torch.equal(made[name].x, part.extras["v"][:, None] if kind == "direct" else part.x)
        torch.testing.assert_close(made[name].y, part.y, rtol=1e-6, atol=1e-7)


def test_noise_has_one_size_and_spares_test_items() -> None:
    inputs, task = Inputs(networks.PolynomialRuns(**SIZES), 0), Task("isotropic", 3, "raw")
    clean, noisy = inputs.parts(task, 0), inputs.parts(task, 0, noise=0.25)
    moved = (noisy["train"].y - clean["train"].y).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.25))
    assert torch.equal(noisy["test"].y, clean["test"].y)


def test_cosines_know_the_hidden_direction() -> None:
    weight = torch.tensor([[[2.0, 2.0], [-3.0, -3.0], [1.0, -1.0], [0.0, 0.0], [1.0, 0.0]]])
    torch.testing.assert_close(networks.cosines(weight), torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.5**0.5]]))


def small_runs(**changes: Any) -> HiddenPolynomial:
    options = {**SIZES, "epochs": 2, "batch": 8, "seeds": 2, "patience": 5}
    return HiddenPolynomial(**{**options, **changes})


def test_networks_train_and_come_back_from_their_file(tmp_path: Path) -> None:
    config, tasks = small_runs(), [Task("isotropic", 3, "raw"), Task("correlated", 4, "unit")]
    run = Run(config, cast(Record, None), CPU, None, 0, progress=False)
    found = config.fit(run, tasks, networks.Recipe(6, follow=1))
    assert found.moments == (0.0, 1.0, 2.0)
    assert found.aligned.shape == found.largest.shape == (4, 4)
    x = run.data.draw("correlated", 1).x["test"]
    alone = found.member(3, networks.network(5, 6, 0))(x)[:, 0].detach().double()
    torch.testing.assert_close(networks.outputs(found.params, 3, x), alone, rtol=1e-5, atol=1e-6)
    found.save(tmp_path / "networks" / "a.safetensors")
    again = networks.Trained.load(tmp_path / "networks" / "a.safetensors", CPU)
    assert again.moments == found.moments
    assert all(torch.equal(again.params[name], value) for name, value in found.params.items())
    assert torch.equal(again.changes, found.changes)


def test_scatter_and_spread() -> None:
    v = np.linspace(-1, 1, 50)
    y = v**3 - v
    rough = y + np.where(np.arange(50) % 2, 0.1, -0.1)
    smooth = networks.scores({"test": 0.5 * y}, {"test": y}, v, 3)
    assert smooth["fuzz"] == pytest.approx(0, abs=1e-12)
    assert smooth["spread"] == pytest.approx(0.5)
    assert networks.scores({"test": rough}, {"test": y}, v, 3)["fuzz"] > 0.3


# -- kernel machines ---------------------------------------------------------------------------------------------------------


def test_machines_learn_a_line_and_report_their_gap() -> None:
    config = networks.PolynomialRuns(
        **{**SIZES, "train": 60, "select_items": 40, "C": (1.0, 1000.0), "gammas": (0.01, 10.0)}
    )
    inputs, task = Inputs(config, 0), Task("isotropic", 1, "raw")
    problem = Problem.of(inputs.draw("isotropic", 0), task, CPU)
    K = tangent_kernel(Tangent(networks.network(5, 16, 0).double().eval(), dtype=torch.float64), problem.x)
    assert float(K.diagonal().mean()) == pytest.approx(1)
    machines, gamma = with_gaussian_kernel(problem, config)
    assert gamma == 0.01  # the widest Gaussian is nearly linear
    for found in (*with_tangent_kernel(K, problem, config).values(), *machines.values()):
        assert networks.scores(found.predictions, {n: problem.targets(n) for n in PARTS}, problem.v, 1)["r2 test"] > 0.9
        assert found.C == 1000.0
        assert found.gap <= 1e-4


def test_strength_is_chosen_on_validation_items_not_on_test_items() -> None:
    config = networks.PolynomialRuns(**{**SIZES, "C": (0.01, 100.0), "select_items": 40})
    problem = Problem.of(Inputs(config, 0).draw("isotropic", 0), Task("isotropic", 1, "raw"), CPU)
    K = problem.x @ problem.x.T

    def chosen(flipped: str | None = None) -> float:
        y = problem.y.clone()
        if flipped is not None:
            y[problem.rows[flipped]] *= -1
        return fit_on_all(K, replace(problem, y=y), "ridge", config, "free").C

    assert chosen() == chosen("test") == 100.0
    assert chosen("validation") == 0.01


# -- Damian's algorithm ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [2, 6, 130])
def test_the_symmetric_start_is_zero_to_the_last_digit(width: int) -> None:
    z = torch.randn(300, 9, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
    start = Start.draw(width, 9, 0, CPU)
    assert torch.equal(start.outputs(z), torch.zeros(300, dtype=torch.float64))
    assert float(torch.relu(z @ start.weight.T).abs().max()) > 0.1  # of units that are not


def test_the_first_step_is_minus_the_gradient() -> None:
    random = torch.Generator().manual_seed(0)
    z, y = torch.randn(30, 4, generator=random).double(), torch.randn(30, generator=random).double()
    start = Start.draw(6, 4, 1, CPU)
    W = start.weight.clone().requires_grad_(True)
    loss = (torch.relu(z @ W.T) @ start.readout - y).square().mean()
    (gradient,) = torch.autograd.grad(loss, W)
    torch.testing.assert_close(first_step(start, z, y), -gradient, rtol=1e-9, atol=1e-12)


def test_the_algorithm_finds_the_direction_of_a_square() -> None:
    """y = v², whose second derivative is along the hidden direction: after one step units point there."""
    random = torch.Generator().manual_seed(0)
    parts = {name: torch.randn(n, 20, generator=random).double() for name, n in zip(PARTS, (3000, 300, 300))}
    y = {name: z.sum(1).square() / 20 for name, z in parts.items()}
    found = learn(parts, y, 64, 0)
    assert found.start == 0.0
    assert float(networks.cosines(found.weight[None]).median()) > 0.7
    residual = (found(parts["test"]) - y["test"]).square().mean()
    assert float(1 - residual / y["test"].var()) > 0.9
    model = found.network()
    whole = model(parts["test"])[:, 0] + found.linear(parts["test"])
    torch.testing.assert_close(whole.detach(), found(parts["test"]))
