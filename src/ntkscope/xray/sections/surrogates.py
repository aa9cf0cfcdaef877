"""Surrogates: how well a kernel machine on each kernel says what the network says."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.measures.faithfulness import accuracy, faithfulness, probabilities
from ntkscope.xray.context import Context
from ntkscope.xray.rates import Workload
from ntkscope.xray.registry import Finding, Section, register


def run(context: Context) -> Finding:
    network, y = context.network_logits, context.y_test
    rows = np.arange(len(y))
    context.keep("surrogates.network_probability", probabilities(network)[rows, y])
    table = [_row(context, name) for name in context.kernels]
    best = max(table, key=lambda row: -2.0 if np.isnan(row["tau"]) else row["tau"])
    stopped = [row["kernel"] for row in table if not row["converged"]]
    confidence = (
        f"Intervals are 95 % over the {len(y):,} test items; they say nothing of other training runs."
        f" The most faithful is {best['kernel']}, τ between {best['tau_low']:.2f} and {best['tau_high']:.2f}."
    )
    if stopped:
        confidence += f" The fits on {', '.join(stopped)} stopped before their optimum."
    return Finding({"table": table, "network_accuracy": accuracy(network, y)}, confidence)


def _row(context: Context, name: str) -> dict[str, Any]:
    y = context.y_test
    fitted, logits = context.surrogate(name), context.surrogate_logits(name)
    context.keep(f"surrogates.probability.{name}", probabilities(logits)[np.arange(len(y)), y])
    found = faithfulness(logits, context.network_logits, y, seed=context.seed)
    row: dict[str, Any] = {"kernel": name}
    for figure in ("tau", "tad", "agreement"):
        low, high = found.intervals[figure]
        row |= {figure: getattr(found, figure), f"{figure}_low": low, f"{figure}_high": high}
    return row | {
        "tau_literal": found.tau_literal,
        "ties": found.ties,
        "r2": found.r2,
        "pearson": found.pearson,
        "total_variation": found.total_variation,
        "accuracy": found.surrogate_accuracy,
        "seconds": fitted.seconds,
        "converged": fitted.converged,
    }


def cost(work: Workload) -> float:
    return work.fit()


register(
    Section(
        name="surrogates",
        place=2,
        title="Surrogates",
        meaning=(
            "Each kernel gets the best linear classifier it allows, fitted to the training labels. Where that classifier"
            " ranks the test items as the network does (τ near 1) and is as accurate (TAD near 0), the network can be read"
            " as that kernel machine."
        ),
        formula=(
            "logits(x) = W κ(x, X) + b, minimising mean cross-entropy + α/2 ‖W‖², α = 1e-4, κ scaled to a mean diagonal of 1."
            " τ: Kendall's τ-b between log p_y/(1-p_y) of network and surrogate. TAD: accuracy of the surrogate minus that"
            " of the network, in points. R²: of the network's correct-class probability after a monotone map."
        ),
        run=run,
        cost=cost,
    )
)
