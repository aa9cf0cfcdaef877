"""Table 3 of the surrogate paper, poisoned data: the statements, and verdicts over the networks a record has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope.explain import forensics
from ntkscope_papers.engel_2023.kernel_pairs import COSINE, SIX
from ntkscope_papers.engel_2023.published_measure import spreads
from ntkscope_papers.framework.claims import Reading, claim, lacking
from ntkscope_papers.framework.results import averaged, summary

# precision %, recall %, clean tau, clean TAD, poisoned tau, poisoned TAD
TABLE = {
    "trntk": (99.99, 99.98, 0.585, 0.1, 0.441, -1.08),
    "trntk0": (99.99, 99.99, 0.518, 0.12, 0.543, 0.44),
    "proj-trntk": (99.99, 99.97, 0.565, 0.09, 0.418, 1.3),
    "proj-pntk": (99.99, 100.0, 0.554, 0.07, 0.665, -1.3),
    "em": (99.71, 100.0, 0.43, -2.73, 0.261, -13.98),
    "ck": (1.65, 50.61, 0.552, -3.5, 0.454, -81.25),
}
COLUMNS = ("precision %", "recall %", "clean tau", "clean TAD", "poisoned tau", "poisoned TAD")
NORMALISED = ("trntk", "proj-trntk", "proj-pntk")
NEAR = 0.1  # of a published τ
SWAPPED = (
    "precision and recall are impossible as printed (33.6 % is the least precision at that recall); swapped, they fit"
)
EXCHANGED = "compared with the authors' own printout, in which this row's two taus stand the other way round"
LEAST = {"em": 97}
AT_OPTIMUM = "tau at the surrogate's optimum, not by SGD as published"


def published_taus(kernel: str) -> tuple[float, float]:
    """τ on clean and on poisoned images as the authors' notebook prints them: the row of proj-pNTK is exchanged in Table 3."""
    clean, poisoned = TABLE[kernel][2], TABLE[kernel][4]
    return (poisoned, clean) if kernel == "proj-pntk" else (clean, poisoned)


@dataclass(frozen=True, eq=False)
class Networks:
    """The networks of one trigger that a record has whole."""

    config: Any
    record: Record
    kind: str

    @property
    def seeds(self) -> list[int]:
        wanted = ("network", *self.config.kernels)
        return [
            s for s in range(self.config.seeds) if all(f"{self.kind}/{s}/{k}" in self.record.metrics for k in wanted)
        ]

    @property
    def missing(self) -> list[str]:
        return [f"{self.kind}/{s}" for s in range(self.config.seeds) if s not in self.seeds]

    @property
    def many(self) -> str:
        return f"{len(self.seeds)} network(s), {self.config.points} training points"

    def of(self, kind: str) -> Networks:
        """Those of another trigger."""
        return replace(self, kind=kind)

    def mean(self, name: str) -> dict[str, Any] | None:
        keys = [key for s in self.seeds if (key := f"{self.kind}/{s}/{name}") in self.record.metrics]
        rows = [{k: v for k, v in self.record.metrics[key].items() if k != "sgd"} for key in keys]  # fits may have no τ
        return averaged(rows) if rows else None

    def columns(self) -> dict[str, dict[str, Any]]:
        """A row of Table 3 for each kernel, CK as cosines beside."""
        means = {k: row for k in (*self.config.kernels, COSINE) if (row := self.mean(k))}
        return {k: self.columns_of(k, row) for k, row in means.items()}

    def columns_of(self, kernel: str, row: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "precision %": round(100 * row["filter"]["precision"], 2),
            "recall %": round(100 * row["filter"]["recall"], 2),
            "clean tau": round(row["clean"]["tau"], 4),
            "clean TAD": round(row["clean"]["tad"], 3),
            "poisoned tau": round(row["poisoned"]["tau"], 4),
            "poisoned TAD": round(row["poisoned"]["tad"], 3),
            "F1": round(row["filter"]["f1"], 4),
            "F1, cosine": round(row["filter, cosine"]["f1"], 4),
        }
        for side in ("clean", "poisoned"):
            every = (self.record.metrics[f"{self.kind}/{s}/{kernel}"].get("sgd") for s in self.seeds)
            fits = spreads((one and one[side] for one in every), "unsaturated", "tau")
            if fits:
                found[f"{side} tau, SGD"] = round(summary(one["mean"] for one in fits)["mean"], 4)
                found[f"{side} tau, over seeds of SGD"] = [
                    round(min(f["least"] for f in fits), 4),
                    round(max(f["largest"] for f in fits), 4),
                ]
        return found

    def reading(self, measured: Any, holds: bool | None, note: str = "", lacks: Networks | None = None) -> Reading:
        """Of these networks; without an answer, or with fewer than three networks, `lacks` says which are missing."""
        few = (lacks or self).missing[:3] if measured is None or len(self.seeds) < 3 else []
        return Reading(measured, holds, note or self.many, further=tuple(few), seeds=len(self.seeds))


def row(k: str, config: Any, record: Record) -> Reading:
    """Of the paper's trigger; what the second one gave stands in the note."""
    square = Networks(config, record, "square")
    found, second = square.columns(), square.of("random").columns()
    if k not in found:
        return lacking("square/0")
    own = found[k] if k != "ck" or COSINE not in found else found[COSINE]  # the authors' CK is cosines
    least = LEAST.get(k, 99)
    filtered = found[k]["precision %"] >= least and found[k]["recall %"] >= least
    notes, measured = [square.many], found[k]
    if k == "ck":
        rivals = [v["F1"] for name, v in found.items() if name not in ("ck", "em", COSINE)]
        filtered = bool(rivals) and found[k]["F1, cosine"] <= min(rivals) - 0.2
        notes.append(SWAPPED)
        measured = {**measured, **({"as cosines": found[COSINE]} if COSINE in found else {})}
    if k == "proj-pntk":
        notes.append(EXCHANGED)
    taus = [own.get(f"{side} tau, SGD", own[f"{side} tau"]) for side in ("clean", "poisoned")]
    off = [round(here - there, 4) for here, there in zip(taus, published_taus(k))]
    near = all(abs(value) <= NEAR for value in off)
    passes = "passes" if filtered else "does not pass"
    notes.append(f"the filter {passes}; tau minus published: clean {off[0]:+.3f}, poisoned {off[1]:+.3f}")
    if k in second:
        notes.append(f"second trigger: {second[k]}")
    other = "" if "clean tau, SGD" in own else AT_OPTIMUM
    return Reading(measured, filtered and near, "; ".join(notes), other=other)


CK = "F1, as cosines, at least 0.2 below the Jacobian kernels'"
ROWS = [
    claim(
        f"surrogate-table3-{'embedding' if k == 'em' else k}",
        "Table 3",
        dict(zip(COLUMNS, TABLE[k])),
        f"{CK if k == 'ck' else f'precision and recall >= {LEAST.get(k, 99)} %'}; both taus within 0.1 of the published ones",
    )(partial(row, k))
    for k in SIX
]


def with_all_kernels(read: Callable[[Networks, dict[str, Any]], Reading], config: Any, record: Record) -> Reading:
    """A reading of the networks with the paper's trigger and their rows of Table 3; they need all six kernels."""
    square = Networks(config, record, "square")
    found = square.columns()
    if set(SIX) <= set(found):
        return read(square, found)
    return square.reading(None, None, "needs the paper's trigger and all six kernels")


over_three = partial(claim, seeds=3, through=with_all_kernels)  # networks


def taus(square: Networks, found: Mapping[str, Any], side: str) -> tuple[dict[str, float], str]:
    """τ of the six kernels on clean or poisoned images, and a word on the fits: by SGD where all kernels have them."""
    sgd = COSINE in found and all("clean tau, SGD" in v for v in found.values())
    column = f"{side} tau, SGD" if sgd else f"{side} tau"
    values = {k: found[COSINE if sgd and k == "ck" else k][column] for k in found if k in SIX}
    return values, f"{square.many}; {'fits by SGD, CK as cosines' if sgd else 'fits at the optimum'}"


@over_three(
    "surrogate-poison-setup", "Section 4", "a tenth of the training images with a yellow square and the target label"
)
def _setup(square: Networks, found: Mapping[str, Any]) -> Reading:
    """attack success >= 95 %, clean accuracy drop <= 2 points"""
    attacked, clean, again = (square.of(kind).mean("network") for kind in ("square", "none", "random"))
    assert attacked is not None
    drop = None if clean is None else 100 * (clean["clean_accuracy"] - attacked["clean_accuracy"])
    setup = {
        "attack success %": round(100 * attacked["attack_success"], 2),
        "clean accuracy %": round(100 * attacked["clean_accuracy"], 2),
        "drop, points": None if drop is None else round(drop, 2),
        "second trigger, attack success %": None if again is None else round(100 * again["attack_success"], 2),
    }
    if drop is None:  # half of the check is missing: no verdict
        note = f"needs the network trained on clean data; without it: {setup}"
        return square.reading(None, None, note, square.of("none"))
    return square.reading(setup, attacked["attack_success"] >= 0.95 and drop <= 2)


@claim("surrogate-forensics-rule", "Section 4", {"neighbours": 5, "threshold": 3})
def _rule(config: Any, record: Record) -> Reading:
    """holds on made-up neighbours"""
    rows = np.array([[5.0, 4, 3, 2, 1, 0], [0.0, 1, 2, 3, 4, 5]])
    three, two = (bool(flag) for flag in forensics.flag(rows, [True, True, True, False, False, False]))
    return Reading({"three of five": three, "two of five": two}, three and not two, exact=True)


@over_three(
    "surrogate-forensics-all-but-ck", "Section 4, Table 3", {"precision % at least": 99.71, "recall % at least": 99.97}
)
def _filters(square: Networks, found: Mapping[str, Any]) -> Reading:
    """precision and recall >= 97 % for all but CK; F1 of CK lower both raw and as cosines"""
    others = [v for k, v in found.items() if k in SIX and k != "ck"]
    worst = {column: min(v[column] for v in others) for column in ("precision %", "recall %", "F1")}
    raw, cosine = found["ck"]["F1"], found["ck"]["F1, cosine"]
    good = worst["precision %"] >= 97 and worst["recall %"] >= 97 and raw < worst["F1"] and cosine < worst["F1"]
    return square.reading({**worst, "F1 of CK": raw, "F1 of CK as cosines": cosine}, good)


@over_three("surrogate-poison-trntk-best-clean", "Table 3", 0.585)
def _best(square: Networks, found: Mapping[str, Any]) -> Reading:
    """tau >= the others' - 0.03, clean test images"""
    clean, how = taus(square, found, "clean")
    return square.reading(clean, clean["trntk"] >= max(clean.values()) - 0.03, how)


@over_three("surrogate-poison-pntk-best-poisoned", "Table 3", 0.665)
def _best_poisoned(square: Networks, found: Mapping[str, Any]) -> Reading:
    """proj-pNTK among the top two"""
    poisoned, how = taus(square, found, "poisoned")
    top_two = sorted(poisoned, key=lambda k: -poisoned[k])[:2]
    return square.reading(poisoned, "proj-pntk" in top_two, f"{how}; {EXCHANGED}")


@over_three(
    "surrogate-poison-less-faithful",
    "Section 4, Tables 2 and 3",
    {"trntk": 0.191, "trntk0": 0.14, "proj-trntk": 0.172, "proj-pntk": -0.147, "em": 0.338, "ck": 0.078},
)
def _less_faithful(square: Networks, found: Mapping[str, Any]) -> Reading:
    """tau of the network trained on clean data is higher, for every kernel but proj-pNTK"""
    none = square.of("none")
    before = {k: mean for k in SIX if (mean := none.mean(k)) is not None}
    if len(before) < len(SIX):
        return square.reading(None, None, "needs the network trained on clean data", none)
    lost = {k: round(mean["clean"]["tau"] - found[k]["clean tau"], 4) for k, mean in before.items()}
    return square.reading(lost, all(v > 0 for k, v in lost.items() if k != "proj-pntk"))


@over_three("surrogate-poison-cosine-top", "Section 4, Table 3", "the cosine kernels are the most faithful")
def _cosine_top(square: Networks, found: Mapping[str, Any]) -> Reading:
    """the three highest taus on clean test images"""
    clean, how = taus(square, found, "clean")
    three = set(sorted(clean, key=lambda k: -clean[k])[:3])
    return square.reading(clean, three == set(NORMALISED), f"{how}; in the authors' code Em and CK are cosines too")
