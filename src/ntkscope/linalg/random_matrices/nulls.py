"""What noise does: the null laws of the largest singular value that `spike_test` compares with."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import torch
from jaxtyping import Float
from scipy.optimize import brentq
from torch import Tensor

from ntkscope.core import UsageError, derive_seed
from ntkscope.linalg.random_matrices.tracy_widom import MEAN, VARIANCE, tracy_widom_sf
from ntkscope.linalg.sketches.sketch import random_words
from ntkscope.linalg.spectra.largest import largest_singular_values

ENTRIES = 1 << 22  # of the matrices permuted at one time
Probability: TypeAlias = Callable[[Float[Tensor, " k"]], list[float]]


class Null(ABC):
    """What the largest singular value would be without spikes."""

    level: float
    once = False
    """Whether the first round's null is for all spikes."""

    @abstractmethod
    def round(self, residual: Float[Tensor, "m n"], removed: int, unit: float) -> tuple[float, Probability]:
        """The edge at this level, and p-values of singular values, given what is left without `removed` spikes.

        `residual` is in units of `unit`, and so are edge and values.
        """


@dataclass(frozen=True)
class PermutationNull(Null):
    """The entries of what remains, permuted."""

    level: float
    draws: int
    seed: int

    def __post_init__(self) -> None:
        if self.draws < 1 or self.rank < 1:
            raise UsageError(
                f"got draws={self.draws} for level={self.level}: the smallest possible p is 1/(1 + draws); expected at least"
                f" {math.ceil(1 / self.level) - 1} draws"
            )

    @property
    def rank(self) -> int:
        """A value is significant that exceeds the `rank`-th largest draw: p = (1 + #)/(1 + draws) ≤ level."""
        return math.floor(self.level * (1 + self.draws) * (1 + 1e-12))

    def round(self, residual: Float[Tensor, "m n"], removed: int, unit: float) -> tuple[float, Probability]:
        drawn = torch.cat(list(permuted_values(residual, self.draws, self.seed, removed)))
        return self.compared(drawn * crowding((residual.shape[0], residual.shape[1]), removed))

    def compared(self, drawn: Float[Tensor, " d"]) -> tuple[float, Probability]:
        """The edge and p-values that these draws give."""
        ordered = drawn.sort(descending=True).values

        def probability(values: Float[Tensor, " k"]) -> list[float]:
            exceed = (ordered >= values[:, None]).sum(1).tolist()
            return [(1 + number) / (1 + len(ordered)) for number in exceed]  # in float64: 10/200 must not exceed 0.05

        return float(ordered[self.rank - 1]), probability


def crowding(shape: tuple[int, int], removed: int) -> float:
    """What is left without k directions fills m - k rows and n - k columns, permuted entries all: the ratio of their edges.

    `(1/√(m-k) + 1/√(n-k)) / (1/√m + 1/√n)` at equal norms; without it, many spikes would make further ones.
    """
    rows, columns = shape
    if removed >= min(shape):
        return math.inf
    left = 1 / math.sqrt(rows - removed) + 1 / math.sqrt(columns - removed)
    return left / (1 / math.sqrt(rows) + 1 / math.sqrt(columns))


@dataclass(frozen=True)
class InitialNull(PermutationNull):
    """The initial matrix and its entries permuted: one null for all, whatever W became; weights drawn again may differ more."""

    start: Float[Tensor, "m n"]
    once = True

    def round(self, residual: Float[Tensor, "m n"], removed: int, unit: float) -> tuple[float, Probability]:
        start = self.start / unit
        others = permuted_values(start, self.draws - 1, self.seed, 0)
        return self.compared(torch.cat([largest_singular_values(start[None]), *others]))


@dataclass(frozen=True)
class RedrawnNull(PermutationNull):
    """The initial matrix, and entries drawn from it and from what remains of W together: two draws of one law would be such
    halves, differences of scale included."""

    start: Float[Tensor, "m n"]

    def round(self, residual: Float[Tensor, "m n"], removed: int, unit: float) -> tuple[float, Probability]:
        start = self.start / unit
        both = permuted_values(torch.cat([residual, start]), self.draws - 1, self.seed, removed, len(start))
        drawn = torch.cat([largest_singular_values(start[None]), *both])
        return self.compared(drawn * crowding((start.shape[0], start.shape[1]), removed))


def permuted_values(
    residual: Float[Tensor, "k n"], draws: int, seed: int, removed: int, rows: int | None = None
) -> Iterator[Float[Tensor, " b"]]:
    """Largest singular values of `residual` with its entries permuted (of the first `rows` then), in batches; the same on
    every device."""
    key = derive_seed(seed, "spike test", removed)
    entries = residual.numel()
    flat, places = residual.reshape(-1), torch.arange(entries, device=residual.device)
    size = max(1, ENTRIES // entries)
    for start in range(0, draws, size):
        which = torch.arange(start, min(start + size, draws), device=residual.device)
        words = random_words(key, which, places)
        on_cpu = words.device.type == "cpu"  # where NumPy sorts faster
        order = torch.from_numpy(words.numpy().argsort(1)) if on_cpu else words.argsort(1)
        yield largest_singular_values(flat[order].view(len(which), *residual.shape)[:, :rows])


@dataclass(frozen=True)
class NoiseNull(Null):
    """Gaussian noise in the limit of large matrices, with second-order constants and corrections."""

    level: float

    def round(self, residual: Float[Tensor, "m n"], removed: int, unit: float) -> tuple[float, Probability]:
        rows, columns = residual.shape[0] - removed, residual.shape[1] - removed
        if min(rows, columns) < 2:
            return math.inf, lambda values: [1.0] * len(values)
        square, kurtosis = moments(residual)
        variance = square * residual.numel() / (rows * columns - (removed == 0))
        centre, width = constants((rows, columns), kurtosis)

        def probability(values: Float[Tensor, " k"]) -> list[float]:
            units = MEAN + (values.square() / variance - centre) / width
            return tracy_widom_sf(units.cpu()).tolist()

        return math.sqrt(max(0.0, variance * (centre + width * (upper_quantile(self.level) - MEAN)))), probability

    @staticmethod
    def kurtosis_shift(shape: tuple[int, ...], kurtosis: float) -> float:
        """By how many Tracy–Widom units the entries' kurtosis moves the largest eigenvalue."""
        rows, columns = shape
        plain, width = constants((rows, columns), 0.0)
        return (constants((rows, columns), kurtosis)[0] - plain) / width


def constants(shape: tuple[int, int], kurtosis: float) -> tuple[float, float]:
    """Mean of `σ₁² / s²`, s² the mean square of the entries, and the factor that makes Tracy–Widom deviations of it.

    Ma (2012), eq. 3: centre `(√(m-½) + √(n-½))²` and width `(√(m-½) + √(n-½)) (1/√(m-½) + 1/√(n-½))^⅓`. The ratio to the mean
    square is independent of it for Gaussian entries, so its variance is less by `2 centre² / (mn)`. Excess kurtosis κ of the
    entries moves the centre by `κ (√m + √n)² / √(mn)`: the edge of `z = (1 + P)(1 + cP)/q`, `P = q + κ q²/n`, which is the
    Marchenko–Pastur equation with the next cumulant.
    """
    rows, columns = shape
    a, b = math.sqrt(rows - 0.5), math.sqrt(columns - 0.5)
    centre, width = (a + b) ** 2, (a + b) * (1 / a + 1 / b) ** (1 / 3)
    left = width**2 - 2 * centre**2 / (rows * columns * VARIANCE)
    shift = kurtosis * (math.sqrt(rows) + math.sqrt(columns)) ** 2 / math.sqrt(rows * columns)
    return centre + width * MEAN + shift, math.sqrt(max(left, 0.01 * width**2))


def excess_kurtosis(values: Tensor) -> float:
    """`mean(x⁴) / mean(x²)² - 3`."""
    return moments(values)[1]


def moments(values: Tensor) -> tuple[float, float]:
    """Mean square and excess kurtosis."""
    flat = values.reshape(-1)
    square = flat * flat
    mean, fourth = float(torch.dot(flat, flat)) / len(flat), float(torch.dot(square, square)) / len(flat)
    return mean, fourth / mean**2 - 3 if mean else math.nan


@cache
def upper_quantile(level: float) -> float:
    """Where the Tracy–Widom law with beta 1 leaves `level` above."""
    return float(brentq(lambda x: float(tracy_widom_sf(float(x))) - level, -13.0, 39.0, xtol=1e-10))
