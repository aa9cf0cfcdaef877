"""Translation, trigger, label noise: what moves, what stays, and what the extras say."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from ntkscope.core import Part, Split, UsageError
from ntkscope.data import Trigger, badnets, label_noise, load, one_vs_rest, stamp, translate
from ntkscope.data.transforms._items import item_draws
from ntkscope.data.transforms.badnets import COLOURS, PATTERNS
from ntkscope.data.transforms.translation import shift_images


def images(n: int = 40, channels: int = 3, size: int = 8, classes: int = 4) -> Part:
    random = torch.Generator().manual_seed(7)
    return Part(torch.rand(n, channels, size, size, generator=random), torch.arange(n) % classes)


def naive_shift(image: torch.Tensor, down: int, right: int, fill: float) -> torch.Tensor:
    moved = torch.full_like(image, fill)
    _, height, width = image.shape
    for i in range(height):
        for j in range(width):
            if 0 <= i + down < height and 0 <= j + right < width:
                moved[:, i + down, j + right] = image[:, i, j]
    return moved


# --- translation


@settings(max_examples=25, deadline=None)
@given(down=st.integers(-4, 4), right=st.integers(-5, 5), fill=st.sampled_from([0.0, -1.5]))
def test_shift_against_the_naive_loop(down: int, right: int, fill: float) -> None:
    x = torch.rand(2, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    shift = torch.tensor([[down, right], [0, 0]])
    moved = shift_images(x, shift, fill)
    assert torch.equal(moved[0], naive_shift(x[0], down, right, fill))
    assert torch.equal(moved[1], x[1])


def test_an_images_shift_does_not_depend_on_its_company() -> None:
    part = load("digits").train
    whole = translate(part, 2, seed=5)
    order = torch.randperm(len(part), generator=torch.Generator().manual_seed(1))[:100]
    some = translate(part.take(order), 2, seed=5)
    assert torch.equal(some.x, whole.x[order])
    assert torch.equal(some.extras["shift"], whole.extras["shift"][order])
    assert torch.equal(part.x, load("digits").train.x)  # pure: the input is untouched


def test_shifts_are_uniform_and_of_both_axes() -> None:
    numbers = torch.arange(150_000)
    draws = [item_draws(numbers, 15, 0, "translate", 0, axis) for axis in ("down", "right")]
    for draw in draws:  # 15 equally likely values: sd of a count is sqrt(n p (1-p)) = 97: 5 sd
        assert float((torch.bincount(draw, minlength=15) - 10_000).abs().max()) < 5 * 97
    a, b = (draw.double() - 7 for draw in draws)
    assert abs(float((a * b).mean())) < 5 * (56 / 3) / 150_000**0.5  # uncorrelated; Var of each is 56/3
    assert abs(float((a[1:] * a[:-1]).mean())) < 5 * (56 / 3) / 150_000**0.5  # neighbours too


def test_seed_and_epoch_redraw() -> None:
    part = images(200)
    base = translate(part, 3, seed=0).extras["shift"]
    assert torch.equal(base, translate(part, 3, seed=0).extras["shift"])
    assert not torch.equal(base, translate(part, 3, seed=1).extras["shift"])
    assert not torch.equal(base, translate(part, 3, seed=0, epoch=1).extras["shift"])
    assert set(base.flatten().tolist()) == set(range(-3, 4))


def test_a_split_has_its_parts_shifted_apart() -> None:
    part = images(50)
    moved = translate(Split(part, part, classes=tuple("abcd")), 3)
    assert moved.validation is None
    assert not torch.equal(moved.train.extras["shift"], moved.test.extras["shift"])
    assert moved.classes == tuple("abcd")


def test_poisoning_and_normalising_commute() -> None:
    part, mean, std = images(), torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.4])

    def normal(x: torch.Tensor) -> torch.Tensor:
        return (x - mean[:, None, None]) / std[:, None, None]

    after = stamp(Part(normal(part.x), part.y), Trigger().in_units(mean, std))
    torch.testing.assert_close(after.x, normal(stamp(part).x))


def test_background_of_normalised_images() -> None:
    part = images(20)
    moved = translate(part, 3, fill=(-1.0, -2.0, -3.0))
    for image, (down, _) in zip(moved.x, moved.extras["shift"].tolist(), strict=True):
        if down > 0:
            assert image[:, 0, :].unique(dim=1).flatten().tolist() == [-1.0, -2.0, -3.0]
    with pytest.raises(UsageError, match="fill has 2 numbers; expected 1 or 3"):
        translate(part, 1, fill=(0.0, 0.0))


@pytest.mark.parametrize(
    ("part", "shift", "message"),
    [
        (images(), 8, "max_shift=8; expected a whole number ≥ 0 and ≤ 7"),
        (Part(torch.zeros(3, 5), torch.zeros(3)), 1, r"expected floating-point images of shape \(n, channels"),
        (Part(["a", "b"], torch.zeros(2)), 1, "inputs are list"),
    ],
)
def test_bad_translation(part: Part, shift: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        translate(part, shift)


# --- trigger


def test_a_tenth_gets_a_yellow_square_and_the_target() -> None:
    clean = images(100)
    part = badnets(clean, 0.1, target=2, seed=3)
    mask = part.extras["poisoned"]
    assert int(mask.sum()) == 10
    assert torch.equal(part.y[mask], torch.full((10,), 2))
    assert torch.equal(part.y[~mask], clean.y[~mask])
    assert torch.equal(part.extras["clean_y"], clean.y)
    assert torch.equal(part.x[~mask], clean.x[~mask])
    square = part.x[mask][:, :, -4:, -4:]
    assert torch.equal(square, torch.tensor([1.0, 1.0, 0.0])[:, None, None].expand(10, 3, 4, 4))
    changed = (part.x[mask] != clean.x[mask]).any(dim=1)
    assert not changed[:, :4].any()
    assert not changed[:, :, :4].any()
    assert torch.equal(clean.x, images(100).x)


def test_seed_chooses_the_items() -> None:
    masks = [badnets(images(100), 0.1, seed=seed).extras["poisoned"] for seed in (0, 0, 1)]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_target_class_may_be_spared() -> None:
    part = badnets(images(100), 0.5, target=1, include_target=False)
    assert int(part.extras["poisoned"].sum()) == 50
    assert not (part.extras["clean_y"][part.extras["poisoned"]] == 1).any()
    with pytest.raises(UsageError, match="asks for 80 of 100 items, but 75"):
        badnets(images(100), 0.8, target=1, include_target=False)


def test_stamping_the_test_images() -> None:
    part, trigger = images(), Trigger(size=3, colour="red", place="upper-left", pattern="frame", margin=1)
    kept, all_target = stamp(part, trigger), stamp(part, trigger, target=3)
    assert bool(kept.extras["poisoned"].all())
    assert torch.equal(kept.y, part.y)
    assert all_target.y.tolist() == [3] * 40
    assert torch.equal(kept.x[:, :, 2, 2], part.x[:, :, 2, 2])  # inside of the frame
    assert torch.equal(kept.x[:, 0, 1, 1:4], torch.ones(40, 3))
    assert int((kept.x != part.x).any(dim=1).sum()) == 40 * 8


def test_random_triggers_differ_and_fit() -> None:
    triggers = [Trigger.random(seed, height=8, width=8) for seed in range(30)]
    assert triggers[0] == Trigger.random(0, height=8, width=8)
    assert len({(t.size, t.colour, t.place, t.pattern) for t in triggers}) > 25
    for trigger in triggers:
        assert trigger.mask(8, 8).any()


def test_random_place_differs_from_image_to_image_but_not_with_company() -> None:
    part = Part(torch.zeros(30, 1, 8, 8), torch.arange(30) % 2, {"index": torch.arange(30)})
    trigger = Trigger(size=2, colour="white", place="random")
    stamped = stamp(part, trigger)
    assert len(stamped.x.unique(dim=0)) > 10
    assert torch.equal(stamp(part.take([20, 3]), trigger).x, stamped.x[[20, 3]])
    assert stamped.x.sum(dim=(1, 2, 3)).tolist() == [4.0] * 30


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_patterns_cover_something_and_stay_inside(pattern: str, size: int) -> None:
    mask = Trigger(size=size, pattern=pattern, place=(1, 2)).mask(9, 9)
    assert 1 <= int(mask.sum()) <= size**2
    assert int(mask.sum()) == int(mask[1 : 1 + size, 2 : 2 + size].sum())
    square = mask[1 : 1 + size, 2 : 2 + size]
    assert torch.equal(square, square.T)


def test_grey_images_get_the_luminance() -> None:
    part = stamp(Part(torch.zeros(1, 1, 6, 6), torch.zeros(1).long()), Trigger(size=1))
    assert abs(float(part.x[0, 0, 5, 5]) - 0.886) < 1e-6
    assert set(COLOURS) >= {"yellow", "white"}


def test_normalised_images_need_numbers() -> None:
    part = Part(torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0)), torch.zeros(4).long())
    with pytest.raises(UsageError, match="poison before normalising"):
        badnets(part, 0.5)
    with pytest.raises(UsageError, match=r"in_units\(mean, std\)"):
        stamp(part)
    numbers = stamp(part, Trigger(size=1, colour=(2.5, 2.5, -2.0)))
    assert numbers.x[0, :, 5, 5].tolist() == [2.5, 2.5, -2.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 9}, "leaves the 8x8 image"),
        ({"place": (5, 5)}, "row 5, column 5"),
        ({"colour": "pink"}, "colour='pink'; expected one of 'yellow'"),
        ({"colour": (1.0,)}, "expected 3 numbers"),
        ({"shape": "square"}, "a trigger has no shape; expected size, colour, place, pattern, margin"),
        ({"size": 2, "trigger": Trigger()}, "one or the other"),
    ],
)
def test_bad_trigger(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        badnets(images(), **options)


def test_a_trigger_needs_classes() -> None:
    with pytest.raises(UsageError, match="expected integer classes"):
        badnets(Part(torch.zeros(2, 1, 4, 4), torch.zeros(2)))


# --- label noise


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 60), fraction=st.floats(0, 1), classes=st.integers(2, 6), seed=st.integers(0, 1000))
def test_label_noise_never_keeps_a_chosen_label(n: int, fraction: float, classes: int, seed: int) -> None:
    part = Part(torch.zeros(n, 1), torch.arange(n) % classes)
    noisy = label_noise(part, fraction, classes, seed)
    mask = noisy.extras["noisy"]
    assert int(mask.sum()) == round(fraction * n)
    assert torch.equal(noisy.y != part.y, mask)
    assert torch.equal(noisy.extras["clean_y"], part.y)
    assert 0 <= int(noisy.y.min()) <= int(noisy.y.max()) < classes


def test_wrong_labels_are_uniform_over_the_others() -> None:
    noisy = label_noise(Part(torch.zeros(30_000, 1), torch.full((30_000,), 1)), 1.0, 4)
    counts = torch.bincount(noisy.y, minlength=4)
    assert counts[1] == 0
    assert float((counts[[0, 2, 3]] - 10_000).abs().max()) < 5 * 82  # sd sqrt(n p (1-p)) = 82


def test_first_clean_labels_survive_a_second_transform() -> None:
    part = images(60)
    both = label_noise(badnets(part, 0.2, target=0), 0.2, 4)
    assert torch.equal(both.extras["clean_y"], part.y)
    assert {"poisoned", "noisy"} <= set(both.extras)


# --- one class against the rest


def test_one_class_against_the_rest() -> None:
    part = images()
    for positive in range(4):
        signed = one_vs_rest(part, positive)
        expected = [1.0 if label == positive else -1.0 for label in part.y.tolist()]
        assert signed.y.tolist() == expected
        assert signed.y.dtype == part.x.dtype
        assert torch.equal(signed.extras["label"], part.y)
    assert one_vs_rest(Part(part.x.double(), part.y), 0).y.dtype == torch.float64
    split = one_vs_rest(load("digits"), 3)
    assert split.classes == ()
    for name in ("train", "test"):
        now, before = getattr(split, name), getattr(load("digits"), name)
        assert torch.equal(now.y > 0, before.y == 3)
        assert torch.equal(now.x, before.x)


def test_one_class_against_the_rest_refuses() -> None:
    with pytest.raises(UsageError, match="positive=4, which no item of the part has"):
        one_vs_rest(images(), 4)
    with pytest.raises(UsageError, match="expected a class from 0 to 9"):
        one_vs_rest(load("digits"), 10)
    with pytest.raises(UsageError, match="expected integer class labels"):
        one_vs_rest(Part(torch.zeros(2, 1), torch.zeros(2)), 0)
