"""Surrogates: how well a kernel machine on each kernel reproduces the network, fitted to its outputs and to the labels."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float64, Int64

from ntkscope.core import NtkscopeError, NumericalError
from ntkscope.data.subsets import stratified
from ntkscope.machines import KernelMachine, KernelPair, rate
from ntkscope.machines.computing import names_of
from ntkscope.measures.alignment import centred_alignment
from ntkscope.measures.faithfulness import accuracy, probabilities
from ntkscope.measures.regression import OutputFidelity, output_fidelity, r_squared
from ntkscope.xray.context import Context, fit_name
from ntkscope.xray.registry import Finding, ForRegression, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.task import CLASSIFICATION, REGRESSION
from ntkscope.xray.workload import Workload

SPANNING = "ck"  # the network's logits are an affine function of this kernel's own features
COMPARED = 200  # items on which kernels are compared with the conjugate kernel where that was not computed
SAME = 0.99  # centred alignment with it from which another kernel is the same thing: 1.000 for the pseudo-NTK of a ResNet-20
RANGED = ("tau", "tad", "agreement", "agreement_wrong")  # figures with an interval in a row
OWN = (CLASSIFICATION.outputs, REGRESSION.outputs)  # targets of fits of the network itself
FITTED = {
    "logits": "network's logits",
    "labels": "training labels",
    "outputs": "network's outputs",
    "targets": "training targets",
}


@dataclass(frozen=True)
class Row(Result):
    """The surrogate on one kernel; `_low` and `_high` are 95 % intervals, `more` are measures that have no field here.

    `target`: "logits" for a fit of the network's own logits, "labels" for one of the training labels. `wrong`: how many test
    items the network gets wrong, `agreement_wrong` the share of these on which both predict the same class. `alpha`: the
    strength of the ridge. `trivial`: a fit of logits on the conjugate kernel, or on one that is practically that kernel
    (`spans`); the network's logits are affine in its features, so a good fit of them says nothing.
    """

    kernel: str
    target: str
    tau: float
    tau_low: float
    tau_high: float
    tad: float
    tad_low: float
    tad_high: float
    agreement: float
    agreement_low: float
    agreement_high: float
    wrong: int
    agreement_wrong: float
    agreement_wrong_low: float
    agreement_wrong_high: float
    tau_literal: float
    ties: int
    r2: float
    r2_logits: float
    pearson: float
    total_variation: float
    accuracy: float
    alpha: float
    trivial: bool
    seconds: float
    converged: bool
    more: Mapping[str, float] = field(default_factory=dict, metadata={"optional": True})

    @property
    def in_short(self) -> list[str]:
        """Its figures for a terminal."""
        errors = f"{100 * self.agreement_wrong:.1f} %" if self.wrong else "-"
        return [f"{100 * self.accuracy:.2f} %", f"{100 * self.agreement:.2f} %", errors, f"{self.tau:.3f}"]

    @property
    def said(self) -> str:
        """How faithful it is, as the end of a sentence."""
        low, high = f"{self.tau_low:.2f}", f"{self.tau_high:.2f}"
        scores = (
            f": τ {f'about {low}' if low == high else f'between {low} and {high}'}" if not math.isnan(self.tau) else ""
        )
        if not self.wrong:
            return f"{scores}; the network has no errors here to compare on."
        return f"{scores}, and the network's class on {100 * self.agreement_wrong:.0f} % of its {self.wrong:,} errors."


@dataclass(frozen=True)
class OfOutput(OutputFidelity, Result):
    """One output of a surrogate beside the network's; `_low` and `_high` are 95 % intervals, `rmse` is in its own unit."""

    output: int


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

    @property
    def in_short(self) -> list[str]:
        """Its figures for a terminal."""
        return [f"{value:.3f}" for value in (self.r2, self.tau, self.r2_targets)]

    @property
    def said(self) -> str:
        """How faithful it is, as the end of a sentence."""
        return f": R² {self.r2:.3f} of the network's outputs." if not math.isnan(self.r2) else "."


@dataclass(frozen=True)
class Ratings(Result):
    """Two rows per kernel, the fit of the network's own outputs first, in the order of the plan."""

    HEADS: ClassVar[tuple[str, ...]]
    table: tuple[Row, ...] | tuple[OutputRow, ...]

    @property
    def best(self) -> Row | OutputRow | None:
        """The most faithful row that is not trivial."""
        return most_faithful(self.table)

    @property
    def explained(self) -> Row | OutputRow | None:
        """The most faithful fit of the network's own outputs that is not trivial: what explanations are of."""
        return most_faithful([row for row in self.table if row.target in OWN])

    def in_short(self) -> list[str]:
        """The table for a terminal."""
        rows = [self.HEADS, *([row.kernel, row.target, *row.in_short] for row in self.table)]
        return [" ".join([f"{cells[0]:>12}", *(f"{cell:>10}" for cell in cells[1:])]) for cells in rows]


@dataclass(frozen=True)
class Surrogates(Ratings):
    """Of a classifier; `network_accuracy`: on the test items."""

    HEADS = ("surrogate", "fitted to", "accuracy", "agreement", "on errors", "Kendall τ")
    table: tuple[Row, ...]
    network_accuracy: float


@dataclass(frozen=True)
class OutputSurrogates(Ratings):
    """Of a regression; `network_r2`: of the targets, their mean."""

    HEADS = ("surrogate", "fitted to", "R²", "Kendall τ", "R² targets")
    table: tuple[OutputRow, ...]
    network_r2: float


def most_faithful(rows: Sequence[Row | OutputRow]) -> Row | OutputRow | None:
    """The row of a regression with the largest R² of the network's outputs; of a classifier, of the rows that may agree with
    the network's errors as often as the best one does, the one of largest τ.

    A few errors say little: a row whose interval reaches the highest agreement does not count as worse. Trivial rows are left
    out, unless all are (a linear network).
    """
    proper = [row for row in rows if not row.trivial] or list(rows)
    outputs = [row for row in proper if isinstance(row, OutputRow)]
    if outputs:
        return max(outputs, key=lambda row: -math.inf if math.isnan(row.r2) else row.r2)
    classes = [row for row in proper if isinstance(row, Row)]
    highest = max((row.agreement_wrong for row in classes if not math.isnan(row.agreement_wrong)), default=0.0)
    near = [row for row in classes if row.agreement_wrong_high >= highest]
    return max(near, key=lambda row: (_known(row.tau), _known(row.agreement)), default=None)


def _known(value: float) -> float:
    return -2.0 if math.isnan(value) else value


def run(context: Context) -> Finding[Ratings]:
    network, y = context.network_outputs, context.labels_test
    if context.task is CLASSIFICATION:
        context.keep("surrogates.network_probability", probabilities(network)[np.arange(len(y)), y])
    table: Any = ()
    for computed in context.plan.kernels:
        table += context.while_time_lasts(computed, partial(_rows, context, computed)) or ()
    trivial = _trivial(context, {row.kernel for row in table})
    table = tuple(replace(row, trivial=row.target == context.task.outputs and row.kernel in trivial) for row in table)
    found: Ratings
    if context.task is CLASSIFICATION:
        found = Surrogates(table, accuracy(network, y))
    else:
        found = OutputSurrogates(table, mean_known(r_squared(network, y).tolist()))
    return Finding(found, _confidence(found, context))


def _confidence(found: Ratings, context: Context) -> str:
    table, best = found.table, found.best
    assert best is not None
    said = (
        f"Intervals are 95 % over the {len(context.test):,} test items; they say nothing about other training runs."
        f" The most faithful is {best.kernel}, fitted to the {FITTED[best.target]}{best.said}"
    )
    trivial = [row for row in table if row.trivial]
    if trivial:
        these = "this kernel compares" if len(trivial) == 1 else "these kernels compare"
        said += (
            f" That {trivial[0].target} can be fitted on {', '.join(row.kernel for row in trivial)} says nothing: they are"
            f" linear in the last layer's features, which {these}."
        )
    stopped = [f"{row.kernel} ({row.target})" for row in table if not row.converged]
    if stopped:
        said += f" The fits on {', '.join(stopped)} stopped before their optimum."
    edges = {
        row.kernel: context.machine(row.kernel, row.target).edge
        for row in table
        if not row.trivial and row.target == CLASSIFICATION.outputs
    }
    for edge in ("largest", "smallest"):
        ends = [kernel for kernel, reached in edges.items() if reached == edge]
        if ends:
            said += f" The ridge of {', '.join(ends)} is the {edge} of those tried."
    return said


def _rows(context: Context, computed: str) -> tuple[Any, ...]:
    """A row for each kernel that this computed one gives, and each fit of it."""
    return tuple(_row(context, name, target) for name in names_of([computed]) for target in context.task.fits)


def _row(context: Context, name: str, target: str) -> Row | OutputRow:
    y = context.labels_test
    machine, made = context.machine(name, target), context.machine_logits(name, target)
    if context.task is CLASSIFICATION:
        context.keep(f"surrogates.probability.{fit_name(name, target)}", probabilities(made)[np.arange(len(y)), y])
    rating = rated if context.task is CLASSIFICATION else rated_outputs
    return rating(machine, made, context.network_outputs, y, trivial=False, seed=context.seed)


def _trivial(context: Context, names: Collection[str]) -> set[str]:
    """The kernels in whose features the network's outputs are linear; where there is no conjugate kernel to compare them with,
    judged on some items."""
    if SPANNING in context.kernels:
        last = context.pair(SPANNING)
        return {name for name in names if name == SPANNING or spans(context.pair(name), last)}
    rows = stratified(context.train.strata, COMPARED, context.seed, "xray", "spanning")
    try:
        few = context.pairs.compute(SPANNING, context.model, context.train.take(torch.from_numpy(rows)).x)
    except NtkscopeError:  # a network without one last layer
        return set()
    last = KernelPair(SPANNING, few, few)
    return {name for name in names if spans(context.pair(name).take(rows), last)}


def spans(pair: KernelPair, last: KernelPair) -> bool:
    """Whether a kernel is practically the conjugate kernel `last`, by their centred alignment on the training items.

    Cross-entropy does not see the sum of the logits, so that the rest of a trained network hardly reacts to it: the pseudo-NTK,
    the kernel of that sum, is left with the readout's share, which is the conjugate kernel.
    """
    try:
        return centred_alignment(pair.train, last.train) >= SAME
    except NumericalError:  # one of them is constant
        return False


def rated(
    machine: KernelMachine,
    logits: Float64[np.ndarray, "m c"],
    network: Float64[np.ndarray, "m c"],
    y: Int64[np.ndarray, " m"],
    *,
    trivial: bool,
    seed: int = 0,
) -> Row:
    """A machine's row of the table, from its logits, the network's and the labels of the test items."""
    rating = rate(logits, network, y, seed=seed)
    found, ends = rating.figures, rating.figures.intervals
    own = {one.name: getattr(found, one.name) for one in fields(Row) if hasattr(found, one.name)}
    sides: dict[str, Any] = {f"{name}_{side}": end for name in RANGED for side, end in zip(("low", "high"), ends[name])}
    return Row(
        kernel=machine.name,
        target=machine.target,
        **own,
        **sides,
        accuracy=found.surrogate_accuracy,
        alpha=machine.alpha,
        trivial=trivial,
        seconds=machine.seconds,
        converged=machine.converged,
        more=rating.more,
    )


def rated_outputs(
    machine: KernelMachine,
    made: Float64[np.ndarray, "m d"],
    network: Float64[np.ndarray, "m d"],
    targets: Float64[np.ndarray, "m d"],
    *,
    trivial: bool,
    seed: int = 0,
) -> OutputRow:
    """A machine's row of the table, from its outputs, the network's and the targets of the test items."""
    found = tuple(OfOutput(**vars(one), output=k) for k, one in enumerate(output_fidelity(made, network, seed=seed)))
    averaged = ("r2", "r2_low", "r2_high", "tau", "tau_low", "tau_high")
    return OutputRow(
        kernel=machine.name,
        target=machine.target,
        **{name: mean_known([getattr(one, name) for one in found]) for name in averaged},
        worst_r2=_least([one.r2 for one in found]),
        worst_r2_low=_least([one.r2_low for one in found]),
        worst_tau_low=_least([one.tau_low for one in found if not math.isnan(one.r2)]),
        r2_targets=mean_known(r_squared(made, targets).tolist()),
        alpha=machine.alpha,
        trivial=trivial,
        seconds=machine.seconds,
        converged=machine.converged,
        outputs=found,
    )


def mean_known(values: list[float]) -> float:
    """The mean of those that are not NaN; NaN if all are."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _least(values: list[float]) -> float:
    return min((value for value in values if not math.isnan(value)), default=math.nan)


def cost(work: Workload) -> float:
    return work.fits * (work.fit() + work.distillation() + 2 * work.rating())


def cost_of_outputs(work: Workload) -> float:
    return 2 * work.fits * (work.distillation() + work.rating())


SECTION: Section[Ratings] = register(
    Section(
        name="surrogates",
        place=2,
        title="Surrogates",
        meaning=(
            "Each kernel gets two kernel machines: one fitted to the network's own logits on the training items, which says"
            " whether the network is that kernel machine, and one fitted to the training labels, which says what the kernel"
            " alone would have learned. Where a machine ranks the test items as the network does (τ near 1) and gives its"
            " answer also where it is wrong, the network can be read as that machine. Logits are linear in the raw conjugate"
            " kernel by construction, so a good fit of them there, or on a kernel that is practically the same, says nothing."
        ),
        formula=(
            "Logits: f(x) = W κ(x, X) + b, minimising Σ‖f - z‖² + λ tr(W K Wᵀ), z the network's logits centred over classes, λ"
            " of the smallest leave-one-out error. Labels: minimising mean cross-entropy + α/2 ‖W‖², α = 1e-4. κ scaled to a"
            " mean diagonal of 1. τ: Kendall's τ-b between log p_y/(1-p_y) of network and surrogate. TAD: accuracy of the"
            " surrogate minus that of the network, in points. R²: of the network's correct-class probability after a monotone"
            " map. R² of logits: 1 - Σ‖z - f‖²/Σ‖z - mean z‖². Agreement on errors: Wilson's interval."
        ),
        run=run,
        result=Surrogates,
        essential=True,
        cost=cost,
        regression=ForRegression(
            meaning=(
                "Each kernel gets two kernel machines: one fitted to the network's own outputs for the training items, which"
                " says whether the network is that kernel machine, and one fitted to the training targets, which says what"
                " the kernel alone would have learned. Where a machine gives the network's outputs for test items (R² near 1)"
                " and ranks them alike (τ near 1), the network can be read as that machine. Outputs are linear in the raw"
                " conjugate kernel by construction, so a good fit of them there, or on a kernel that is practically the same,"
                " says nothing."
            ),
            formula=(
                "f(x) = W κ(x, X) + b, minimising Σ‖f - z‖² + λ tr(W K Wᵀ), z the network's outputs or the targets, λ of the"
                " smallest leave-one-out error, κ scaled to a mean diagonal of 1. R² of the network's outputs:"
                " 1 - Σ(z - f)²/Σ(z - mean z)², output by output. τ: Kendall's τ-b between both, output by output."
                " Over several outputs: the mean."
            ),
            result=OutputSurrogates,
            cost=cost_of_outputs,
        ),
    )
)
