"""Machines on orthant shells against kernels formed by plain autograd, and attributions by distance."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ntkscope import models
from ntkscope.surrogates import KernelSVM
from ntkscope_papers.balakrishnan_2023.orthants import machines
from ntkscope_papers.balakrishnan_2023.orthants.data import arm_data, empty_orthant
from ntkscope_papers.balakrishnan_2023.orthants.networks import OrthantNetworks

CONFIG = OrthantNetworks(dimension=3, per_class=10, test_per_class=6)
CHOICE = machines.Choice((0.01, 1.0), 5, 0)
CPU = torch.device("cpu")


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    rows = []
    for item in x:
        grads = torch.autograd.grad(model(item[None]).sum(), list(model.parameters()))
        rows.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(rows)


@pytest.mark.parametrize("reading", machines.READINGS)
@pytest.mark.parametrize("how", [machines.LINEAR_SVC, machines.SVC], ids=["LinearSVC", "SVC"])
def test_tangent_machines_are_those_on_explicit_jacobians(reading: str, how: dict[str, str]) -> None:
    split = arm_data(CONFIG, 0, "plain")
    model = models.build("mlp", in_features=3, classes=1, widths=5, depth=2, seed=4)
    tangent = machines.TangentMachines(model, split.train, "1GiB")
    assert next(model.parameters()).dtype == torch.float32  # the network itself is left alone
    machine = tangent.machine(reading, CHOICE, dict(how))
    scores = tangent.scores(reading, machine)(split.test.x)

    subject = tangent.model if reading == "logit" else nn.Sequential(tangent.model, nn.Sigmoid())
    own, other = (jacobian(subject, x.double()) for x in (split.train.x, split.test.x))
    svm = KernelSVM(machine.told["C"], solver="newton", tol=1e-9, **how).fit(own @ own.T, split.train.y.numpy())
    expected = torch.from_numpy(svm.decision_function(other @ own.T))
    # both stop on a relative duality gap, of 1e-4 and 1e-9: scores agree to about its root
    torch.testing.assert_close(scores, expected, atol=0.03 * float(expected.abs().max()), rtol=0)
    assert machine.told["gap"] <= 1e-4

    rows = tangent.attributions(machine, split.test.x, "1GiB")
    slopes = tangent.slopes(reading, split.test.x.double())
    torch.testing.assert_close(slopes * rows.sum(1) + machine.intercept, scores)


def test_machines_on_inputs_score_as_their_kernels_do() -> None:
    split = arm_data(CONFIG, 1, "plain")
    x, z = split.train.x.double(), split.test.x.double()
    machine, score = machines.linear_machine(split.train, CHOICE, CPU)
    torch.testing.assert_close(score(z), z @ x.T @ machine.coef + machine.intercept)
    machine, score = machines.rbf_machine(split.train, (1.0, 10.0), CHOICE, CPU)
    gamma = float(machine.told["kernel"].removeprefix("γ=")) / (3 * float(x.var(correction=0)))
    expected = torch.exp(-gamma * torch.cdist(z, x) ** 2) @ machine.coef + machine.intercept
    torch.testing.assert_close(score(z), expected)
    assert set(machine.told["held-out accuracy"]) == {f"γ={g:g}, C={C:g}" for g in (1, 10) for C in (0.01, 1)}


def test_c_is_chosen_on_items_that_no_machine_saw() -> None:
    part = arm_data(CONFIG, 0, "plain").train
    fit, held = machines.Choice((1.0,), 5, 0).rows(part)
    assert len(fit) + len(held) == 2 * 5 * 7
    assert not set(fit.tolist()) & set(held.tolist())
    assert len(held) == 2 * 7


def test_mass_by_distance_of_planted_attributions() -> None:
    split = arm_data(CONFIG, 0, "plain")
    empty = empty_orthant(split)
    near = torch.tensor([bin(int(o) ^ empty).count("1") == 1 for o in split.train.extras["orthant"]])
    there = split.test.extras["orthant"] == empty
    signs = torch.where(split.test.y == 1, 1.0, -1.0)[there].double()
    found = machines.mass_by_distance(signs[:, None] * near.double(), split, split.train, empty)
    assert found["mass"] == found["net"] == [1.0, 0.0, 0.0]
    assert found["items"] == pytest.approx([3 / 7, 3 / 7, 1 / 7], abs=1e-5)
    even = machines.mass_by_distance(torch.ones(int(there.sum()), len(split.train)).double(), split, split.train, empty)
    assert even["mass"] == even["items"]
    assert even["net"] == pytest.approx([0.0] * 3, abs=1e-9)  # as many of each class
