"""What Figure 3 and Appendix F say, what a record of `alignment-reversing` says about it, and the figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Published, Read, Reading, lacking
from ntkscope_papers.framework.results import summary, under
from ntkscope_papers.qadeer_2023.networks import digits

READINGS = ("support", "support-unscaled", "subsample", "subsample-unscaled")
ONE, MEAN, SHARE = 0.03, 0.015, 0.95

PUBLISHED = {
    "setting": Published(
        "nfa-fig3-setting",
        "Figure 3, App. F, App. H",
        {
            "n = d = k": 1024,
            "eps1": 0.5,
            "eps2": 0.01,
            "label offset": 1e-5,
            "networks for moments": 30,
            "data seeds": 10,
        },
        "configuration only",
    ),
    "match": Published(
        "nfa-fig3-match",
        "Figure 3, Section 3.2",
        "predicted and observed correlations match closely, with a single network",
        f"mean difference <= {ONE} from one network, <= {MEAN} from the mean of 30, R² >= {SHARE}; printed: outside [0, 1]",
        seeds=10,
    ),
    "balance": Published(
        "nfa-fig3-balance",
        "Figure 3, Section 3.2",
        "a lower balance lowers the correlation",
        "at the smallest balance at least 0.1 below balance 1",
        seeds=10,
    ),
    "x2": Published(
        "nfa-appF-X2",
        "App. F",
        "X₂ᵀX₂ = (X₁ᵀX₁)⁻²",
        "to 1e-8 where V₂ has d orthonormal columns and X₁ᵀX₁ an inverse; neither exists as printed at n = d",
    ),
    "identity": Published(
        "nfa-appF-agop-identity",
        "App. F",
        "for small balance the AGOP's second derivative is close to I, the NFM's is not",
        "cosine of XᵀYX XᵀX XᵀYX with I >= 0.9 and of (XᵀYX)² with I <= 0.5, at the smallest balance, in some reading",
    ),
}


def seeds_of(record: Record, way: str) -> list[Mapping[str, Any]]:
    """Results of every data seed, each by balance."""
    return [run["balances"] for run in under(record, f"{way}/").values()]


def table(record: Record, way: str, key: str) -> np.ndarray:
    """(data seeds, balances) of one number; `observed`: (data seeds, balances, networks)."""
    rows = [[np.nan if one[key] is None else one[key] for one in run.values()] for run in seeds_of(record, way)]
    return np.array(rows, dtype=np.float64)


def comparison(record: Record, way: str) -> dict[str, Any]:
    """How far predictions are from one network and from the mean over networks, in one reading."""
    observed, printed = table(record, way, "observed"), table(record, way, "printed")
    one, mean = observed[..., 0], observed.mean(-1)
    found: dict[str, Any] = {"data seeds": len(observed)}
    names = {
        "predicted": "predicted",
        "limits of the moments": "predicted, limits of the moments",
        "exact means": "predicted, exact means",
        "mean term": "predicted, mean term",
    }
    for name, key in names.items():
        values = table(record, way, key)
        spread = float(((mean - mean.mean()) ** 2).sum())
        share = 1 - float(((mean - values) ** 2).sum()) / spread if spread > 0 else float("nan")
        found[name] = {
            "from one network": digits(float(np.abs(values - one).mean()), 3),
            "from the mean": digits(float(np.abs(values - mean).mean()), 3),
            "R²": digits(share, 3) if np.isfinite(share) else None,
        }
    outside = ~((printed >= 0) & (printed <= 1))
    found["printed outside [0, 1]"] = int(outside.sum())
    found["of"] = int(outside.size)
    found["spread over networks"] = (
        digits(float(observed.std(-1, ddof=1).mean()), 3) if observed.shape[-1] > 1 else None
    )
    return found


def drop(record: Record, way: str) -> dict[str, Any]:
    """ρ at balance 1 minus ρ at the smallest, paired by data seed, and the lowest mean over balances."""
    mean = table(record, way, "observed").mean(-1)
    balances = list(seeds_of(record, way)[0])
    by_balance = mean.mean(0)
    return {
        "rho": {b: digits(float(v), 4) for b, v in zip(balances, by_balance)},
        "drop": {key: digits(float(v), 3) for key, v in summary(mean[:, -1] - mean[:, 0]).items()},
        "lowest at": balances[int(by_balance.argmin())],
    }


def _missing(record: Record) -> Reading | None:
    return None if seeds_of(record, READINGS[0]) else lacking(READINGS[0])


def _setting(config: Any, record: Record) -> Reading:
    if (missing := _missing(record)) is not None:
        return missing
    found = {
        "n = d = k": config.size,
        "balances": list(config.balances),
        "networks for moments": config.networks,
        "data seeds": len(seeds_of(record, READINGS[0])),
    }
    note = "the caption shows four data seeds, appendix H averages over ten; the balances are not published"
    return Reading(found, True, note, seeds=found["data seeds"])


def _match(config: Any, record: Record) -> Reading:
    if (missing := _missing(record)) is not None:
        return missing
    found = {way: comparison(record, way) for way in READINGS if seeds_of(record, way)}
    first = found[READINGS[0]]
    near = first["predicted"]
    holds = (
        near["from one network"] <= ONE
        and near["from the mean"] <= MEAN
        and (near["R²"] or 0) >= SHARE
        and first["printed outside [0, 1]"] > 0
    )
    note = (
        "judged on the reading 'support' with |X₁| = 1, the one in which correlations vary; 'exact means' replaces freeness by"
        " the exact expectation of each trace"
    )
    return Reading(found, holds, note, seeds=first["data seeds"])


def _balance(config: Any, record: Record) -> Reading:
    if (missing := _missing(record)) is not None:
        return missing
    found = {way: drop(record, way) for way in READINGS if seeds_of(record, way)}
    lowered = [way for way, one in found.items() if one["drop"]["mean"] >= 0.1]
    note = f"readings in which it does: {', '.join(lowered) or 'none'}; judged on 'support' with |X₁| = 1"
    return Reading(found, READINGS[0] in lowered, note, seeds=len(seeds_of(record, READINGS[0])))


def _x2(config: Any, record: Record) -> Reading:
    found = record.metrics.get("construction")
    if found is None:
        return lacking("construction")
    shown = {key: digits(value, 3) for key, value in found.items() if key != "seconds"}
    holds = (
        max(found["enough rows"], found["on the support, n = d"]) <= 1e-8
        and found["rank of X₁ᵀX₁ over d, n = d"] < 1
        and found["columns of V₂ over d, n = d"] < 1
    )
    note = "at n = d, γn rows leave X₁ᵀX₁ singular and (1 - γ)n rows carry fewer than d orthonormal columns"
    return Reading(shown, holds, note, exact=True)


def _identity(config: Any, record: Record) -> Reading:
    if (missing := _missing(record)) is not None:
        return missing
    found = {}
    for way in READINGS:
        if seeds_of(record, way):
            names = ("SBS with I", "S² with I", "SBS with S²")
            found[way] = {name: digits(float(table(record, way, name)[:, 0].mean()), 3) for name in names}
    holds = any(one["SBS with I"] >= 0.9 and one["S² with I"] <= 0.5 for one in found.values())
    note = (
        "at the smallest balance; with S = X₁ᵀX₁ the term is S³ + I on the row space of X₁, which has γn of d dimensions:"
        " a cosine of √γ with I at most, and 1/√d where S³ dominates"
    )
    return Reading(found, holds, note)


def read() -> dict[str, Read]:
    return {"setting": _setting, "match": _match, "balance": _balance, "x2": _x2, "identity": _identity}


def draw(record: Record) -> dict[str, Any]:
    """Observed and predicted ρ by balance; one against the other; the other readings."""
    figure, axes = drawing.canvas(1, 3, width=3.9)
    ways = [way for way in READINGS if seeds_of(record, way)]
    if READINGS[0] in ways:
        way = READINGS[0]
        balances = [float(b) for b in seeds_of(record, way)[0]]
        observed, predicted = table(record, way, "observed").mean(-1), table(record, way, "predicted")
        for i, (name, values) in enumerate((("observed, mean over networks", observed), ("predicted", predicted))):
            for row in values[:4]:
                axes[0].plot(balances, row, color=drawing.COLOURS[i], linewidth=0.5, alpha=0.4)
            axes[0].plot(balances, values.mean(0), "o-", color=drawing.COLOURS[i], markersize=3, label=name)
        axes[1].scatter(observed, predicted, s=8, color=drawing.COLOURS[0], label="corrected Eq. 28")
        printed = table(record, way, "printed")
        axes[1].scatter(observed, printed, s=8, marker="x", color=drawing.COLOURS[1], label="Eq. 28 as printed")
        ends = [float(np.nanmin(observed)), 1.0]
        axes[1].plot(ends, ends, color="#999999", linewidth=0.8)
        drawing.label(axes[1], x="observed ρ", y="predicted ρ")
    for i, way in enumerate(ways):
        mean = table(record, way, "observed").mean(-1)
        balances = [float(b) for b in seeds_of(record, way)[0]]
        axes[2].plot(balances, mean.mean(0), "o-", color=drawing.COLOURS[i], markersize=3, label=way)
    for axis in (axes[0], axes[2]):
        drawing.label(axis, x="balance γ", y="ρ(ẆᵀẆ, ẆᵀKẆ)", log="x")
    for axis in axes:
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return {"alignment-reversing": figure}
