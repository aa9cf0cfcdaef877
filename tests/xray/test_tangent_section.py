"""Last layer and tangent: the losses are those of the public functions, and what cannot be solved is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import Part
from ntkscope.xray.sections import tangent
from xray.small import blobs, only, trained


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
