"""Table 1's two-class rows: the published figures, and verdicts in the measure in which they were published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ntkscope.core import Record
from ntkscope_papers.engel_2023.published_measure import spreads
from ntkscope_papers.framework.claims import Reading, claim, lacking
from ntkscope_papers.framework.results import summary

# accuracy % (standard error), TAD, tau; how near the accuracy must be
ROWS: dict[str, tuple[tuple[float, ...], float]] = {
    "mlp-mnist2": ((99.64, 0.01, 0.03, 0.05, 0.708, 0.003), 1.5),
    "cnn-mnist2": ((98.4, 0.1, -0.2, 0.2, 0.857, 0.007), 1.5),
    "cnn-cifar2": ((94.94, 0.05, -2.1, 0.5, 0.711, 0.003), 4.0),
    "cnn-fmnist2": ((97.95, 0.04, -2.2, 0.2, 0.882, 0.003), 1.5),
}
JUDGED, OURS, OTHER = "authors", "softmax", "sigmoid"
NEEDED = 5
OWN_MEASURE = "our training and tau of the correct class, not the published measure"


def networks(record: Record, row: str, reading: str, count: int) -> list[Mapping[str, Any]]:
    """The results of a row's networks that the record has."""
    keys = [f"{row}/{reading}/{s}" for s in range(count)]
    return [record.metrics[key] for key in keys if key in record.metrics]


def as_published(found: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """A row in the published measure: each network's mean over the seeds of SGD, then mean and error over networks."""
    rows = [one["stochastic"] for one in found if "stochastic" in one]
    taus, tads, correct = (spreads(rows, *path) for path in (("fixed class", "tau"), ("tad",), ("tau",)))
    if not (taus and tads and correct):
        return None
    return {
        "tau": _pair(summary(one["mean"] for one in taus)),
        "TAD points": _pair(summary(one["mean"] for one in tads), 3),
        "network accuracy %": _percent(found),
        "networks": len(taus),
        "tau over seeds of SGD": [round(min(one["least"] for one in taus), 4), round(max(one["largest"] for one in taus), 4)],
        "fits without a tau": sum(len(row["seeds"]) for row in rows) - sum(int(one["n"]) for one in taus),
        "tau of the correct class, SGD": _pair(summary(one["mean"] for one in correct)),
    }  # fmt: skip


def at_optimum(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row as the text defines it: τ of the correct class at the surrogate's optimum, and what it hides."""
    measured = {
        "tau": _pair(summary(one["tau"] for one in found)),
        "TAD points": _pair(summary(one["tad"] for one in found), 3),
        "network accuracy %": _percent(found),
        "networks": len(found),
        "tau, SGDClassifier": round(summary(one["sgd"]["tau"] for one in found)["mean"], 4),
        "tau within classes": [round(summary(one["tau within classes"][c] for one in found)["mean"], 4) for c in "01"],
        "tau, best bias": round(summary(one["best bias"]["tau"] for one in found)["mean"], 4),
    }
    ridges = found[0].get("other ridges")
    if ridges:
        measured["tau by ridge"] = {k: round(v["tau"], 4) for k, v in ridges.items()}
    fixed = [one["fixed class"]["tau"] for one in found if "fixed class" in one]
    if fixed and all(map(_known, fixed)):
        measured["tau of class 1"] = _pair(summary(fixed))
    floors = [one["label floor, unsaturated"] for one in found if _known(one.get("label floor, unsaturated"))]
    if floors:
        measured["labels alone, tau of class 1"] = round(summary(floors)["mean"], 4)
    both = found[0].get("side by side")
    if both:
        measured["fit to labels, to logits"] = [round(both[name]["tau"], 4) for name in ("labels", "logits")]
        measured["shared of top five"] = {name: round(value, 2) for name, value in both["shared"].items()}
    return measured


def row_of(row: str, config: Any, record: Record) -> Reading:
    """Mean and standard error over networks beside the published ones."""
    if row not in config.rows:
        return Reading(None, note="this row was left out")
    theirs, ours, others = (
        networks(record, row, reading, config.networks(reading)) for reading in (JUDGED, OURS, OTHER)
    )
    judged = as_published(theirs)
    beside = {name: at_optimum(found) for name, found in ((JUDGED, theirs), (OURS, ours), (OTHER, others)) if found}
    missing = f"{row}/{JUDGED}"
    if judged is None and not ours:
        return lacking(missing)
    if judged is None:
        holds = _within(row, beside[OURS])
        return Reading({"at the optimum": beside}, holds, further=(missing,), seeds=len(ours), other=OWN_MEASURE)
    notes = [f"{judged['networks']} networks where the paper has 100"]
    floor = beside[JUDGED].get("labels alone, tau of class 1")
    if floor is not None:
        notes.append(
            f"labels alone score {floor:.3f} in this measure, so {judged['tau'][0] - floor:.3f} is the surrogate's"
        )
    if judged["fits without a tau"]:
        notes.append(f"{judged['fits without a tau']} fits overflow and have no tau; the authors drop such networks")
    return Reading(
        {"as published": judged, "at the optimum": beside},
        _within(row, judged),
        "; ".join(notes),
        further=(missing,) if len(theirs) < config.authors_seeds else (),
        seeds=judged["networks"],
    )


def _within(row: str, found: Mapping[str, Any]) -> bool:
    """The ledger's check."""
    figures, within = ROWS[row]
    near = abs(found["network accuracy %"][0] - figures[0]) <= within
    return bool(0.55 <= found["tau"][0] <= 0.95 and abs(found["TAD points"][0]) <= 4 and near)


TABLE = [
    claim(
        f"surrogate-table1-{row}",
        "Table 1",
        {"network accuracy %": [*figures[:2]], "TAD points": [*figures[2:4]], "tau": [*figures[4:]], "networks": 100},
        f"authors' training, tau of class 1, SGDClassifier: mean over >= {NEEDED} networks in [0.55, 0.95],"
        f" |TAD| <= 4 points, accuracy within {within:g} points",
        seeds=NEEDED,
    )(partial(row_of, row))
    for row, (figures, within) in ROWS.items()
]


@claim(
    "surrogate-pearson-inflated",
    "Section 3",
    "Pearson exceeds the rank coefficient",
    "on every row of Table 1 by 0.05, and above sin(pi tau / 2), what it is without clouds (normal scores)",
)
def pearson(config: Any, record: Record) -> Reading:
    """Pearson of probabilities is above τ for any two normal scores: what it has beyond sin(πτ/2) is due to clouds."""
    measured: dict[str, Any] = {}
    for row in config.rows:
        found = networks(record, row, JUDGED, config.authors_seeds)
        known = [(one["pearson"], one["tau"]) for one in found if _known(one["pearson"]) and _known(one["tau"])]
        if known:
            r, tau = (summary(column)["mean"] for column in zip(*known))
            beyond = summary(r - math.sin(math.pi * tau / 2) for r, tau in known)["mean"]
            measured[row] = {"pearson": round(r, 4), "tau": round(tau, 4), "beyond sin(pi tau / 2)": round(beyond, 4)}
    if set(measured) != set(config.rows):
        return lacking(*(f"{row}/{JUDGED}" for row in config.rows))
    holds = all(one["pearson"] - one["tau"] >= 0.05 and one["beyond sin(pi tau / 2)"] > 0 for one in measured.values())
    return Reading(measured, holds, "the authors' training, surrogates at their optimum")


def _known(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _pair(found: Mapping[str, float], digits: int = 4) -> list[float]:
    return [round(found["mean"], digits), round(found["sem"], digits)]


def _percent(found: Sequence[Mapping[str, Any]]) -> list[float]:
    accuracy = summary(100 * one["network_accuracy"] for one in found)
    return [round(accuracy["mean"], 2), round(accuracy["sem"], 2)]
