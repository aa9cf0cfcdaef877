"""Batches of stacked networks gathered ahead are those gathered one by one, and a shared rate may be a tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.training_problems import ALL_OPTIMIZERS, classes_part, norm_net
from ntkscope.core import Part, derive_seed, generator
from ntkscope.data import translate
from ntkscope.training import CropFlip, Settings, Translate, fit_ensemble, member_batches
from ntkscope.training.batches import BatchOrder
from ntkscope.training.member_batches import MemberBatches
from ntkscope.training.member_rates import RECORDED, SharedRate, cannot_record
from ntkscope.training.stacked import MemberData

ITEMS, SEEDS = 23, (5, 2, 5)


def images(seed: int) -> Part:
    draw = generator(seed, "images")
    return Part(torch.randn(ITEMS, 2, 6, 6, generator=draw), torch.randn(ITEMS, generator=draw))


@pytest.mark.parametrize("size", [1, 4, 7, 22, 23])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("augment", [None, Translate(2), CropFlip(padding=1)])
@pytest.mark.parametrize("ahead", [1, 3, 64])
def test_every_batch_is_what_its_order_says(
    size: int, own: bool, augment: Any, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps in any order: training may resume anywhere."""
    monkeypatch.setitem(member_batches.AHEAD, "cpu", ahead)
    one = images(0)
    parts = [images(1), images(2), images(3)] if own else [one] * 3
    orders = [BatchOrder(ITEMS, size, seed) for seed in SEEDS]
    batches = MemberBatches(MemberData(parts), orders, SEEDS, augment)
    steps = list(range(3 * orders[0].per_epoch))
    for step in [*steps, *steps[::-1], steps[len(steps) // 2]]:
        batch = batches.at(step)
        for i, (seed, part) in enumerate(zip(SEEDS, parts)):
            items, epoch = orders[i].indices(step), step // orders[i].per_epoch
            x = part.x[items]
            if isinstance(augment, Translate):
                x = translate(part, 2, derive_seed(seed, "augment"), epoch=epoch).x[items]
            elif augment is not None:
                x = augment(x, torch.Generator().manual_seed(derive_seed(seed, "augment", step)))
            shared = batches.axis is None
            assert torch.equal(batch.x if shared else batch.x[i], x)
            assert torch.equal(batch.y if shared else batch.y[i], part.y[items])


def test_batches_ahead_stay_within_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(member_batches.AHEAD, "cpu", 64)
    one_step = 3 * 4 * (2 * 36 + 1) * 4  # members, items, numbers, bytes
    monkeypatch.setattr(member_batches, "AHEAD_BYTES", 2 * one_step)
    gathered: list[int] = []
    data = MemberData([images(0)] * 3)
    rows = data.rows

    def counted(index: Tensor) -> Part:
        gathered.append(len(index))
        return rows(index)

    monkeypatch.setattr(data, "rows", counted)
    batches = MemberBatches(data, [BatchOrder(ITEMS, 4, seed) for seed in SEEDS], SEEDS, None)
    for step in range(12):
        batches.at(step)
    assert gathered == [2, 2, 1, 1] * 2  # 5 batches of four items and one of three, in each epoch


def test_an_ensemble_is_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"seeds": [3, 1], "epochs": 5, "lr": 0.1, "batch_size": 7, "optimizer": "sgd"}
    part = classes_part(dtype=torch.float64)
    plain = fit_ensemble(norm_net, part, **settings)
    monkeypatch.setitem(member_batches.AHEAD, "cpu", 4)
    ahead = fit_ensemble(norm_net, part, **settings)
    assert all(torch.equal(plain.params[name], ahead.params[name]) for name in plain.params)


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_rate_that_is_a_tensor_gives_the_same_updates(name: str) -> None:
    options = {key: value for key, value in ALL_OPTIMIZERS[name].items() if key != "schedule"}
    settings = Settings(**{"lr": 0.03, "weight_decay": 0.01, **options, "optimizer": name, "epochs": 1, "loss": "mse"})
    draw = generator(1, "rate")
    start = {key: torch.randn(3, 4, generator=draw) for key in ("a", "b")}
    rules = []
    for recorded in (False, True):
        params = {key: value.clone().requires_grad_() for key, value in start.items()}
        rules.append(SharedRate(settings, params, recorded=recorded))
    for step in range(12):
        slopes = {key: torch.randn(3, 4, generator=draw) for key in start}
        for rule in rules:
            rule.scale(1.0 if step < 4 else 0.5 ** (step - 3))
            rule.step({key: value.clone() for key, value in slopes.items()})
    for key, value in rules[0].slots.items():
        torch.testing.assert_close(rules[1].slots[key], value, rtol=1e-6, atol=1e-7)
        assert not torch.equal(value, start[key])
    assert cannot_record(rules[1], settings) is None
