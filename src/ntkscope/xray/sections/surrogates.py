"""Surrogates: how well a kernel machine on each kernel reproduces the network, fitted to its logits and to the labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.core import NumericalError
from ntkscope.machines import KernelMachine, KernelPair, rate
from ntkscope.measures.alignment import centred_alignment
from ntkscope.measures.faithfulness import accuracy, probabilities
from ntkscope.xray.context import TARGETS, Context, fit_name
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.task import CLASSIFICATION
from ntkscope.xray.workload import Workload

SPANNING = "ck"  # the network's logits are an affine function of this kernel's own features
SAME = 0.99  # centred alignment with it from which another kernel is the same thing: 1.000 for the pseudo-NTK of a ResNet-20


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


@dataclass(frozen=True)
class Surrogates(Result):
    """Two rows per kernel, the fit of logits first, in the order of the plan."""

    table: tuple[Row, ...]
    network_accuracy: float

    @property
    def best(self) -> Row | None:
        """The most faithful row that is not trivial."""
        return most_faithful(self.table)

    @property
    def explained(self) -> Row | None:
        """The most faithful fit of the network's logits that is not trivial: what explanations are of."""
        return most_faithful(row for row in self.table if row.target == "logits")


def most_faithful(rows: Iterable[Row]) -> Row | None:
    """Of the rows that may agree with the network's errors as often as the best one does, the one of largest τ.

    A few errors say little: a row whose interval reaches the highest agreement does not count as worse. Trivial rows are left
    out, unless all are (a linear network).
    """
    every = list(rows)
    proper = [row for row in every if not row.trivial] or every
    highest = max((row.agreement_wrong for row in proper if not math.isnan(row.agreement_wrong)), default=0.0)
    near = [row for row in proper if row.agreement_wrong_high >= highest]
    return max(near, key=lambda row: (_known(row.tau), _known(row.agreement)), default=None)


def _known(value: float) -> float:
    return -2.0 if math.isnan(value) else value


def run(context: Context) -> Finding[Surrogates]:
    network, y = context.network_logits, context.y_test
    rows = np.arange(len(y))
    context.keep("surrogates.network_probability", probabilities(network)[rows, y])
    table = tuple(_row(context, name, target) for name in context.kernels for target in TARGETS)
    found = Surrogates(table, accuracy(network, y))
    return Finding(found, _confidence(found, context))


def _confidence(found: Surrogates, context: Context) -> str:
    best, items = found.best, len(context.y_test)
    assert best is not None
    said = (
        f"Intervals are 95 % over the {items:,} test items; they say nothing about other training runs."
        f" The most faithful is {best.kernel}, fitted to the {_fitted_to(best)}"
    )
    said += f": τ between {best.tau_low:.2f} and {best.tau_high:.2f}" if not math.isnan(best.tau) else ""
    if best.wrong:
        said += f", and the network's class on {100 * best.agreement_wrong:.0f} % of its {best.wrong:,} errors."
    else:
        said += "; the network has no errors here to compare on."
    trivial = [row.kernel for row in found.table if row.trivial]
    if trivial:
        said += (
            f" That logits can be fitted on {', '.join(trivial)} says nothing: they are linear in the last layer's features,"
            " which is what this kernel compares."
        )
    stopped = [f"{row.kernel} ({row.target})" for row in found.table if not row.converged]
    if stopped:
        said += f" The fits on {', '.join(stopped)} stopped before their optimum."
    for edge in ("largest", "smallest"):
        ends = [row.kernel for row in found.table if not row.trivial and _edge(context, row) == edge]
        if ends:
            said += f" The ridge of {', '.join(ends)} is the {edge} of those tried."
    return said


def _fitted_to(row: Row) -> str:
    return "network's logits" if row.target == "logits" else "training labels"


def _edge(context: Context, row: Row) -> str:
    return context.machine(row.kernel, row.target).edge if row.target == "logits" else ""


def _row(context: Context, name: str, target: str) -> Row:
    y = context.y_test
    machine, logits = context.machine(name, target), context.machine_logits(name, target)
    rows = np.arange(len(y))
    context.keep(f"surrogates.probability.{fit_name(name, target)}", probabilities(logits)[rows, y])
    trivial = False
    if target == "logits":
        last = context.pair(SPANNING) if SPANNING in context.kernels else None
        trivial = name == SPANNING or (last is not None and spans(context.pair(name), last))
    return rated(machine, logits, context.network_logits, y, trivial=trivial, seed=context.seed)


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
    return Row(
        kernel=machine.name,
        target=machine.target,
        tau=found.tau,
        tau_low=ends["tau"][0],
        tau_high=ends["tau"][1],
        tad=found.tad,
        tad_low=ends["tad"][0],
        tad_high=ends["tad"][1],
        agreement=found.agreement,
        agreement_low=ends["agreement"][0],
        agreement_high=ends["agreement"][1],
        wrong=found.wrong,
        agreement_wrong=found.agreement_wrong,
        agreement_wrong_low=ends["agreement_wrong"][0],
        agreement_wrong_high=ends["agreement_wrong"][1],
        tau_literal=found.tau_literal,
        ties=found.ties,
        r2=found.r2,
        r2_logits=found.r2_logits,
        pearson=found.pearson,
        total_variation=found.total_variation,
        accuracy=found.surrogate_accuracy,
        alpha=machine.alpha,
        trivial=trivial,
        seconds=machine.seconds,
        converged=machine.converged,
        more=rating.more,
    )


def cost(work: Workload) -> float:
    return work.fits * (work.fit() + work.distillation())


SECTION = register(
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
        cost=cost,
        tasks=(CLASSIFICATION,),
    )
)
