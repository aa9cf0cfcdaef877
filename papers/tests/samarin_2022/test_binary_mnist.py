"""One digit against the rest: the contract, the solver against a naive one, verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope.core import Part, UsageError
from ntkscope.models import build
from ntkscope_papers.samarin_2022 import binary_claims as claims
from ntkscope_papers.samarin_2022 import tangent_ridge as solver
from ntkscope_papers.samarin_2022.linearized_identities import explicit_jacobian
from ntkscope_papers.samarin_2022.readings import paired
from ntkscope_papers.shared.lenet_tasks import Task, load_task

CPU = torch.device("cpu")


@pytest.mark.guard
class TestBinaryMnist(ExperimentContract):
    name = "binary-mnist"
    tiny = given(
        enlarge=2,
        train_items=30,
        test_items=20,
        solver_widths=(1,),
        ridges=(0.0, 1e-3),
        fractions=(0.5,),
        optional=(),
        epochs=1,
    )
    identities = ("linearized-99-9983", "linearized-solver-memory")


def small(seed: int, train: int = 24) -> tuple[torch.nn.Module, Part, Part]:
    draw = torch.Generator().manual_seed(seed)
    model = build("lenet", classes=1, image_size=16, width=0.3, seed=seed).double().eval()
    parts = [
        Part(torch.randn(n, 1, 16, 16, generator=draw, dtype=torch.float64), torch.randint(0, 3, (n,), generator=draw))
        for n in (train, 10)
    ]
    return model, parts[0], parts[1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ridge", [1e-6, 1e-2])
def test_outputs_are_those_of_a_naive_ridge_regression(seed: int, ridge: float) -> None:
    """Explicit Jacobians by autograd, least squares in the parameters; the accuracies must be the same to the item."""
    model, train, test = small(seed)
    J, J_test = (explicit_jacobian(model, part.x)[:, 0].detach().numpy() for part in (train, test))
    with torch.no_grad():
        start, start_test = (model(part.x)[:, :1].numpy() for part in (train, test))
    unit = float((J * J).sum(1).mean())
    gaps = solver.signs(train.y, 3).numpy() - start
    Q, R = np.linalg.qr(np.vstack([J, np.sqrt(ridge * unit) * np.eye(J.shape[1])]))  # of full rank: no SVD is needed
    u = np.linalg.solve(R, Q.T @ np.vstack([gaps, np.zeros((J.shape[1], 3))]))
    expected = {"train": (start + J @ u, train.y), "test": (start_test + J_test @ u, test.y)}
    system = solver.make_system(model, train, test, device=CPU, memory="1GiB")
    found = solver.ridge_path(system, [ridge], 3)
    other = solver.by_jacobian(model, train, test, [ridge], 3, device=CPU)
    assert found["mean diagonal"] == pytest.approx(unit, rel=1e-12)
    for where, (outputs, labels) in expected.items():
        right = solver.percent_right(torch.from_numpy(outputs), labels, 3)
        assert found["ridges"][f"{ridge:g}"][where] == right
        assert other["ridges"][f"{ridge:g}"][where] == right


def test_the_gram_matrix_is_as_it_was_after_every_ridge_and_after_a_failure() -> None:
    model, train, test = small(5)
    twice = Part(torch.cat([train.x, train.x[:1]]), torch.cat([train.y, (train.y[:1] + 1) % 3]))
    system = solver.make_system(model, twice, test, device=CPU, memory="1GiB")
    before = system.K.clone()
    found = solver.ridge_path(system, [0.0, 1e-8, 1e-3], 3)
    torch.testing.assert_close(system.K, before, rtol=0, atol=0)
    assert found["ridges"]["1e-08"]["rank"] == len(twice) - 1  # one image is there twice
    assert found["ridges"]["1e-08"]["train"][0] < 100 or found["ridges"]["1e-08"]["train"][1] < 100


def test_a_matrix_that_is_not_positive_definite_is_said_to_be_and_the_next_ridge_is_the_reading() -> None:
    K = torch.diag(torch.tensor([1.0, -1e-3, 2.0], dtype=torch.float64))
    zeros = torch.zeros(3, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0])
    system = solver.System(K, K.clone(), zeros, zeros, labels, labels, 7, 0.0)
    found = solver.ridge_path(system, [0.0, 1.0], 2)
    assert "failed" in found["ridges"]["0"]
    assert solver.interpolating(found)[0] == "1"
    with pytest.raises(UsageError, match="larger ones"):
        solver.interpolating({"ridges": {"0": found["ridges"]["0"]}})


def test_tasks_shift_test_images_once_and_training_images_on_request() -> None:
    task: Task = load_task("digits", shifted=True, root=None, train=40, test=20, enlarge=2, seed=1)
    again = load_task("digits", shifted=True, root=None, train=40, test=20, enlarge=2, seed=1)
    plain = load_task("digits", shifted=False, root=None, train=40, test=20, enlarge=2, seed=1)
    assert task.shift == 4
    assert plain.augment is None
    torch.testing.assert_close(task.test.x, again.test.x)
    assert not torch.equal(task.test.x, plain.test.x)
    torch.testing.assert_close(task.train.x, plain.train.x)
    assert not torch.equal(task.fixed(0).x, task.fixed(1).x)
    torch.testing.assert_close(task.fixed(1).x, again.fixed(1).x)
    assert plain.fixed(1) is plain.train


def table(
    accuracies: dict[str, float], task: str = "standard", kind: str = "linear", where: str = "test"
) -> dict[str, Any]:
    return {
        f"sgd/{task}/{width}/{kind}": {
            "digits": {"0": {"train": value, "test": value}},
            "weights": "a",
            "batches": "b" if kind == "linear" else "c",
        }
        for width, value in accuracies.items()
    }


@pytest.fixture
def record(tmp_path: Path) -> ns.Record:
    return ns.Record.create(tmp_path / "run", kind="experiment", name="binary-mnist")


def test_rows_of_the_tables_are_judged_by_their_bands(record: ns.Record) -> None:
    record.put(**table({"x1": 99.6, "x2": 99.75, "x5": 99.8}))
    assert claims.table_reading("t1-lin-test", None, record).holds
    record.put(**table({"x2": 99.5}))  # falls below x1, and 0.25 from the published
    assert not claims.table_reading("t1-lin-test", None, record).holds
    seen = claims.table_reading("t1-lin-test", None, record)
    assert seen.lacks == ("sgd/standard/x10/linear", "sgd/standard/x25/linear", "sgd/standard/x60/linear")
    record.put(**table({"x2": 99.75}))
    (statement,) = (one for one in claims.TABLE_ROWS if one.id == "linearized-t1-lin-test")
    assert statement.verdict("x", statement(None, record)).outcome == "reproduced on a stand-in"  # in part
    assert claims.table_reading("t2-lenet-test", None, record).measured is None


def test_the_solver_is_compared_with_the_linearisation_on_both_tasks(record: ns.Record) -> None:
    solved = {"ridges": {"0": {"train": [100.0], "test": [99.2]}}}
    record.put(**{f"solver/{task}/{width}/0": solved for task in ("standard", "shifted") for width in ("x2", "x5")})
    (fine,) = (one for one in vars(claims).values() if getattr(one, "id", "") == "linearized-solver-x2-x5-fine")
    near = {"x2": 99.1, "x5": 99.1}
    record.put(**table({"x2": 99.2, "x5": 99.2}, kind="network"), **table(near, "shifted"), **table(near))
    assert fine(None, record).holds
    record.put(**table({"x2": 98.9, "x5": 99.1}))
    assert not fine(None, record).holds


def test_a_pair_that_saw_other_batches_is_noticed(record: ns.Record) -> None:
    record.put(**table({"x1": 99.6}), **table({"x1": 99.9}, kind="network"))
    assert paired(record, "sgd", ["standard"]) == {"standard x1": False}


def test_what_was_not_run_says_the_command(record: ns.Record) -> None:
    experiment = ns.EXPERIMENTS["binary-mnist"]
    found = {claim.id: claim for claim in experiment.judge(experiment(), record, "")}
    claim = found["linearized-t1-solver-test"]
    assert claim.verdict == "not testable here"
    assert 'legs=["solver/standard/x1", "solver/standard/x2", "solver/standard/x5"]' in claim.note
    assert found["linearized-99-9983"].verdict == "reproduced"
