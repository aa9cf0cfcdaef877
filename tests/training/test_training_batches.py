"""What ensembles do differently on a GPU changes no number: batches ahead, a rate that is a tensor, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.training_problems import ALL_OPTIMIZERS, classes_part, norm_net
from ntkscope.core import Part, derive_seed, generator
from ntkscope.data import translate
from ntkscope.training import CropFlip, Settings, Translate, fit_ensemble
from ntkscope.training.augment import ItemAugmentation
from ntkscope.training.batches import BatchOrder
from ntkscope.training.ensembles import batches as member_batches
from ntkscope.training.ensembles import execution as ways
from ntkscope.training.ensembles import group
from ntkscope.training.ensembles.batches import MemberBatches
from ntkscope.training.ensembles.group import Group
from ntkscope.training.ensembles.rates import RECORDED, SharedRate, cannot_record
from ntkscope.training.ensembles.stacked import MemberData

ITEMS, SEEDS = 23, (5, 2, 5)


def images(seed: int) -> Part:
    draw = generator(seed, "images")
    return Part(torch.randn(ITEMS, 2, 6, 6, generator=draw), torch.randn(ITEMS, generator=draw))


@pytest.mark.parametrize("size", [4, 22, 23])
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


class LooksAtTheBatch(ItemAugmentation):
    """Against its contract: an item's change depends on the others of the call."""

    def keys(self, seed: int, epoch: int) -> tuple[int, ...]:
        return (seed,)

    def apply(self, x: Tensor, items: Tensor, keys: Tensor) -> Tensor:
        return x - x.mean()


def test_an_augmentation_that_looks_at_the_batch_sees_one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    part, orders = images(0), [BatchOrder(ITEMS, 4, 5)]
    monkeypatch.setitem(member_batches.AHEAD, "cpu", 64)
    batches = MemberBatches(MemberData([part]), orders, [5], LooksAtTheBatch())
    for step in range(12):
        x = part.x[orders[0].indices(step)]
        assert torch.equal(batches.at(step).x[0], x - x.mean())


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


class Unrecorded:
    """In place of a recorder: every step is run as it is."""

    note = ""

    def __init__(self, group: Group) -> None:
        self._group = group

    def run(self, batch: Part, axis: int | None, constant: bool) -> Tensor:
        return self._group._update(batch, axis)

    def forget(self) -> None:
        pass


@pytest.mark.parametrize("alone", [False, True])
def test_the_trial_of_both_ways_leaves_no_trace(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch norm's averages among them; and members one after the other are what stacked ones are."""
    settings: dict[str, Any] = {
        "seeds": [3, 1],
        "epochs": 5,
        "lr": 0.1,
        "batch_size": 7,
        "optimizer": "sgd",
        "workers": 1,
    }
    part = classes_part(dtype=torch.float64)
    plain = fit_ensemble(norm_net, part, **settings)
    tried: list[bool] = []

    def trial(step: Callable[[bool], object]) -> tuple[bool, str]:
        for way in (True, False, True):
            step(way)
            tried.append(way)
        return alone, "one after the other"

    monkeypatch.setattr(group, "alone_is_faster", trial)
    monkeypatch.setattr(ways, "STEPS", 10)
    monkeypatch.setattr(Group, "_make_recorder", lambda self: Unrecorded(self))
    after = fit_ensemble(norm_net, part, **settings)
    assert tried == [True, False, True]
    assert after.vectorised is not alone
    assert after.notes == (("one after the other",) if alone else ())
    for one, two in ((plain.params, after.params), (plain.buffers, after.buffers)):
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=1e-9, atol=1e-11)


def test_no_trial_of_many_members_short_trainings_or_where_numbers_must_repeat() -> None:
    assert ways.worth_a_trial(2, 10_000)
    assert not ways.worth_a_trial(100, 10_000)
    assert not ways.worth_a_trial(2, 100)
    with torch.backends.cudnn.flags(deterministic=True):
        assert not ways.worth_a_trial(2, 10_000)
