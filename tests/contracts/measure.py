"""What every measure promises. A new measure's test class inherits `MeasureContract` and writes two methods."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from ntkscope.core import NtkscopeError, numpy_generator
from ntkscope.linalg import as_gram
from ntkscope.measures import MEASURES


class MeasureContract(ABC):
    """`name`: as registered. `tolerance`: how far float32 arguments may move the value."""

    name: ClassVar[str]
    tolerance: ClassVar[float] = 1e-4

    @abstractmethod
    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        """Plausible arguments, float64 arrays and integer labels, about 30 items, different for each seed."""

    @abstractmethod
    def perfect(self) -> tuple[np.ndarray, ...]:
        """Arguments at which the measure takes its best value."""

    @pytest.mark.parametrize("seed", range(5))
    def test_one_finite_number_in_its_range(self, seed: int) -> None:
        measure = MEASURES[self.name]
        value = measure(*self.arguments(seed))
        assert isinstance(value, float)
        assert math.isfinite(value)
        assert measure.low <= value <= measure.high

    def test_best_where_it_should_be(self) -> None:
        measure = MEASURES[self.name]
        assert measure.best is not None
        assert measure(*self.perfect()) == pytest.approx(measure.best, abs=1e-9)
        others = [abs(measure(*self.arguments(seed)) - measure.best) for seed in range(5)]
        assert max(others) > 1e-6, "the measure takes its best value on arbitrary arguments: it measures nothing"

    def test_repeats_itself_and_changes_nothing(self) -> None:
        measure, arguments = MEASURES[self.name], self.arguments(0)
        before = [argument.copy() for argument in arguments]
        state = np.random.get_state()[1].copy(), torch.get_rng_state().clone()  # noqa: NPY002
        assert measure(*arguments) == measure(*arguments)
        assert all(np.array_equal(a, b) for a, b in zip(arguments, before))
        assert np.array_equal(state[0], np.random.get_state()[1])  # noqa: NPY002
        assert torch.equal(state[1], torch.get_rng_state())

    def test_tensors_and_float32_give_the_same(self) -> None:
        measure, arguments = MEASURES[self.name], self.arguments(1)
        expected = measure(*arguments)
        assert measure(*map(torch.from_numpy, arguments)) == pytest.approx(expected, abs=1e-9)
        narrow = [a.astype(np.float32) if a.dtype == np.float64 else a for a in arguments]
        assert measure(*narrow) == pytest.approx(expected, abs=self.tolerance)
        if "kernel" in measure.of:
            grams = [as_gram(a) if a.ndim == 2 else a for a in arguments]
            assert measure(*grams) == pytest.approx(expected, abs=1e-9)

    def test_the_order_of_items_does_not_matter(self) -> None:
        measure, arguments = MEASURES[self.name], self.arguments(2)
        order = numpy_generator(0, "test", "order").permutation(len(arguments[0]))
        square = "kernel" in measure.of or "tangents" in measure.of  # between the items, along both axes
        items = [len(a) == len(order) for a in arguments]  # a readout has classes
        mixed = [
            (a[np.ix_(order, order)] if square and a.shape == (len(a), len(a)) else a[order]) if of_items else a
            for a, of_items in zip(arguments, items)
        ]
        assert measure(*mixed) == pytest.approx(measure(*arguments), abs=1e-9)

    def test_nan_and_lengths_that_do_not_match_are_refused(self) -> None:
        measure, arguments = MEASURES[self.name], self.arguments(3)
        spoiled: list[Any] = [a.copy() for a in arguments]
        spoiled[0].flat[0] = np.nan
        with pytest.raises(NtkscopeError, match="NaN"):
            measure(*spoiled)
        with pytest.raises(NtkscopeError, match="expected"):
            measure(*arguments[:-1], arguments[-1][:-1])

    def test_documented(self) -> None:
        text = MEASURES[self.name].func.__doc__ or ""
        assert ">>>" in text, "no doctest with a known answer"
        assert text.split("\n")[0].strip(), "no first sentence"
