"""Poisoning: the contract, the second trigger, a verdict that needs two networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract, judged, made_record
from ntkscope.core import Record
from ntkscope.data import Trigger
from ntkscope_papers.engel_2023.poisoning import Poisoning, second_trigger
from ntkscope_papers.engel_2023.table3_claims import _rule


@pytest.mark.nightly
class TestPoisoning(ExperimentContract):
    name = "poisoning"
    tiny = given(
        width=0.0625,
        train_items=150,
        test_items=30,
        epochs=1,
        points=30,
        dim=16,
        triggers=("square", "none"),
        sgd_seeds=1,
    )


def test_the_setup_is_not_judged_without_the_clean_network(tmp_path: Path) -> None:
    record = made_record(tmp_path, "poisoning")
    sides = {side: {"tau": 0.5, "tad": 0.0} for side in ("clean", "poisoned")}
    filters = {name: {"precision": 1.0, "recall": 1.0, "f1": 1.0} for name in ("filter", "filter, cosine")}
    record.put(**{f"square/0/{k}": {**sides, **filters} for k in Poisoning().kernels})
    record.put(**{"square/0/network": {"clean_accuracy": 0.9, "attack_success": 1.0}})
    found = judged(record)
    assert found["surrogate-poison-setup"].verdict == "not testable here"
    assert 'legs=["none/0"' in found["surrogate-poison-setup"].note
    assert found["surrogate-table3-trntk"].holds


def test_arithmetic_is_never_too_small_to_judge(tmp_path: Path) -> None:
    found = _rule(None, Record.create(tmp_path, kind="experiment", name="x"))
    assert (found.holds, found.exact) == (True, True)


def test_the_second_trigger_is_never_the_first() -> None:
    first = Trigger().mask(32, 32)
    seen = {second_trigger(seed, 32) for seed in range(40)}
    assert len(seen) > 20, "the trigger is drawn from the seed"
    for trigger in seen:
        assert not torch.equal(trigger.mask(32, 32), first)
        assert trigger.pattern != "square"
