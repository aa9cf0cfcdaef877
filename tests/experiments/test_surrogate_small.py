"""Small networks on two classes: the contract, the reading with one output, refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope.core import UsageError
from ntkscope.experiments.surrogate_small import SurrogateSmall, squared_error_of_sigmoid, two_logits
from ntkscope.measures.faithfulness import correct_class_log_odds


@pytest.mark.guard
class TestSurrogateSmall(ExperimentContract):
    name = "surrogate-small"
    tiny = given(train_items=60, test_items=30, points=30, epochs=1, sigmoid_epochs=1, seeds=1, other_seeds=1)
    kept = "mlp-mnist2/softmax/0"

    def test_one_reading_is_judged_on_every_row_and_the_other_stands_beside(self, record: ns.Record) -> None:
        rows = [claim for claim in record.claims if "-table1-" in claim.id and claim.measured is not None]
        assert len(rows) == 2
        for claim in rows:
            assert "reading: softmax, the ledger's default" in claim.note
            assert "sigmoid reading, not judged" in claim.note
        for row in ("mlp-mnist2", "cnn-mnist2"):
            assert {f"{row}/softmax/0", f"{row}/sigmoid/0"} <= set(record.metrics)


@pytest.mark.parametrize("changed", [{"points": 100}, {"train_items": 500}, {"sigmoid_channels": (8,)}, {"alpha": 0.1}])
def test_settings_that_change_what_is_claimed_are_not_free(changed: dict[str, object]) -> None:
    config = dataclasses.replace(SurrogateSmall.paper(), **changed)
    assert ns.EXPERIMENTS["surrogate-small"].difference(config)


def test_one_output_is_the_log_odds_of_the_second_class() -> None:
    f = np.array([[2.0], [-3.0]])
    np.testing.assert_allclose(correct_class_log_odds(two_logits(f), np.array([1, 1])), f[:, 0], rtol=1e-12)
    np.testing.assert_allclose(correct_class_log_odds(two_logits(f), np.array([0, 0])), -f[:, 0], rtol=1e-12)


def test_the_loss_is_that_of_a_probability() -> None:
    found = squared_error_of_sigmoid(torch.tensor([[0.0], [100.0]]), torch.tensor([1, 0]))
    torch.testing.assert_close(found, torch.tensor([0.25, 1.0]))


def test_an_unknown_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="got rows cnn-svhn; expected some of mlp-mnist2"):
        ns.run("surrogate-small", out=tmp_path / "run", device="cpu", rows=("cnn-svhn",))
