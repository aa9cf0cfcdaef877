"""Summary: where the network stands between lazy and rich, and how accurate it and its surrogates are."""

from __future__ import annotations

from ntkscope.measures.faithfulness import accuracy
from ntkscope.xray.context import Context
from ntkscope.xray.rates import Workload
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.verdict import gather, judge


def run(context: Context) -> Finding:
    y = context.y_test
    found = context.record.metrics.get("section:surrogates", {})
    table = found.get("data", {}).get("table", [])
    best = max(table, key=lambda row: row["tau"] if row["tau"] == row["tau"] else -2.0, default=None)
    verdict = judge(gather(context))
    return Finding(
        {
            "verdict": verdict.word,
            "score": verdict.score,
            "why": verdict.why,
            "evidence": [item.to_json() for item in verdict.evidence],
            "network_accuracy": accuracy(context.network_logits, y),
            "surrogate_accuracy": {row["kernel"]: row["accuracy"] for row in table},
            "best_kernel": best["kernel"] if best else "",
        },
        verdict.confidence,
    )


def cost(work: Workload) -> float:
    return 20 * work.rates.forward * (work.initial_train + work.initial_test)


register(
    Section(
        name="summary",
        place=1,
        title="Summary",
        meaning=(
            "A lazy network stays where its first weights put it and only weighs the features it started with: its kernel at"
            " initialisation tells everything. A rich one made features of its own, and its kernel moved with them."
        ),
        formula=(
            "Linearisation: ‖f₁ - f₀ - J₀(w₁ - w₀)‖ / ‖f₁ - f₀‖ over test items; 0 when training never left the tangent plane"
            " at the start. Kernel: ‖H(K₁ - K₀)H‖ / ‖HK₀H‖ of the trace-NTK, H centring, and 1 - CKA(K₀, K₁)."
        ),
        run=run,
        after=("surrogates", "kernel"),
        cost=cost,
    )
)
