"""AlexNet and its linearisation: the contract."""

from __future__ import annotations

import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope_papers.samarin_2022.linearized_alexnet import enlarged_alexnet


@pytest.mark.guard
class TestLinearizedAlexnet(ExperimentContract):
    name = "linearized-alexnet"
    tiny = given(images=16, test_items=10)
    identities = ("linearized-alexnet-params", "linearized-alexnet-overparam")


def test_images_are_enlarged_in_the_model() -> None:
    model = enlarged_alexnet(0.05, 0, side=64, channels=1)
    x = torch.rand(2, 1, 16, 16)
    large = torch.nn.functional.interpolate(x, size=(64, 64), mode="bilinear", align_corners=False)
    torch.testing.assert_close(model(x), model[1](large))
