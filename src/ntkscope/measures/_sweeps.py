"""Probes in the first d coordinates, for a rising grid of d: nearest neighbours, and linear classifiers.

Distances grow by the coordinates that are added; each linear classifier starts from the solution before it, and minimises

    F(W, b) = ½ ‖W‖² + C Σ_i loss(W z_i + b, y_i)

`svm`: one-vs-rest squared hinge, the bias penalised like a weight of a constant feature, which is what scikit-learn's
`LinearSVC` minimises. `logistic`: softmax cross-entropy, the bias free.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Float64, Int
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from torch.nn.functional import one_hot

from ntkscope.core import generator
from ntkscope.core.machine.tensor_cores import tensor_cores
from ntkscope.surrogates.solvers.losses import Softmax, SquaredHinge
from ntkscope.surrogates.solvers.newton import Apply, Optimum, Problem, newton

TOLERANCE = 1e-5  # relative distance of the objective from its minimum, bounded by the duality gap
STEPS = 200
FACTORED = 128  # coordinates up to which Hessians are formed
STRENGTHS = tuple(10.0**power for power in range(-6, 2))
ANCHORS = 6  # dimensions at which C is chosen
WORSE = 2  # strengths in a row below the best after which no larger one is tried
TUNED_ON, HELD_OUT = 10_000, 0.2  # training items at most by which C is chosen, and the share of them it is judged by

ROOM, CUDA_ROOM = 1 << 28, 1 << 32  # bytes of distances held at once


# Nearest neighbours


def neighbour_sweep(
    train: Float[Tensor, "n p"],
    numbers: Int[Tensor, " n"],
    test: Float[Tensor, "m p"],
    dims: Sequence[int],
    k: int,
    ties: str,
) -> dict[int, Int[Tensor, " m"]]:
    """The class number with the most votes among the k nearest, for every d of the rising `dims`; O(n m (p + |dims|)).

    What is ranked is `Σ_j (b_j² - 2 a_j b_j)`, the squared distance without the test item's own norm. The last column of both
    sides carries the squares, so that a step of the grid is one matrix product.
    """
    room = CUDA_ROOM if train.is_cuda else ROOM
    rows = max(1, room // (train.element_size() * len(train)))
    found: dict[int, list[Tensor]] = {d: [] for d in dims}
    for part in test.split(rows):
        distances = train.new_zeros(len(part), len(train))
        for low, d in pairwise([0, *dims]):
            fresh = train[:, low:d]
            ahead = torch.cat([-2 * fresh, fresh.square().sum(1, keepdim=True)], 1)
            behind = torch.cat([part[:, low:d], part.new_ones(len(part), 1)], 1)
            with tensor_cores(False):
                distances.addmm_(behind, ahead.T)
            nearest = distances.topk(k, dim=1, largest=False).indices  # nearest first
            found[d].append(voted(numbers[nearest], ties))
    return {d: torch.cat(parts) for d, parts in found.items()}


def voted(labels: Int[Tensor, "m k"], ties: str) -> Int[Tensor, " m"]:
    """The most frequent class of each row; of tied ones that of the nearest neighbour, or the first class.

    >>> voted(torch.tensor([[2, 1, 1, 2]]), "nearest"), voted(torch.tensor([[2, 1, 1, 2]]), "first")
    (tensor([2]), tensor([1]))
    """
    counts = torch.zeros(len(labels), int(labels.max()) + 1, dtype=torch.int64, device=labels.device)
    counts.scatter_add_(1, labels, torch.ones_like(labels))
    if ties == "first":
        return counts.argmax(1)
    leads = counts.gather(1, labels) == counts.amax(1, keepdim=True)
    return labels.gather(1, leads.to(torch.int8).argmax(1, keepdim=True))[:, 0]


# Linear classifiers


@dataclass(frozen=True, eq=False)
class LinearSweep:
    """What was fitted at each d: predictions of class numbers, the strength C, and the objective reached."""

    predictions: Mapping[int, Int[Tensor, " m"]]
    C: Mapping[int, float]
    objective: Mapping[int, float]


def linear_sweep(
    kind: str,
    train: Float64[Tensor, "n p"],
    numbers: Int[Tensor, " n"],
    test: Float64[Tensor, "m p"],
    dims: Sequence[int],
    C: float | None,
) -> LinearSweep:
    """Fits for every d of the rising `dims`; C chosen on a split of the training items where it is None."""
    fit = _Fitter(kind, train, numbers, int(numbers.max()) + 1)
    strengths = dict.fromkeys(dims, C) if C is not None else chosen_strengths(kind, train, numbers, dims)
    predictions: dict[int, Tensor] = {}
    objective: dict[int, float] = {}
    theta: Tensor | None = None
    for d in dims:
        found = fit(d, strengths[d] or 1.0, theta)
        theta = found.theta
        predictions[d] = fit.scores(test, found.theta).argmax(1)
        objective[d] = found.value
    return LinearSweep(predictions, {d: float(strengths[d] or 1.0) for d in dims}, objective)


def chosen_strengths(
    kind: str, train: Float64[Tensor, "n p"], numbers: Int[Tensor, " n"], dims: Sequence[int]
) -> dict[int, float]:
    """C for every d: at a few of them, evenly on a logarithmic scale, the C with the best accuracy on held-out training
    items, the smallest of equal ones; elsewhere that of the nearest of those d."""
    items = torch.randperm(len(train), generator=generator(0, "probe strength"))[:TUNED_ON].to(train.device)
    held = max(1, round(HELD_OUT * len(items)))
    judged, fitted = items[:held], items[held:]
    fit = _Fitter(kind, train[fitted], numbers[fitted], int(numbers.max()) + 1)
    wanted = torch.linspace(math.log(dims[0]), math.log(dims[-1]), min(ANCHORS, len(dims))).tolist()
    anchors = sorted({min(dims, key=lambda d: abs(math.log(d) - at)) for at in wanted})
    best: dict[int, float] = {}
    for d in anchors:
        theta: Tensor | None = None
        right: dict[float, int] = {}
        for strength in STRENGTHS:
            theta = fit(d, strength, theta, quick=True).theta
            right[strength] = int((fit.scores(train[judged], theta).argmax(1) == numbers[judged]).sum())
            if len(right) > WORSE and max(list(right.values())[-WORSE:]) < max(right.values()):
                break
        best[d] = max(right, key=lambda strength: (right[strength], -strength))
    return {d: best[min(anchors, key=lambda at: abs(math.log(at) - math.log(d)))] for d in dims}


class _Fitter:
    """Fits of one kind of probe on the same items."""

    def __init__(self, kind: str, train: Float64[Tensor, "n p"], numbers: Int[Tensor, " n"], classes: int) -> None:
        self.kind, self.train = kind, train
        self.targets = one_hot(numbers, classes).to(torch.float64)
        self.squares = train.square().sum(0)

    def __call__(self, d: int, C: float, start: Tensor | None, *, quick: bool = False) -> Optimum:
        """The minimum over the first d coordinates; `quick`: to a hundredth, which is enough to compare accuracies."""
        features, weights = self.train[:, :d], self.train.new_full((len(self.train), 1), C)
        if self.kind == "svm":
            problem = Problem(
                lambda v: torch.addmm(v[-1], features, v[:-1]),
                lambda r: torch.cat([features.T @ r, r.sum(0, keepdim=True)]),
                SquaredHinge(self.targets, weights),
                1.0,
                bias=False,
            )
        else:
            problem = Problem(
                lambda v: features @ v, lambda r: features.T @ r, Softmax(self.targets, weights), 1.0, bias=True
            )
        theta = self._widened(d, start)
        found = newton(problem, theta, self._preconditioner(problem, d), math.inf, 1e-2 if quick else TOLERANCE, STEPS)
        if not found.converged and not quick:
            warnings.warn(
                f"the {self.kind} probe of {d} coordinates stopped after {found.iterations} steps with an objective up to"
                f" {found.gap / found.value:.1g} above its minimum (relative); expected {TOLERANCE:.0g}: use a smaller C",
                ConvergenceWarning,
                stacklevel=2,
            )
        return found

    def scores(self, rows: Float64[Tensor, "m p"], theta: Tensor) -> Float64[Tensor, "m c"]:
        """One score per class."""
        constants = 2 if self.kind == "svm" else 1
        return torch.addmm(theta[-constants], rows[:, : len(theta) - constants], theta[:-constants])

    def _widened(self, d: int, start: Tensor | None) -> Tensor:
        """The parameters of an earlier, narrower fit with zeros for the coordinates that are added.

        Rows: the coordinates, for `svm` the weight of the constant feature, and the bias, which is 0 there.
        """
        constants = 2 if self.kind == "svm" else 1
        theta = self.train.new_zeros(d + constants, self.targets.shape[1])
        if start is not None:
            theta[: len(start) - constants] = start[:-constants]
            theta[-constants:] = start[-constants:]
        return theta

    def _preconditioner(self, problem: Problem, d: int) -> Callable[[Tensor], Apply]:
        """Few coordinates: each class's own Hessian, factored. Many: its diagonal as it would be if curvature did not go
        with the coordinates; principal components are uncorrelated, so little else is left."""
        constants = 2 if self.kind == "svm" else 1
        count = float(len(self.train))

        def by_diagonal(scores: Tensor) -> Apply:
            curvature = problem.loss.curvature(scores)[0].mean(0)  # (c,)
            spread = torch.cat([self.squares[:d], self.squares.new_full((constants,), count)])
            diagonal = spread[:, None] * curvature + problem.alpha
            return lambda r: r / diagonal

        def by_factors(scores: Tensor) -> Apply:
            curvature = problem.loss.curvature(scores)[0]  # (n, c)
            features = torch.cat([self.train[:, :d], self.train.new_ones(len(self.train), 1)], 1)
            hessians = torch.stack([(features * h[:, None]).T @ features for h in curvature.T])  # (c, d + 1, d + 1)
            hessians.diagonal(dim1=1, dim2=2).add_(problem.alpha)
            factors = torch.linalg.cholesky(hessians)

            def solve(r: Tensor) -> Tensor:
                rows = r[: d + 1].T[:, :, None]  # (c, d + 1, 1)
                solved = torch.cholesky_solve(rows, factors)[:, :, 0].T
                return torch.cat([solved, torch.zeros_like(r[d + 1 :])])

            return solve

        return by_factors if d <= FACTORED else by_diagonal
