"""Table 3 of the surrogate paper, poisoned data: the statements, and verdicts over the networks a record has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ntkscope.core import Claim, Record
from ntkscope.explain import forensics
from ntkscope_papers.engel_2023.kernel_pairs import COSINE, SIX
from ntkscope_papers.engel_2023.published_measure import spread
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.legs import not_run
from ntkscope_papers.framework.results import averaged, summary

NAME = "poisoning"
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


def _row(kernel: str) -> Published:
    least = LEAST.get(kernel, 99)
    filtered = (
        f"precision and recall >= {least} %"
        if kernel != "ck"
        else "F1, as cosines, at least 0.2 below the Jacobian kernels'"
    )
    name = {"em": "embedding"}.get(kernel, kernel)
    check = f"{filtered}; both taus within 0.1 of the published ones"
    return Published(f"surrogate-table3-{name}", "Table 3", dict(zip(COLUMNS, TABLE[kernel])), check)


ROWS = {kernel: _row(kernel) for kernel in SIX}
OTHERS = {
    claim.id.removeprefix("surrogate-"): claim
    for claim in (
        Published(
            "surrogate-poison-setup",
            "Section 4",
            "a tenth of the training images with a yellow square and the target label",
            "attack success >= 95 %, clean accuracy drop <= 2 points",
            seeds=3,
        ),
        Published(
            "surrogate-forensics-rule", "Section 4", {"neighbours": 5, "threshold": 3}, "holds on made-up neighbours"
        ),
        Published(
            "surrogate-forensics-all-but-ck",
            "Section 4, Table 3",
            {"precision % at least": 99.71, "recall % at least": 99.97},
            "precision and recall >= 97 % for all but CK; F1 of CK lower both raw and as cosines",
            seeds=3,
        ),
        Published(
            "surrogate-poison-trntk-best-clean",
            "Table 3",
            0.585,
            "tau >= the others' - 0.03, clean test images",
            seeds=3,
        ),
        Published("surrogate-poison-pntk-best-poisoned", "Table 3", 0.665, "proj-pNTK among the top two", seeds=3),
        Published(
            "surrogate-poison-less-faithful",
            "Section 4, Tables 2 and 3",
            {"trntk": 0.191, "trntk0": 0.14, "proj-trntk": 0.172, "proj-pntk": -0.147, "em": 0.338, "ck": 0.078},
            "tau of the network trained on clean data is higher, for every kernel but proj-pNTK",
            seeds=3,
        ),
        Published(
            "surrogate-poison-cosine-top",
            "Section 4, Table 3",
            "the cosine kernels are the most faithful",
            "the three highest taus on clean test images",
            seeds=3,
        ),
    )
}
PUBLISHED = (*ROWS.values(), *OTHERS.values())


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

    def mean(self, name: str) -> dict[str, Any] | None:
        found = [
            self.record.metrics[f"{self.kind}/{s}/{name}"]
            for s in self.seeds
            if f"{self.kind}/{s}/{name}" in self.record.metrics
        ]
        rows = [{key: value for key, value in one.items() if key != "sgd"} for one in found]  # some fits may have no τ
        return averaged(rows) if rows else None

    def by_sgd(self, kernel: str, side: str) -> list[dict[str, float]]:
        """τ of the correct class over the seeds of SGD, of each network that has it."""
        rows = [self.record.metrics[f"{self.kind}/{s}/{kernel}"].get("sgd") for s in self.seeds]
        return [found for row in rows if row and (found := spread(row[side], "unsaturated", "tau"))]

    def columns(self) -> dict[str, dict[str, Any]]:
        """A row of Table 3 for each kernel, CK as cosines beside."""
        kernels = [k for k in (*self.config.kernels, COSINE) if self.mean(k)]
        return {k: _columns(self, k) for k in kernels}


def _columns(networks: Networks, kernel: str) -> dict[str, Any]:
    row = networks.mean(kernel)
    assert row is not None
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
        fits = networks.by_sgd(kernel, side)
        if fits:
            found[f"{side} tau, SGD"] = round(summary(one["mean"] for one in fits)["mean"], 4)
            found[f"{side} tau, over seeds of SGD"] = [
                round(min(f["least"] for f in fits), 4),
                round(max(f["largest"] for f in fits), 4),
            ]
    return found


def judge(config: Any, record: Record, difference: str) -> Iterator[Claim]:
    """The verdicts, on the paper's trigger; what the second one gave stands in the notes."""
    square, other, none = (Networks(config, record, kind) for kind in ("square", "random", "none"))
    count = len(square.seeds)
    found = square.columns() if count else {}
    second = other.columns() if other.seeds else {}
    for k, published in ROWS.items():
        yield _judged_row(k, published, found, second, square, difference)
    yield _rule(difference)
    yield from _trends(square, other, none, found, difference)


def _judged_row(
    k: str, published: Published, found: Mapping[str, Any], second: Mapping[str, Any], square: Networks, difference: str
) -> Claim:
    if k not in found:
        return published.judged(None, None, note=not_run(NAME, ["square/0"]))
    own = found[k] if k != "ck" or COSINE not in found else found[COSINE]  # the authors' CK is cosines
    least = LEAST.get(k, 99)
    filtered = found[k]["precision %"] >= least and found[k]["recall %"] >= least
    notes = [f"{len(square.seeds)} network(s), {square.config.points} training points"]
    if k == "ck":
        rivals = [v["F1"] for name, v in found.items() if name not in ("ck", "em", COSINE)]
        filtered = bool(rivals) and found[k]["F1, cosine"] <= min(rivals) - 0.2
        notes.append(SWAPPED)
    if k == "proj-pntk":
        notes.append(EXCHANGED)
    taus = [own.get(f"{side} tau, SGD", own[f"{side} tau"]) for side in ("clean", "poisoned")]
    off = [round(here - there, 4) for here, there in zip(taus, published_taus(k))]
    near = all(abs(value) <= NEAR for value in off)
    passes = "passes" if filtered else "does not pass"
    notes.append(f"the filter {passes}; tau minus published: clean {off[0]:+.3f}, poisoned {off[1]:+.3f}")
    if k in second:
        notes.append(f"second trigger: {second[k]}")
    own_fit = "" if "clean tau, SGD" in own else AT_OPTIMUM
    difference = "; ".join(text for text in (difference, own_fit) if text)
    measured = {**found[k], **({"as cosines": found[COSINE]} if k == "ck" and COSINE in found else {})}
    return published.judged(measured, filtered and near, difference=difference, note="; ".join(notes))


def _rule(difference: str) -> Claim:
    rows = np.array([[5.0, 4, 3, 2, 1, 0], [0.0, 1, 2, 3, 4, 5]])
    rule = forensics.flag(rows, [True, True, True, False, False, False])
    measured = {"three of five": bool(rule[0]), "two of five": bool(rule[1])}
    return OTHERS["forensics-rule"].judged(measured, bool(rule[0]) and not rule[1], difference=difference)


def _trends(
    square: Networks, other: Networks, none: Networks, found: Mapping[str, Any], difference: str
) -> Iterator[Claim]:
    count, many = len(square.seeds), f"{len(square.seeds)} network(s), {square.config.points} training points"

    def claim(name: str, measured: Any, holds: bool | None, note: str = many, lacks: Networks = square) -> Claim:
        few = lacks.missing[:3] if measured is None or count < OTHERS[name].seeds else []
        words = "; ".join(text for text in (note, not_run(NAME, few) if few else "") if text)
        return OTHERS[name].judged(measured, holds, difference=difference, note=words, seeds=count)

    if not set(SIX) <= set(found):
        for name in OTHERS:
            if name != "forensics-rule":
                yield claim(name, None, None, "needs the paper's trigger and all six kernels")
        return
    yield _setup(claim, square, other, none)
    yield _filters(claim, found)
    six = {k: v for k, v in found.items() if k in SIX}
    sgd = COSINE in found and all("clean tau, SGD" in v for v in found.values())
    ending = " tau, SGD" if sgd else " tau"
    how = f"{many}; {'fits by SGD, CK as cosines' if sgd else 'fits at the optimum'}"
    on_clean, on_poisoned = (
        {k: (found[COSINE] if sgd and k == "ck" else v)[f"{side}{ending}"] for k, v in six.items()}
        for side in ("clean", "poisoned")
    )
    yield claim("poison-trntk-best-clean", on_clean, on_clean["trntk"] >= max(on_clean.values()) - 0.03, how)
    top_two = sorted(on_poisoned, key=lambda k: -on_poisoned[k])[:2]
    yield claim("poison-pntk-best-poisoned", on_poisoned, "proj-pntk" in top_two, f"{how}; {EXCHANGED}")
    yield _less_faithful(claim, none, six)
    three = sorted(on_clean, key=lambda k: -on_clean[k])[:3]
    yield claim(
        "poison-cosine-top",
        on_clean,
        set(three) == set(NORMALISED),
        f"{how}; in the authors' code Em and CK are cosines too",
    )


def _setup(claim: Callable[..., Claim], square: Networks, other: Networks, none: Networks) -> Claim:
    attacked, clean, again = square.mean("network"), none.mean("network"), other.mean("network")
    assert attacked is not None
    drop = None if clean is None else 100 * (clean["clean_accuracy"] - attacked["clean_accuracy"])
    setup = {
        "attack success %": round(100 * attacked["attack_success"], 2),
        "clean accuracy %": round(100 * attacked["clean_accuracy"], 2),
        "drop, points": None if drop is None else round(drop, 2),
        "second trigger, attack success %": None if again is None else round(100 * again["attack_success"], 2),
    }
    if drop is None:  # half of the check is missing: no verdict
        return claim("poison-setup", None, None, f"needs the network trained on clean data; without it: {setup}", none)
    return claim("poison-setup", setup, attacked["attack_success"] >= 0.95 and drop <= 2)


def _filters(claim: Callable[..., Claim], found: Mapping[str, Any]) -> Claim:
    worst = {
        c: min(v[c] for k, v in found.items() if k in SIX and k != "ck") for c in ("precision %", "recall %", "F1")
    }
    raw, cosine = found["ck"]["F1"], found["ck"]["F1, cosine"]
    good = worst["precision %"] >= 97 and worst["recall %"] >= 97 and raw < worst["F1"] and cosine < worst["F1"]
    return claim("forensics-all-but-ck", {**worst, "F1 of CK": raw, "F1 of CK as cosines": cosine}, good)


def _less_faithful(claim: Callable[..., Claim], none: Networks, six: Mapping[str, Any]) -> Claim:
    before = {k: none.mean(k) for k in SIX}
    if any(row is None for row in before.values()):
        return claim("poison-less-faithful", None, None, "needs the network trained on clean data", none)
    lost = {k: round(row["clean"]["tau"] - six[k]["clean tau"], 4) for k, row in before.items() if row is not None}
    return claim("poison-less-faithful", lost, all(v > 0 for k, v in lost.items() if k != "proj-pntk"))
