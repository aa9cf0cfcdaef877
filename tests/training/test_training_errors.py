"""What cannot be trained says what came, what was expected and what to do; nothing is lost."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from contracts.training_problems import classes_part, regression_part, small_net
from ntkscope.core import NumericalError, Part, UsageError
from ntkscope.core.errors import UnknownName
from ntkscope.training import StopWhen, evaluate, fit

PART = classes_part()


def run(part: Part = PART, model: nn.Module | None = None, **options: object) -> None:
    fit(model or small_net(), part, **{"lr": 0.1, "steps": 1, **options}).final()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 1}, "exactly one"),
        ({"steps": None}, "exactly one"),
        ({"batch_size": 24}, r"batch_size=24; expected 1 ... 23"),
        ({"optimizer": "gd", "batch_size": 5}, "use 'sgd'"),
        ({"optimizer": "adam", "momentum": 0.9}, "only sgd and gd"),
        ({"optimizer": "adam", "optimizer_options": {"gamma": 1}}, "adam does not take"),
        ({"lr": -1.0}, "Invalid learning rate"),
        ({"autocast": "int8"}, "autocast='int8'"),
        ({"snapshots": [7]}, "expected 0 ... 1"),
        ({"snapshots": "middle"}, "snapshots='middle'"),
        ({"snapshots": 0}, "a whole number ≥ 1"),
        ({"weights": "w"}, "no extra 'w'"),
        ({"weights": torch.ones(3)}, r"shape \(3,\); expected \(23,\)"),
        ({"weights": torch.ones(23), "loss": lambda f, y: f.mean()}, "one number per item"),
        ({"loss": lambda f, y: f}, r"returned \(23, 3\)"),
        ({"schedule": {-1: 0.5}}, "negative epoch"),
    ],
)
def test_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(**options)


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'adam'"):
        run(optimizer="adamm")
    with pytest.raises(UnknownName, match="did you mean 'cross_entropy'"):
        run(loss="crossentropy")


@pytest.mark.parametrize(
    ("y", "loss", "message"),
    [
        (PART.y + 1, "cross_entropy", r"labels run from 1 to 3 but the network has 3 outputs.*classes=4"),
        (PART.y - 1, "cross_entropy", "labels run from -1 to 1"),
        (PART.y.float(), "cross_entropy", "integer type"),
        (PART.y[:, None], "cross_entropy", r"shape \(23, 1\)"),
        (PART.y + 1, "mse", "labels run from 1 to 3"),
        (torch.zeros(23, 2), "mse", "same shape"),
        (torch.zeros(23), "l1", "same shape"),
        (PART.y, "bce", "one logit per target"),
        (torch.full((23, 3), -1.0), "bce", r"\(y \+ 1\) / 2"),
    ],
)
def test_targets_that_do_not_fit_the_loss(y: torch.Tensor, loss: str, message: str) -> None:
    model = small_net()
    before = model[0].weight.clone()
    with pytest.raises(UsageError, match=message):
        run(Part(PART.x, y), model, loss=loss, steps=3)
    assert torch.equal(model[0].weight, before)
    with pytest.raises(UsageError, match=message):
        evaluate(model, Part(PART.x, y), loss=loss)


def test_a_label_out_of_range_anywhere_is_seen_at_the_first_step() -> None:
    y = PART.y.clone()
    y[-1] = 7
    with pytest.raises(UsageError, match="0 to 7"):
        run(Part(PART.x, y), batch_size=1)


def test_single_outputs_need_another_loss() -> None:
    with pytest.raises(UsageError, match="loss='bce'"):
        run(model=nn.Linear(5, 1))


def test_a_loss_that_is_not_finite_names_the_step() -> None:
    part = regression_part()
    with pytest.raises(NumericalError, match=r"not finite at step \d+ .* learning rate 1e\+20; lower lr"):
        fit(nn.Linear(4, 1).double(), part, loss="mse", lr=1e20, steps=50).final()


def test_inputs_that_are_not_finite_are_refused_before_training() -> None:
    x = PART.x.clone()
    x[4, 2] = math.nan
    with pytest.raises(UsageError, match=r"inputs hold NaN or infinity, first at item 4 \(1 items\)"):
        run(Part(x, PART.y))
    target = regression_part()
    target.y[3] = math.inf
    with pytest.raises(UsageError, match="targets hold NaN or infinity, first at item 3"):
        run(target, nn.Linear(4, 1).double(), loss="mse")


def test_nothing_to_train() -> None:
    with pytest.raises(UsageError, match="no parameters"):
        run(model=nn.ReLU())
    with pytest.raises(UsageError, match="empty"):
        run(PART.take([]))


def test_stopping_rules() -> None:
    with pytest.raises(UsageError, match="without loss and accuracy"):
        StopWhen()
    part = regression_part()
    with pytest.raises(UsageError, match="not class labels"):
        fit(nn.Linear(4, 1).double(), part, loss="mse", lr=0.01, steps=2, stop=StopWhen(accuracy=0.5)).final()
