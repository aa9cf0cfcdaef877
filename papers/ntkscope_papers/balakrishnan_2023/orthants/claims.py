"""Orthant shells: what a record says about each published statement.

Tangent machines are judged as the public code has them, on the gradient of the probability; the note says what holds on that of
the logit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from ntkscope.core import Record
from ntkscope.measures.uncertainty import standard_error
from ntkscope_papers.balakrishnan_2023.orthants.data import AUTHORS, radii_probed
from ntkscope_papers.balakrishnan_2023.orthants.published import PUBLISHED as PUBLISHED
from ntkscope_papers.balakrishnan_2023.orthants.readings import (
    BESIDE,
    COLUMNS,
    DEPTHS,
    JUDGED,
    SHOWN,
    dip,
    machine_curves,
    machines_of,
    matches_of,
    means,
    network_curves,
    networks_fitted,
    networks_of,
    spread,
    tangent_of,
    told,
)
from ntkscope_papers.framework.claims import Read, Reading, lacking, needs
from ntkscope_papers.framework.intervals import CORRELATION, SHARE, interval, short

Check = Callable[[Mapping[str, float]], bool]


def _between(column: str, low: float, high: float) -> Check:
    return lambda found: low <= found[column] <= high


def _all(*checks: Check) -> Check:
    return lambda found: all(check(found) for check in checks)


NETWORK_CHECKS: dict[int, Check] = {
    1: _all(_between("empty", 0.55, 0.95), _between("remaining", 0.85, 1)),
    2: _all(_between("empty", 0.5, 0.95), _between("remaining", 0.8, 1)),
    3: _all(_between("empty", 0.65, 1), _between("remaining", 0.9, 1)),
    4: _all(_between("empty", 0.45, 0.7), _between("remaining", 0.8, 1)),
    5: _all(_between("empty", 0.45, 0.7), _between("remaining", 0.9, 1)),
}
TANGENT_CHECKS: dict[int, Check] = {
    1: _all(_between("empty", 0.5, 0.9), _between("remaining", 0.75, 0.97)),
    2: _all(_between("empty", 0.45, 0.9), _between("remaining", 0.7, 1)),
    3: _between("remaining", 0.6, 0.95),  # and not above the networks
    4: _all(_between("empty", 0.4, 0.7), _between("remaining", 0.7, 1)),
    5: _all(_between("empty", 0.45, 0.7), _between("remaining", 0.7, 1)),
}


def _network(depth: int) -> Read:
    @needs(f"networks/{depth}")
    def read(config: Any, record: Record) -> Reading:
        rows = networks_of(record, depth)
        found = spread(rows)
        values = [row["empty"] for row in rows]
        note = (
            "mean, low and high of Student's 95 % interval over seeds; smallest and largest in the empty orthant:"
            f" {min(values):.3f}, {max(values):.3f}{_settings(record, depth)}"
        )
        return Reading(told(found), NETWORK_CHECKS[depth](means(found)), note, seeds=len(rows))

    return read


def _settings(record: Record, depth: int) -> str:
    """What the grid chose."""
    if authors := record.metrics.get(f"{AUTHORS}/{depth}"):
        told = ", ".join(f"{name} {value:g}" for name, value in authors["chosen"].items())
        own = np.mean([row["empty"] for row in record.metrics[f"networks/{depth}"]["networks"]])
        return f"; by the settings of the public code: {told} (by our grid's, empty {own:.3f})"
    grid = record.metrics.get(f"grid/{depth}")
    return "" if grid is None else "; chosen: " + ", ".join(f"{name} {value:g}" for name, value in grid["best"].items())


def _tangent(depth: int) -> Read:
    def read(config: Any, record: Record) -> Reading:
        rows = tangent_of(record, depth, JUDGED)
        if not rows:
            return lacking(f"svm/ntk/{depth}")
        measured, holds = {}, {}
        for reading in (JUDGED, BESIDE):
            found = spread(list(tangent_of(record, depth, reading).values()))
            measured[reading] = told(found)
            holds[reading] = TANGENT_CHECKS[depth](means(found))
            if depth == 3:
                own = means(spread(list(networks_fitted(record, depth).values())))
                measured["networks of the same seeds"] = {name: round(value, 4) for name, value in own.items()}
                holds[reading] &= bool(own) and all(means(found)[name] <= own[name] for name in own)
        return Reading(measured, holds[JUDGED], _beside(holds[BESIDE]), seeds=len(rows))

    return read


def _beside(holds: bool) -> str:
    said = "holds" if holds else "fails"
    return f"judged on the gradient of the {JUDGED}, as in the public code; on the {BESIDE}'s it {said}"


def _inputs(name: str, check: Check) -> Read:
    def read(config: Any, record: Record) -> Reading:
        rows = list(machines_of(record, name).values())
        if not rows:
            return lacking(f"svm/{name}")
        found = spread(rows)
        note = (
            "C"
            + (" and γ" if name == "rbf" else "")
            + " chosen: "
            + ", ".join(f"{r['kernel']}, {r['C']:g}" for r in rows)
        )
        return Reading(told(found), check(means(found)), note, seeds=len(rows))

    return read


def _data(config: Any, record: Record) -> Reading:
    if "data" not in record.metrics:
        return lacking("data")
    found = record.metrics["data"]
    names = ("train", "test", "orthants", "largest distance from a shell", "training items in the empty orthant")
    filled = found["orthants"] - 1
    counts = (
        found["train"] == 2 * config.per_class * filled
        and found["test"] == 2 * config.test_per_class * found["orthants"]
    )
    holds = counts and found[names[3]] <= 1e-5 and found[names[4]] == 0
    return Reading({name: found[name] for name in names}, holds)


@needs("definition")
def _definition(config: Any, record: Record) -> Reading:
    found = record.metrics["definition"]
    measured = {name: found[name] for name in ("error", "asymmetry", "smallest eigenvalue")}
    holds = found["error"] <= 1e-5 and found["asymmetry"] <= 1e-5 and found["smallest eigenvalue"] >= -1e-6
    return Reading(measured, holds, exact=True)


@needs("arithmetic")
def _implied(config: Any, record: Record) -> Reading:
    found = record.metrics["arithmetic"]["implied n"]
    note = (
        "erratum: the set-up gives 200 and 25,400 items, five runs 1,000 and 127,000; intervals over items ignore runs"
    )
    return Reading(found, found["entries"] == 17 and found["largest deviation from 50,000"] <= 0.003, note, exact=True)


@needs("arithmetic")
def _wilson(config: Any, record: Record) -> Reading:
    found = record.metrics["arithmetic"]["wilson"]
    same = found["entries as printed"] == found["entries"] == 9
    right = list(found["counts of 500"].values()) == [66, 471, 16, 399, 495, 440, 15, 488, 495]
    note = "erratum: printed are Wilson centres, not shares; the entries 0 ± 0 and 1 ± 0 break the rule"
    return Reading(found, same and right, note, exact=True)


def _every_depth(record: Record) -> tuple[str, ...]:
    return tuple(f"networks/{depth}" for depth in DEPTHS if not networks_of(record, depth))


def _by_depth(record: Record, column: str) -> dict[int, dict[str, float]]:
    return {depth: interval((row[column] for row in networks_of(record, depth)), SHARE) for depth in DEPTHS}


def _fewest(record: Record) -> int:
    return min(len(networks_of(record, depth)) for depth in DEPTHS)


def _depths(column: str, check: Callable[[dict[int, dict[str, float]]], tuple[bool, str]]) -> Read:
    def read(config: Any, record: Record) -> Reading:
        if absent := _every_depth(record):
            return lacking(*absent)
        found = _by_depth(record, column)
        holds, note = check(found)
        return Reading({str(depth): short(row) for depth, row in found.items()}, holds, note, seeds=_fewest(record))

    return read


def _deep(found: dict[int, dict[str, float]]) -> tuple[bool, str]:
    mean = {depth: row["mean"] for depth, row in found.items()}
    holds = all(mean[depth] <= 0.65 for depth in (4, 5)) and all(mean[depth] >= 0.6 for depth in (1, 3))
    return (
        holds,
        "erratum: 0.558 at depth 2 contradicts the prose, which counts it among depths consistent across orthants",
    )


def _remaining(found: dict[int, dict[str, float]]) -> tuple[bool, str]:
    mean = {depth: row["mean"] for depth, row in found.items()}
    zigzag = all(mean[odd] > mean[even] for odd in (1, 3) for even in (2, 4)) and max(mean, key=mean.__getitem__) == 5
    said = "as published" if zigzag else "not as published"
    return mean[5] >= 0.95 and min(mean.values()) >= 0.8, f"the order of depths is {said}"


def _best(found: dict[int, dict[str, float]]) -> tuple[bool, str]:
    mean = {depth: row["mean"] for depth, row in found.items()}
    best = max(mean, key=mean.__getitem__)
    return mean[3] == mean[best], f"best: depth {best}"


def _best_empty(config: Any, record: Record) -> Reading:
    plain = _depths("empty", _best)(config, record)
    if plain.lacks or plain.holds:
        return plain
    found = _by_depth(record, "empty")
    best = max(found, key=lambda depth: found[depth]["mean"])
    error = standard_error([row["empty"] for row in networks_of(record, best)])
    near = found[best]["mean"] - found[3]["mean"] <= error
    return Reading(plain.measured, near, f"{plain.note}, standard error {error:.3f}", seeds=plain.seeds)


def _at_least(config: Any, record: Record) -> Reading:
    absent = [f"svm/ntk/{depth}" for depth in DEPTHS if not tangent_of(record, depth, JUDGED)]
    if absent or (missing := _every_depth(record)):
        return lacking(*(absent or missing))
    measured, failing, fewest = {}, {}, 10**9
    for reading in (JUDGED, BESIDE):
        failing[reading] = 0
        for depth in DEPTHS:
            machines = tangent_of(record, depth, reading)
            pairs = [(row, machines[seed]) for seed, row in networks_fitted(record, depth).items()]
            fewest = min(fewest, len(pairs))
            gaps = {name: interval(own[name] - other[name] for own, other in pairs) for name in COLUMNS}
            measured[f"{reading}, depth {depth}"] = told(gaps)
            failing[reading] += any(gap["mean"] < -0.02 for gap in gaps.values())
    counts = ", ".join(f"{count} on the {reading}" for reading, count in failing.items())
    note = f"depths that fail: {counts}; {_beside(failing[BESIDE] <= 1)}"
    return Reading(measured, failing[JUDGED] <= 1, note, seeds=fewest)


# -- Table 2 ----------------------------------------------------------------------------------------------------------------


MATCH_CHECKS: dict[int, Callable[[Mapping[str, float]], bool]] = {
    1: lambda m: (
        max(m["class 0 initial"], m["class 0 final"]) <= 0.1 and min(m["class 1 initial"], m["class 1 final"]) >= 0.9
    ),
    2: lambda m: m["class 0 final"] <= 0.5 and m["class 1 final"] >= 0.8,
    3: lambda m: m["class 0 initial"] <= 0.15 and m["class 0 final"] >= 0.4 and m["class 1 final"] >= 0.7,
    4: lambda m: m["class 0 final"] <= 0.3 and m["class 1 final"] >= 0.8,
    5: lambda m: (
        max(m["class 0 initial"], m["class 0 final"]) <= 0.2 and min(m["class 1 initial"], m["class 1 final"]) >= 0.8
    ),
}


def _matches(depth: int) -> Read:
    @needs(f"networks/{depth}")
    def read(config: Any, record: Record) -> Reading:
        rows = networks_of(record, depth)
        found = matches_of(rows)
        beside = ", ".join(f"{name} {value['mean']:.3f}" for name, value in matches_of(rows, "logit").items())
        note = f"features: last hidden layer after ReLU; of the logit alone: {beside}"
        return Reading(told(found), MATCH_CHECKS[depth](means(found)), note, seeds=len(rows))

    return read


def _folding(config: Any, record: Record) -> Reading:
    if absent := _every_depth(record):
        return lacking(*absent)
    found = {depth: matches_of(networks_of(record, depth))["class 0 final"] for depth in DEPTHS}
    above = all(found[3]["mean"] - found[depth]["mean"] >= 0.2 for depth in DEPTHS if depth != 3)
    return Reading({str(depth): short(row) for depth, row in found.items()}, above, seeds=_fewest(record))


@needs("data")
def _raw(config: Any, record: Record) -> Reading:
    pairs = record.metrics["data"]["matches by distance of inputs"]
    mean = np.mean(pairs, axis=0)
    measured = {"class 0": round(float(mean[0]), 4), "class 1": round(float(mean[1]), 4)}
    return Reading(measured, bool(mean[0] <= 0.01 and mean[1] >= 0.99), seeds=len(pairs))


# -- Figure 2 ---------------------------------------------------------------------------------------------------------------


def _curves(config: Any, record: Record) -> Reading:
    found = network_curves(record)
    if found is None:
        return lacking("networks/3")
    shape = list(found.shape[1:])
    holds = shape == [3, 21] and bool(((found >= 0) & (found <= 1)).all())
    note = (
        "the same directions in every orthant, mirrored (the document leaves it open); all orthants are in the record"
    )
    return Reading({"curves": shape, "points per radius": config.directions}, holds, note)


def _monotone(config: Any, record: Record) -> Reading:
    found = network_curves(record)
    if found is None:
        return lacking("networks/3")
    radii = radii_probed().numpy()
    low, high = int(np.argmin(abs(radii - 1.0))), int(np.argmin(abs(radii - 2.5)))
    measured, holds = {}, True
    for k, name in enumerate(SHOWN):
        ranks = [float(spearmanr(radii, curve).statistic) if np.ptp(curve) > 0 else 0.0 for curve in found[:, k]]
        rank, rise = interval(ranks, CORRELATION), interval(found[:, k, high] - found[:, k, low])
        measured[name] = {"Spearman": short(rank), "P(2.5) - P(1)": short(rise)}
        holds &= rank["mean"] >= 0.8 and (name == "empty" or rise["mean"] >= 0.3)
    return Reading(measured, holds, seeds=len(found))


def _dip(config: Any, record: Record) -> Reading:
    found = {reading: machine_curves(record, reading) for reading in (JUDGED, BESIDE)}
    judged = found[JUDGED]
    if judged is None:
        return lacking("svm/ntk/3")
    measured: dict[str, Any] = {}
    holds = {}
    for reading, curves in found.items():
        holds[reading] = curves is not None
        for k, name in enumerate(SHOWN if curves is not None else ()):
            assert curves is not None
            shape = dip(curves.mean(0)[k])
            measured[f"{reading}, {name}"] = shape
            holds[reading] &= shape["holds"]
    return Reading(measured, holds[JUDGED], _beside(holds[BESIDE]), seeds=len(judged))


READINGS: dict[str, Read] = {
    "relu-orthant-data": _data,
    "relu-ntk-definition": _definition,
    "relu-t1-linear-svm": _inputs("linear", _all(_between("empty", 0.47, 0.53), _between("remaining", 0.47, 0.53))),
    "relu-t1-rbf-svm": _inputs("rbf", _all(_between("empty", 0.45, 0.55), _between("remaining", 0.99, 1))),
    **{f"relu-t1-{depth}nn": _network(depth) for depth in DEPTHS},
    **{f"relu-t1-{depth}ntk": _tangent(depth) for depth in DEPTHS},
    **{f"relu-t2-d{depth}": _matches(depth) for depth in DEPTHS},
    "relu-t1-ci-implied-n": _implied,
    "relu-t1-nn-at-least-ntk": _at_least,
    "relu-t1-rbf-memorises": _inputs("rbf", _all(_between("empty", 0.45, 0.55), _between("remaining", 0.99, 1))),
    "relu-t1-linear-chance": _inputs("linear", _all(_between("empty", 0.47, 0.53), _between("remaining", 0.47, 0.53))),
    "relu-t1-3nn-best-empty": _best_empty,
    "relu-deep-nets-chance": _depths("empty", _deep),
    "relu-remaining-by-depth": _depths("remaining", _remaining),
    "relu-t2-ci-wilson": _wilson,
    "relu-raw-distance-class1": _raw,
    "relu-t2-folding-d3": _folding,
    "relu-fig2-setting": _curves,
    "relu-fig2-nn-monotone": _monotone,
    "relu-fig2-ntk-dip": _dip,
}
