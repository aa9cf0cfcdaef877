"""What the feature-ansatz paper says about early training, which measurement decides each statement, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntkscope_papers.framework.claims import decided

Found = Mapping[str, Any]
EXACT = 1e-10


def _within(one: Mapping[str, float], errors: float) -> bool:
    return abs(one["mean"] - one["formula"]) <= errors * one["standard error"]


def _generic(f: Found, key: str, tolerance: float) -> bool:
    return all(abs(f[k][key] - 1) <= tolerance for k in ("k = d", "k = 2d"))


def _prop10(f: Found) -> list[Mapping[str, Any]]:
    return [value for value in f.values() if isinstance(value, Mapping)]


CLAIMS = (
    decided(
        "nfa-prop3",
        "Prop. 3, Eq. 7-9",
        "second derivatives 2 ẆᵀẆ and 2 ẆᵀKẆ; values and slopes zero",
        "the error of the matrix over t² halves with t (0.45 to 0.55)",
        "descent",
        lambda f: min(f["ratios"]) >= 0.45 and max(f["ratios"]) <= 0.55 and f["largest error"] < 0.5,
        "every layer of random networks (ReLU, tanh, quadratic; squares, cross-entropy), 50 steps up to t and t/2",
    ),
    decided(
        "nfa-prop3-proof",
        "App. D",
        "nine terms, of which two are left at the start",
        "product rule on polynomial W̄ and K, to 1e-10",
        "nine terms",
        lambda f: (
            max(f["nine terms"], f["two terms at t = 0"]) <= EXACT and not f["the k x k matrix fits between Y and Y"]
        ),
        "one term is printed with K_z for K; the last line has K (k × k) where the n × n kernel is due",
    ),
    decided(
        "nfa-prop4",
        "Prop. 4, Eq. 3",
        "ẆᵀẆ = XᵀD𝒦DX, ẆᵀKẆ = XᵀD𝒦²DX",
        "autograd against the formula, to 1e-10 in float64",
        "decomposition",
        lambda f: f["layers"] > 0 and max(f["velocity"], f["nfm"], f["agop"]) <= EXACT and f["K with 1/n"] > 0.1,
        "every layer, squares and cross-entropy, several outputs; K without 1/n: with it, off by the share in the last entry",
    ),
    decided(
        "nfa-eq4",
        "Eq. 4",
        "a function of X, Y and the kernel alone",
        "the correlation of autograd's matrices, to 1e-10",
        "kernel forms",
        lambda f: f["Eq. 4"] <= EXACT,
        "residuals are the labels: the initial function is subtracted",
        ("Eq. 4",),
    ),
    decided(
        "nfa-eq4-projector",
        "Section 3.1",
        1,
        "1 to 1e-8 for random projectors",
        "kernel forms",
        lambda f: f["projector"] <= 1e-8,
        shown=("projector",),
    ),
    decided(
        "nfa-eq4-positive",
        "Section 3.1",
        "positive",
        "lowest over random kernels above 0",
        "kernel forms",
        lambda f: f["lowest correlation"] > 0,
        "a trace of a product of two positive semi-definite matrices",
        ("lowest correlation",),
    ),
    decided(
        "nfa-eq5",
        "Eq. 5",
        "mean of the trace = trace of means + covariance",
        "draws within 3 standard errors of the exact sum; without the covariance not",
        "mean and covariance",
        lambda f: all(
            abs(one["standard errors apart"]) <= 3 and abs(one["mean"] - one["mean term"]) > 3 * one["standard error"]
            for one in _prop10(f)
        ),
        "exact by pairings of Gaussian vectors, for the numerator and the first denominator",
    ),
    decided(
        "nfa-ntk-limit",
        "Section 3.1",
        {"order": -1},
        "covariance over mean term falls like 1/k: slopes -1.1 to -0.9",
        "wide limit",
        lambda f: all(-1.1 <= f[f"{name} slope"] <= -0.9 for name in ("numerator", "first", "second")),
        "exact means at widths up to 4,096, n = 8, d = 6",
    ),
    decided(
        "nfa-eq6",
        "Eq. 6",
        "tr(A)² tr(R³) + tr(R) tr(R²) tr(Ā²)",
        "Eq. 20 at XᵀX = I, to 1e-10",
        "isotropic",
        lambda f: f["Eq. 6 against Eq. 20"] <= EXACT and f["plain sums over the trace"][0] > 1.5,
        "traces must be normalised, which Section 3.2 does not say",
    ),
    decided(
        "nfa-eq10",
        "Eq. 10",
        "the closed form for the quadratic network",
        "equals Eq. 4; as printed it does not",
        "kernel forms",
        lambda f: (
            f["words"] <= EXACT
            and not f["Eq. 10 as printed over Eq. 4"][0] <= 1 <= f["Eq. 10 as printed over Eq. 4"][1]
        ),
        "exponents -1/2 stand in the denominator, where they multiply; the left side is the second derivatives' correlation",
        ("words", "Eq. 10 as printed over Eq. 4"),
    ),
    decided(
        "nfa-quadratic-kernel",
        "App. E",
        {"factor": 1},
        "autograd's kernel to 1e-10; the printed one is a fourth of it",
        "kernel forms",
        lambda f: f["kernel"] <= EXACT and all(abs(x - 4) < 1e-9 for x in f["kernel over the printed one"]),
        "the slope of h² is 2h: 𝒦 = 4XRXᵀ",
        ("kernel", "kernel over the printed one"),
    ),
    decided(
        "nfa-assumptions",
        "Assumptions 7-9, Eq. 11",
        "self-averaging, freeness, means inside the ratio",
        "with n = d = k: the spreads of ρ and tr[R⁴] over networks shrink; ρ, its ratio of means and its prediction approach",
        "self-averaging",
        lambda f: (
            all(f[key][-1] < f[key][0] for key in ("spread of rho", "spread of tr[R⁴]"))
            and all(
                abs(f[key][-1] - f["mean rho"][-1]) < abs(f[key][0] - f["mean rho"][0])
                for key in ("ratio of means", "free prediction")
            )
        ),
        "slow: single readouts a_s dominate R, tr[R⁴] has a spread of its own size below 256",
    ),
    *(
        decided(
            f"nfa-eq{number}",
            f"Eq. {number}",
            says,
            "mean over Haar rotations within 4 standard errors",
            "alternating words",
            lambda f, key=f"Eq. {number}": _within(f[key], 4),  # type: ignore[misc]
            shown=(f"Eq. {number}",),
        )
        for number, says in (
            (12, "tr[C₁R₁] = 0"),
            (13, "tr[R₁] tr[R₂] tr[C₁C₂]"),
            (14, "tr[R₁] tr[R₂] tr[R₃] tr[C₁C₂C₃]"),
        )
    ),
    decided(
        "nfa-eq15",
        "Eq. 15",
        "three terms",
        "within 3 standard errors; the first term alone is not",
        "alternating words",
        lambda f: (
            _within(f["Eq. 15"], 3)
            and abs(f["Eq. 15"]["mean"] - f["Eq. 15"]["first term alone"]) > 3 * f["Eq. 15"]["standard error"]
        ),
        shown=("Eq. 15",),
    ),
    decided(
        "nfa-eq16-17-21-23",
        "Eq. 16, 17, 21, 23",
        "tr(ARARBR), tr(ARAR), tr(ARBRARBR)",
        "identities to 1e-10",
        "kernel forms",
        lambda f: f["words"] <= EXACT,
        "with 64, 16 and 256 for the kernel's factor 4",
        ("words",),
    ),
    decided(
        "nfa-eq19",
        "Eq. 19",
        "expansion in centred A and B",
        "identity to 1e-10 with tr(R³) in the last term; as printed at least 1% below the trace in every instance",
        "expansions",
        lambda f: f["Eq. 19"] <= EXACT and max(f["Eq. 19 as printed over the trace"]) < 0.99,
        "printed tr(R)³",
        ("Eq. 19", "Eq. 19 as printed over the trace"),
    ),
    decided(
        "nfa-eq20",
        "Eq. 20",
        "the numerator",
        "within 2% of the trace for Haar-independent matrices",
        "free formulas",
        lambda f: _generic(f, "Eq. 20", 0.02),
        "correct as printed; equal to the sum over non-crossing partitions in the tests",
    ),
    decided(
        "nfa-eq22",
        "Eq. 22",
        "the first denominator",
        "within 2% of the trace for Haar-independent matrices",
        "free formulas",
        lambda f: _generic(f, "Eq. 22", 0.02),
        "correct as printed",
    ),
    decided(
        "nfa-eq24-27",
        "Eq. 24-27",
        "nine terms",
        "identity of symmetric matrices, to 1e-10",
        "expansions",
        lambda f: f["Eq. 27"] <= EXACT,
        shown=("Eq. 27",),
    ),
    decided(
        "nfa-eq28",
        "Eq. 28",
        "the second denominator",
        "corrected within 2% of the trace and ρ within 0.01; as printed at least 3% below the corrected",
        "free formulas",
        lambda f: (
            _generic(f, "Eq. 28", 0.02)
            and all(abs(f[k]["rho"]) <= 0.01 for k in ("k = d", "k = 2d"))
            and all(f[k]["Eq. 28 as printed"] < f[k]["Eq. 28"] - 0.03 for k in ("k = d", "k = 2d"))
        ),
        "the last term is tr[B]² tr[Ā²] tr[R²]²; printed tr[Ā]² tr[B²] tr[R²]², which is zero",
    ),
    decided(
        "nfa-R-moments",
        "App. E, App. H (derived)",
        {"limits": [1, 4, 25, 202]},
        "means over networks within 3 standard errors of the limits",
        "moments of R",
        lambda f: all(abs(x) <= 3 for key in ("d = k", "d = k/2") for x in f[key]["standard errors from the limit"]),
        "free cumulants (d/k)^(p-1) (2p-1)!!; the exact means at these sizes stand beside",
    ),
    decided(
        "nfa-prop10-nfm",
        "Prop. 10",
        "E[ẆᵀẆ] = (XᵀYX)²",
        "4 (XᵀYX)² within 1% over 2e5 initialisations",
        "Proposition 10",
        lambda f: all(one["nfm"] <= 0.01 for one in _prop10(f)),
        "times 4, for the slope 2h of h²",
    ),
    decided(
        "nfa-prop10-agop",
        "Prop. 10",
        "3 tr(XᵀX) (XᵀYX)² + 6 XᵀYX XᵀX XᵀYX",
        "16 ((3/k) Tr(B) S² + (1 + 5/k) SBS) within 3%; as printed, with or without the 16, off by 50% or 9%",
        "Proposition 10",
        lambda f: all(
            one["agop"] <= 0.03 and one["agop as printed, times 16"] >= 0.5 and one["agop as printed"] >= 0.09
            for one in _prop10(f)
        ),
        "measured coefficients of E[RBR] on Tr(B) I and B beside 3/k and 1 + 5/k",
    ),
    decided(
        "nfa-prop10-proof",
        "App. F, Eq. 29-31",
        "Wick's theorem for equal hidden units",
        "equal units (3/k)(Tr(B) I + 2B) within 3%, as printed off by half; unequal ones (1 - 1/k) B within 3%",
        "Wick step",
        lambda f: f["equal units"] <= 0.03 and f["equal units as printed"] > 0.5 and f["unequal units"] <= 0.03,
        "Eq. 29 omits the outer X; the second pairing is printed with W_{s,p2} twice; K_ij² is an entry of the square",
    ),
)
