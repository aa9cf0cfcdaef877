"""Every section keeps the contract; figures of some are those of scikit-learn and of the public functions."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix as expected
from sklearn.metrics import precision_recall_fscore_support
from torch import Tensor, nn

import ntkscope as ns
from contracts.section import SectionContract, watched
from ntkscope.core import Part
from ntkscope.xray import registry
from ntkscope.xray.registry import SECTIONS
from ntkscope.xray.result import Result
from ntkscope.xray.sections import confusion, explain, tangent
from xray.small import blobs, only, trained, xrayed

SHARED = ["kernel", "layers", "layer_features", "weight_spectra", "shift"]
FORMS = {
    "classification": [
        *("summary", "confusion", "surrogates", "explain", "problems", "tangent", "representations", "computed"),
        *("tracked_training", *SHARED),
    ],
    "regression": ["output_summary", "output_surrogates", "output_explain", "output_problems", *SHARED],
}


class OfSection(SectionContract):
    """A section for one task; those that there are are in the table."""


for _task, _names in FORMS.items():
    for _name in _names:
        _class = f"Test{_name.title().replace('_', '')}Of{_task.title()}"
        globals()[_class] = type(_class, (OfSection,), {"name": _name, "task": _task})


def test_canary_a_field_that_is_none_is_noticed() -> None:
    @dataclass(frozen=True)
    class Row(Result):
        tau: float

    strange: list[str] = []
    (row,) = watched([{"tau": 0.5}], tuple[Row, ...], strange)
    assert (row["tau"], row.get("tua"), strange) == (0.5, None, ["Row.tua"])


def test_only_a_sections_own_file_names_it() -> None:
    """Neither the job, nor the plan, nor another section tests for a section by its name."""
    room = Path(registry.__file__).parent
    named = {
        f"{file.name}: {name}"
        for file in [*room.glob("*.py"), *room.glob("sections/*.py")]
        for name, section in SECTIONS.items()
        if file.stem not in (section.run.__module__.rpartition(".")[2], "__init__")
        and re.search(f"(?<!method=)[\"']({name}|section:{name})[\"']", file.read_text())
    }
    assert named == set()


def test_points_without_which_a_class_scores_lower(tmp_path: Path) -> None:
    """As a ridge regression on the labels, fitted again without the point, says."""
    with only(explain.SECTION):
        record = xrayed(tmp_path, kernels=["ck"])
    data = record.metrics["section:explain"]["data"]
    K, near = (np.asarray(record.arrays[f"kernels.trntk0.{side}"], dtype=np.float64) for side in ("train", "test"))
    own = np.sqrt(np.diag(K))
    K, near = K / np.outer(own, own), near / np.outer(np.sqrt(record.arrays["kernels.trntk0.test_diagonal"]), own)
    labels = np.asarray(record.arrays["labels.train"])
    y = np.eye(labels.max() + 1)[labels]
    alpha = np.diag(K).mean()
    index, value, chosen = (
        np.asarray(record.arrays[f"explain.{n}"]) for n in ("influence_index", "influence_value", "chosen")
    )
    for t, item in list(enumerate(data["items"]))[:3]:
        c, i = chosen[t, 0], index[t, 0, 0]
        rest = np.delete(np.arange(len(K)), i)
        whole = near[item] @ np.linalg.solve(K + alpha * np.eye(len(K)), y[:, c])
        part = near[item, rest] @ np.linalg.solve(K[np.ix_(rest, rest)] + alpha * np.eye(len(rest)), y[rest, c])
        assert value[t, 0, 0] == pytest.approx(whole - part, abs=2e-6)


def test_counts_and_shares_are_those_of_scikit_learn(tmp_path: Path) -> None:
    with only(confusion.SECTION):
        record = xrayed(tmp_path, kernels=["ck"])
    found = confusion.SECTION.read(record.metrics)
    assert found is not None
    true, predicted = (np.asarray(record.arrays[name]) for name in ("labels.test", "network.test_prediction"))
    np.testing.assert_array_equal(record.arrays["confusion.matrix"], expected(true, predicted, labels=[0, 1, 2]))
    precision, recall, _, support = precision_recall_fscore_support(
        true, predicted, labels=[0, 1, 2], zero_division=np.nan
    )
    assert [row.precision for row in found.classes] == pytest.approx(precision.tolist(), nan_ok=True)
    assert [row.recall for row in found.classes] == pytest.approx(recall.tolist())
    assert [row.test for row in found.classes] == support.tolist()
    assert found.wrong == int((true != predicted).sum()) == sum(pair.count for pair in found.confused)
    scores = np.asarray(record.arrays["problems.label_score"])
    assert sum(row.doubtful or 0 for row in found.classes) == int((scores > 0).sum())


def test_a_class_without_items_or_predictions() -> None:
    matrix = confusion.confusion_matrix(np.array([0, 0, 3]), np.array([0, 3, 3]), 5)
    assert matrix.sum() == 3
    assert matrix[0, 3] == 1
    assert matrix[4].sum() == matrix[:, 4].sum() == 0


def test_losses_are_those_of_the_public_functions(tmp_path: Path) -> None:
    train, test = blobs()
    _, model = trained(train)
    with only(tangent.SECTION):
        record = ns.xray(model, train, test, tmp_path, kernels=["ck"], progress=False)
    found = tangent.SECTION.read(record.metrics)
    assert found is not None
    assert [row.name for row in found.readings] == ["network", "readout", "tangent"]
    assert found.items == len(train)
    assert found.refused == {}
    goal = nn.functional.one_hot(test.y).double()
    part = Part(train.x, nn.functional.one_hot(train.y).double())
    linear = ns.linearize(model)
    linear.solve(part, alpha=found.ridge, method="dense")
    solved = ns.retrain_last_layer(model, part, alpha=found.ridge)
    with torch.no_grad():
        answers = [model(test.x).softmax(1), solved(test.x), linear(test.x)]
    for row, answer in zip(found.readings, answers):
        each = (answer.double() - goal).square().mean(1)
        assert row.loss == pytest.approx(float(each.mean()), rel=1e-4)
        assert row.loss_low < row.loss < row.loss_high
        assert row.accuracy == float(np.mean((answer.argmax(1) == test.y).numpy()))
    assert found.readings[0].agreement == 1.0


def test_what_single_precision_does_not_solve_is_solved_in_double(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = blobs()
    _, model = trained(train)
    losses = {}
    for limit in (math.inf, tangent.SOLVED, 0.0):  # single precision, what the section takes, double precision
        monkeypatch.setattr(tangent, "SOLVED", limit)
        with only(tangent.SECTION):
            record = ns.xray(model, train, test, tmp_path / str(limit), kernels=["ck"], progress=False)
        found = tangent.SECTION.read(record.metrics)
        assert found is not None
        losses[limit] = found.readings[-1].loss
    single, taken, double = losses.values()
    assert 0 < abs(single - double) < 1e-2 * double
    assert taken == pytest.approx(double, rel=1e-4)
    linear = ns.linearize(model)
    linear.solve(Part(train.x, nn.functional.one_hot(train.y).double()), alpha=found.ridge, method="kernel")
    with torch.no_grad():
        error = linear(test.x).double() - nn.functional.one_hot(test.y)
    assert double == pytest.approx(float(error.square().mean()), rel=1e-12)


def test_a_readout_that_cannot_be_solved_is_said(tmp_path: Path) -> None:
    class Bent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.head(torch.tanh(self.body(x))))

    train, test = blobs()
    with only(tangent.SECTION):
        record = ns.xray(Bent(), train, test, tmp_path, kernels=["trntk"], untrained=True, progress=False)
    found = tangent.SECTION.read(record.metrics)
    assert found is not None
    assert [row.name for row in found.readings] == ["network", "tangent"]
    assert set(found.refused) == {"readout"}
