"""Summary: where the network stands between lazy and rich, how well it and its surrogates predict, how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ntkscope.core.progress import TimeLimit, time_limit
from ntkscope.measures.faithfulness import accuracy
from ntkscope.measures.regression import r_squared, rmse
from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, ForRegression, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.sections import kernel, surrogates
from ntkscope.xray.task import CLASSIFICATION
from ntkscope.xray.verdict import Evidence, Verdict, gather, judge, out_of_time
from ntkscope.xray.workload import Workload

BY_CONSTRUCTION = (
    " This holds by construction, since the outputs are linear in what the last layer sees: explanations say which training"
    " items are alike there, not how the layers before came to it."
)


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

    def in_short(self) -> list[str]:
        """The main results for a terminal."""
        return [
            f"verdict: {self.verdict}. {self.why}",
            *self._scores(),
            f"trust in the explanations: {self.trust}. {self.trust_why}",
        ]

    def _scores(self) -> list[str]:
        raise NotImplementedError


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

    def _scores(self) -> list[str]:
        return [f"network accuracy: {100 * self.network_accuracy:.2f} % ({self.wrong:,} wrong predictions)"]


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

    def _scores(self) -> list[str]:
        return [f"network, {one.name}: R² {one.r2:.3f}, RMSE {one.rmse:.4g}" for one in self.outputs[:10]]


def run(context: Context) -> Finding[Judged]:
    rated, decomposed = context.result(surrogates.SECTION), context.result(kernel.SECTION)
    best, explained = (None, None) if rated is None else (rated.best, rated.explained)
    trust = context.task.trust(explained, len(context.test))
    verdict, late = _verdict(context, None if decomposed is None else decomposed.centred_alignment)
    judged: dict[str, Any] = {
        "verdict": verdict.word,
        "score": verdict.score,
        "why": verdict.why,
        "evidence": verdict.evidence,
        "best_kernel": "" if best is None else best.kernel,
        "best_target": "" if best is None else best.target,
        "trust": trust.word,
        "trust_why": _why(trust.why, context)
        + (BY_CONSTRUCTION if explained is not None and explained.trivial else ""),
    }
    rows = () if rated is None else [row for row in rated.table if row.target == judged["best_target"]]
    found: Judged
    if context.task is CLASSIFICATION:
        found = Summary(
            **judged,
            network_accuracy=accuracy(context.network_logits, context.y_test),
            surrogate_accuracy={row.kernel: row.accuracy for row in rows if isinstance(row, surrogates.Row)},
            wrong=int((context.network_logits.argmax(1) != context.y_test).sum()),
            agreement_wrong=getattr(explained, "agreement_wrong", math.nan),
        )
    else:
        outputs = _predicted(context)
        found = OutputSummary(
            **judged,
            r2=surrogates.mean_known([one.r2 for one in outputs]),
            outputs=outputs,
            surrogate_r2={row.kernel: row.r2_targets for row in rows if isinstance(row, surrogates.OutputRow)},
        )
    return Finding(found, verdict.confidence, late)


def _verdict(context: Context, alignment: float | None) -> tuple[Verdict, bool]:
    """Lazy or rich, and whether the time was over before that could be said: accuracy and trust take a moment only."""
    try:
        with time_limit(context.allowed(SECTION)):
            return judge(gather(context, alignment)), False
    except TimeLimit:
        return out_of_time(), True


def _why(trusted: str, context: Context) -> str:
    """Why explanations may be trusted or not; that nothing is known is also the case where the surrogates failed."""
    entry = context.record.metrics.get(surrogates.SECTION.of(context.task).key, {})
    return "The surrogates failed." if entry.get("status") == "failed" else trusted


def _predicted(context: Context) -> tuple[Predicted, ...]:
    made, true = context.network_outputs, context.labels_test
    values, errors = r_squared(made, true), rmse(made, true)
    on_train = r_squared(context.network_train_outputs, context.labels_train)
    spread = np.std(true, axis=0)
    return tuple(
        Predicted(name, float(values[k]), float(errors[k]), float(spread[k]), float(on_train[k]))
        for k, name in enumerate(context.classes)
    )


def cost(work: Workload) -> float:
    return 20 * work.rates.forward * (work.initial_train + work.initial_test)


LAZY = (
    "A lazy network only reweights the features it had at initialisation: the kernel of its initial weights describes"
    " it completely. A rich network learned features of its own, and its kernel changed with them."
)
CHANGE = (
    "Linearisation: ‖f₁ - f₀ - J₀(w₁ - w₀)‖ / ‖f₁ - f₀‖ over test items; 0 when training never left the tangent plane"
    " at the start. Kernel: ‖H(K₁ - K₀)H‖ / ‖HK₀H‖ of the trace-NTK, H centring, and 1 - CKA(K₀, K₁)."
)
SECTION: Section[Judged] = register(
    Section(
        name="summary",
        place=1,
        title="Summary",
        meaning=LAZY,
        formula=CHANGE,
        run=run,
        result=Summary,
        after=(surrogates.SECTION, kernel.SECTION),
        essential=True,
        keeps_time=True,
        cost=cost,
        regression=ForRegression(
            meaning=(
                "How much of the targets' variance the network explains on test items (R²), and its error in the target's"
                f" unit. {LAZY}"
            ),
            formula=f"R² = 1 - Σ(y - f)²/Σ(y - mean y)², RMSE = √mean(y - f)², output by output. {CHANGE}",
            result=OutputSummary,
            cost=cost,
        ),
    )
)
