"""Data problems: training points with a doubtful label or target, near-duplicates, and points with too much influence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64

from ntkscope.explain import mislabelled
from ntkscope.linalg import Gram
from ntkscope.surrogates import KernelRidgeLOO
from ntkscope.xray.context import Context
from ntkscope.xray.items import Items
from ntkscope.xray.plan import MAIN
from ntkscope.xray.registry import Finding, ForRegression, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.task import CLASSIFICATION, Array
from ntkscope.xray.workload import DECOMPOSED, Workload

LISTED, REVIEWED = 100, 1000  # items per list; doubtful labels are all listed, up to so many
NEIGHBOURS = 8
SCORES = "problems.label_score"  # above 0: the label is contradicted
ALIKE = 0.995  # cosine of gradients from which two items are worth comparing
CLOSE = 0.05  # distance of inputs, relative to that of typical pairs, up to which they are near-duplicates
BLOCK = 512
DOUBTFUL = 4.0  # robust standard deviations from which a target is doubtful: 6 in 100,000 normal errors are larger
NORMAL = 1.4826  # standard deviation of a normal variable over its median absolute deviation


@dataclass(frozen=True)
class Doubtful(Result):
    """A training item, and the class suggested by a classifier trained without it; a score above 0 contradicts the label."""

    index: int
    original: int
    score: float
    label: int
    suggested: int


@dataclass(frozen=True)
class Double(Result):
    """Two training items that are nearly the same."""

    a: int
    b: int
    original_a: int
    original_b: int
    similarity: float
    distance: float
    same_label: bool
    exact: bool


@dataclass(frozen=True)
class Dominating(Result):
    """A training item, and its share in the surrogate's predictions for all test items."""

    index: int
    original: int
    share: float
    times_fair: float
    label: int


@dataclass(frozen=True)
class Examined(Result):
    """Training items to check by hand, the most striking first."""

    def in_short(self) -> list[str]:
        """How many there are, for a terminal."""
        raise NotImplementedError


@dataclass(frozen=True)
class Problems(Examined):
    """Of a classifier's data."""

    mislabelled: tuple[Doubtful, ...]
    duplicates: tuple[Double, ...]
    dominating: tuple[Dominating, ...]

    def in_short(self) -> list[str]:
        contradicted = sum(entry.score > 0 for entry in self.mislabelled)
        return [f"doubtful labels: {contradicted:,}, near-duplicates: {len(self.duplicates):,}"]


@dataclass(frozen=True)
class DoubtfulTarget(Result):
    """A training item whose target is far from what the others predict; `score` is in robust standard deviations."""

    index: int
    original: int
    output: int
    target: float
    predicted: float
    score: float


@dataclass(frozen=True)
class OutputProblems(Examined):
    """Of a regression's data; `doubtful` counts scores above `threshold`, listed or not."""

    listed: tuple[DoubtfulTarget, ...]
    doubtful: int
    threshold: float
    loo_r2: float
    duplicates: tuple[Double, ...]

    def in_short(self) -> list[str]:
        return [f"doubtful targets: {self.doubtful:,}, near-duplicates: {len(self.duplicates):,}"]


def run(context: Context) -> Finding[Examined]:
    K, y = context.pair(MAIN).train, context.labels_train
    doubles = duplicates(context.train, K, y)
    find = _of_labels if context.task is CLASSIFICATION else _of_targets
    return find(context, K.to(torch.float64), y, doubles)


def _of_labels(context: Context, K: Gram, y: Array, doubles: tuple[Double, ...]) -> Finding[Examined]:
    doubtful = _mislabelled(context, K, y)
    loud = _dominating(context)
    contradicted = int((np.asarray(context.record.arrays[SCORES]) > 0).sum())
    confidence = (
        f"{contradicted:,} {'label is' if contradicted == 1 else 'labels are'}"
        " contradicted by a classifier trained without the item and other suspects; a hard item looks the same as a wrong"
        " label, so check each."
        " Near-duplicates are close both under the kernel and as inputs."
    )
    return Finding(Problems(doubtful, doubles, loud), confidence)


def _mislabelled(context: Context, K: Gram, y: Array) -> tuple[Doubtful, ...]:
    ranking = mislabelled(K, y)
    context.keep(SCORES, ranking.scores)
    context.keep("problems.suggested", np.asarray(ranking.suggested, dtype=np.int64))
    listed = ranking.top(min(len(y), max(LISTED, min(REVIEWED, int((ranking.scores > 0).sum())))))
    index, value = _neighbours(K, np.asarray(listed, dtype=np.int64))
    context.keep("problems.neighbour_index", index)
    context.keep("problems.neighbour_value", value)
    return tuple(
        Doubtful(
            index=int(i),
            original=int(context.train.original[i]),
            score=float(ranking.scores[i]),
            label=int(y[i]),
            suggested=int(ranking.suggested[i]),
        )
        for i in listed
    )


def _neighbours(K: Gram, rows: Int64[np.ndarray, " l"]) -> tuple[Int64[np.ndarray, "l k"], Float64[np.ndarray, "l k"]]:
    """The training items most similar to each of `rows`, the item itself left out."""
    k = min(NEIGHBOURS, len(K) - 1)
    index, value = np.zeros((len(rows), k), dtype=np.int64), np.zeros((len(rows), k))
    for start in range(0, len(rows), BLOCK):
        chosen = rows[start : start + BLOCK]
        block = K[chosen].numpy().astype(np.float64, copy=True)
        block[np.arange(len(chosen)), chosen] = -np.inf
        order = np.argsort(-block, axis=1, kind="stable")[:, :k]
        index[start : start + len(chosen)] = order
        value[start : start + len(chosen)] = np.take_along_axis(block, order, axis=1)
    return index, value


def duplicates(items: Items, K: Gram, y: Array) -> tuple[Double, ...]:
    """Pairs that the kernel hardly distinguishes and whose inputs are close, the most similar first."""
    rows, columns, values = [], [], []
    for start in range(0, len(K), BLOCK):
        block = K[start : start + BLOCK].numpy()
        i, j = np.nonzero(block > ALIKE)
        upper = j > i + start
        rows.append(i[upper] + start)
        columns.append(j[upper])
        values.append(block[i[upper], j[upper]])
    a, b, alike = np.concatenate(rows), np.concatenate(columns), np.concatenate(values).astype(np.float64)
    order = np.argsort(-alike, kind="stable")[: 20 * LISTED]
    a, b, alike = a[order], b[order], alike[order]
    distance, exact = _input_distance(items, a, b)
    near = np.flatnonzero(distance <= CLOSE)
    near = near[np.lexsort((-alike[near], distance[near]))][:LISTED]
    return tuple(
        Double(
            a=int(a[p]),
            b=int(b[p]),
            original_a=int(items.original[a[p]]),
            original_b=int(items.original[b[p]]),
            similarity=float(alike[p]),
            distance=float(distance[p]),
            same_label=bool(np.all(y[a[p]] == y[b[p]])),
            exact=bool(exact[p]),
        )
        for p in near
    )


def _input_distance(items: Items, a: Array, b: Array) -> tuple[Array, Array]:
    """‖x_a - x_b‖ over the root mean square of such distances between all items, and whether the inputs are equal."""
    squares, typical, equal = np.zeros(len(a)), 0.0, np.ones(len(a), dtype=bool)
    for tensor in items.tensors:
        flat = tensor.detach().cpu().flatten(1)
        for start in range(0, len(a), BLOCK):
            left, right = (flat[torch.from_numpy(side[start : start + BLOCK])] for side in (a, b))
            equal[start : start + BLOCK] &= (left == right).all(1).numpy()
            squares[start : start + BLOCK] += (left.double() - right.double()).square().sum(1).numpy()
        wide = flat.double()
        typical += 2 * float((wide - wide.mean(0)).square().sum(1).mean())
    return np.sqrt(squares / typical) if typical > 0 else np.zeros(len(a)), equal


def _dominating(context: Context) -> tuple[Dominating, ...]:
    """The share of each training point in all attributions of the test items' predicted logits, by size."""
    machine, kernel = context.machine(MAIN), context.pair(MAIN).scaled().test
    predicted = context.machine_logits(MAIN).argmax(1)
    mass = np.zeros(len(context.train))
    for label in np.unique(predicted):
        part = np.abs(kernel[predicted == label].numpy().astype(np.float64)).sum(0)
        mass += part * np.abs(machine.coef_[label])
    shares = mass / mass.sum() if mass.sum() > 0 else mass
    context.keep("problems.share", shares)
    order = np.argsort(-shares, kind="stable")[:LISTED]
    return tuple(
        Dominating(
            index=int(i),
            original=int(context.train.original[i]),
            share=float(shares[i]),
            times_fair=float(shares[i] * len(shares)),
            label=int(context.y_train[i]),
        )
        for i in order
    )


def _of_targets(context: Context, K: Gram, y: Array, doubles: tuple[Double, ...]) -> Finding[Examined]:
    ridge = KernelRidgeLOO(rows=DECOMPOSED, seed=context.seed).fit(K, y)
    predicted = np.asarray(ridge.leave_one_out(K)).reshape(y.shape)
    scores = residual_scores(y - predicted)
    worst = scores.argmax(1)
    score = scores[np.arange(len(y)), worst]
    context.keep("output_problems.score", score)
    context.keep("output_problems.predicted", predicted)
    order = np.argsort(-score, kind="stable")[:LISTED]
    listed = tuple(
        DoubtfulTarget(
            index=int(i),
            original=int(context.train.original[i]),
            output=int(worst[i]),
            target=float(y[i, worst[i]]),
            predicted=float(predicted[i, worst[i]]),
            score=float(score[i]),
        )
        for i in order
    )
    count = int((score > DOUBTFUL).sum())
    spread = np.square(y - y.mean(0)).sum(0)
    missed = np.square(y - predicted).sum(0)
    r2 = [1 - float(a / b) for a, b in zip(missed, spread) if b > 0]
    loo = math.fsum(r2) / len(r2) if r2 else math.nan
    confidence = (
        f"{count:,} {'target is' if count == 1 else 'targets are'} more than {DOUBTFUL:g} robust standard deviations from what"
        f" a fit without the item predicts (which explains {100 * max(loo, 0.0):.0f} % of the variance); an unusual item looks"
        " the same as a wrong target, so check each."
    )
    return Finding(OutputProblems(listed, count, DOUBTFUL, loo, doubles), confidence)


def residual_scores(residuals: Float64[np.ndarray, "n d"]) -> Float64[np.ndarray, "n d"]:
    """|r - median r| of each output, in robust standard deviations (1.4826 median |r - median r|).

    Where more than half of the residuals are equal, the mean absolute deviation takes the median's place; 0 where all are.

    >>> residual_scores(np.array([[0.0], [1.0], [-1.0], [0.5], [9.0]])).round(1).ravel().tolist()
    [0.7, 0.7, 2.0, 0.0, 11.5]
    """
    away = np.abs(residuals - np.median(residuals, axis=0))
    scale = NORMAL * np.median(away, axis=0)
    scale = np.where(scale > 0, scale, np.sqrt(math.pi / 2) * away.mean(0))
    return np.asarray(away / np.where(scale > 0, scale, 1.0))


def cost(work: Workload) -> float:
    return 0.2 + 2 * work.decomposition(work.train) + work.train**2 * 2e-8


def cost_of_outputs(work: Workload) -> float:
    return work.distillation() + 4 * work.decomposition(work.train) + work.train**2 * 2e-8


SECTION: Section[Examined] = register(
    Section(
        name="problems",
        place=4,
        title="Data problems",
        meaning=(
            "Training points to check by hand: those whose label the other points contradict, those that occur twice"
            " (perhaps under different labels), and those that influence the predictions more than their share."
        ),
        formula=(
            "Label: max_{k≠y_i} f_k(x_i) - f_{y_i}(x_i) - 0.05, f ridge on exp(2 (κ - 1)) fitted without point i (exact"
            " leave-one-out) and without the points that such a ridge, fitted to all others, contradicts."
            " Duplicates: κ(x_i, x_j) > 0.995 and inputs within 5 % of the typical distance."
            " Most influential: Σ_x |W_ci κ(x, x_i)| over all test items x and their predicted class c, as a share"
            " of all points'."
        ),
        run=run,
        result=Problems,
        essential=True,
        cost=cost,
        regression=ForRegression(
            meaning=(
                "Training points to check by hand: those whose target is far from what the other points predict for it, and"
                " those that occur twice, perhaps with different targets."
            ),
            formula=(
                "Score: |r_i - median r| / (1.4826 median |r - median r|), r_i = y_i - f^{-i}(x_i), f kernel ridge with a free"
                " intercept fitted to the targets without point i (exact leave-one-out), the largest over outputs."
                " Duplicates: κ(x_i, x_j) > 0.995 and inputs within 5 % of the typical distance."
            ),
            result=OutputProblems,
            cost=cost_of_outputs,
        ),
    )
)
