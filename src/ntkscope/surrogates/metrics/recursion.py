"""The recursion of a feature machine: regress, take the average gradient outer product as the next metric, and again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import NumericalError, generator
from ntkscope.linalg import NumericalWarning
from ntkscope.surrogates.metrics.problem import Metric, Problem
from ntkscope.surrogates.metrics.radial import Radial, squared_distances
from ntkscope.surrogates.metrics.search import BANDWIDTHS, RIDGES, START, Regression, climb

MOST_ITERATIONS = 10
PATIENCE = 2  # metrics in a row without a lower leave-one-out error, after which no more are tried
FOLDS = 5


@dataclass(frozen=True)
class Settings:
    """What a recursive feature machine is asked for; None is chosen."""

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
    def scores(self) -> bool:
        """Whether leave-one-out errors are needed."""
        return None in (self.bandwidth, self.ridge, self.iterations)


@dataclass(frozen=True)
class RecursiveStep:
    """One regression: after how many updates of the metric, at which settings, and how well it predicts.

    `leave_one_out_error` is exact in its metric, which has seen every target; `held_out_error` is of points that neither the
    regression nor its metric has seen, over five folds. Mean squared errors, NaN where they were not needed.
    """

    iteration: int
    bandwidth: float
    ridge: float
    leave_one_out_error: float
    held_out_error: float


@dataclass(frozen=True, eq=False)
class Learned:
    """The regression that was kept, the training points in its metric, and every step on the way."""

    problem: Problem
    regression: Regression
    steps: tuple[RecursiveStep, ...]
    iteration: int


Regress = Callable[[int, Problem], Regression | None]


def recursion(
    inputs: Tensor, targets: Tensor, settings: Settings, fit: Regress
) -> Iterator[tuple[Problem, Regression]]:
    """Regressions in M = I, then in `M = AGOP / max AGOP` of the one before, until gradients are zero or a fit fails."""
    metric: Metric | None = Metric.identity(inputs, settings.diagonal)
    iteration = 0
    while metric is not None:
        problem = Problem.of(inputs, targets, metric, settings.memory)
        regression = fit(iteration, problem)
        if regression is None:
            return
        yield problem, regression
        metric = problem.next_metric(regression)
        iteration += 1


def learn(inputs: Float64[Tensor, "n d"], targets: Float64[Tensor, "n k"], settings: Settings) -> Learned:
    """The recursion with what is None chosen on the way; O(n³ + n² d k) per regression."""
    last = MOST_ITERATIONS if settings.iterations is None else settings.iterations
    search = _Search(settings)
    steps: list[RecursiveStep] = []
    waiting, lowest = 0, math.inf
    state: tuple[Problem, Regression] | None = None
    for state in recursion(inputs, targets, settings, lambda _, problem: search(problem)):
        regression, error = state[1], search.error
        steps.append(RecursiveStep(len(steps), regression.kernel.bandwidth, regression.ridge, error, math.nan))
        waiting, lowest = (0, error) if error < lowest else (waiting + 1, lowest)
        if len(steps) > last or (settings.iterations is None and waiting == PATIENCE):
            break
    else:
        _say_flat(len(steps) - 1)
    assert state is not None
    if settings.iterations is not None or len(steps) == 1:
        return Learned(*state, tuple(steps), len(steps) - 1)
    errors = held_out_errors(*search.sample(inputs, targets), settings, steps)
    scored = tuple(replace(step, held_out_error=error) for step, error in zip(steps, errors))
    chosen = min(range(len(scored)), key=lambda k: scored[k].held_out_error)
    if chosen < len(steps) - 1:
        again = recursion(inputs, targets, settings, _repeated(scored, settings))
        *_, state = islice(again, chosen + 1)
    return Learned(*state, scored, chosen)


def held_out_errors(
    inputs: Float64[Tensor, "n d"], targets: Float64[Tensor, "n k"], settings: Settings, steps: Sequence[RecursiveStep]
) -> list[float]:
    """The mean squared error of every step's regression on the fifth of the points that its whole recursion has not seen."""
    n = len(inputs)
    order = torch.randperm(n, generator=generator(settings.seed, "recursive-feature-machine", "folds")).to(
        inputs.device
    )
    sums = [0.0] * len(steps)
    for fold in order.chunk(min(FOLDS, n)):
        rest = torch.ones(n, dtype=torch.bool, device=inputs.device)
        rest[fold] = False
        error = math.inf
        states = recursion(inputs[rest], targets[rest], settings, _repeated(steps, settings))
        for k in range(len(steps)):
            state = next(states, None)
            if state is not None:  # else the metric stays as it is
                predicted = predict(*state, state[0].metric.mapped(inputs[fold]))
                error = float((predicted - targets[fold]).square().sum())
            sums[k] += error
    return [total / targets.numel() for total in sums]


def predict(problem: Problem, regression: Regression, points: Float64[Tensor, "m r"]) -> Float64[Tensor, "m k"]:
    """The fit at points in the coordinates of its metric, by tiles."""
    tiles = points.split(problem.tile)
    parts = [regression.kernel.values(squared_distances(t, problem.points)) @ regression.coef for t in tiles]
    return torch.cat(parts) + regression.intercept


def _repeated(steps: Sequence[RecursiveStep], settings: Settings) -> Regress:
    """Regressions at the bandwidths and ridges of earlier ones."""

    def fit(iteration: int, problem: Problem) -> Regression | None:
        step = steps[iteration]
        kernel = Radial(settings.kind, step.bandwidth)
        return problem.fit(kernel, step.ridge, intercept=settings.intercept, leave_one_out=False)

    return fit


class _Search:
    """The regression in a metric at the settings that were given, and at the best of the grid for those that were not.

    Calls begin where the last one ended; `error` is the leave-one-out error of the last.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._place = START
        self.error = math.nan

    def sample(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The rows that settings are chosen on."""
        n = len(rows)
        if n <= self._settings.rows:
            return rows, targets
        order = torch.randperm(n, generator=generator(self._settings.seed, "recursive-feature-machine", "rows"))
        few = order[: self._settings.rows].to(rows.device)
        return rows[few], targets[few]

    def __call__(self, problem: Problem) -> Regression:
        settings = self._settings
        sample = problem
        if settings.scores and len(problem.points) > settings.rows:
            points, targets = self.sample(problem.points, problem.targets)
            sample = Problem.of(points, targets, Metric.identity(points, True), settings.memory)
        median = problem.median() if settings.bandwidth is None or settings.ridge is None else 1.0
        power = 1 if settings.kind == "laplace" else 2

        def asked(place: tuple[int, int]) -> tuple[Radial, float]:
            multiple = BANDWIDTHS[place[0]] if settings.bandwidth is None else settings.bandwidth / median
            ridge = RIDGES[place[1]] / multiple**power if settings.ridge is None else settings.ridge
            return Radial(settings.kind, multiple * median), ridge

        def evaluate(place: tuple[int, int]) -> Regression | None:
            return sample.fit(*asked(place), intercept=settings.intercept, leave_one_out=settings.scores)

        shape = (len(BANDWIDTHS) if settings.bandwidth is None else 1, len(RIDGES) if settings.ridge is None else 1)
        self._place, found = climb(evaluate, self._place, shape)
        self.error = found.error if found is not None and settings.scores else math.nan
        if found is not None and sample is not problem:
            found = problem.fit(*asked(self._place), intercept=settings.intercept, leave_one_out=False)
        if found is None:
            kernel, ridge = asked(self._place)
            raise NumericalError(
                f"the {settings.kind} kernel of {len(problem.points)} points at bandwidth {kernel.bandwidth:.3g} plus the ridge"
                f" {ridge:.3g} is not positive definite in double precision (points that coincide, or a bandwidth far above"
                " their distances); expected a larger ridge= or a smaller bandwidth="
            )
        return found


def _say_flat(iteration: int) -> None:
    warnings.warn(
        f"the gradients of the fit are zero after {iteration} updates of the metric, so no more follow; expected targets that"
        " vary, and a bandwidth that is not far below the distances of the points",
        NumericalWarning,
        stacklevel=4,
    )
