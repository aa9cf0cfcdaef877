"""Confusion: which classes the network gets wrong, which it takes them for, and where labels are doubtful."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.sections import problems
from ntkscope.xray.workload import Workload

PAIRS = 20  # confused pairs that are listed


@dataclass(frozen=True)
class OfClass(Result):
    """One class: how many items it has, how the network does on them, and how many of its training labels are doubtful.

    `precision` is NaN for a class that is never predicted, `recall` for one without test items; `doubtful` is None where
    labels were not examined.
    """

    label: int
    train: int
    test: int
    predicted: int
    right: int
    wrong: int
    precision: float
    recall: float
    doubtful: int | None


@dataclass(frozen=True)
class Confused(Result):
    """Test items of one class that the network takes for another."""

    true: int
    predicted: int
    count: int


@dataclass(frozen=True)
class Confusion(Result):
    """Every class in order, and the pairs that are confused most often."""

    classes: tuple[OfClass, ...]
    confused: tuple[Confused, ...]
    wrong: int
    items: int


def confusion_matrix(
    true: Int64[np.ndarray, " m"], predicted: Int64[np.ndarray, " m"], classes: int
) -> Int64[np.ndarray, "classes classes"]:
    """Row: the true class; column: the predicted one.

    >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    return np.bincount(true * classes + predicted, minlength=classes**2).reshape(classes, classes).astype(np.int64)


def run(context: Context) -> Finding[Confusion]:
    count = len(context.classes)
    matrix = confusion_matrix(context.y_test, context.network_logits.argmax(1).astype(np.int64), count)
    context.keep("confusion.matrix", matrix)
    doubtful = _doubtful(context, count)
    of_train = np.bincount(context.y_train, minlength=count)
    right, test, predicted = np.diagonal(matrix), matrix.sum(1), matrix.sum(0)
    rows = tuple(
        OfClass(
            label=k,
            train=int(of_train[k]),
            test=int(test[k]),
            predicted=int(predicted[k]),
            right=int(right[k]),
            wrong=int(test[k] - right[k]),
            precision=_share(right[k], predicted[k]),
            recall=_share(right[k], test[k]),
            doubtful=None if doubtful is None else int(doubtful[k]),
        )
        for k in range(count)
    )
    off = matrix.copy()
    np.fill_diagonal(off, 0)
    order = np.argsort(-off, axis=None, kind="stable")[:PAIRS]
    pairs = [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, off.shape))]
    confused = tuple(Confused(i, j, int(off[i, j])) for i, j in pairs if off[i, j])
    wrong, items = int(off.sum()), int(matrix.sum())
    fewest = int(test[test > 0].min())
    confidence = (
        f"Counted on {items:,} test items; the smallest class has {fewest:,}, so one item more or less changes its recall by"
        f" {100 / fewest:.1f} points."
    )
    return Finding(Confusion(rows, confused, wrong, items), confidence)


def _share(part: int | np.integer, whole: int | np.integer) -> float:
    return float(part / whole) if whole else float("nan")


def _doubtful(context: Context, count: int) -> Int64[np.ndarray, " classes"] | None:
    """How many training labels of each class are contradicted; None where that section found nothing."""
    if context.result(problems.SECTION) is None:
        return None
    scores = np.asarray(context.record.arrays[problems.SCORES])
    return np.bincount(context.y_train[scores > 0], minlength=count).astype(np.int64)


def cost(work: Workload) -> float:
    return 1e-7 * (work.train + work.test)


SECTION = register(
    Section(
        name="confusion",
        place=2,
        title="Right and wrong by class",
        meaning=(
            "Which classes the network gets wrong and what it takes them for. Few, similar pairs point to classes that are hard"
            " to tell apart, or to labels that mix them up; a class with low recall may need more or better examples."
        ),
        formula=(
            "Precision: right / predicted as the class. Recall: right / items of the class. Doubtful: training labels that a"
            " classifier trained without the item contradicts."
        ),
        run=run,
        result=Confusion,
        after=(problems.SECTION,),
        essential=True,
        cost=cost,
    )
)
