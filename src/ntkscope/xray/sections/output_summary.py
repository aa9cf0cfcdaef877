"""Summary of a regression: how well the network predicts, whether it is lazy or rich, how far to trust surrogates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ntkscope.measures.regression import r_squared, rmse
from ntkscope.xray.context import Context
from ntkscope.xray.output_trust import output_trust
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.sections import kernel, output_surrogates
from ntkscope.xray.task import REGRESSION
from ntkscope.xray.verdict import Evidence, gather, judge
from ntkscope.xray.workload import Workload


@dataclass(frozen=True)
class Predicted(Result):
    """How well the network predicts one target on test and training items; `rmse` and `spread` (its standard deviation on test
    items) are in the target's own unit, `r2` is NaN where that is 0."""

    name: str
    r2: float
    rmse: float
    spread: float
    train_r2: float


@dataclass(frozen=True)
class OutputSummary(Result):
    """The verdict with its evidence, how well the targets are predicted, and how far the surrogate that is explained can be
    trusted.

    `r2`: of the network on the test items, the mean over outputs; `surrogate_r2`: of each kernel's surrogate fitted to
    `best_target`, of the targets.
    """

    verdict: str
    score: float | None
    why: str
    evidence: tuple[Evidence, ...]
    r2: float
    outputs: tuple[Predicted, ...]
    surrogate_r2: Mapping[str, float]
    best_kernel: str
    best_target: str
    trust: str
    trust_why: str


def run(context: Context) -> Finding[OutputSummary]:
    rated, decomposed = context.result(output_surrogates.SECTION), context.result(kernel.SECTION)
    verdict = judge(gather(context, None if decomposed is None else decomposed.centred_alignment))
    best, explained = (None, None) if rated is None else (rated.best, rated.explained)
    target = "" if best is None else best.target
    trust = output_trust(explained, len(context.test))
    outputs = _predicted(context)
    known = [one.r2 for one in outputs if not math.isnan(one.r2)]
    return Finding(
        OutputSummary(
            verdict=verdict.word,
            score=verdict.score,
            why=verdict.why,
            evidence=verdict.evidence,
            r2=math.fsum(known) / len(known) if known else math.nan,
            outputs=outputs,
            surrogate_r2={}
            if rated is None
            else {row.kernel: row.r2_targets for row in rated.table if row.target == target},
            best_kernel="" if best is None else best.kernel,
            best_target=target,
            trust=trust.word,
            trust_why=trust.why,
        ),
        verdict.confidence,
    )


def _predicted(context: Context) -> tuple[Predicted, ...]:
    made, true = context.network_outputs, context.targets_test
    values, errors = r_squared(made, true), rmse(made, true)
    on_train = r_squared(context.network_train_outputs, context.targets_train)
    spread = np.std(true, axis=0)
    return tuple(
        Predicted(name, float(values[k]), float(errors[k]), float(spread[k]), float(on_train[k]))
        for k, name in enumerate(context.classes)
    )


def cost(work: Workload) -> float:
    return 20 * work.rates.forward * (work.initial_train + work.initial_test)


SECTION = register(
    Section(
        name="output_summary",
        place=1,
        title="Summary",
        meaning=(
            "How much of the targets' variance the network explains on test items (R²), and its error in the target's unit."
            " A lazy network only reweights the features it had at initialisation: the kernel of its initial weights describes"
            " it completely. A rich network learned features of its own, and its kernel changed with them."
        ),
        formula=(
            "R² = 1 - Σ(y - f)²/Σ(y - mean y)², RMSE = √mean(y - f)², output by output. Linearisation:"
            " ‖f₁ - f₀ - J₀(w₁ - w₀)‖ / ‖f₁ - f₀‖ over test items; 0 when training never left the tangent plane at the start."
            " Kernel: ‖H(K₁ - K₀)H‖ / ‖HK₀H‖ of the trace-NTK, H centring, and 1 - CKA(K₀, K₁)."
        ),
        run=run,
        result=OutputSummary,
        after=(output_surrogates.SECTION, kernel.SECTION),
        cost=cost,
        tasks=(REGRESSION,),
    )
)
