"""Tangent or last layer: the contract, and from which epoch each reading is near the network."""

from __future__ import annotations

import pytest

from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope_papers.own.tangent_or_last_layer import _arrival


@pytest.mark.guard
class TestTangentOrLastLayer(ExperimentContract):
    name = "tangent-or-last-layer"
    tiny = given(enlarge=2, images=40, held=10, test_items=20, steps=2)
    own = True


def test_the_first_epoch_within_a_point_of_the_trained_network() -> None:
    rows = {"0": (10, 50, 60), "1": (80, 70, 89.5), "10": (90, 88, 92)}
    epochs = {e: {"network": n, "readout": {"test": r}, "tangent": {"test": t}} for e, (n, r, t) in rows.items()}
    assert _arrival(epochs) == {"network": 90, "readout": None, "tangent": 1}
