"""Balakrishnan (2023), section 4: what is published of orthant shells, and what a record says about each statement.

Tangent machines are judged as the public code has them, on the gradient of the probability; the note says what holds on that of
the logit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from ntkscope.core import Record
from ntkscope.measures.uncertainty import standard_error
from ntkscope_papers.balakrishnan_2023.orthants import readings as read
from ntkscope_papers.balakrishnan_2023.orthants.arithmetic import ENTRIES, TABLE_1, TABLE_2
from ntkscope_papers.balakrishnan_2023.orthants.data import AUTHORS, radii_probed
from ntkscope_papers.balakrishnan_2023.orthants.readings import BESIDE, DEPTHS, JUDGED, told
from ntkscope_papers.framework import Reading, claim, lacking
from ntkscope_papers.framework.claims import Statement
from ntkscope_papers.framework.intervals import CORRELATION, SHARE, interval, short

RUNS = 5  # seeds that a check of means asks for
EVERY = [f"networks/{depth}" for depth in DEPTHS]
Intervals = Mapping[str, dict[str, float]]
Range = tuple[float, float]
Judged = Callable[[Record, dict[int, float]], tuple[bool, str]]


def _within(found: Intervals, *ranges: Range) -> bool:
    """Whether the mean of each column is in its range."""
    return all(low <= row["mean"] <= high for row, (low, high) in zip(found.values(), ranges, strict=True))


def _printed(model: str) -> dict[str, float]:
    empty, _, remaining, _ = TABLE_1[model]
    return {"empty": empty, "remaining": remaining}


# -- data and definitions -----------------------------------------------------------------------------------------------------


@claim(
    "relu-orthant-data", "Section 4.1", {"dimension": 7, "orthants": 128, "train": 25400, "test": 25600}, needs=["data"]
)
def data(config: Any, record: Record) -> Reading:
    """those counts, every item within 1e-5 of its shell, no training item in the empty orthant"""
    found = record.metrics["data"]
    names = ("train", "test", "orthants", "largest distance from a shell", "training items in the empty orthant")
    filled = found["orthants"] - 1
    counts = (
        found["train"] == 2 * config.per_class * filled
        and found["test"] == 2 * config.test_per_class * found["orthants"]
    )
    holds = counts and found[names[3]] <= 1e-5 and found[names[4]] == 0
    return Reading({name: found[name] for name in names}, holds)


@claim(
    "relu-ntk-definition",
    "Section 2",
    "the tangent kernel is the inner product of output gradients",
    needs=["definition"],
)
def definition(config: Any, record: Record) -> Reading:
    """product and pairs within 1e-5 (relative), symmetric, smallest eigenvalue >= -1e-6 of the largest, logit and
    probability"""
    found = record.metrics["definition"]
    measured = {name: found[name] for name in ("error", "asymmetry", "smallest eigenvalue")}
    holds = found["error"] <= 1e-5 and found["asymmetry"] <= 1e-5 and found["smallest eigenvalue"] >= -1e-6
    return Reading(measured, holds, exact=True)


# -- Table 1 ------------------------------------------------------------------------------------------------------------------


def input_machine(name: str, ranges: tuple[Range, Range], config: Any, record: Record) -> Reading:
    """The linear or the RBF machine."""
    rows = list(read.machines_of(record, name).values())
    if not rows:
        return lacking(f"svm/{name}")
    found = read.spread(rows)
    what = "C and γ" if name == "rbf" else "C"
    note = f"{what} chosen: " + ", ".join(f"{row['kernel']}, {row['C']:g}" for row in rows)
    return Reading(told(found), _within(found, *ranges), note, seeds=len(rows))


LINEAR = partial(input_machine, "linear", ((0.47, 0.53), (0.47, 0.53)))
RBF = partial(input_machine, "rbf", ((0.45, 0.55), (0.99, 1)))
INPUTS = [
    claim(
        "relu-t1-linear-svm",
        "Table 1",
        _printed("Linear SVM"),
        "means over seeds within 0.03 of 0.5 in both columns",
        seeds=3,
    )(LINEAR),
    claim(
        "relu-t1-rbf-svm",
        "Table 1",
        _printed("RBF SVM"),
        "means over seeds: remaining >= 0.99, empty within 0.05 of 0.5",
        seeds=3,
    )(RBF),
    claim(
        "relu-t1-rbf-memorises",
        "Section 4.2.1",
        "the RBF machine is perfect where there is training data and at chance in the empty orthant",
        "means over seeds: remaining >= 0.99 and |empty - 0.5| <= 0.05",
        seeds=3,
    )(RBF),
    claim(
        "relu-t1-linear-chance",
        "Section 4.2.1",
        "a linear machine stays at chance everywhere",
        "means over seeds in 0.47 … 0.53 in both columns",
        seeds=3,
    )(LINEAR),
]

# By depth: the check, and the ranges of both columns
NN: dict[int, tuple[str, Range, Range]] = {
    1: ("empty in 0.55 … 0.95, remaining >= 0.85", (0.55, 0.95), (0.85, 1)),
    2: ("empty in 0.5 … 0.95, remaining >= 0.8", (0.5, 0.95), (0.8, 1)),
    3: ("empty >= 0.65, remaining >= 0.9", (0.65, 1), (0.9, 1)),
    4: ("empty in 0.45 … 0.7, remaining >= 0.8", (0.45, 0.7), (0.8, 1)),
    5: ("empty in 0.45 … 0.7, remaining >= 0.9", (0.45, 0.7), (0.9, 1)),
}
NTK: dict[int, tuple[str, Range, Range]] = {
    1: ("empty in 0.5 … 0.9, remaining in 0.75 … 0.97", (0.5, 0.9), (0.75, 0.97)),
    2: ("empty in 0.45 … 0.9, remaining in 0.7 … 1", (0.45, 0.9), (0.7, 1)),
    3: (
        "not above the networks of the same seeds in either column, remaining in 0.6 … 0.95",
        (0, 1),
        (0.6, 0.95),
    ),
    4: ("empty in 0.4 … 0.7, remaining >= 0.7", (0.4, 0.7), (0.7, 1)),
    5: ("empty in 0.45 … 0.7, remaining >= 0.7", (0.45, 0.7), (0.7, 1)),
}


def network(depth: int, config: Any, record: Record) -> Reading:
    rows = read.networks_of(record, depth)
    found = read.spread(rows)
    values = [row["empty"] for row in rows]
    note = (
        "mean, low and high of Student's 95 % interval over seeds; smallest and largest in the empty orthant:"
        f" {min(values):.3f}, {max(values):.3f}{_settings(record, depth)}"
    )
    return Reading(told(found), _within(found, *NN[depth][1:]), note, seeds=len(rows))


def _settings(record: Record, depth: int) -> str:
    """What the grid chose."""
    if authors := record.metrics.get(f"{AUTHORS}/{depth}"):
        told = ", ".join(f"{name} {value:g}" for name, value in authors["chosen"].items())
        own = np.mean([row["empty"] for row in read.own_networks(record, depth)])
        return f"; by the settings of the public code: {told} (by our grid's, empty {own:.3f})"
    grid = record.metrics.get(f"grid/{depth}")
    return "" if grid is None else "; chosen: " + ", ".join(f"{name} {value:g}" for name, value in grid["best"].items())


def tangent(depth: int, config: Any, record: Record) -> Reading:
    rows = read.tangent_of(record, depth, JUDGED)
    if not rows:
        return lacking(f"svm/ntk/{depth}")
    measured, holds = {}, {}
    for reading in (JUDGED, BESIDE):
        found = read.spread(list(read.tangent_of(record, depth, reading).values()))
        measured[reading] = told(found)
        holds[reading] = _within(found, *NTK[depth][1:])
        if depth == 3:
            networks = list(read.networks_fitted(record, depth).values())
            own = {name: row["mean"] for name, row in read.spread(networks).items()}
            measured["networks of the same seeds"] = {name: round(value, 4) for name, value in own.items()}
            holds[reading] &= bool(own) and all(found[name]["mean"] <= own[name] for name in own)
    note = _beside(holds[BESIDE])
    ours = read.machines_of(record, f"ntk/{depth}")
    if ours and read.machines_of(record, f"{AUTHORS}/{depth}"):
        means = read.spread([row[JUDGED] for row in ours.values()])
        words = ", ".join(f"{name} {value['mean']:.3f}" for name, value in means.items())
        note += f"; by the settings of the public code (by our grid's: {words})"
    return Reading(measured, holds[JUDGED], note, seeds=len(rows))


def _beside(holds: bool) -> str:
    said = "holds" if holds else "fails"
    return f"judged on the gradient of the {JUDGED}, as in the public code; on the {BESIDE}'s it {said}"


def of_depths(
    id: str,
    source: str,
    published: Callable[[int], Any],
    checks: Mapping[int, tuple[Any, ...]],
    reading: Callable[..., Reading],
    needs: tuple[str, ...] = ("networks/{}",),
) -> list[Statement]:
    """A claim for every depth, whose check begins its row of `checks`."""
    return [
        claim(
            id.format(depth),
            source,
            published(depth),
            f"means over seeds: {checks[depth][0]}",
            needs=[leg.format(depth) for leg in needs],
            seeds=RUNS,
        )(partial(reading, depth))
        for depth in DEPTHS
    ]


NETWORKS = of_depths("relu-t1-{}nn", "Table 1", lambda depth: _printed(f"{depth}-NN"), NN, network)
TANGENTS = of_depths("relu-t1-{}ntk", "Table 1", lambda depth: _printed(f"{depth}-NTK"), NTK, tangent, needs=())


@claim("relu-t1-ci-implied-n", "Table 1", {"n": 50_000}, needs=["arithmetic"])
def implied(config: Any, record: Record) -> Reading:
    """n recomputed from each of the 17 non-zero half-widths within 0.3 % of 50,000"""
    found = record.metrics["arithmetic"]["implied n"]
    note = (
        "erratum: the set-up gives 200 and 25,400 items, five runs 1,000 and 127,000; intervals over items ignore runs"
    )
    return Reading(found, found["entries"] == 17 and found["largest deviation from 50,000"] <= 0.003, note, exact=True)


@claim("relu-t1-nn-at-least-ntk", "Table 1, Section 4.2.1", {"pairs holding": "10 of 10"}, needs=EVERY, seeds=RUNS)
def at_least(config: Any, record: Record) -> Reading:
    """mean over seeds of NN - NTK of the same seed >= -0.02 in both columns, at all depths but at most one"""
    if absent := [f"svm/ntk/{depth}" for depth in DEPTHS if not read.tangent_of(record, depth, JUDGED)]:
        return lacking(*absent)
    measured, failing, fewest = {}, {}, 10**9
    for reading in (JUDGED, BESIDE):
        failing[reading] = 0
        for depth in DEPTHS:
            machines = read.tangent_of(record, depth, reading)
            pairs = [(row, machines[seed]) for seed, row in read.networks_fitted(record, depth).items()]
            fewest = min(fewest, len(pairs))
            gaps = {name: interval(own[name] - other[name] for own, other in pairs) for name in read.COLUMNS}
            measured[f"{reading}, depth {depth}"] = told(gaps)
            failing[reading] += any(gap["mean"] < -0.02 for gap in gaps.values())
    counts = ", ".join(f"{count} on the {reading}" for reading, count in failing.items())
    note = f"depths that fail: {counts}; {_beside(failing[BESIDE] <= 1)}"
    return Reading(measured, failing[JUDGED] <= 1, note, seeds=fewest)


def _fewest(record: Record) -> int:
    return min(len(read.networks_of(record, depth)) for depth in DEPTHS)


def by_depth(id: str, source: str, published: Any, column: str) -> Callable[[Judged], Statement]:
    """Decorator: a claim about mean accuracies of the networks of every depth, in the empty orthant or in the others."""

    def reading(judged: Judged, config: Any, record: Record) -> Reading:
        rows = {d: interval((row[column] for row in read.networks_of(record, d)), SHARE) for d in DEPTHS}
        holds, note = judged(record, {depth: row["mean"] for depth, row in rows.items()})
        return Reading({str(d): short(row) for d, row in rows.items()}, holds, note, seeds=_fewest(record))

    return claim(id, source, published, needs=EVERY, seeds=RUNS, through=reading)


@claim("relu-t1-3nn-best-empty", "Table 1", {"best": "3-NN"}, needs=EVERY, seeds=RUNS)
def best_empty(config: Any, record: Record) -> Reading:
    """of all networks and machines of Table 1, networks of depth 3 have the highest mean accuracy in the empty orthant, or
    are within one standard error of the best"""
    networks = {f"{depth}-NN": read.networks_of(record, depth) for depth in DEPTHS}
    tangents = {f"svm/ntk/{depth}": list(read.tangent_of(record, depth, JUDGED).values()) for depth in DEPTHS}
    inputs = {f"svm/{name}": list(read.machines_of(record, name).values()) for name in ("linear", "rbf")}
    if absent := [leg for leg, rows in {**tangents, **inputs}.items() if not rows]:
        return lacking(*absent)
    models = {"3-NN": networks["3-NN"], **networks, **tangents, **inputs}
    found = {name: interval((row["empty"] for row in rows), SHARE) for name, rows in models.items()}
    best = max(found, key=lambda name: found[name]["mean"])
    behind = found[best]["mean"] - found["3-NN"]["mean"]
    error = standard_error([row["empty"] for row in models[best]])
    logit, same = read.tangent_of(record, 3, BESIDE), read.networks_fitted(record, 3)
    means = [np.mean([row["empty"] for row in rows.values()]) for rows in (logit, same)]
    note = f"best: {best}; on the logit's gradient depth 3 has {means[0]:.3f}, and the networks it is of {means[1]:.3f}"
    return Reading({name: short(row) for name, row in found.items()}, behind <= error, note, seeds=_fewest(record))


@by_depth("relu-deep-nets-chance", "Section 4.2.1", {depth: TABLE_1[f"{depth}-NN"][0] for depth in DEPTHS}, "empty")
def deep(record: Record, mean: dict[int, float]) -> tuple[bool, str]:
    """mean accuracy in the empty orthant: depths 4, 5 <= 0.65, depths 1, 3 >= 0.6; depth 2 is reported"""
    holds = all(mean[depth] <= 0.65 for depth in (4, 5)) and all(mean[depth] >= 0.6 for depth in (1, 3))
    return (
        holds,
        "erratum: 0.558 at depth 2 contradicts the prose, which counts it among depths consistent across orthants",
    )


@by_depth("relu-remaining-by-depth", "Table 1", {depth: TABLE_1[f"{depth}-NN"][2] for depth in DEPTHS}, "remaining")
def remaining(record: Record, mean: dict[int, float]) -> tuple[bool, str]:
    """mean accuracy in the other orthants: depths 1 and 3 above 2 and 4, 5 the highest and >= 0.95, all >= 0.8"""
    zigzag = all(mean[odd] > mean[even] for odd in (1, 3) for even in (2, 4)) and max(mean, key=mean.__getitem__) == 5
    spread = {depth: read.spread(read.networks_of(record, depth))["remaining"] for depth in DEPTHS}
    pairs = [(1, 2), (1, 4), (3, 2), (3, 4), *((5, depth) for depth in (1, 2, 3, 4))]
    level = [f"{above} and {below}" for above, below in pairs if spread[above]["low"] <= spread[below]["high"]]
    note = f"in the means; intervals overlap of {', '.join(level)}" if level else ""
    return zigzag and mean[5] >= 0.95 and min(mean.values()) >= 0.8, note


# -- Table 2 ------------------------------------------------------------------------------------------------------------------

# By depth: the check, and the ranges of the entries
MATCHES: dict[int, tuple[str, Range, Range, Range, Range]] = {
    1: ("class 0 <= 0.1 and class 1 >= 0.9, before and after", (0, 0.1), (0, 0.1), (0.9, 1), (0.9, 1)),
    2: (
        "class 0 initial <= 0.1 and final <= 0.5, class 1 initial >= 0.9 and final >= 0.8",
        (0, 0.1),
        (0, 0.5),
        (0.9, 1),
        (0.8, 1),
    ),
    3: (
        "class 0 initial <= 0.15 and final >= 0.4, class 1 initial >= 0.85 and final >= 0.7",
        (0, 0.15),
        (0.4, 1),
        (0.85, 1),
        (0.7, 1),
    ),
    4: (
        "class 0 initial <= 0.1 and final <= 0.3, class 1 initial >= 0.9 and final >= 0.8",
        (0, 0.1),
        (0, 0.3),
        (0.9, 1),
        (0.8, 1),
    ),
    5: ("class 0 <= 0.2 and class 1 >= 0.8, before and after", (0, 0.2), (0, 0.2), (0.8, 1), (0.8, 1)),
}


def matches(depth: int, config: Any, record: Record) -> Reading:
    rows = read.networks_of(record, depth)
    found = read.matches_of(rows)
    beside = ", ".join(f"{name} {value['mean']:.3f}" for name, value in read.matches_of(rows, "logit").items())
    note = f"features: last hidden layer after ReLU; of the logit alone: {beside}"
    if f"{AUTHORS}/{depth}" in record.metrics:
        own = ", ".join(f"{value['mean']:.3f}" for value in read.matches_of(read.own_networks(record, depth)).values())
        note += f"; by the settings of the public code (by our grid's, in this order: {own})"
    ranges = MATCHES[depth][1:]
    outside = [
        name
        for (name, one), (low, high) in zip(found.items(), ranges)
        if one["low"] < low > 0 or one["high"] > high < 1
    ]
    if outside:
        note = f"the interval reaches beyond what is asked for: {', '.join(outside)}; {note}"
    return Reading(told(found), _within(found, *ranges), note, seeds=len(rows))


def _entries(depth: int) -> dict[str, float]:
    return {name: centre for name, (centre, _) in zip(ENTRIES, TABLE_2[depth])}


ALL_MATCHES = of_depths("relu-t2-d{}", "Table 2", _entries, MATCHES, matches)


@claim(
    "relu-t2-ci-wilson",
    "Table 2",
    {"n": 500, "counts": [66, 471, 16, 399, 495, 440, 15, 488, 495]},
    needs=["arithmetic"],
)
def wilson(config: Any, record: Record) -> Reading:
    """Wilson's centre and half-width of those counts of 500 are the nine entries, in the digits printed"""
    found = record.metrics["arithmetic"]["wilson"]
    same = found["entries as printed"] == found["entries"] == 9
    right = list(found["counts of 500"].values()) == [66, 471, 16, 399, 495, 440, 15, 488, 495]
    note = "erratum: printed are Wilson centres, not shares; the entries 0 ± 0 and 1 ± 0 break the rule"
    return Reading(found, same and right, note, exact=True)


@claim("relu-raw-distance-class1", "Section 4.2.2", {"class 0": 0.0, "class 1": 1.0}, needs=["data"])
def raw_distance(config: Any, record: Record) -> Reading:
    """match fraction by distance of inputs <= 0.01 for class 0, >= 0.99 for class 1, mean over seeds"""
    pairs = record.metrics["data"]["matches by distance of inputs"]
    mean = np.mean(pairs, axis=0)
    measured = {"class 0": round(float(mean[0]), 4), "class 1": round(float(mean[1]), 4)}
    return Reading(measured, bool(mean[0] <= 0.01 and mean[1] >= 0.99), seeds=len(pairs))


@claim(
    "relu-t2-folding-d3", "Section 4.2.2", {depth: TABLE_2[depth][1][0] for depth in TABLE_2}, needs=EVERY, seeds=RUNS
)
def folding(config: Any, record: Record) -> Reading:
    """mean final match of class 0 at depth 3 exceeds every other depth's by 0.2"""
    found = {depth: read.matches_of(read.networks_of(record, depth))["class 0 final"] for depth in DEPTHS}
    above = all(found[3]["mean"] - found[depth]["mean"] >= 0.2 for depth in DEPTHS if depth != 3)
    return Reading({str(depth): short(row) for depth, row in found.items()}, above, seeds=_fewest(record))


# -- Figure 2 -----------------------------------------------------------------------------------------------------------------


@claim("relu-fig2-setting", "Figure 2", {"radii": 21, "points per radius": 100, "orthants": 3})
def curves(config: Any, record: Record) -> Reading:
    """three curves of 21 probabilities, 100 points each"""
    found = read.network_curves(record)
    if found is None:
        return lacking("networks/3")
    shape = list(found.shape[1:])
    holds = shape == [3, 21] and bool(((found >= 0) & (found <= 1)).all())
    note = (
        "the same directions in every orthant, mirrored (the document leaves it open); all orthants are in the record"
    )
    return Reading({"curves": shape, "points per radius": config.directions}, holds, note)


@claim(
    "relu-fig2-nn-monotone",
    "Figure 2, Section 4.2.2",
    "at depth 3 the network's probability of class 1 rises with the radius in all three orthants",
    seeds=RUNS,
)
def monotone(config: Any, record: Record) -> Reading:
    """mean over seeds of Spearman's correlation >= 0.8 in each; of P(2.5) - P(1) >= 0.3 in those with training items"""
    found = read.network_curves(record)
    if found is None:
        return lacking("networks/3")
    radii = radii_probed().numpy()
    low, high = int(np.argmin(abs(radii - 1.0))), int(np.argmin(abs(radii - 2.5)))
    measured, holds, apart = {}, True, []
    for k, name in enumerate(read.SHOWN):
        ranks = [float(spearmanr(radii, curve).statistic) if np.ptp(curve) > 0 else 0.0 for curve in found[:, k]]
        rank, rise = interval(ranks, CORRELATION), interval(found[:, k, high] - found[:, k, low])
        measured[name] = {"Spearman": short(rank), "P(2.5) - P(1)": short(rise)}
        holds &= rank["mean"] >= 0.8 and (name == "empty" or rise["mean"] >= 0.3)
        falling = sum(value < 0.8 for value in ranks)
        apart += [f"{falling} of {len(ranks)} in the {name} orthant"] if falling else []
    note = (
        f"the statement goes further than its check: the curve is not monotone in {', '.join(apart)}" if apart else ""
    )
    return Reading(measured, holds, note, seeds=len(found))


@claim(
    "relu-fig2-ntk-dip",
    "Figure 2, Section 4.2.2",
    "at depth 3 the tangent machine says class 1 almost everywhere but near radius 1",
    seeds=RUNS,
)
def dips(config: Any, record: Record) -> Reading:
    """share of class 1, mean over seeds, in each orthant: smallest at a radius in 0.7 … 1.4, at least 0.75 at 0.5 and 2.5"""
    measured: dict[str, Any] = {}
    holds, seeds = {}, {}
    for reading in (JUDGED, BESIDE):
        found = read.machine_curves(record, reading)
        if found is None and reading == JUDGED:
            return lacking("svm/ntk/3")
        holds[reading], seeds[reading] = found is not None, 0 if found is None else len(found)
        for k, name in enumerate(read.SHOWN if found is not None else ()):
            assert found is not None
            shape = read.dip(found.mean(0)[k])
            dipping = sum(read.dip(one)["holds"] for one in found[:, k])
            measured[f"{reading}, {name}"] = {**shape, "machines one by one": f"{dipping} of {len(found)}"}
            holds[reading] &= shape["holds"]
    return Reading(measured, holds[JUDGED], _beside(holds[BESIDE]), seeds=seeds[JUDGED])
