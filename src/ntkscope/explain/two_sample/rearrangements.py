"""Rearrangements: which items could as well have been the other sample's, and what a statistic is worth beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ntkscope.core import NumericalError, UsageError, numpy_generator
from ntkscope.core.arguments import plain_array

ROUNDING = 1e-9  # part of the spread of a statistic within which two values count as equal


@dataclass(frozen=True, eq=False)
class Rearrangements:
    """Two samples of `units` (items, or whole groups of them) and B random ways to deal these out again.

    `labels[0]` says which items are in the second sample, `labels[1:]` which would be: as many units each time. `unit` numbers
    the unit of every item from 0.
    """

    labels: Bool[np.ndarray, "r n"]
    unit: Int64[np.ndarray, " n"]

    @property
    def second(self) -> Int64[np.ndarray, " r"]:
        """How many items the second sample has in each arrangement; not always the same where groups differ in size."""
        return self.labels.sum(1, dtype=np.int64)

    @property
    def sizes(self) -> Int64[np.ndarray, " u"]:
        """How many items each unit has."""
        return np.bincount(self.unit)

    def folds(
        self, count: int, seed: int, vectors: Float64[np.ndarray, "n p"] | None = None
    ) -> Int64[np.ndarray, " n"]:
        """Each item's fold, whole units together; drawn without a look at the labels, so that rearranging stays exact.

        Units with equal `vectors` share a fold: a fit that knows an item's double in the other sample would learn its label the
        wrong way round. Not where most vectors have doubles: such values are discrete, and equal ones different items.
        """
        unit, n = self.unit, len(self.unit)
        values = np.arange(n) if vectors is None else _equal_rows(vectors)
        if n // 2 <= values.max() + 1 < n:
            _, parts = connected_components(coo_array((np.ones(n), (unit, values + n)), shape=(2 * n, 2 * n)))
            joined = np.unique(parts[unit], return_inverse=True)[1].reshape(-1)
            unit = joined if joined.max() + 1 >= count else unit
        units = int(unit.max()) + 1
        place = np.arange(units) % min(count, units)
        return numpy_generator(seed, "shift", "folds").permutation(place)[unit]

    def stratified_folds(self, count: int, seed: int) -> Int64[np.ndarray, " n"]:
        """Each item's fold, both samples in every fold: for what is never rearranged."""
        second = np.zeros(len(self.sizes), dtype=bool)
        second[self.unit[self.labels[0]]] = True
        fewest = min(int(second.sum()), int((~second).sum()))
        found = np.empty(len(second), dtype=np.int64)
        for name, which in (("second", second), ("first", ~second)):
            place = np.arange(int(which.sum())) % min(count, fewest)
            found[which] = numpy_generator(seed, "shift", "stratified folds", name).permutation(place)
        return found[self.unit]


def rearrange(n: int, m: int, groups: Any, count: int, seed: int) -> Rearrangements:
    """`count` random rearrangements of n + m items, or of whole groups.

    `groups`: the group of every item, those of the first sample first, in one sequence or as a pair of two. A group in both
    samples is refused: its items are not independent of the other sample.

    >>> found = rearrange(2, 2, ["u", "u", "v", "v"], 20, 0)
    >>> found.labels[0].tolist(), found.labels.shape, sorted({tuple(row) for row in found.labels[:, ::2].tolist()})
    ([False, False, True, True], (21, 4), [(False, True), (True, False)])
    """
    unit = np.arange(n + m) if groups is None else _numbered(groups, n, m)
    units = int(unit.max()) + 1
    in_second = np.zeros(units, dtype=bool)
    in_second[unit[n:]] = True
    if in_second[unit[:n]].any():
        raise UsageError(
            f"{len(np.intersect1d(unit[:n], unit[n:]))} groups have items in both samples; expected every group in one of them:"
            " give different names to different groups, or put a group's items into one sample"
        )
    dealt = numpy_generator(seed, "shift", "rearrangements").permuted(np.tile(in_second, (count, 1)), axis=1)
    return Rearrangements(np.concatenate([in_second[None], dealt])[:, unit], unit)


def check_count(count: int, level: float, found: Rearrangements, tests: int = 1) -> None:
    """Refuse what can never be significant after Holm's correction: too few rearrangements drawn, or too few there are."""
    smallest = tests / (count + 1)
    if smallest > level * (1 + 1e-12):
        of = f" of {tests} tests after Holm" if tests > 1 else ""
        raise UsageError(
            f"got permutations={count}, whose smallest p{of} is {smallest:.2g}, for level={level:g}; expected at least"
            f" {math.ceil(tests / level * (1 - 1e-12)) - 1}"
        )
    units = len(found.sizes)
    chosen = len(np.unique(found.unit[found.labels[0]]))
    if math.comb(units, chosen) < tests / level * (1 - 1e-12) or min(chosen, units - chosen) < 2:
        raise UsageError(
            f"{units - chosen} groups against {chosen} can be dealt out in {math.comb(units, chosen)} ways, too few for a p of"
            f" {level:g} or for the spread within a sample; expected more groups in each sample, at least two"
        )


def p_value(statistics: Float64[np.ndarray, " r"]) -> float:
    """`(1 + #{T_b ≥ T_0}) / (1 + B)`, exact for any statistic T of rearranged units; O(B). Phipson & Smyth (2010).

    Values within rounding of the observed one count as equal to it.

    >>> p_value(np.array([2.0, 1.0, 3.0, 2.0]))
    0.75
    """
    if not np.isfinite(statistics).all():
        raise NumericalError("a test's statistic is NaN or infinite, so it has no p; check the vectors or the kernel")
    observed, others = statistics[0], statistics[1:]
    near = ROUNDING * float(np.ptp(statistics))
    return float((1 + np.count_nonzero(others >= observed - near)) / (1 + len(others)))


def _numbered(groups: Any, n: int, m: int) -> Int64[np.ndarray, " n"]:
    pair = isinstance(groups, tuple | list) and len(groups) == 2 and not isinstance(groups[0], str | int | float)
    names = np.concatenate([_names(each) for each in groups]) if pair else _names(groups)
    if pair and (len(groups[0]), len(groups[1])) != (n, m):
        raise UsageError(
            f"got groups of {len(groups[0])} and {len(groups[1])} items for samples of {n} and {m}; expected one per item"
        )
    if names.shape != (n + m,):
        raise UsageError(
            f"got groups of shape {names.shape} for {n} + {m} items; expected one name or number per item, those of the first"
            " sample first, or a pair of two such sequences"
        )
    return np.unique(names, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _equal_rows(vectors: Float64[np.ndarray, "n p"]) -> Int64[np.ndarray, " n"]:
    """Numbers from 0, the same for equal rows."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in vectors + 0.0])  # -0.0 is 0.0


def _names(values: Any) -> np.ndarray:
    names = plain_array(values)
    if names.dtype.kind not in "iubUS":
        names = np.array([str(value) for value in np.asarray(values, dtype=object).reshape(-1)])
    return names
