"""Summary: where the network stands between lazy and rich, and how accurate it and its surrogates are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ntkscope.measures.faithfulness import accuracy
from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.sections import kernel, surrogates
from ntkscope.xray.task import CLASSIFICATION
from ntkscope.xray.trust import page_trust
from ntkscope.xray.verdict import Evidence, gather, judge
from ntkscope.xray.workload import Workload


@dataclass(frozen=True)
class Summary(Result):
    """The verdict with its evidence, accuracies on the test items, and how far the surrogate that is explained can be trusted.

    `wrong`: test items the network gets wrong; `agreement_wrong`: the share of these on which that surrogate agrees.
    `surrogate_accuracy`: of each kernel's surrogate fitted to `best_target`.
    """

    verdict: str
    score: float | None
    why: str
    evidence: tuple[Evidence, ...]
    network_accuracy: float
    surrogate_accuracy: Mapping[str, float]
    best_kernel: str
    best_target: str
    trust: str
    trust_why: str
    wrong: int
    agreement_wrong: float


def run(context: Context) -> Finding[Summary]:
    rated, decomposed = context.result(surrogates.SECTION), context.result(kernel.SECTION)
    verdict = judge(gather(context, None if decomposed is None else decomposed.centred_alignment))
    best, explained = (None, None) if rated is None else (rated.best, rated.explained)
    target = "" if best is None else best.target
    trust = page_trust(explained, len(context.y_test))
    return Finding(
        Summary(
            verdict=verdict.word,
            score=verdict.score,
            why=verdict.why,
            evidence=verdict.evidence,
            network_accuracy=accuracy(context.network_logits, context.y_test),
            surrogate_accuracy={}
            if rated is None
            else {row.kernel: row.accuracy for row in rated.table if row.target == target},
            best_kernel="" if best is None else best.kernel,
            best_target=target,
            trust=trust.word,
            trust_why=trust.why,
            wrong=int((context.network_logits.argmax(1) != context.y_test).sum()),
            agreement_wrong=math.nan if explained is None else explained.agreement_wrong,
        ),
        verdict.confidence,
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
