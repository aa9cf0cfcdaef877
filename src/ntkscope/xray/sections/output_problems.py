"""Data problems of a regression: training points with a doubtful target, and near-duplicates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64

from ntkscope.surrogates import KernelRidgeLOO
from ntkscope.xray.context import Context
from ntkscope.xray.plan import MAIN
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.sections.problems import Double, duplicates
from ntkscope.xray.task import REGRESSION
from ntkscope.xray.workload import DECOMPOSED, Workload

LISTED = 100
DOUBTFUL = 4.0  # robust standard deviations from which a target is doubtful: 6 in 100,000 normal errors are larger
NORMAL = 1.4826  # standard deviation of a normal variable over its median absolute deviation


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
class OutputProblems(Result):
    """Training items to check by hand, the most striking first; `doubtful` counts scores above `threshold`, listed or not."""

    listed: tuple[DoubtfulTarget, ...]
    doubtful: int
    threshold: float
    loo_r2: float
    duplicates: tuple[Double, ...]


def run(context: Context) -> Finding[OutputProblems]:
    pair, y = context.pair(MAIN), context.targets_train
    K = pair.train.to(torch.float64)
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
    return Finding(OutputProblems(listed, count, DOUBTFUL, loo, duplicates(context.train, pair.train, y)), confidence)


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
    return work.distillation() + 4 * work.decomposition(work.train) + work.train**2 * 2e-8


SECTION = register(
    Section(
        name="output_problems",
        place=4,
        title="Data problems",
        meaning=(
            "Training points to check by hand: those whose target is far from what the other points predict for it, and those"
            " that occur twice, perhaps with different targets."
        ),
        formula=(
            "Score: |r_i - median r| / (1.4826 median |r - median r|), r_i = y_i - f^{-i}(x_i), f kernel ridge with a free"
            " intercept fitted to the targets without point i (exact leave-one-out), the largest over outputs."
            " Duplicates: κ(x_i, x_j) > 0.995 and inputs within 5 % of the typical distance."
        ),
        run=run,
        result=OutputProblems,
        cost=cost,
        tasks=(REGRESSION,),
    )
)
