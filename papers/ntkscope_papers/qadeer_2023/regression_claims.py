"""Function regression: the checks on what a record holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ntkscope.core import Claim, Record
from ntkscope_papers.qadeer_2023.cells import Check, Rows, Say, judge_cells, sayer
from ntkscope_papers.qadeer_2023.networks import Cell, digits, joined, median, training_seconds
from ntkscope_papers.qadeer_2023.regression_published import PUBLISHED

SMOOTH, WIDE, KINKED = "tanh-128", "tanh-256", "relu-128"
GAINED = ("f1", "f2")  # targets on which CKJ has to gain a factor 100
SEPARATION, ORDERS, APART = 10.0, 100.0, 0.5
VACUOUS = 1e-6


def judge(config: Any, record: Record, difference: str) -> Iterator[Claim]:
    """Every check on the cells that were measured; a claim about others says which."""
    checks: tuple[Check, ...] = (
        ("fig3-separation", (SMOOTH,), lambda rows, say: _separation("fig3-separation", rows, say)),
        ("fig3-ntk-ck-similar", (SMOOTH,), lambda rows, say: _similar(config, record, rows, say)),
        ("fig3-ckj-orders-better", (SMOOTH,), _orders),
        ("fig5-width-256", (WIDE,), _wide),
        ("fig6-relu", (KINKED,), _relu),
        ("relu-ntk-overfits", (KINKED,), lambda rows, say: _overfits(config, record, rows, say)),
        ("activation-agnostic-network", (SMOOTH, KINKED), lambda rows, say: _agnostic(config, rows, say)),
        ("fig4-faster-decay", (SMOOTH,), lambda rows, say: _decay(config, record, say)),
        ("fig7-relu-evolution", (KINKED,), lambda rows, say: _persists(config, record, say)),
        ("beta-below-one-is-empty", (SMOOTH,), _beta),
        ("retrain-last-layer", (SMOOTH,), _retrained),
        ("network-in-ck-span", config.architectures, _ordered),
        ("theorem-4-1", config.architectures, lambda rows, say: _first_theorem(record, rows, say)),
        ("theorem-4-2", config.architectures, lambda rows, say: _second_theorem(record, rows, say)),
        ("regression-setting", config.architectures, lambda rows, say: _setting(config, record, rows, say)),
    )
    yield from judge_cells(record, "errors", config.targets, checks, sayer(PUBLISHED, difference))


def ratios(rows: Rows, over: str, under: str) -> np.ndarray:
    found: np.ndarray = np.asarray(rows[over], dtype=float) / np.asarray(rows[under], dtype=float)
    return found


def _count(rows: dict[str, Rows]) -> int:
    return min(len(one["network"]) for one in rows.values())


def _medians(rows: dict[str, Rows], over: str, under: str) -> dict[str, float]:
    return {cell: digits(median(ratios(one, over, under))) for cell, one in rows.items()}


def _errors(rows: dict[str, Rows]) -> dict[str, dict[str, float]]:
    """The median test errors, for a table."""
    return {
        cell: {name: digits(median(one[name])) for name in ("network", "ntk", "ck", "ckj")}
        for cell, one in rows.items()
    }


def _separation(name: str, rows: dict[str, Rows], say: Say) -> Claim:
    found = _medians(rows, "network", "ck")
    note = f"median network/NTK {_medians(rows, 'network', 'ntk')}; cut-off of the pseudo-inverse (N + 1) ε"
    measured = {"median network/CK": found, "median test error": _errors(rows)}
    return say(name, measured, min(found.values()) >= SEPARATION, note, _count(rows))


def _closeness(rows: dict[str, Rows]) -> dict[str, list[float]]:
    """Of each cell: the median |log10 NTK/CK| and the median log10 network/CK."""
    return {
        cell: [
            digits(median(np.abs(np.log10(ratios(one, "ntk", "ck"))))),
            digits(median(np.log10(ratios(one, "network", "ck")))),
        ]
        for cell, one in rows.items()
    }


def _similar(config: Any, record: Record, rows: dict[str, Rows], say: Say) -> Claim:
    found = _closeness(rows)
    holds = all(near < APART * far for near, far in found.values())
    note = f"median NTK/CK {_medians(rows, 'ntk', 'ck')}; cut-off (N + 1) ε; by cut-off over the watched networks"
    measured = {
        "median |log10 NTK/CK|, median log10 network/CK": found,
        "cut-offs at which it holds": {cell: _similar_at(config, record, cell, one) for cell, one in rows.items()},
    }
    return say("fig3-ntk-ck-similar", measured, holds, note, _count(rows))


def _similar_at(config: Any, record: Record, cell: str, rows: Rows) -> list[float]:
    """The cut-offs of the pseudo-inverse at which NTK and CK are close to each other, over the watched networks."""
    by_cutoff = joined(record, f"cutoffs/{cell}")
    held = []
    for i, cutoff in enumerate(config.cutoffs if by_cutoff else ()):
        ntk, ck = (np.asarray(by_cutoff[name])[:, i] for name in ("ntk", "ck"))
        network = np.asarray(rows["network"][: len(ck)])
        if median(np.abs(np.log10(ntk / ck))) < APART * median(np.log10(network / ck)):
            held.append(cutoff)
    return held


def _gains(rows: dict[str, Rows]) -> tuple[dict[str, float], bool]:
    found = _medians(rows, "ck", "ckj")
    return found, all(value >= ORDERS for cell, value in found.items() if cell.partition("/")[0] in GAINED)


def _orders(rows: dict[str, Rows], say: Say) -> Claim:
    found, holds = _gains(rows)
    trained = {cell: digits(median(one["ckj train"])) for cell, one in rows.items()}
    note = f"median training error of CKJ {trained}: where test errors stay above it, the nodes no longer resolve the target"
    return say("fig3-ckj-orders-better", {"median CK/CKJ": found}, holds, note, _count(rows))


def _wide(rows: dict[str, Rows], say: Say) -> Claim:
    apart, near, (gains, gained) = _medians(rows, "network", "ck"), _closeness(rows), _gains(rows)
    holds = min(apart.values()) >= SEPARATION and all(a < APART * b for a, b in near.values()) and gained
    measured = {
        "median network/CK": apart,
        "median |log10 NTK/CK|, median log10 network/CK": near,
        "median CK/CKJ": gains,
        "median test error": _errors(rows),
    }
    return say("fig5-width-256", measured, holds, "257 features for 201 points", _count(rows))


def _relu(rows: dict[str, Rows], say: Say) -> Claim:
    found, tests = _medians(rows, "network", "ck"), _errors(rows)
    holds = max(found.values()) < SEPARATION and all(one["ntk"] >= one["ck"] for one in tests.values())
    worst = {cell: one["ntk"] >= max(one["network"], one["ck"]) for cell, one in tests.items()}
    note = f"NTK worst of the three: {worst}"
    return say("fig6-relu", {"median network/CK": found, "median test error": tests}, holds, note, _count(rows))


def _overfits(config: Any, record: Record, rows: dict[str, Rows], say: Say) -> Claim:
    found = {
        cell: {name: digits(median(ratios(one, name, f"{name} train"))) for name in ("ntk", "ck")}
        for cell, one in rows.items()
    }
    jumps: dict[str, Any] = {}
    holds = all(one["ntk"] > one["ck"] for one in found.values())
    for cell in rows:
        across = record.metrics[f"kinks/{cell}"]
        jumps[cell] = {name: [digits(across[name][i]) for i in (0, -1)] for name in ("ntk", "ck")}
        holds &= across["ntk"][-1] > 0.5 * across["ntk"][-2] > 0 and across["ck"][-1] < 1e-3 * across["ck"][0]
    steps = record.metrics[f"kinks/{next(iter(rows))}"]["steps"]
    note = f"distance of features on both sides of a kink, at steps {steps[0]:g} and {steps[-1]:g} from it"
    measured = {"median test/train": found, "across a kink": jumps}
    return say("relu-ntk-overfits", measured, bool(holds), note, _count(rows))


def _agnostic(config: Any, rows: dict[str, Rows], say: Say) -> Claim:
    found, holds = {}, True
    for target in config.targets:
        smooth, kinked = (rows[str(Cell(target, name))] for name in (SMOOTH, KINKED))
        one = {name: digits(median(smooth[name]) / median(kinked[name])) for name in ("network", "ntk", "ck")}
        holds &= 0.1 <= one["network"] <= 10 and not 0.1 <= one["ck"] <= 10
        found[target] = one
    return say("activation-agnostic-network", {"median tanh / median ReLU": found}, holds, "", _count(rows))


def evolution(config: Any, record: Record, cell: Cell) -> dict[str, np.ndarray]:
    """Geometric means over the watched networks at every checkpoint; empty where it was not measured."""
    keys = [f"evolution/{cell}/{step}" for step in config.moments]
    if not all(key in record.metrics for key in keys):
        return {}
    found = [record.metrics[key] for key in keys]
    return {name: np.exp([np.mean(np.log(one[name])) for one in found]) for name in ("network", "ntk", "ck", "ckj")} | {
        "steps": np.asarray(config.moments)
    }


def _decay(config: Any, record: Record, say: Say) -> Claim:
    early, late = 2 * config.every, config.every
    found: dict[str, Any] = {}
    holds = True
    for target in config.targets:
        one = evolution(config, record, Cell(target, SMOOTH))
        if not one:
            return say("fig4-faster-decay", None, None, f"not run: evolution of {target}/{SMOOTH}")
        at, after = list(one["steps"]).index(early), one["steps"] > late
        better = one["ckj"][after] < one["ck"][after]
        gains = {name: digits(one["network"][at] / one[name][at]) for name in ("ntk", "ck")}
        found[target] = {f"network/kernel at {early}": gains, "CKJ < CK after": f"{better.sum()} of {after.sum()}"}
        holds &= min(gains.values()) > 3 and bool(better.all())
    watched = min(config.watched, config.networks)
    return say("fig4-faster-decay", found, holds, f"geometric mean of {watched} networks", watched)


def _persists(config: Any, record: Record, say: Say) -> Claim:
    found, plain, total, above = {}, {}, 0, 0
    for target in config.targets:
        one = evolution(config, record, Cell(target, KINKED))
        if not one:
            return say("fig7-relu-evolution", None, None, f"not run: evolution of {target}/{KINKED}")
        worse = one["ntk"] >= one["ck"]
        found[target] = f"{worse.sum()} of {len(worse)}"
        steps = [record.metrics[f"evolution/{Cell(target, KINKED)}/{step}"] for step in config.moments]
        means = sum(bool(np.mean(each["ntk"]) >= np.mean(each["ck"])) for each in steps)
        plain[target] = f"{means} of {len(steps)}"
        total, above = total + len(worse), above + int(worse.sum())
    watched = min(config.watched, config.networks)
    note = f"geometric mean of {watched} networks at every checkpoint, the start among them"
    measured = {"checkpoints with NTK >= CK": found, "by plain means": plain}
    return say("fig7-relu-evolution", measured, above >= 0.8 * total, note, watched)


def _beta(rows: dict[str, Rows], say: Say) -> Claim:
    rest = {cell: 1 - np.asarray(one["beta"]) for cell, one in rows.items()}
    found = {cell: [digits(float(q)) for q in np.quantile(one, (0, 0.5, 1))] for cell, one in rest.items()}
    vacuous = {cell: f"{int((one < VACUOUS).sum())} of {len(one)}" for cell, one in rest.items()}
    measured = {
        "1 - β: least, median, largest": found,
        "runs below 1e-6": vacuous,
        "median rank of the NTK": {cell: median(one["ntk rank"]) for cell, one in rows.items()},
    }
    note = (
        "by Eq. 41, 1 - β is about half the square of the relative training error, so a good fit makes the constants"
        " √(2τ)/(1-β) and 4τ/(1-β)² say nothing; below about 1e-9 it is rounding, and may be negative"
    )
    return say("beta-below-one-is-empty", measured, all(one[1] >= VACUOUS for one in found.values()), note)


def _retrained(rows: dict[str, Rows], say: Say) -> Claim:
    lower = {cell: float(np.mean(ratios(one, "retrained", "network") < 1)) for cell, one in rows.items()}
    gain = _medians(rows, "network", "retrained")
    measured = {"share with a lower test error": lower, "median network/retrained": gain}
    note = "`retrain_last_layer` in float64 with the trapezoid weights"
    return say("retrain-last-layer", measured, min(lower.values()) >= 0.95, note, _count(rows))


def _ordered(rows: dict[str, Rows], say: Say) -> Claim:
    first, second, strict, runs = 0, 0, 0, 0
    for one in rows.values():
        ntk, ck, ckj, net = (np.asarray(one[f"{name} train"]) for name in ("ntk", "ck", "ckj", "network"))
        first += int((ntk <= ck * (1 + 1e-6) + 1e-4).sum())
        strict += int((ntk <= ck).sum())
        second += int((ckj <= net).sum())
        runs += len(ntk)
    measured = {"runs": runs, "NTK <= CK up to rounding": first, "NTK <= CK": strict, "CKJ <= network": second}
    note = "training errors; the pseudo-inverse of a Gram matrix is a projection only up to its rounding"
    return say("network-in-ck-span", measured, first == second == runs, note)


def _flat(rows: dict[str, Rows], name: str) -> list[Any]:
    return [value for one in rows.values() for value in one[name]]


def _first_theorem(record: Record, rows: dict[str, Rows], say: Say) -> Claim:
    said = [value for value in _flat(rows, "theorem_4_1") if value is not None]
    drawn = record.metrics["instances"]
    measured = {
        "runs": len(_flat(rows, "theorem_4_1")),
        "runs with monotone residuals": len(said),
        "of them it holds on": sum(map(bool, said)),
        "instances with monotone residuals": drawn["monotone"],
        "of these it holds on": drawn["hold"],
    }
    holds = all(said) and 0 < drawn["monotone"] == drawn["hold"]
    note = "residuals of good fits oscillate between the nodes; instances: low polynomials on random targets, τ = 3"
    return say("theorem-4-1", measured, holds, note)


def _second_theorem(record: Record, rows: dict[str, Rows], say: Say) -> Claim:
    as_stated = _flat(rows, "inequalities of 4.2")
    said = [value for value in _flat(rows, "theorem_4_2") if value is not None]
    printed = [value for value in _flat(rows, "theorem_4_2_printed") if value is not None]
    drawn = record.metrics["instances"]
    measured = {
        "runs": len(as_stated),
        "both inequalities hold": sum(as_stated),
        "runs with NTK <= CK in training": len(said),
        "of them it holds on": sum(said),
        "of them as printed": sum(printed),
        "instances": [drawn["4.2 said"], drawn["4.2 holds"]],
    }
    holds = all(as_stated) and all(said) and drawn["4.2 said"] == drawn["4.2 holds"]
    note = "corrected slack 4(b-a)³L²/N², equal to the printed 8(b-a)²L²/N² on [-1, 1]; L from the test nodes"
    return say("theorem-4-2", measured, holds, note)


def _setting(config: Any, record: Record, rows: dict[str, Rows], say: Say) -> Claim:
    width = 128
    nodes = config.intervals + 1, config.intervals * config.refinement + 1
    parameters = 2 * width + (config.depth - 1) * width * (width + 1) + width + 1
    measured = {
        "training and test nodes": list(nodes),
        "parameters at width 128": parameters,
        "networks": {cell: len(one["network"]) for cell, one in rows.items()},
        "seconds": training_seconds(record, ("errors", "cutoffs", "evolution")),
    }
    holds = nodes == (201, 601) and parameters == 33_409 and _count(rows) == 100
    note = (
        "full batch, PyTorch's initialisation, float32 training with the loss of Eq. 8, float64 kernels, pseudo-inverse cut off"
        " at (N + 1) ε; CKJ by SVD"
    )
    return say("regression-setting", measured, holds, note)
