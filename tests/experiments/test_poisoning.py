"""Poisoning: the contract, and the second trigger."""

from __future__ import annotations

import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope.data import Trigger
from ntkscope.experiments.poisoning import second_trigger


class TestPoisoning(ExperimentContract):
    name = "poisoning"
    tiny = given(width=0.0625, train_items=150, test_items=30, epochs=1, points=30, dim=16, triggers=("square", "none"))
    kept = "square/0/trntk"


def test_the_second_trigger_is_never_the_first() -> None:
    first = Trigger().mask(32, 32)
    seen = {second_trigger(seed, 32) for seed in range(40)}
    assert len(seen) > 20, "the trigger is drawn from the seed"
    for trigger in seen:
        assert not torch.equal(trigger.mask(32, 32), first)
        assert trigger.pattern != "square"
