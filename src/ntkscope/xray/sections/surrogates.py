"""Surrogates: how well a kernel machine on each kernel reproduces the network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ntkscope.machines import rate
from ntkscope.measures.faithfulness import accuracy, probabilities
from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.workload import Workload


@dataclass(frozen=True)
class Row(Result):
    """The surrogate on one kernel; `_low` and `_high` are 95 % intervals, `more` are measures that have no field here."""

    kernel: str
    tau: float
    tau_low: float
    tau_high: float
    tad: float
    tad_low: float
    tad_high: float
    agreement: float
    agreement_low: float
    agreement_high: float
    tau_literal: float
    ties: int
    r2: float
    pearson: float
    total_variation: float
    accuracy: float
    seconds: float
    converged: bool
    more: Mapping[str, float] = field(default_factory=dict, metadata={"optional": True})


@dataclass(frozen=True)
class Surrogates(Result):
    """One row per kernel, in the order of the plan."""

    table: tuple[Row, ...]
    network_accuracy: float

    @property
    def best(self) -> Row | None:
        """The most faithful row, by τ."""
        return max(self.table, key=lambda row: -2.0 if math.isnan(row.tau) else row.tau, default=None)


def run(context: Context) -> Finding[Surrogates]:
    network, y = context.network_logits, context.y_test
    rows = np.arange(len(y))
    context.keep("surrogates.network_probability", probabilities(network)[rows, y])
    found = Surrogates(tuple(_row(context, name) for name in context.kernels), accuracy(network, y))
    best, stopped = found.best, [row.kernel for row in found.table if not row.converged]
    assert best is not None
    confidence = (
        f"Intervals are 95 % over the {len(y):,} test items; they say nothing about other training runs."
        f" The most faithful is {best.kernel}, τ between {best.tau_low:.2f} and {best.tau_high:.2f}."
    )
    if stopped:
        confidence += f" The fits on {', '.join(stopped)} stopped before their optimum."
    return Finding(found, confidence)


def _row(context: Context, name: str) -> Row:
    y = context.y_test
    machine, logits = context.machine(name), context.machine_logits(name)
    context.keep(f"surrogates.probability.{name}", probabilities(logits)[np.arange(len(y)), y])
    rating = rate(logits, context.network_logits, y, seed=context.seed)
    found, ends = rating.figures, rating.figures.intervals
    return Row(
        kernel=name,
        tau=found.tau,
        tau_low=ends["tau"][0],
        tau_high=ends["tau"][1],
        tad=found.tad,
        tad_low=ends["tad"][0],
        tad_high=ends["tad"][1],
        agreement=found.agreement,
        agreement_low=ends["agreement"][0],
        agreement_high=ends["agreement"][1],
        tau_literal=found.tau_literal,
        ties=found.ties,
        r2=found.r2,
        pearson=found.pearson,
        total_variation=found.total_variation,
        accuracy=found.surrogate_accuracy,
        seconds=machine.seconds,
        converged=machine.converged,
        more=rating.more,
    )


def cost(work: Workload) -> float:
    return work.fits * work.fit()


SECTION = register(
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
        result=Surrogates,
        cost=cost,
    )
)
