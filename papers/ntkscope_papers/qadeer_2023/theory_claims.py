"""The conjugate-kernel paper's theory: every statement, and the measurement that decides it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ntkscope_papers.framework.claims import decided

TINY = 1 + 1e-12  # inequalities in floating point


def _near(values: Mapping[str, float], wanted: Callable[[int], float]) -> bool:
    return all(abs(value / wanted(int(tau)) - 1) <= 1e-9 for tau, value in values.items())


CLAIMS = (
    decided(
        "conjugate-weighted-norms",
        "Eq. 8, 9, 31, 32",
        "trapezoid weights on nested equispaced grids",
        "weights sum to b - a; both forms of Eq. 32 agree to 1e-14",
        "weighted norms",
        lambda f: max(f.values()) <= 1e-14,
        "largest relative differences over random intervals, N up to 300",
    ),
    decided(
        "conjugate-trapezoid-order",
        "Section 4.1",
        {"order": 2},
        "slope 1.9 to 2.1 for exp(3x); below 1e-12 for exp(sin 2πx) with N = 200",
        "trapezoid order",
        lambda f: 1.9 <= f["order"] <= 2.1 and f["exp(sin 2πx), N = 200"] < 1e-12,
        "against closed forms of the L² norms on [-1, 1]",
        ("order", "exp(sin 2πx)", "exp(sin 2πx), N = 200"),
    ),
    decided(
        "conjugate-softmax-difference",
        "Eq. 10, Remark 3.1",
        "softmax of two classes is the logistic function of the difference; kernels are those of the difference",
        "exact to 1e-12",
        "softmax",
        lambda f: max(f.values()) <= 1e-12,
        "the last layer of the difference has features φ and -φ, hence 2 (1 + z·z'); the CK is taken without the factor 2",
    ),
    decided(
        "conjugate-cross-entropy-sign",
        "Eq. 11, 12",
        "the summed binary cross-entropy",
        "equals ln(1 + exp ∓ψ) of Eq. 23 to 1e-12",
        "summed losses",
        lambda f: f["Eq. 11 against 23"] <= 1e-12 and f["without the bracket"] > 0.1,
        "the minus sign is printed before the first term alone; it covers both (relative differences, the second as printed)",
        ("Eq. 11 against 23", "without the bracket"),
    ),
    decided(
        "conjugate-kernel-closed-form",
        "Eq. 13, 14",
        "solved by the pseudo-inverse of the weighted kernel matrix",
        "training residual of weighted least squares on the features, to 1e-8",
        "kernel machines",
        lambda f: f["training residual"] <= 1e-8,
        "Gaussian features, fewer and more than points; for networks the cut-off decides: see function-regression",
        ("training residual",),
    ),
    decided(
        "conjugate-projection-property",
        "Section 2, Section 4.3",
        "the kernel machine is the orthogonal projection on the span of the features",
        "residual orthogonal to every feature, Pythagoras (Eq. 41), both to 1e-10",
        "kernel machines",
        lambda f: max(f["orthogonality"], f["Pythagoras"]) <= 1e-10,
        shown=("orthogonality", "Pythagoras"),
    ),
    decided(
        "conjugate-kernel-feature-equivalence",
        "Eq. 17-21",
        "kernel form and regression on the feature map give the same losses",
        "predictions agree to 1e-8",
        "kernel machines",
        lambda f: f["predictions"] <= 1e-8,
        "also where features outnumber points: both are the solution of minimum norm",
        ("predictions",),
    ),
    decided(
        "conjugate-range-identity",
        "Eq. 19",
        "range(AᵀA) = range(Aᵀ)",
        "equal ranks, projectors to 1e-10",
        "ranges",
        lambda f: f["projectors"] <= 1e-10 and f["ranks agree"],
    ),
    decided(
        "conjugate-logistic-equivalence",
        "Eq. 15, 23, 24",
        "minimised kernel logistic loss equals that in feature space",
        "losses agree to 1e-6 at one ridge",
        "logistic forms",
        lambda f: f["losses"] <= 1e-6,
        "ridge 1e-3 of αᵀHα and of ∣β∣²; the feature form by scikit-learn",
    ),
    decided(
        "conjugate-ck-formula",
        "Eq. 28, 29",
        "CK = 1 + z·z'",
        "the last layer's block of the autograd NTK, to 1e-10",
        "conjugate kernel",
        lambda f: f["CK against autograd"] <= 1e-10,
        shown=("CK against autograd",),
    ),
    decided(
        "conjugate-ntk-decomposition",
        "Eq. 30",
        "NTK = CK + E, each a kernel",
        "E is that of the other layers; least eigenvalue > -1e-9 trace",
        "conjugate kernel",
        lambda f: f["NTK - CK against E"] <= 1e-10 and f["least eigenvalue over the trace"] > -1e-9,
        shown=("NTK - CK against E", "least eigenvalue over the trace"),
    ),
    decided(
        "conjugate-ck-cost",
        "Section 3",
        {"CK features": 129, "NTK features": 33_409},
        "counts exact; the NTK takes at least 3 times the CK's time",
        "cost",
        lambda f: f["CK features"] == 129 and f["NTK features"] == 33_409 and f["NTK/CK"] >= 3,
        "2,401 nodes, float64, the best of three, processor time, certificates included",
    ),
    decided(
        "conjugate-coarse-by-fine",
        "Eq. 33",
        {"constant": "√τ"},
        "holds for every function; attained by a spike at a training node",
        "coarse by fine",
        lambda f: (
            f["worst over √τ"] <= TINY
            and _near(f["attained by a spike"], math.sqrt)
            and f["printed equality off by"] > 1e-3
        ),
        "the step before it, printed as an equality with (M/N)‖g‖₁², is an inequality",
    ),
    decided(
        "conjugate-lemma-4-1",
        "Lemma 4.1, Eq. 34",
        {"constant": math.sqrt(2)},
        "never violated; the worst is √(2 - 1/τ), attained by a plateau around one node",
        "monotone functions",
        lambda f: (
            f["checked"] > 0
            and f["worst over the sharp constant"] <= TINY
            and _near(f["attained by a plateau"], lambda tau: math.sqrt(2 - 1 / tau))
            and max(f["proof's second line over the norm, g = 1"].values()) < 1
        ),
        "the proof has Δy/2 for inner nodes where Δy is due (its second line misses part of ‖g‖₁²); the result stands",
    ),
    decided(
        "conjugate-norm-equivalence",
        "Eq. 36",
        "τ^(-1/2) ‖g‖₀ <= ‖g‖₁ <= √2 ‖g‖₀",
        "both sides on random piecewise monotone functions",
        "monotone functions",
        lambda f: max(f["worst over the sharp constant"], f["worst over √τ from below"]) <= TINY,
        "ratios to √(2 - 1/τ) < √2 and to √τ",
        ("checked", "worst over the sharp constant", "worst over √τ from below"),
    ),
    decided(
        "conjugate-lemma-4-2",
        "Lemma 4.2, Eq. 37",
        "‖g‖₁² <= 4 (‖g‖₀² + 2 (b-a)² L²/N²)",
        "printed on [-1, 1]; 4 (‖g‖₀² + (b-a)³ L²/N²) on every interval; the printed one fails on tents, b - a = 100, 200",
        "lemma 4.2",
        lambda f: (
            max(f["worst on [-1, 1], printed"], f["worst on any interval, corrected"]) <= TINY
            and all(one["over corrected"] <= TINY for one in f["tents"].values())
            and [one["over printed"] > 1 for one in f["tents"].values()] == [False, False, True, True]
        ),
        "summing the proof's cells gives (b-a)³; both agree at b - a = 2, the printed one is false beyond about 96",
    ),
    decided(
        "conjugate-ntk-beats-ck-train",
        "Eq. 38",
        "the NTK machine's training error is never above the CK machine's",
        "least squares on the features of small networks",
        "training order",
        lambda f: f["NTK over CK"] <= 1 + 1e-9,
    ),
    decided(
        "conjugate-lemma-4-3",
        "Lemma 4.3, Eq. 39, 40",
        "‖P(f - f_CK)‖ <= β ‖f - f_CK‖",
        "random nested subspaces, to 1e-12",
        "nested projections",
        lambda f: f["4.3"] <= TINY,
        "the largest left side over its right side",
        ("4.3", "trials"),
    ),
    decided(
        "conjugate-lemma-4-4",
        "Lemma 4.4",
        {"printed": "1/(1-β)", "sharper": "1/√(1-β²)"},
        "both constants on random nested subspaces",
        "nested projections",
        lambda f: max(f["4.4"], f["4.4 with 1/√(1-β²)"]) <= 1 + 1e-9,
        "Eq. 42 gives the sharper one; at β near 1 it is the smaller by 1/√(2(1-β))",
        ("4.4", "4.4 with 1/√(1-β²)", "trials"),
    ),
    decided(
        "conjugate-elementary-inequalities",
        "Eq. 43, 62",
        "(e+z)/(r+z) >= e/r for 0 < e <= r, z >= 0; ln(1+ρx) <= ρ ln(1+x) for ρ >= 1, x >= 0",
        "no violation beyond rounding",
        "elementary",
        lambda f: max(f["Eq. 43"], f["Eq. 62"]) <= 1e-14,
        "largest relative violation; Section 5.3 cites Eq. 43 where Eq. 62 is used",
    ),
    decided(
        "conjugate-ntk-beats-ck-logistic-train",
        "Eq. 52, 53",
        "minimised training cross-entropy of the NTK machine is not above the CK machine's",
        "nested features, one ridge: the objective is never higher",
        "nested logistic",
        lambda f: f["objective lower"] == f["runs"] > 0,
        "with a ridge the ordered quantity is the objective; without one, separable classes have infimum 0",
        ("runs", "objective lower", "loss lower"),
    ),
    decided(
        "conjugate-train-loss-below-test",
        "Eq. 54",
        "summed training loss is at most the summed test loss",
        "always for sums; for means not",
        "summed losses",
        lambda f: f["sums above"] == 0 and f["means above"] > 0,
        "times the training loss was above",
        ("sums above", "means above"),
    ),
    decided(
        "conjugate-lemma-5-1",
        "Lemma 5.1, Eq. 59",
        {"printed": "τ1 τ2", "corrected here": "(2τ1+1)(2τ2+1)"},
        "corrected constant never violated; the printed one fails on peaks around training nodes",
        "lemma 5.1",
        lambda f: (
            f["corner condition"]
            and f["checked"] > 0
            and max(f["worst ratio"], f["one peak"], f["lattice of peaks"]) <= f["safe"]
            and min(f["one peak"], f["lattice of peaks"]) > f["printed"]
        ),
        "false as printed: a corner can dominate all test nodes of its four cells; τ = (2, 3)",
    ),
    decided(
        "conjugate-matching-property",
        "Section 5.2",
        "holds for both boundaries",
        "true for F1 and F2 on their grids, false for one label inside a cell",
        "matching",
        lambda f: f["F1"] and f["F2"] and not f["one label inside a cell"],
    ),
    decided(
        "conjugate-lemma-5-2",
        "Lemma 5.2, Eq. 61",
        {"printed": "exp(hL) τ1 τ2", "corrected here": "exp(hL) (2τ1+1)(2τ2+1)"},
        "corrected constant never violated; the printed one fails for a constant score with labels around one node",
        "lemma 5.2",
        lambda f: (
            f["checked"] > 0
            and f["worst over safe"] <= TINY
            and f["its labels match"]
            and f["printed"] < f["constant score"] <= f["safe"]
        ),
        "false as printed: a constant score (L = 0) exceeds the printed constant, by the count of Lemma 5.1",
    ),
    decided(
        "conjugate-omega",
        "Eq. 63, 64",
        {"least": 1},
        "ω >= 1 and l0_CK <= ω l0_NTK wherever Eq. 52 holds",
        "nested logistic",
        lambda f: f["ω >= 1 of these"] == f["Eq. 64 holds of these"] == f["loss lower"] > 0,
        "nested random features with one ridge",
        ("runs", "loss lower", "ω >= 1 of these", "Eq. 64 holds of these"),
    ),
    decided(
        "conjugate-condition-squared",
        "Section 6",
        "the Gram matrix has the squared singular values of the features",
        "cond(H) = cond(Φ)² to 1e-6",
        "kernel machines",
        lambda f: f["condition"] <= 1e-6,
        shown=("condition",),
    ),
)
