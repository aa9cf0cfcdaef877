"""Function regression: the contract, legs of one record, machines against their definitions, checks that can fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope.core import Record
from ntkscope_papers.qadeer_2023.function_regression import Fits, FunctionRegression, Task, monotone_instances
from ntkscope_papers.qadeer_2023.networks import Cell, Machines, blocks, columns, joined, members
from ntkscope_papers.shared.theory import jacobian

TINY = {
    "targets": ("f1",),
    "architectures": ("tanh-128", "relu-128"),
    "networks": 1,
    "watched": 1,
    "intervals": 8,
    "steps": 8,
    "every": 4,
    "cutoffs": (1e-12,),
    "instances": 40,
}


@pytest.mark.guard
class TestFunctionRegression(ExperimentContract):
    name = "function-regression"
    tiny = given(**TINY)


def test_blocks_are_joined_in_the_order_of_their_networks(tmp_path: Path) -> None:
    record = Record.create(tmp_path / "run", kind="example")
    for block in reversed(blocks(125)):
        record.put(**{f"a/{block}": {"seconds": 0.1, **columns([{"value": 3 * i} for i in members(block)])}})
    assert joined(record, "a") == {"value": [3 * i for i in range(125)]}


@pytest.fixture(scope="module")
def fitted() -> tuple[Task, Machines, Fits]:
    config = FunctionRegression(intervals=8, depth=2)
    task, cell = Task(config, "f2"), Cell("f2", "tanh-6")
    machines = config.machines(task, cell)
    return task, machines, Fits.of(task, machines)


def test_kernels_are_those_of_autograd(fitted: tuple[Task, Machines, Fits]) -> None:
    task, machines, fits = fitted
    every = jacobian(machines.model, task.inputs)
    torch.testing.assert_close(fits.ntk, every @ every[task.nodes].T, rtol=1e-10, atol=1e-12)
    last = jacobian(machines.model, task.inputs, ("readout.weight", "readout.bias"))
    torch.testing.assert_close(fits.features, last, rtol=1e-12, atol=1e-12)


def test_machines_follow_the_weights_they_wear(fitted: tuple[Task, Machines, Fits]) -> None:
    task, machines, fits = fitted
    before = {name: p.detach().clone() for name, p in machines.model.named_parameters()}
    try:
        machines.wear({name: 2 * value[None] for name, value in before.items()}, 0)
        every = jacobian(machines.model, task.inputs)
        torch.testing.assert_close(machines.ntk(), every @ every[task.nodes].T, rtol=1e-10, atol=1e-12)
        assert float((machines.ntk() - fits.ntk).abs().max()) > 0.1
    finally:
        machines.wear({name: value[None] for name, value in before.items()}, 0)


@pytest.mark.parametrize("which", ["ntk", "ck"])
def test_the_kernel_machine_is_equation_14(which: str, fitted: tuple[Task, Machines, Fits]) -> None:
    task, _, fits = fitted
    kernel = (fits.ntk if which == "ntk" else fits.features @ fits.features[task.nodes].T).numpy()
    roots, cutoff = np.sqrt(task.weights.numpy()), 1e-6
    weighted = roots[:, None] * kernel[task.nodes.numpy()] * roots
    inverse = np.linalg.pinv((weighted + weighted.T) / 2, rcond=cutoff, hermitian=True)
    naive = kernel @ (roots * (inverse @ (roots * task.train.y.numpy())))
    values, rank = fits.kernel_machine(which, cutoff)
    np.testing.assert_allclose(values, naive, rtol=1e-6, atol=1e-8)  # eigenvalues of 1e-6 amplify rounding of 1e-16
    assert 0 < rank < 9


def test_features_keep_digits_the_gram_loses(fitted: tuple[Task, Machines, Fits]) -> None:
    task, _, fits = fitted
    assert task.errors(fits.jacobian_machine()[0])[1] <= task.errors(fits.kernel_machine("ck")[0])[1] * (1 + 1e-9)


def test_training_data_are_a_part_of_the_test_grid() -> None:
    task = Task(FunctionRegression(), "f3")
    assert (len(task.nodes), len(task.inputs)) == (201, 601)
    torch.testing.assert_close(task.inputs[task.nodes], task.train.x, rtol=0, atol=0)
    assert float(task.weights.sum()) == pytest.approx(2)


def test_instances_satisfy_the_theorem_and_its_condition() -> None:
    found = monotone_instances(400, 0)
    assert 0 < found["monotone"] == found["hold"] < found["drawn"]
    assert 0 < found["largest ck/ntk over c2"] < 1


def _record(tmp_path: Path, **changes: float) -> Record:
    """Results of two targets as the paper has them, some changed."""
    row = {"network": 1e-2, "ntk": 1e-5, "ck": 2e-5, "ckj": 1e-8, "retrained": 1e-8} | changes
    row |= {f"{name} train": row[name] for name in ("network", "ntk", "ck", "ckj")}
    other = {"beta": 0.5, "theorem_4_1": None, "theorem_4_2": True, "theorem_4_2_printed": True, "ntk rank": 40}
    kept = {**row, **other, "inequalities of 4.2": True}
    record = Record.create(tmp_path / "run", kind="example")
    for cell in (Cell("f1", "tanh-128"), Cell("f2", "tanh-128"), Cell("f3", "tanh-128")):
        record.put(**{f"errors/{cell}/0-4": {name: [value] * 5 for name, value in kept.items()}})
    return record


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({}, set()),
        ({"ck": 2e-3}, {"fig3-separation", "fig3-ntk-ck-similar"}),
        ({"ntk": 2e-3}, {"fig3-separation", "fig3-ntk-ck-similar"}),
        ({"ckj": 1e-6}, {"fig3-ckj-orders-better"}),
        ({"retrained": 2e-2}, {"retrain-last-layer"}),
    ],
)
def test_checks_follow_the_numbers(changes: dict[str, float], fails: set[str], tmp_path: Path) -> None:
    config = FunctionRegression(targets=("f1", "f2"), networks=5)
    claims = {claim.id: claim for claim in config.judge(_record(tmp_path, **changes), "")}
    watched = ("fig3-separation", "fig3-ntk-ck-similar", "fig3-ckj-orders-better", "retrain-last-layer")
    assert {name for name in watched if claims[f"conjugate-{name}"].verdict == "not reproduced"} == fails
    assert claims["conjugate-fig6-relu"].verdict == "not testable here"
    assert '"errors/f1/relu-128/0-4"' in claims["conjugate-fig6-relu"].note


@pytest.mark.parametrize(
    ("second", "fails"),
    [
        ({}, set()),
        ({"ntk": 9e-3}, {"fig6-relu"}),
        ({"ck": 1.1e-2}, {"fig6-relu"}),
        ({"ntk": 5e-5}, {"fig6-relu", "activation-agnostic-network"}),
        ({"ck": 5e-5}, {"fig6-relu", "activation-agnostic-network"}),
    ],
)
def test_relu_is_judged_on_every_target(second: dict[str, float], fails: set[str], tmp_path: Path) -> None:
    record, row = _record(tmp_path), {"network": 1e-2, "ntk": 1.5e-2, "ck": 8e-3, "ckj": 8e-3, "retrained": 8e-3}
    for target in ("f1", "f2", "f3"):
        kept = {
            **record.metrics[f"errors/{Cell(target, 'tanh-128')}/0-4"],
            **{name: [v] * 5 for name, v in row.items()},
        }
        kept |= {name: [value] * 5 for name, value in second.items()} if target == "f2" else {}
        record.put(**{f"errors/{Cell(target, 'relu-128')}/0-4": kept})
    claims = {claim.id: claim.verdict for claim in FunctionRegression(networks=5).judge(record, "")}
    watched = ("fig6-relu", "activation-agnostic-network")
    assert {name for name in watched if claims[f"conjugate-{name}"] == "not reproduced"} == fails
    assert all(claims[f"conjugate-{name}"] in ("reproduced", "not reproduced") for name in watched)


def test_the_features_have_to_gain_on_every_target(tmp_path: Path) -> None:
    record, key = _record(tmp_path), "errors/f3/tanh-128/0-4"
    config = FunctionRegression(networks=5)
    gain = "conjugate-fig3-ckj-orders-better"
    assert {claim.id: claim for claim in config.judge(record, "")}[gain].verdict == "reproduced"
    record.put(**{key: {**record.metrics[key], "ckj": [1e-5] * 5}})
    assert {claim.id: claim for claim in config.judge(record, "")}[gain].verdict == "not reproduced"
