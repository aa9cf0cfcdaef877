"""The suite every data set inherits: name it, say what to expect, and these tests hold it to the `Split` contract.

    class TestDigits(DatasetContract):
        name = "digits"
        options = given(test_fraction=0.3)
        item_shape = (1, 8, 8)
        classes = 10
        sizes = given(train=1258, test=539)
        value_range = (0.0, 1.0)
        balance = 0.03

Hooks: `check_defining_property(split)` for what makes the data set what it is; `root` for real data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import ntkscope.data
from ntkscope.core import Part, Split, UsageError


def tensors_of(value: Any) -> list[Tensor]:
    """Every tensor inside nested mappings and tuples."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_of(item)]
    return [tensor for item in value for tensor in tensors_of(item)] if isinstance(value, tuple) else []


def given(**items: Any) -> Mapping[str, Any]:
    """A read-only mapping, fit for a class attribute."""
    return MappingProxyType(items)


def parts_of(split: Split) -> dict[str, Part]:
    parts = {"train": split.train, "validation": split.validation, "test": split.test}
    return {name: part for name, part in parts.items() if part is not None}


class DatasetContract:
    """Subclass, set `name`, and what is known of the data set; an expectation left None (or empty) is not tested."""

    name: ClassVar[str]
    loader: ClassVar[Callable[..., Split] | None] = None  # of a paper's data set, which `load` does not know
    options: ClassVar[Mapping[str, Any]] = given()
    root: ClassVar[str | None] = None
    random: ClassVar[bool] = True  # does another seed give other data?
    item_shape: ClassVar[tuple[int, ...] | None] = None  # shape of one input, for tensor inputs
    classes: ClassVar[int] = 0  # 0: a regression target
    sizes: ClassVar[Mapping[str, int]] = given()  # items of each part
    value_range: ClassVar[tuple[float, float] | None] = None  # smallest and largest value an input may have
    balance: ClassVar[float | None] = None  # largest distance of a class's share in train from 1 / classes
    supports_dtype: ClassVar[bool] = True  # has an option `dtype`

    def check_defining_property(self, split: Split) -> None:
        """What makes the data set what it is, with numbers."""

    @classmethod
    def make(cls, **changes: Any) -> Split:
        if cls.loader is not None:
            return cls.loader(**{"seed": 0, **cls.options, **changes})
        return ntkscope.data.load(cls.name, **{"root": cls.root, "seed": 0, **cls.options, **changes})

    @pytest.fixture(scope="class")
    @classmethod
    def split(cls) -> Split:
        return cls.make()

    def test_defining_property(self, split: Split) -> None:
        self.check_defining_property(split)

    def test_same_seed_same_bytes(self, split: Split) -> None:
        assert self.make().fingerprint == split.fingerprint

    def test_other_seed_other_bytes_when_random(self, split: Split) -> None:
        same = self.make(seed=1).fingerprint == split.fingerprint
        assert same != self.random

    def test_global_random_state_is_neither_read_nor_moved(self, split: Split) -> None:
        torch.manual_seed(1234)
        before = torch.get_rng_state()
        assert self.make().fingerprint == split.fingerprint
        assert torch.equal(torch.get_rng_state(), before)

    def test_sizes_and_shapes(self, split: Split) -> None:
        for name, part in parts_of(split).items():
            assert len(part) > 0
            if self.sizes:
                assert len(part) == self.sizes[name]
            if self.item_shape is not None:
                assert tuple(part.x.shape) == (len(part), *self.item_shape)
            for value in part.extras.values():
                assert len(value) == len(part)

    def test_dtypes(self, split: Split) -> None:
        for part in parts_of(split).values():
            floats = [t.dtype for t in tensors_of(part.x) if t.is_floating_point()]
            assert all(dtype == torch.float32 for dtype in floats) or self.options.get("dtype") == "float64"
            assert part.y.dtype == torch.int64 if self.classes else part.y.is_floating_point()
        if self.supports_dtype:
            wide = self.make(dtype="float64")
            assert all(t.dtype == torch.float64 for part in parts_of(wide).values() for t in tensors_of(part.x))

    def test_finite_and_in_range(self, split: Split) -> None:
        for part in parts_of(split).values():
            for tensor in (t for t in tensors_of(part.x) if t.is_floating_point()):
                assert torch.isfinite(tensor).all()
                if self.value_range is not None:
                    assert self.value_range[0] <= float(tensor.min()) <= float(tensor.max()) <= self.value_range[1]

    def test_targets(self, split: Split) -> None:
        assert len(split.classes) == self.classes
        assert len(set(split.classes)) == self.classes
        for part in parts_of(split).values():
            if self.classes:
                assert part.y.ndim == 1
                assert 0 <= int(part.y.min()) <= int(part.y.max()) < self.classes
            else:
                assert torch.isfinite(part.y).all()

    def test_class_balance(self, split: Split) -> None:
        if not self.classes:
            return
        if self.balance is None:
            pytest.skip("no balance stated")
        shares = torch.bincount(split.train.y, minlength=self.classes) / len(split.train)
        assert float((shares - 1 / self.classes).abs().max()) <= self.balance

    def test_says_how_it_was_made(self, split: Split) -> None:
        assert split.name == self.name
        if self.loader is None:
            assert split.options["seed"] == 0
            assert all(split.options[option] == value for option, value in self.options.items())

    def test_unknown_option_lists_the_known_ones(self) -> None:
        if self.loader is None:
            with pytest.raises(UsageError, match="no option 'not_an_option'") as caught:
                self.make(not_an_option=1)
            for option in ntkscope.data.options_of(self.name):
                assert option in str(caught.value)

    def test_frozen(self, split: Split) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            split.train = split.test  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError):
            split.train.y = split.test.y  # type: ignore[misc]

    def test_take_keeps_items_together(self, split: Split) -> None:
        part, index = split.train, [len(split.train) - 1, 0]
        taken = part.take(index)
        assert torch.equal(taken.y, part.y[index])
        for position, source in enumerate(index):
            (a, _), (b, _) = taken[position], part[source]
            assert all(torch.equal(s, t) for s, t in zip(tensors_of(a), tensors_of(b), strict=True))
            assert not isinstance(a, str) or a == b
        assert set(taken.extras) == set(part.extras)
