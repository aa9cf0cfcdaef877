"""Surrogates of a regression: how well a kernel machine on each kernel reproduces the network's outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from ntkscope.machines import KernelMachine
from ntkscope.measures.regression import output_fidelity, r_squared
from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.sections.surrogates import SPANNING, spans
from ntkscope.xray.task import REGRESSION
from ntkscope.xray.workload import Workload

TARGETS = ("outputs", "targets")  # the network's own outputs, and the training targets


@dataclass(frozen=True)
class OfOutput(Result):
    """One output of a surrogate beside the network's; `_low` and `_high` are 95 % intervals, `rmse` is in its own unit."""

    output: int
    r2: float
    r2_low: float
    r2_high: float
    rmse: float
    tau: float
    tau_low: float
    tau_high: float


@dataclass(frozen=True)
class OutputRow(Result):
    """The surrogate on one kernel, fitted to the network's "outputs" or to the training "targets".

    `r2`, `tau`: of the network's outputs for the test items, the mean over outputs; `worst_…`: of the output where it is
    smallest. `r2_targets`: of the targets themselves. `trivial`: a fit of outputs on the conjugate kernel, or on one that is
    practically that kernel; outputs are affine in its features, so a good fit of them says nothing.
    """

    kernel: str
    target: str
    r2: float
    r2_low: float
    r2_high: float
    tau: float
    tau_low: float
    tau_high: float
    worst_r2: float
    worst_r2_low: float
    worst_tau_low: float
    r2_targets: float
    alpha: float
    trivial: bool
    seconds: float
    converged: bool
    outputs: tuple[OfOutput, ...]


@dataclass(frozen=True)
class OutputSurrogates(Result):
    """Two rows per kernel, the fit of outputs first, in the order of the plan; `network_r2`: of the targets, their mean."""

    table: tuple[OutputRow, ...]
    network_r2: float

    @property
    def best(self) -> OutputRow | None:
        """The most faithful row that is not trivial."""
        return most_faithful(self.table)

    @property
    def explained(self) -> OutputRow | None:
        """The most faithful fit of the network's outputs that is not trivial: what explanations are of."""
        return most_faithful(row for row in self.table if row.target == TARGETS[0])


def most_faithful(rows: Iterable[OutputRow]) -> OutputRow | None:
    """The row of largest R² of the network's outputs; trivial rows are left out, unless all are (a linear network)."""
    every = list(rows)
    proper = [row for row in every if not row.trivial] or every
    return max(proper, key=lambda row: -math.inf if math.isnan(row.r2) else row.r2, default=None)


def run(context: Context) -> Finding[OutputSurrogates]:
    table = tuple(_row(context, name, target) for name in context.kernels for target in TARGETS)
    own = r_squared(context.network_outputs, context.targets_test)
    found = OutputSurrogates(table, _mean(own.tolist()))
    return Finding(found, _confidence(found, len(context.test)))


def _confidence(found: OutputSurrogates, items: int) -> str:
    best = found.best
    assert best is not None
    said = (
        f"Intervals are 95 % over the {items:,} test items; they say nothing about other training runs. The most faithful is"
        f" {best.kernel}, fitted to the {_fitted_to(best)}"
    )
    said += f": R² {best.r2:.3f} of the network's outputs." if not math.isnan(best.r2) else "."
    trivial = [row.kernel for row in found.table if row.trivial]
    if trivial:
        said += (
            f" That outputs can be fitted on {', '.join(trivial)} says nothing: they are linear in the last layer's features,"
            " which is what this kernel compares."
        )
    stopped = [f"{row.kernel} ({row.target})" for row in found.table if not row.converged]
    if stopped:
        said += f" The fits on {', '.join(stopped)} stopped before their optimum."
    return said


def _fitted_to(row: OutputRow) -> str:
    return "network's outputs" if row.target == TARGETS[0] else "training targets"


def _row(context: Context, name: str, target: str) -> OutputRow:
    machine, made = context.machine(name, target), context.machine_logits(name, target)
    trivial = False
    if target == TARGETS[0]:
        last = context.pair(SPANNING) if SPANNING in context.kernels else None
        trivial = name == SPANNING or (last is not None and spans(context.pair(name), last))
    return rated(machine, made, context.network_outputs, context.targets_test, trivial=trivial, seed=context.seed)


def rated(
    machine: KernelMachine,
    made: Float64[np.ndarray, "m d"],
    network: Float64[np.ndarray, "m d"],
    targets: Float64[np.ndarray, "m d"],
    *,
    trivial: bool,
    seed: int = 0,
) -> OutputRow:
    """A machine's row of the table, from its outputs, the network's and the targets of the test items."""
    found = tuple(OfOutput(k, **vars(one)) for k, one in enumerate(output_fidelity(made, network, seed=seed)))
    return OutputRow(
        kernel=machine.name,
        target=machine.target,
        r2=_mean([one.r2 for one in found]),
        r2_low=_mean([one.r2_low for one in found]),
        r2_high=_mean([one.r2_high for one in found]),
        tau=_mean([one.tau for one in found]),
        tau_low=_mean([one.tau_low for one in found]),
        tau_high=_mean([one.tau_high for one in found]),
        worst_r2=_least([one.r2 for one in found]),
        worst_r2_low=_least([one.r2_low for one in found]),
        worst_tau_low=_least([one.tau_low for one in found if not math.isnan(one.r2)]),
        r2_targets=_mean(r_squared(made, targets).tolist()),
        alpha=machine.alpha,
        trivial=trivial,
        seconds=machine.seconds,
        converged=machine.converged,
        outputs=found,
    )


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _least(values: list[float]) -> float:
    return min((value for value in values if not math.isnan(value)), default=math.nan)


def cost(work: Workload) -> float:
    return 2 * work.fits * work.distillation()


SECTION = register(
    Section(
        name="output_surrogates",
        place=2,
        title="Surrogates",
        meaning=(
            "Each kernel gets two kernel machines: one fitted to the network's own outputs for the training items, which says"
            " whether the network is that kernel machine, and one fitted to the training targets, which says what the kernel"
            " alone would have learned. Where a machine gives the network's outputs for test items (R² near 1) and ranks them"
            " alike (τ near 1), the network can be read as that machine. Outputs are linear in the raw conjugate kernel by"
            " construction, so a good fit of them there, or on a kernel that is practically the same, says nothing."
        ),
        formula=(
            "f(x) = W κ(x, X) + b, minimising Σ‖f - z‖² + λ tr(W K Wᵀ), z the network's outputs or the targets, λ of the"
            " smallest leave-one-out error, κ scaled to a mean diagonal of 1. R² of the network's outputs:"
            " 1 - Σ(z - f)²/Σ(z - mean z)², output by output. τ: Kendall's τ-b between both, output by output."
            " Over several outputs: the mean."
        ),
        run=run,
        result=OutputSurrogates,
        cost=cost,
        tasks=(REGRESSION,),
    )
)
