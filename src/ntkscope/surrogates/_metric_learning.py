"""The recursion of a feature machine: regress, take the average gradient outer product as the next metric, and again."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, generator
from ntkscope.core.budget import over_budget
from ntkscope.linalg import NumericalWarning
from ntkscope.linalg.band import LAPACK_ROWS
from ntkscope.surrogates._metric_search import (
    BANDWIDTHS,
    RIDGES,
    START,
    Regression,
    climb,
    median_distance,
    regress,
)
from ntkscope.surrogates._radial import Radial, gradient_outer_product, squared_distances

MOST_ITERATIONS = 10
PATIENCE = 2  # metrics in a row without a lower leave-one-out error, after which no more are tried
TILE = 1024  # rows of the kernel at a time, if memory allows: more are not faster
RANK = 1e-14  # eigenvalues of the metric below this share of the largest are rounding


@dataclass(frozen=True)
class Settings:
    """What a recursive feature machine is asked for; None is chosen by leave-one-out."""

    kind: str
    bandwidth: float | None
    ridge: float | None
    iterations: int | None
    diagonal: bool
    intercept: bool
    rows: int
    memory: int
    seed: int

    @property
    def chooses(self) -> bool:
        return None in (self.bandwidth, self.ridge, self.iterations)


@dataclass(frozen=True)
class RecursiveStep:
    """One regression: after how many updates of the metric, at which settings, and its mean squared leave-one-out error.

    The error is infinite where nothing had to be chosen.
    """

    iteration: int
    bandwidth: float
    ridge: float
    leave_one_out_error: float


@dataclass(frozen=True, eq=False)
class Learned:
    """The regression that was kept, on `points = X R` with the metric `M = R Rᵀ`; R is None for the identity."""

    regression: Regression
    metric: Tensor
    root: Tensor | None
    points: Float64[Tensor, "n r"]
    iteration: int
    path: tuple[RecursiveStep, ...]


@dataclass(frozen=True, eq=False)
class Problem:
    """Training points in one metric, and how their kernel is made: from all squared distances if those fit, else by tiles."""

    points: Float64[Tensor, "n r"]
    targets: Float64[Tensor, "n k"]
    tile: int
    squares: Float64[Tensor, "n n"] | None

    @classmethod
    def of(cls, points: Tensor, targets: Tensor, memory: int) -> Problem:
        tile, held = tiling(len(points), points.shape[1], targets.shape[1], memory)
        return cls(points, targets, tile, squared_distances(points, points) if held else None)

    def matrix(self, kernel: Radial) -> Float64[Tensor, "n n"]:
        """The kernel matrix; O(n² r)."""
        if self.squares is not None:
            return kernel.values(self.squares)
        n = len(self.points)
        found = self.points.new_empty(n, n)
        for first in range(0, n, self.tile):
            rows = slice(first, first + self.tile)
            found[rows] = kernel.values(squared_distances(self.points[rows], self.points))
        return found

    def fit(self, kernel: Radial, ridge: float, *, intercept: bool, leave_one_out: bool) -> Regression | None:
        matrix = self.matrix(kernel)
        return regress(kernel, matrix, self.targets, ridge, intercept=intercept, leave_one_out=leave_one_out)

    def median(self) -> float:
        """The median distance among up to a thousand points."""
        step = max(1, len(self.points) // 1000)
        few = self.points[::step]
        return median_distance(squared_distances(few, few))


def tiling(n: int, d: int, outputs: int, memory: int) -> tuple[int, bool]:
    """Rows of a tile, and whether all squared distances are held, within `memory` bytes; refused if the kernel does not fit."""
    row = 8 * (5 * n + (outputs + 2) * d)
    least = 8 * (2 * n * n + 3 * n * d + 2 * d * d) + row
    if n > LAPACK_ROWS:
        raise UsageError(
            f"got {n} training points; expected at most {LAPACK_ROWS}: the kernel of all of them is factorised. Fit on a"
            " sample of the points"
        )
    if least > memory:
        raise over_budget(memory, least, f"for the kernel of {n} training points", "raise memory= or fit on fewer points")
    held = least + 8 * n * n + TILE * row <= memory
    left = memory - least - (8 * n * n if held else 0)
    return max(1, min(TILE, n, 1 + int(left // row))), held


def learn(inputs: Float64[Tensor, "n d"], targets: Float64[Tensor, "n k"], settings: Settings) -> Learned:
    """Regressions and metrics in turn, `M ← AGOP / max AGOP`, from the identity; the one with the least leave-one-out error.

    With `iterations` the last one. O(n³ + n² d k) each, and a search takes about six times that.
    """
    d = inputs.shape[1]
    metric = torch.ones_like(inputs[0]) if settings.diagonal else torch.eye(d).to(inputs)
    root, start, waiting = None, START, 0
    best: Learned | None = None
    path: list[RecursiveStep] = []
    last = MOST_ITERATIONS if settings.iterations is None else settings.iterations
    for iteration in range(last + 1):
        problem = Problem.of(mapped(inputs, root), targets, settings.memory)
        start, regression, error = _best_regression(problem, settings, start)
        path.append(RecursiveStep(iteration, regression.kernel.bandwidth, regression.ridge, error))
        waiting += 1
        if settings.iterations is not None or best is None or error < min(step.leave_one_out_error for step in path[:-1]):
            best, waiting = Learned(regression, metric, root, problem.points, iteration, ()), 0
        if iteration == last or waiting == PATIENCE:
            break
        outer = gradient_outer_product(
            regression.kernel,
            problem.points,
            regression.coef,
            tile=problem.tile,
            squares=problem.squares,
            diagonal=settings.diagonal,
        )
        outer = outer if root is None else outer * root.square() if settings.diagonal else root @ outer @ root.T
        largest = float(outer.max())
        if not largest > 0 or _constant(targets):
            _say_flat(iteration, settings)
            break
        metric = outer / largest
        root = square_root(metric)
    assert best is not None
    return Learned(best.regression, best.metric, best.root, best.points, best.iteration, tuple(path))


def _best_regression(
    problem: Problem, settings: Settings, start: tuple[int, int]
) -> tuple[tuple[int, int], Regression, float]:
    """The regression in this metric at the settings that were given, and at the best of the grid for those that were not."""
    n = len(problem.points)
    sample = problem
    if settings.chooses and n > settings.rows:
        order = torch.randperm(n, generator=generator(settings.seed, "recursive-feature-machine"))
        few = order[: settings.rows].to(problem.points.device)
        sample = Problem.of(problem.points[few], problem.targets[few], settings.memory)
    median = 1.0 if None not in (settings.bandwidth, settings.ridge) else problem.median()
    power = 1 if settings.kind == "laplace" else 2

    def asked(place: tuple[int, int]) -> tuple[Radial, float]:
        multiple = BANDWIDTHS[place[0]] if settings.bandwidth is None else settings.bandwidth / median
        ridge = RIDGES[place[1]] / multiple**power if settings.ridge is None else settings.ridge
        return Radial(settings.kind, multiple * median), ridge

    def evaluate(place: tuple[int, int]) -> Regression | None:
        return sample.fit(*asked(place), intercept=settings.intercept, leave_one_out=settings.chooses)

    shape = (len(BANDWIDTHS) if settings.bandwidth is None else 1, len(RIDGES) if settings.ridge is None else 1)
    place, found = climb(evaluate, start, shape)
    error = math.inf if found is None else found.error
    if found is not None and sample is not problem:
        found = problem.fit(*asked(place), intercept=settings.intercept, leave_one_out=False)
    if found is None:
        kernel, ridge = asked(place)
        raise NumericalError(
            f"the {settings.kind} kernel of {n} points at bandwidth {kernel.bandwidth:.3g} plus the ridge {ridge:.3g} is not"
            " positive definite in double precision (points that coincide, or a bandwidth far above their distances); expected"
            " a larger ridge= or a smaller bandwidth="
        )
    return place, found, error


def mapped(x: Float64[Tensor, "n d"], root: Tensor | None) -> Float64[Tensor, "n r"]:
    """`x R`, whose plain distances are those of x in the metric `R Rᵀ`."""
    if root is None:
        return x
    return x * root if root.ndim == 1 else x @ root


def square_root(metric: Tensor) -> Tensor:
    """R with `R Rᵀ = M`, (d, rank); of a diagonal (d,) its roots."""
    if metric.ndim == 1:
        return metric.sqrt()
    values, vectors = torch.linalg.eigh(metric)
    kept = values > RANK * values[-1]
    return vectors[:, kept] * values[kept].sqrt()


def _constant(targets: Tensor) -> bool:
    spread = (targets - targets.mean(0)).abs().max()
    return float(spread) <= 1e-13 * float(targets.abs().max())


def _say_flat(iteration: int, settings: Settings) -> None:
    wanted = "several" if settings.iterations is None else str(settings.iterations)
    warnings.warn(
        f"the gradients of the fit are zero after {iteration} of {wanted} updates of the metric, so the metric is left as it"
        " is; expected targets that vary, and a bandwidth that is not far below the distances of the points",
        NumericalWarning,
        stacklevel=4,
    )
