"""What section 4.1 of the linear-width paper says, and which measurement of `lazy-bounds` decides each statement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.framework import Reading, claim
from ntkscope_papers.framework.results import digits

CHANGES = ("weights", "ck", "ntk")
TINY = 1e-12


def slope(at: list[float], values: list[float]) -> float:
    return float(np.polyfit(np.log(at), np.log(values), 1)[0])


def by_items(config: Any, record: Record, leg: str) -> dict[int, Mapping[str, Any]]:
    """The results of `leg` by number of items."""
    return {n: record.metrics[f"{leg}/{n}"] for n in sorted(config.sizes)}


def early(config: Any) -> list[str]:
    return [f"early/{n}" for n in config.sizes]


def theorem(config: Any) -> list[str]:
    return [
        f"theorem/{'-'.join(map(str, shape))}/{source}" for shape in config.shapes for source in ("kernel", "bound")
    ]


def training(config: Any) -> list[str]:
    return [f"training/{n}" for n in config.sizes]


@claim("spectra-lemma-4-1", "Lemma 4.1", {"exponent": -1}, needs=early)
def lemma(config: Any, record: Record) -> Reading:
    """log-log slopes of all three changes over n = 128 ... 1024 at most -0.9, after 1 and 5 steps"""
    runs = by_items(config, record, "early")
    slopes: dict[str, dict[str, float]] = {}
    for count in config.early_steps:
        for name in (*CHANGES, "ntk, Frobenius", "ck without 1/√d"):
            means = [float(np.mean(run[f"t={count}"][name])) for run in runs.values()]
            slopes.setdefault(name, {})[f"t={count}"] = digits(slope(list(runs), means), 4)
    holds = all(value <= -0.9 for name in CHANGES for value in slopes[name].values())
    note = (
        "NTK in the spectral norm, as printed; the CK of section 4.1, which lacks the 1/√d inside σ, has the slope shown last:"
        " the CK of Eq. 76 is meant"
    )
    return Reading({"slopes": slopes}, holds, note)


@claim(
    "spectra-early-eigen-invariance",
    "Section 4.1",
    "every eigenvalue and eigenvector is asymptotically unchanged after finitely many steps",
    needs=early,
)
def eigenvalues_stay(config: Any, record: Record) -> Reading:
    """n = 1024, 5 steps: no eigenvalue of CK or NTK, no singular value of W/√d moved by 0.06, or by more than Weyl
    allows; the largest shift falls with n; of eigenvectors of CK and NTK the median and the first turn by a cosine of
    0.99 or more"""
    runs = by_items(config, record, "early")
    largest = max(runs)
    run = runs[largest]
    shifts, moved = run["shifts"], run[f"t={max(config.early_steps)}"]
    measured = {name: digits(float(np.max(shifts[name])), 3) for name in CHANGES}
    cosines = {name: digits(float(np.min(shifts[name])), 5) for name in shifts if "cosine" in name}
    weyl = all(s <= m * (1 + 1e-6) + TINY for name in CHANGES for s, m in zip(shifts[name], moved[name]))
    falls = all(
        np.mean(later["shifts"][name]) < np.mean(earlier["shifts"][name])
        for name in CHANGES
        for earlier, later in pairwise(runs.values())
    )
    holds = weyl and max(measured.values()) < 0.06 and falls and min(cosines.values()) >= 0.99
    note = (
        "cosines of each eigenvector with its successor, the least over networks of the median and of the first; norms alone"
        " bound eigenvalues, and eigenvectors only where gaps exceed them"
    )
    other = "of the eigenvectors the median and the first alone"
    return Reading({"n": largest, "largest shift": measured, **cosines}, holds, note, other=other)


@claim(
    "spectra-lambda-min-bound",
    "Eq. 83",
    {"bound, tanh": 0.079694, "a - η₀² - η₁², tanh": 0.247337},
    needs=lambda config: [*(f"least/{d}" for d in config.dimensions), "constants"],
)
def least_eigenvalue(config: Any, record: Record) -> Reading:
    """quadrature to 1e-6; λ_min at least 0.9 times the bound from d = 100 on, and nearer to 0.247 at d = 1000"""
    runs = {d: record.metrics[f"least/{d}"] for d in sorted(config.dimensions)}
    found = record.metrics["constants"]
    bound, limit = found["bound"], found["limit"]
    exact = abs(bound - 0.079694) < 1e-6 and abs(limit - 0.247337) < 1e-6
    laws = ("sign", "normal", "uniform", "full, least")
    table = {law: {f"d={d}": digits(float(np.mean(runs[d][law])), 4) for d in runs} for law in laws}
    above = all(min(run[law]) >= 0.9 * bound for run in runs.values() for law in ("sign", "normal"))
    last = float(np.mean(runs[max(runs)]["sign"]))
    nearer = abs(last - limit) < abs(last - bound)
    note = (
        "a lower bound, and loose: with n > d the first-layer kernel's least eigenvalue tends to a - η₀², here 0.247; for v"
        " uniform on [-1, 1] both are a third of that"
    )
    return Reading({"bound": digits(bound, 6), "limit": digits(limit, 6), **table}, exact and above and nearer, note)


@claim("spectra-alpha-definition", "Section 4.1", {"α of the bound, tanh": 0.141151}, needs=["constants"])
def alpha(config: Any, record: Record) -> Reading:
    """arithmetic, to 1e-6"""
    value = record.metrics["constants"]["alpha of the bound"]
    return Reading({"α": digits(value, 6)}, abs(value - 0.141151) < 1e-6, exact=True)


@claim("spectra-path-scaling", "Section 4.1", {"path": 0.5, "initial norm": 1.0}, needs=training)
def path_scaling(config: Any, record: Record) -> Reading:
    """slope of the path against h 0.3 to 0.7; ‖W₀‖ = √(hd) within 1 % at the largest n, and within 4/√(2hd), four of
    its standard deviations, everywhere"""
    runs = by_items(config, record, "training")
    widths = [float(run["width"]) for run in runs.values()]
    power = slope(widths, [float(np.mean(run["path"])) for run in runs.values()])
    off = {
        n: max(abs(value / math.sqrt(run["width"] * run["dimension"]) - 1) for value in run["start"])
        for n, run in runs.items()
    }
    chance = all(off[n] <= 4 / math.sqrt(2 * run["width"] * run["dimension"]) for n, run in runs.items())
    relative = {
        f"h={run['width']}": digits(float(np.mean(np.divide(run["path"], run["start"]))), 4) for run in runs.values()
    }
    norms = slope(widths, [float(np.mean(run["start"])) for run in runs.values()])
    measured = {
        "slopes": {"path": digits(power, 4), "initial norm": digits(norms, 4)},
        "initial norm over √(hd), off by": {f"n={n}": digits(value, 3) for n, value in off.items()},
        "path over the initial norm": relative,
    }
    return Reading(measured, 0.3 <= power <= 0.7 and chance and off[max(off)] < 0.01)


@claim(
    "spectra-max-learning-rate-order",
    "Section 4.1",
    {"exponent": 1.0, "2n/λ_max at Table 8's sizes": 298},
    needs=lambda config: [*(f"stable/{n}" for n in config.sizes), f"least/{max(config.dimensions)}"],
)
def largest_rate(config: Any, record: Record) -> Reading:
    """slope against n of the largest step at which the residual never rises 0.9 to 1.1; 2n/λ_max of the full NTK within
    5 % of 298"""
    runs = by_items(config, record, "stable")
    if any(value is None for run in runs.values() for value in run["falls"]):
        return Reading({"largest step": "beyond the steps tried"}, False, "widen `factors`")
    rates = [
        float(np.mean([2 * n / top * factor for top, factor in zip(run["largest eigenvalue"], run["falls"])]))
        for n, run in runs.items()
    ]
    power = slope(list(runs), rates)
    d, last = max(config.dimensions), runs[max(runs)]
    table8 = float(np.mean([4 * d / top for top in record.metrics[f"least/{d}"]["full, largest"]]))
    beyond = {f"{config.factors[i]:g}": [digits(last[name][i], 3) for name in ("highest", "left")] for i in (-2, -1)}
    measured = {
        "slope": digits(power, 4),
        "largest step over 2n/λ_max": {f"n={n}": digits(float(np.mean(run["falls"])), 4) for n, run in runs.items()},
        f"highest and last residual over the first at multiples of 2n/λ_max, n={max(runs)}": beyond,
        f"2n/λ_max of the full NTK, n={2 * d}": digits(table8, 4),
    }
    note = (
        "the largest step at which the residual never rises; beyond it, it rises and falls again: with v fixed and σ bounded"
        " the outputs cannot diverge"
    )
    return Reading(measured, 0.9 <= power <= 1.1 and abs(table8 / 298 - 1) <= 0.05, note)


@claim(
    "spectra-corollary-4-3",
    "Corollary 4.3",
    "through all of gradient descent the three changes stay below a constant; limiting spectra are unchanged",
    needs=training,
)
def corollary(config: Any, record: Record) -> Reading:
    """log-log slopes of the final changes against n at most 0.1; KS distances of all three spectra fall with n"""
    runs = by_items(config, record, "training")
    slopes = {name: digits(slope(list(runs), [float(np.mean(r[name])) for r in runs.values()]), 4) for name in CHANGES}
    distances = {name: [float(np.mean(run[f"{name}, KS"])) for run in runs.values()] for name in CHANGES}
    final = {name: [digits(float(np.mean(run[name])), 4) for run in runs.values()] for name in CHANGES}
    losses = digits(max(max(run["loss"]) for run in runs.values()), 3)
    falls = all(later < earlier for values in distances.values() for earlier, later in pairwise(values))
    measured = {
        "slopes": slopes,
        "final changes": final,
        "KS": {name: [digits(value, 3) for value in values] for name, values in distances.items()},
        "largest loss left": losses,
    }
    note = "the sentence before it names K^CK twice; the second is K^NTK"
    return Reading(measured, falls and all(value <= 0.1 for value in slopes.values()), note)


def inequality(equation: str, config: Any, record: Record) -> Reading:
    """Whether an inequality of Theorem 4.2 holds at every step."""
    runs = [record.metrics[key] for key in theorem(config)]
    values = [value for run in runs for value in run[equation]]
    measured: dict[str, Any] = {"largest left side over the right": digits(max(values), 6), "runs": len(values)}
    note = ""
    if equation == "Eq. 84" and "misread" in record.metrics:
        run = record.metrics["misread"]
        measured["σ times 3, step for each reading of the constant"] = {
            name: digits(float(np.max(run[name]["Eq. 84"])), 4) for name in ("λ_σ", "λ_α = α")
        }
        note = "the step bound prints λ_α; read as α it allows steps for which Eq. 84 fails, with λ_σ it holds"
    if equation in ("Eq. 85", "Eq. 86"):
        worst = max(max(run[f"{equation}, ℓ the loss"]) for run in runs)
        measured["with the loss of Eq. 74 for ℓ"] = digits(worst, 4)
        note = "ℓ is the norm of the residual; the text calls it the training loss, which is Eq. 74"
    if equation == "Eq. 86":
        trained = by_items(config, record, "training")
        paths = [value for run in trained.values() for value in run["path over Eq. 86"]]
        measured["trained to the end"] = digits(max(paths), 4)
        measured["trained to the end, with the loss of Eq. 74 for ℓ"] = {
            f"n={n}": digits(float(np.mean(run["path over Eq. 86, ℓ the loss"])), 4) for n, run in trained.items()
        }
        values += paths
    return Reading(measured, max(values) <= 1 + TINY, note)


THEOREM_4_2 = [
    claim(
        "spectra-theorem-4-2-rate",
        "Theorem 4.2, Eq. 84",
        "ℓ_t <= (1 - ηα²/2n)^t ℓ₀ below the largest step",
        "at every one of 400 steps at 0.99 of the largest step, all sizes, α from the kernel and from Eq. 83",
        needs=theorem,
    )(partial(inequality, "Eq. 84")),
    claim(
        "spectra-theorem-4-2-distance",
        "Theorem 4.2, Eq. 85",
        "α/4 ‖W_t - W₀‖ + ℓ_t <= ℓ₀",
        "at every step of the same runs",
        needs=theorem,
    )(partial(inequality, "Eq. 85")),
    claim(
        "spectra-theorem-4-2-path",
        "Theorem 4.2, Eq. 86",
        "Σ ‖W_{t+1} - W_t‖ <= 4 ℓ₀/α",
        "in the same runs, and in those trained to a loss of 1e-5",
        needs=lambda config: theorem(config) + training(config),
    )(partial(inequality, "Eq. 86")),
]
