"""Verdicts on the statements of `linear-width` from its record."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ntkscope.core import Record
from ntkscope_papers.framework.claims import Read, Reading, lacking
from ntkscope_papers.wang_2023 import linear_width_readings as read
from ntkscope_papers.wang_2023.linear_width_published import CLASSES, CONSTANTS, IMPLIED, TABLE_8, WITHIN

NAME = "linear-width"
CASE_2 = (
    "the published numbers contradict each other: at the variance of the other rows an R² of 0.606 means an error of 0.393,"
    " and an"
    " error of 0.369 an R² of 0.630"
)
GAPS = {
    "loss": ("gradient",),
    "ck-definition": ("ck", "ck_engine"),
    "ntk-formula": ("ntk", "ntk_engine"),
    "lazy-predictor": ("lazy",),
}


def _formula(key: str, bound: float, config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, "definitions/formulas"):
        return lacking(*lacks)
    found = record.metrics["definitions/formulas"]
    measured = {name: found[name] for name in GAPS[key]}
    holds = max(measured.values()) <= bound
    note = ""
    if key == "ck-definition":
        measured["without 1/√d"] = found["ck_printed_in_section_4_1"]
        holds = holds and measured["without 1/√d"] > 0.01
        note = "Section 4.1 prints the CK without 1/√d inside σ; that is another kernel"
    return Reading(measured, holds, note, exact=True)


def _parameterisation(config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, "initial"):
        return lacking(*lacks)
    found = record.metrics["initial"]
    measured = {name: found[name] for name in ("before", "outputs", "readout")}
    holds = abs(found["before"] - 1) <= 0.1 and abs(found["outputs"] / found["readout"] - 1) <= 0.1
    return Reading(measured, holds)


def _constants(config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, "definitions/constants"):
        return lacking(*lacks)
    found = {name: record.metrics["definitions/constants"][name] for name in CONSTANTS}
    return Reading(found, all(abs(found[name] - value) <= 1e-6 for name, value in CONSTANTS.items()), exact=True)


def _teacher(config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, "baselines"):
        return lacking(*lacks)
    found = [one["printed"] for one in record.metrics["baselines"]["members"]]
    measured = {name: read.average(one[name] for one in found) for name in found[0]}
    wanted = {"mean": 0.2, "variance": 1.09, "clean_variance": 1.0}
    note = "all other measurements take τ(|x|²/d - 1), without its constant: only that reading matches the table"
    return Reading(measured, all(abs(measured[name] - value) <= 0.05 for name, value in wanted.items()), note)


def _odd(config: Any, record: Record) -> Reading:
    keys = ("even", *(read.key_of(case) for case in CLASSES))
    if lacks := read.missing(record, *keys):
        return lacking(*lacks)
    odd = max(one["not_odd"] for key in keys for one in read.members(record, key))
    even = max(one["r2"] for one in read.members(record, "even"))
    best = max(read.row(record, case)["r2"] for case in CLASSES)
    share = CONSTANTS["softplus_linear_share"]
    measured = {"|f(x)+f(-x)|/max|f|": odd, "R² of an even target": even, "ceiling": share, "best R²": best}
    note = f"an odd network cannot learn the {1 - share:.1%} of the teacher's variance that are even in x"
    return Reading(measured, odd <= 1e-5 and even <= 0.02, note + "; 1e-5 in place of 1e-6: single precision")


def _ridge(config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, "baselines", *(read.key_of(case) for case in CLASSES)):
        return lacking(*lacks)
    found = record.metrics["baselines"]["members"]
    linear = {name: read.average(one[name]["r2"] for one in found) for name in ("least squares", "ridge")}
    errors = read.average(one["ridge"]["test_error"] for one in found)
    best = {case: read.row(record, case)["r2"] for case in CLASSES}
    return Reading(
        {**linear, "ridge error": errors, "networks": best},
        linear["ridge"] >= max(best.values()) - 0.02,
        "what an odd network can learn of this teacher is exactly linear in x",
    )


def _kta(config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, "definitions/kta"):
        return lacking(*lacks)
    found = {name: value for name, value in record.metrics["definitions/kta"].items() if name != "seconds"}
    holds = max(found["labels"], found["identity"]) <= 1e-12 and found["least"] >= 0 and found["largest"] <= 1
    return Reading(found, holds, exact=True)


def _setting(config: Any, record: Record) -> Reading:
    keys = [read.key_of(case) for case in CLASSES]
    if lacks := read.missing(record, *keys):
        return lacking(*lacks)
    reached, steps = {}, {}
    for case, key in zip(CLASSES, keys):
        found = read.members(record, key)
        limit = config.threshold * (2 if config.table_case(case).halved else 1)
        reached[case] = bool(found) and all(one["train_mse"] <= 1.05 * limit for one in found)
        steps[case] = [one["steps"] for one in found]
    sizes = {"n": config.items, "h": config.width, "d": config.dimension, "tau": config.tau, "noise": config.noise}
    note = "GD and Adam: Eq. 74's loss below the threshold; SGD: the mean of r² itself"
    return Reading({**sizes, "steps": steps, "below the threshold": reached}, all(reached.values()), note)


def _row(case: str, config: Any, record: Record) -> Reading:
    key = read.key_of(case)
    if lacks := read.missing(record, key):
        return lacking(*lacks)
    measured: dict[str, Any] = read.row(record, case)
    close = {name: abs(measured[name] - value) <= WITHIN[case] for name, value in TABLE_8[case].items()}
    holds, note = all(close.values()), ""
    found = read.members(record, key)
    if case == "case2":
        note = (
            f"{CASE_2}; R² {'holds' if close['r2'] else 'fails'}, error {'holds' if close['test_error'] else 'fails'}"
        )
    elif case == "case3" and found:
        edge = record.metrics["initial"]["edge"] if "initial" in record.metrics else 4.949490
        measured["λ₁ / edge"] = [one["spectra"]["weights"]["top"][0] / edge for one in found]
        measured["|β·u₁|"] = [one["alignment"]["weights"] for one in found]
        holds = holds and min(measured["λ₁ / edge"]) > 1.2 and min(measured["|β·u₁|"]) > 0.7
        note = "batches of 32 and squared error without ½; with ½ no spike appears"
    elif case == "case4" and found:
        measured["above the edge"] = [one["spectra"]["weights"]["above"] for one in found]
        measured["|β·u₁|"] = [one["alignment"]["weights"] for one in found]
        measured["cos² of β and ten first vectors"] = [one["outliers"] for one in found]
        holds = holds and min(measured["above the edge"]) >= 5
        note = "the first vector need not be β; the subspace of the outliers has it"
    return Reading(measured, holds and bool(found), note, seeds=int(measured["networks"]))


def _noise_free(config: Any, record: Record) -> Reading:
    keys = [read.key_of(case) for case in read.CASES]
    if lacks := read.missing(record, *keys):
        return lacking(*lacks)
    each = [one for key in keys for one in read.members(record, key)]
    gap = max(abs(one["test_error"] - (1 - one["r2"]) * one["variance"]) for one in each)
    spread = [one["variance"] for one in each]
    published = {case: TABLE_8[case]["test_error"] / (1 - TABLE_8[case]["r2"]) for case in IMPLIED}
    off = max(abs(published[case] - value) for case, value in IMPLIED.items())
    measured = {"gap": gap, "variance": [min(spread), max(spread)], "implied by the table": published}
    return Reading(measured, gap <= 1e-9 and off <= 2e-5 and all(abs(v - 1) <= 0.1 for v in spread))


def _order(zero: bool, config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, *(read.key_of(case, zero) for case in read.CASES)):
        return lacking(*lacks)
    values, holds, holding, count = read.in_order(record, zero)
    return Reading(values, holds, f"in {holding} of {count} seeds one by one", seeds=count)


def _invariant(case: str, config: Any, record: Record) -> Reading:
    key = read.key_of(case)
    if lacks := read.missing(record, key):
        return lacking(*lacks)
    found = read.members(record, key)
    measured: dict[str, Any] = {
        f"{what} {kind}": read.average(one["spectra"][kind][what] for one in found)
        for kind in ("weights", "ck", "ntk")
        for what in ("ks", "top_ratio")
    }
    quiet = all(measured[f"ks {kind}"] < bound for kind, bound in (("weights", 0.01), ("ck", 0.03), ("ntk", 0.03)))
    still = all(abs(measured[f"top_ratio {kind}"] - 1) <= 0.02 for kind in ("weights", "ck", "ntk"))
    given = read.labels(record, case)
    measured["classes of W"] = given
    measured["classes of CK, NTK"] = [read.labels(record, case, kind) for kind in ("ck", "ntk")]
    return Reading(measured, bool(found) and quiet and still and read.mostly(given, CLASSES[case]))


def _random_bulk(config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, "table8/case3"):
        return lacking(*lacks)
    found = [one["bulk_ks"] for one in read.members(record, "table8/case3")]
    return Reading(found, bool(found) and max(found) < 0.02)


def _spike(config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, "table8/case3"):
        return lacking(*lacks)
    found = read.members(record, "table8/case3")
    counts = {kind: [one["spectra"][kind]["above_tenth"] for one in found] for kind in ("weights", "ck")}
    gaps = {kind: read.average(one["spectra"][kind]["gap"] for one in found) for kind in ("weights", "ck", "ntk")}
    before = {kind: read.average(_gap_before(one, kind) for one in found) for kind in gaps}
    given = read.labels(record, "case3")
    measured = {"more than 10 % above": counts, "λ₁/λ₂": gaps, "at the start": before, "classes of W": given}
    one_each = all(count == 1 for each in counts.values() for count in each)
    return Reading(
        measured,
        bool(found) and one_each and gaps["ntk"] == max(gaps.values()) and read.mostly(given, CLASSES["case3"]),
    )


def _gap_before(member: Mapping[str, Any], kind: str) -> float:
    """λ₁/λ₂ before training."""
    first, second = member["start"][kind]["top"][:2]
    return float(first / second)


def _heavy(config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, "table8/case4", "adagrad"):
        return lacking(*lacks)
    measured: dict[str, Any] = {}
    holds = True
    for name, key in (("Adam", "table8/case4"), ("AdaGrad", "adagrad")):
        found = read.members(record, key)
        above = {kind: [one["spectra"][kind]["above"] for one in found] for kind in ("weights", "ck", "ntk")}
        index = {kind: [[one["start"][kind]["hill"], one["spectra"][kind]["hill"]] for one in found] for kind in above}
        measured[name] = {"above the edge": above, "Hill before, after": index}
        holds = holds and bool(found) and min(min(counts) for counts in above.values()) >= 5
        holds = holds and all(after < before for pairs in index.values() for before, after in pairs)
    given = read.labels(record, "case4")
    measured["classes of W"] = given
    measured["classes of CK, NTK"] = [read.labels(record, "case4", kind) for kind in ("ck", "ntk")]
    return Reading(measured, holds and read.mostly(given, CLASSES["case4"]))


def _edge(config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, "initial"):
        return lacking(*lacks)
    found = record.metrics["initial"]
    off = max(abs(top / found["edge"] - 1) for top in found["top"])
    holds = off <= 0.02 and abs(found["edge"] - found["edge_by_hand"]) <= 1e-9
    return Reading({"edge": found["edge"], "λ₁": found["top"]}, holds, "for WWᵀ/d, as under the figure; not WᵀW")


def _aligned(config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, "table8/case3"):
        return lacking(*lacks)
    found = read.members(record, "table8/case3")
    after, before = ([one[name]["weights"] for one in found] for name in ("alignment", "alignment_before"))
    return Reading({"before": before, "after": after}, bool(found) and min(after) > 0.7 and max(before) < 0.1)


def _gain(config: Any, record: Record) -> Reading:
    if lacks := read.missing(record, "table8/case2", "table8/case3"):
        return lacking(*lacks)
    large, small = read.row(record, "case3"), read.row(record, "case2")
    gain = large["r2"] - small["r2"]
    return Reading({"gain": gain}, gain >= 0.05, seeds=int(min(large["networks"], small["networks"])))


READINGS: Mapping[str, Read] = {
    "ntk-parameterisation": _parameterisation,
    "loss": partial(_formula, "loss", 1e-10),
    "ck-definition": partial(_formula, "ck-definition", 1e-12),
    "ntk-formula": partial(_formula, "ntk-formula", 1e-10),
    "lazy-predictor": partial(_formula, "lazy-predictor", 1e-8),
    "activation-constants": _constants,
    "teacher": _teacher,
    "odd-network-ceiling": _odd,
    "linear-ridge-baseline": _ridge,
    "kta": _kta,
    "table8-setting": _setting,
    **{f"table8-{case}": partial(_row, case) for case in read.CASES},
    "table8-noise-free-test": _noise_free,
    "table8-order": partial(_order, False),
    "tau-zero": partial(_order, True),
    "invariant-bulk-gd": partial(_invariant, "case1"),
    "bulk-stays-random": _random_bulk,
    "spike-case3": _spike,
    "heavy-tail-case4": _heavy,
    "mp-edge": _edge,
    "alignment-case3": _aligned,
    "large-step-helps": _gain,
    "sgd-invariance": partial(_invariant, "case2"),
}
