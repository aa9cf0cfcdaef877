"""Table 8 of Wang et al. (2023): its problem and its ways of training, as published and at an eighth of the size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from ntkscope_papers.framework.experiment import Experiment
from ntkscope_papers.wang_2023.teacher import Case, table_case

Number = TypeVar("Number", int, float)

RATES = {"case1": 5.0, "case2": 0.1, "case3": 22.0, "case4": 0.092, "adagrad": 0.1}
EXPECTED = {"case1": 6_300, "case2": 160_000, "case3": 1_300, "case4": 190, "adagrad": 400}
MOST = {"case1": 16_000, "case2": 400_000, "case3": 40_000, "case4": 8_000, "adagrad": 8_000}
SMALL_RATES = {"case1": 12.5, "case2": 0.5, "case3": 2.75, "case4": 0.092, "adagrad": 0.1}
SMALL_EXPECTED = {"case1": 300, "case2": 1_500, "case3": 1_000, "case4": 150, "adagrad": 150}
SMALL_MOST = {"case1": 300, "case2": 1_500, "case3": 3_000, "case4": 300, "adagrad": 300}


def numbers_of(numbers: Mapping[str, Number], cases: Sequence[str]) -> tuple[Number, ...]:
    """
    >>> numbers_of(RATES, ("case1", "case4"))
    (5.0, 0.092)
    """
    return tuple(numbers[case] for case in cases)


def eighth(cases: Sequence[str]) -> dict[str, Any]:
    """All sizes an eighth, and the steps with them, which leaves the spikes where they are; GD at a larger step."""
    return {
        "items": 250,
        "width": 188,
        "dimension": 125,
        "seeds": 2,
        "rates": numbers_of(SMALL_RATES, cases),
        "expected": numbers_of(SMALL_EXPECTED, cases),
        "most": numbers_of(SMALL_MOST, cases),
        "batch": 4,
        "adam_batch": 32,
    }


@dataclass(frozen=True)
class Table8(Experiment):
    """What experiments on Table 8's networks share. `rates`, `expected` and `most` are of `cases`, in this order.

    Rates are in the units of their losses: Eq. 74 for GD, the mean of r² (no ½) for SGD. `expected`: steps to the
    threshold; `most`: steps at which a run ends in any case.
    """

    cases: ClassVar[tuple[str, ...]] = ()
    items: int = 2000
    width: int = 1500
    dimension: int = 1000
    noise: float = 0.3
    seeds: int = 3
    rates: tuple[float, ...] = ()
    expected: tuple[int, ...] = ()
    most: tuple[int, ...] = ()
    batch: int = 32
    adam_batch: int = 256
    threshold: float = 1e-5

    def table_case(self, name: str) -> Case:
        """One of `cases` with this configuration's numbers."""
        place = self.cases.index(name)
        numbers = self.rates[place], self.expected[place], self.most[place]
        return table_case(name, *numbers, batch=self.batch, adaptive_batch=self.adam_batch)
