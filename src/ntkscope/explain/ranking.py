"""The training points that matter most to one output of one test item."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.core import UsageError
from ntkscope.core.html import table

SHOWN, ITEMS = 3, 5  # points in a repr, and test items in a notebook
MOST = 20_000  # training points beyond which a notebook shows no items: each of them takes products with the kernel


@dataclass(frozen=True, eq=False)
class Top:
    """Training points and their values for one output of one test item, largest first (smallest first if opposing)."""

    indices: Int64[np.ndarray, " k"]
    values: Float64[np.ndarray, " k"]
    output: int

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        more = ", …" if len(self) > SHOWN else ""
        return f"Top({len(self)} points for output {self.output}: {self.few()}{more})"

    def few(self) -> str:
        """The first points with their values."""
        return ", ".join(f"{i} ({v:+.3g})" for i, v in zip(self.indices[:SHOWN], self.values[:SHOWN]))


class PerItem(ABC):
    """Values of every training point for every output, (n_train, c), of each test item; computed when an item is requested."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """(n_test, n_train, c)."""

    @abstractmethod
    def __iter__(self) -> Iterator[Float64[np.ndarray, "n c"]]: ...

    @abstractmethod
    def top(self, index: int, k: int = 10, output: int | None = None, *, opposing: bool = False) -> Top:
        """The k training points that support one output of a test item most, or oppose it most."""

    def __len__(self) -> int:
        return self.shape[0]

    def _repr_html_(self) -> str:
        m, n, _ = self.shape
        if not 0 < n <= MOST:
            return table(repr(self), [])
        rows: list[tuple[object, ...]] = [("test item", "output", "supporting training points", "opposing")]
        for item in range(min(m, ITEMS)):
            both = [self.top(item, min(SHOWN, n), opposing=opposing) for opposing in (False, True)]
            rows.append((item, both[0].output, *(top.few() for top in both)))
        return table(f"{self!r}{', the first items' if m > ITEMS else ''}", rows)

    @property
    def values(self) -> Float64[np.ndarray, "m n c"]:
        """All of them at once, 8 · n_test · n_train · c bytes."""
        return np.stack(list(self)) if len(self) else np.zeros(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """`.values`, so that NumPy accepts this as an array."""
        return self.values if dtype is None else self.values.astype(dtype)


def top_of(values: Float64[np.ndarray, " n"], k: int, output: int, *, opposing: bool = False) -> Top:
    """The k largest values (the k smallest if `opposing`); ties go to the lower index.

    >>> top_of(np.array([0.5, -2.0, 3.0]), 2, output=1)
    Top(2 points for output 1: 2 (+3), 0 (+0.5))
    """
    if not 1 <= k <= len(values):
        raise UsageError(f"got k={k} for {len(values)} training points; expected 1 … {len(values)}")
    order = np.argsort(values if opposing else -values, kind="stable")[:k].astype(np.int64)
    return Top(order, values[order], output)


def output_of(output: int | None, logits: Float64[np.ndarray, " c"]) -> int:
    """The output asked for, or the one with the largest logit."""
    if output is None:
        return int(logits.argmax())
    if not 0 <= output < len(logits):
        raise UsageError(f"got output {output}; expected one of 0 … {len(logits) - 1}")
    return output


def item_of(index: int, items: int) -> int:
    """A test item's number, counted from the end if negative."""
    if not -items <= index < items:
        raise UsageError(f"got test item {index}; expected one of {items}")
    return index % items
