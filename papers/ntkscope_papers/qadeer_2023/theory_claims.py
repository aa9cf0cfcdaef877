"""The conjugate-kernel paper's theory: every statement, and the measurement that decides it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ntkscope.core import Record
from ntkscope_papers.framework import Reading, claim
from ntkscope_papers.framework.results import rounded

TINY = 1 + 1e-12  # inequalities in floating point


def measured(record: Record, name: str) -> dict[str, Any]:
    """What was measured under a name, without its seconds."""
    return {key: value for key, value in record.metrics[name].items() if key != "seconds"}


def shown(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Some of the numbers of a measurement as a claim shows them, to four digits."""
    return {name: rounded(found[name], 4) for name in names or found}


def _near(values: Mapping[str, float], wanted: Callable[[int], float]) -> bool:
    return all(abs(value / wanted(int(tau)) - 1) <= 1e-9 for tau, value in values.items())


@claim(
    "conjugate-weighted-norms",
    "Eq. 8, 9, 31, 32",
    "trapezoid weights on nested equispaced grids",
    "weights sum to b - a; both forms of Eq. 32 agree to 1e-14",
)
def weighted_norms(config: Any, record: Record) -> Reading:
    found = measured(record, "weighted norms")
    note = "largest relative differences over random intervals, N up to 300"
    return Reading(shown(found), max(found.values()) <= 1e-14, note)


@claim(
    "conjugate-trapezoid-order",
    "Section 4.1",
    {"order": 2},
    "slope 1.9 to 2.1 for exp(3x); below 1e-12 for exp(sin 2πx) with N = 200",
)
def trapezoid_order(config: Any, record: Record) -> Reading:
    found = measured(record, "trapezoid order")
    holds = 1.9 <= found["order"] <= 2.1 and found["exp(sin 2πx), N = 200"] < 1e-12
    note = "against closed forms of the L² norms on [-1, 1]"
    return Reading(shown(found, "order", "exp(sin 2πx)", "exp(sin 2πx), N = 200"), holds, note)


@claim(
    "conjugate-softmax-difference",
    "Eq. 10, Remark 3.1",
    "softmax of two classes is the logistic function of the difference; kernels are those of the difference",
    "exact to 1e-12",
)
def softmax_difference(config: Any, record: Record) -> Reading:
    found = measured(record, "softmax")
    note = "the last layer of the difference has features φ and -φ, hence 2 (1 + z·z'); the CK is taken without the factor 2"
    return Reading(shown(found), max(found.values()) <= 1e-12, note)


@claim(
    "conjugate-cross-entropy-sign",
    "Eq. 11, 12",
    "the summed binary cross-entropy",
    "equals ln(1 + exp ∓ψ) of Eq. 23 to 1e-12",
)
def cross_entropy_sign(config: Any, record: Record) -> Reading:
    found = measured(record, "summed losses")
    holds = found["Eq. 11 against 23"] <= 1e-12 and found["without the bracket"] > 0.1
    note = "the minus sign is printed before the first term alone; it covers both (relative differences, the second as printed)"
    return Reading(shown(found, "Eq. 11 against 23", "without the bracket"), holds, note)


@claim(
    "conjugate-kernel-closed-form",
    "Eq. 13, 14",
    "solved by the pseudo-inverse of the weighted kernel matrix",
    "training residual of weighted least squares on the features, to 1e-8",
)
def kernel_closed_form(config: Any, record: Record) -> Reading:
    found = measured(record, "kernel machines")
    note = "Gaussian features, fewer and more than points; for networks the cut-off decides: see function-regression"
    return Reading(shown(found, "training residual"), found["training residual"] <= 1e-8, note)


@claim(
    "conjugate-projection-property",
    "Section 2, Section 4.3",
    "the kernel machine is the orthogonal projection on the span of the features",
    "residual orthogonal to every feature, Pythagoras (Eq. 41), both to 1e-10",
)
def projection_property(config: Any, record: Record) -> Reading:
    found = measured(record, "kernel machines")
    holds = max(found["orthogonality"], found["Pythagoras"]) <= 1e-10
    return Reading(shown(found, "orthogonality", "Pythagoras"), holds)


@claim(
    "conjugate-kernel-feature-equivalence",
    "Eq. 17-21",
    "kernel form and regression on the feature map give the same losses",
    "predictions agree to 1e-8",
)
def kernel_feature_equivalence(config: Any, record: Record) -> Reading:
    found = measured(record, "kernel machines")
    note = "also where features outnumber points: both are the solution of minimum norm"
    return Reading(shown(found, "predictions"), found["predictions"] <= 1e-8, note)


@claim("conjugate-range-identity", "Eq. 19", "range(AᵀA) = range(Aᵀ)", "equal ranks, projectors to 1e-10")
def range_identity(config: Any, record: Record) -> Reading:
    found = measured(record, "ranges")
    return Reading(shown(found), found["projectors"] <= 1e-10 and found["ranks agree"])


@claim(
    "conjugate-logistic-equivalence",
    "Eq. 15, 23, 24",
    "minimised kernel logistic loss equals that in feature space",
    "losses agree to 1e-6 at one ridge",
)
def logistic_equivalence(config: Any, record: Record) -> Reading:
    found = measured(record, "logistic forms")
    note = "ridge 1e-3 of αᵀHα and of ∣β∣²; the feature form by scikit-learn"
    return Reading(shown(found), found["losses"] <= 1e-6, note)


@claim("conjugate-ck-formula", "Eq. 28, 29", "CK = 1 + z·z'", "the last layer's block of the autograd NTK, to 1e-10")
def ck_formula(config: Any, record: Record) -> Reading:
    found = measured(record, "conjugate kernel")
    return Reading(shown(found, "CK against autograd"), found["CK against autograd"] <= 1e-10)


@claim(
    "conjugate-ntk-decomposition",
    "Eq. 30",
    "NTK = CK + E, each a kernel",
    "E is that of the other layers; least eigenvalue > -1e-9 trace",
)
def ntk_decomposition(config: Any, record: Record) -> Reading:
    found = measured(record, "conjugate kernel")
    holds = found["NTK - CK against E"] <= 1e-10 and found["least eigenvalue over the trace"] > -1e-9
    return Reading(shown(found, "NTK - CK against E", "least eigenvalue over the trace"), holds)


@claim(
    "conjugate-ck-cost",
    "Section 3",
    {"CK features": 129, "NTK features": 33_409},
    "counts exact; the NTK takes at least 3 times the CK's time",
)
def ck_cost(config: Any, record: Record) -> Reading:
    found = measured(record, "cost")
    holds = found["CK features"] == 129 and found["NTK features"] == 33_409 and found["NTK/CK"] >= 3
    return Reading(
        shown(found), holds, "2,401 nodes, float64, the best of three, processor time, certificates included"
    )


@claim(
    "conjugate-coarse-by-fine",
    "Eq. 33",
    {"constant": "√τ"},
    "holds for every function; attained by a spike at a training node",
)
def coarse_by_fine(config: Any, record: Record) -> Reading:
    found = measured(record, "coarse by fine")
    holds = (
        found["worst over √τ"] <= TINY
        and _near(found["attained by a spike"], math.sqrt)
        and found["printed equality off by"] > 1e-3
    )
    return Reading(shown(found), holds, "the step before it, printed as an equality with (M/N)‖g‖₁², is an inequality")


@claim(
    "conjugate-lemma-4-1",
    "Lemma 4.1, Eq. 34",
    {"constant": math.sqrt(2)},
    "never violated; the worst is √(2 - 1/τ), attained by a plateau around one node",
)
def lemma_4_1(config: Any, record: Record) -> Reading:
    found = measured(record, "monotone functions")
    holds = (
        found["checked"] > 0
        and found["worst over the sharp constant"] <= TINY
        and _near(found["attained by a plateau"], lambda tau: math.sqrt(2 - 1 / tau))
        and max(found["proof's second line over the norm, g = 1"].values()) < 1
    )
    note = (
        "the proof has Δy/2 for inner nodes where Δy is due (its second line misses part of ‖g‖₁²); the result stands"
    )
    return Reading(shown(found), holds, note)


@claim(
    "conjugate-norm-equivalence",
    "Eq. 36",
    "τ^(-1/2) ‖g‖₀ <= ‖g‖₁ <= √2 ‖g‖₀",
    "both sides on random piecewise monotone functions",
)
def norm_equivalence(config: Any, record: Record) -> Reading:
    found = measured(record, "monotone functions")
    holds = max(found["worst over the sharp constant"], found["worst over √τ from below"]) <= TINY
    note = "ratios to √(2 - 1/τ) < √2 and to √τ"
    return Reading(shown(found, "checked", "worst over the sharp constant", "worst over √τ from below"), holds, note)


@claim(
    "conjugate-lemma-4-2",
    "Lemma 4.2, Eq. 37",
    "‖g‖₁² <= 4 (‖g‖₀² + 2 (b-a)² L²/N²)",
    "printed on [-1, 1]; 4 (‖g‖₀² + (b-a)³ L²/N²) on every interval; the printed one fails on tents, b - a = 100, 200",
)
def lemma_4_2(config: Any, record: Record) -> Reading:
    found = measured(record, "lemma 4.2")
    holds = (
        max(found["worst on [-1, 1], printed"], found["worst on any interval, corrected"]) <= TINY
        and all(one["over corrected"] <= TINY for one in found["tents"].values())
        and [one["over printed"] > 1 for one in found["tents"].values()] == [False, False, True, True]
    )
    note = "summing the proof's cells gives (b-a)³; both agree at b - a = 2, the printed one is false beyond about 96"
    return Reading(shown(found), holds, note)


@claim(
    "conjugate-ntk-beats-ck-train",
    "Eq. 38",
    "the NTK machine's training error is never above the CK machine's",
    "least squares on the features of small networks",
)
def ntk_beats_ck_train(config: Any, record: Record) -> Reading:
    found = measured(record, "training order")
    return Reading(shown(found), found["NTK over CK"] <= 1 + 1e-9)


@claim(
    "conjugate-lemma-4-3", "Lemma 4.3, Eq. 39, 40", "‖P(f - f_CK)‖ <= β ‖f - f_CK‖", "random nested subspaces, to 1e-12"
)
def lemma_4_3(config: Any, record: Record) -> Reading:
    found = measured(record, "nested projections")
    return Reading(shown(found, "4.3", "trials"), found["4.3"] <= TINY, "the largest left side over its right side")


@claim(
    "conjugate-lemma-4-4",
    "Lemma 4.4",
    {"printed": "1/(1-β)", "sharper": "1/√(1-β²)"},
    "both constants on random nested subspaces",
)
def lemma_4_4(config: Any, record: Record) -> Reading:
    found = measured(record, "nested projections")
    holds = max(found["4.4"], found["4.4 with 1/√(1-β²)"]) <= 1 + 1e-9
    note = "Eq. 42 gives the sharper one; at β near 1 it is the smaller by 1/√(2(1-β))"
    return Reading(shown(found, "4.4", "4.4 with 1/√(1-β²)", "trials"), holds, note)


@claim(
    "conjugate-elementary-inequalities",
    "Eq. 43, 62",
    "(e+z)/(r+z) >= e/r for 0 < e <= r, z >= 0; ln(1+ρx) <= ρ ln(1+x) for ρ >= 1, x >= 0",
    "no violation beyond rounding",
)
def elementary_inequalities(config: Any, record: Record) -> Reading:
    found = measured(record, "elementary")
    note = "largest relative violation; Section 5.3 cites Eq. 43 where Eq. 62 is used"
    return Reading(shown(found), max(found["Eq. 43"], found["Eq. 62"]) <= 1e-14, note)


@claim(
    "conjugate-ntk-beats-ck-logistic-train",
    "Eq. 52, 53",
    "minimised training cross-entropy of the NTK machine is not above the CK machine's",
    "nested features, one ridge: the objective is never higher",
)
def ntk_beats_ck_logistic_train(config: Any, record: Record) -> Reading:
    found = measured(record, "nested logistic")
    holds = found["objective lower"] == found["runs"] > 0
    note = "with a ridge the ordered quantity is the objective; without one, separable classes have infimum 0"
    return Reading(shown(found, "runs", "objective lower", "loss lower"), holds, note)


@claim(
    "conjugate-train-loss-below-test",
    "Eq. 54",
    "summed training loss is at most the summed test loss",
    "always for sums; for means not",
)
def train_loss_below_test(config: Any, record: Record) -> Reading:
    found = measured(record, "summed losses")
    holds = found["sums above"] == 0 and found["means above"] > 0
    note = "times the training loss was above"
    return Reading(shown(found, "sums above", "means above"), holds, note)


@claim(
    "conjugate-lemma-5-1",
    "Lemma 5.1, Eq. 59",
    {"printed": "τ1 τ2", "safe": "(2τ1+1)(2τ2+1)"},
    "safe constant never violated; the printed one fails on peaks around training nodes",
)
def lemma_5_1(config: Any, record: Record) -> Reading:
    found = measured(record, "lemma 5.1")
    holds = (
        found["corner condition"]
        and found["checked"] > 0
        and max(found["worst ratio"], found["one peak"], found["lattice of peaks"]) <= found["safe"]
        and min(found["one peak"], found["lattice of peaks"]) > found["printed"]
    )
    return Reading(shown(found), holds, "a corner can dominate all test nodes of its four cells; τ = (2, 3)")


@claim(
    "conjugate-matching-property",
    "Section 5.2",
    "holds for both boundaries",
    "true for F1 and F2 on their grids, false for one label inside a cell",
)
def matching_property(config: Any, record: Record) -> Reading:
    found = measured(record, "matching")
    holds = found["F1"] and found["F2"] and not found["one label inside a cell"]
    return Reading(shown(found), holds)


@claim(
    "conjugate-lemma-5-2",
    "Lemma 5.2, Eq. 61",
    {"printed": "exp(hL) τ1 τ2", "safe": "exp(hL) (2τ1+1)(2τ2+1)"},
    "safe constant never violated; the printed one fails for a constant score with labels around one node",
)
def lemma_5_2(config: Any, record: Record) -> Reading:
    found = measured(record, "lemma 5.2")
    holds = (
        found["checked"] > 0
        and found["worst over safe"] <= TINY
        and found["its labels match"]
        and found["printed"] < found["constant score"] <= found["safe"]
    )
    return Reading(shown(found), holds, "the count of Lemma 5.1 again; L = 0 for the constant score")


@claim("conjugate-omega", "Eq. 63, 64", {"least": 1}, "ω >= 1 and l0_CK <= ω l0_NTK wherever Eq. 52 holds")
def omega(config: Any, record: Record) -> Reading:
    found = measured(record, "nested logistic")
    holds = found["ω >= 1 of these"] == found["Eq. 64 holds of these"] == found["loss lower"] > 0
    note = "nested random features with one ridge"
    return Reading(shown(found, "runs", "loss lower", "ω >= 1 of these", "Eq. 64 holds of these"), holds, note)


@claim(
    "conjugate-condition-squared",
    "Section 6",
    "the Gram matrix has the squared singular values of the features",
    "cond(H) = cond(Φ)² to 1e-6",
)
def condition_squared(config: Any, record: Record) -> Reading:
    found = measured(record, "kernel machines")
    return Reading(shown(found, "condition"), found["condition"] <= 1e-6)
