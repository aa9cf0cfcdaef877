"""Summary: where the network stands between lazy and rich, how well it and its surrogates predict, how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ntkscope.measures.faithfulness import accuracy
from ntkscope.measures.regression import r_squared, rmse
from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.sections import kernel, surrogates
from ntkscope.xray.task import CLASSIFICATION, REGRESSION
from ntkscope.xray.trust import Trust, output_trust, page_trust
from ntkscope.xray.verdict import Evidence, gather, judge
from ntkscope.xray.workload import Workload


@dataclass(frozen=True)
class Judged(Result):
    """The verdict with its evidence, the surrogate most faithful to the network, and how far the one that is explained can be
    trusted."""

    verdict: str
    score: float | None
    why: str
    evidence: tuple[Evidence, ...]
    best_kernel: str
    best_target: str
    trust: str
    trust_why: str


@dataclass(frozen=True)
class Summary(Judged):
    """Of a classifier, with accuracies on the test items.

    `wrong`: test items the network gets wrong; `agreement_wrong`: the share of these on which the explained surrogate agrees.
    `surrogate_accuracy`: of each kernel's surrogate fitted to `best_target`.
    """

    network_accuracy: float
    surrogate_accuracy: Mapping[str, float]
    wrong: int
    agreement_wrong: float


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
class OutputSummary(Judged):
    """Of a regression, with how well the targets are predicted.

    `r2`: of the network on the test items, the mean over outputs; `surrogate_r2`: of each kernel's surrogate fitted to
    `best_target`, of the targets.
    """

    r2: float
    outputs: tuple[Predicted, ...]
    surrogate_r2: Mapping[str, float]


def run(context: Context) -> Finding[Summary]:
    rated = context.result(surrogates.SECTION)
    explained = None if rated is None else rated.explained
    judged, confidence = _judged(context, rated, page_trust(explained, len(context.test)))
    rows = () if rated is None else rated.table
    found = Summary(
        **judged,
        network_accuracy=accuracy(context.network_logits, context.y_test),
        surrogate_accuracy={row.kernel: row.accuracy for row in rows if row.target == judged["best_target"]},
        wrong=int((context.network_logits.argmax(1) != context.y_test).sum()),
        agreement_wrong=math.nan if explained is None else explained.agreement_wrong,
    )
    return Finding(found, confidence)


def run_outputs(context: Context) -> Finding[OutputSummary]:
    rated = context.result(surrogates.OUTPUT_SECTION)
    explained = None if rated is None else rated.explained
    judged, confidence = _judged(context, rated, output_trust(explained, len(context.test)))
    rows, outputs = () if rated is None else rated.table, _predicted(context)
    found = OutputSummary(
        **judged,
        r2=surrogates.mean_known([one.r2 for one in outputs]),
        outputs=outputs,
        surrogate_r2={row.kernel: row.r2_targets for row in rows if row.target == judged["best_target"]},
    )
    return Finding(found, confidence)


def _judged(
    context: Context, rated: surrogates.Surrogates | surrogates.OutputSurrogates | None, trust: Trust
) -> tuple[dict[str, Any], str]:
    """What is said of a network of either task, and how certain the verdict is."""
    decomposed = context.result(kernel.SECTION)
    verdict = judge(gather(context, None if decomposed is None else decomposed.centred_alignment))
    best = None if rated is None else rated.best
    judged = {
        "verdict": verdict.word,
        "score": verdict.score,
        "why": verdict.why,
        "evidence": verdict.evidence,
        "best_kernel": "" if best is None else best.kernel,
        "best_target": "" if best is None else best.target,
        "trust": trust.word,
        "trust_why": trust.why,
    }
    return judged, verdict.confidence


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
        name="summary",
        place=1,
        title="Summary",
        meaning=(
            "A lazy network only reweights the features it had at initialisation: the kernel of its initial weights describes"
            " it completely. A rich network learned features of its own, and its kernel changed with them."
        ),
        formula=(
            "Linearisation: ‖f₁ - f₀ - J₀(w₁ - w₀)‖ / ‖f₁ - f₀‖ over test items; 0 when training never left the tangent plane"
            " at the start. Kernel: ‖H(K₁ - K₀)H‖ / ‖HK₀H‖ of the trace-NTK, H centring, and 1 - CKA(K₀, K₁)."
        ),
        run=run,
        result=Summary,
        after=(surrogates.SECTION, kernel.SECTION),
        cost=cost,
        tasks=(CLASSIFICATION,),
    )
)
OUTPUT_SECTION = register(
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
        run=run_outputs,
        result=OutputSummary,
        after=(surrogates.OUTPUT_SECTION, kernel.SECTION),
        cost=cost,
        tasks=(REGRESSION,),
    )
)
