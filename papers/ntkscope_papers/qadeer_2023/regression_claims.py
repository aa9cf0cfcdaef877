"""Function regression: what was published, and the checks on what a record holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.framework import Reading
from ntkscope_papers.framework.results import digits, under
from ntkscope_papers.qadeer_2023 import networks as nets
from ntkscope_papers.qadeer_2023.networks import KINKED, SMOOTH, Cell, Rows, flat, median, on_runs

WIDE = "tanh-256"
SEPARATION, ORDERS, APART = 10.0, 100.0, 0.5
VACUOUS = 1e-6


def ratios(rows: Rows, over: str, under: str) -> np.ndarray:
    found: np.ndarray = np.asarray(rows[over], dtype=float) / np.asarray(rows[under], dtype=float)
    return found


def _medians(rows: dict[str, Rows], over: str, under: str) -> dict[str, float]:
    return {cell: digits(median(ratios(one, over, under))) for cell, one in rows.items()}


def _errors(rows: dict[str, Rows]) -> dict[str, dict[str, float]]:
    """The median test errors, for a table."""
    return {
        cell: {name: digits(median(one[name])) for name in ("network", "ntk", "ck", "ckj")}
        for cell, one in rows.items()
    }


def _closeness(rows: dict[str, Rows]) -> dict[str, list[float]]:
    """Of each cell: the median |log10 NTK/CK| and the median log10 network/CK."""
    return {
        cell: [
            digits(median(np.abs(np.log10(ratios(one, "ntk", "ck"))))),
            digits(median(np.log10(ratios(one, "network", "ck")))),
        ]
        for cell, one in rows.items()
    }


def _gains(rows: dict[str, Rows]) -> tuple[dict[str, float], bool]:
    """The median CK/CKJ, and whether it is large for every target."""
    found = _medians(rows, "ck", "ckj")
    return found, min(found.values()) >= ORDERS


@on_runs(
    "conjugate-regression-setting",
    "Section 6, Eq. 71",
    {"N": 200, "M": 600, "hidden layers": 3, "width": 128, "epochs": 2400, "lr": 1e-3, "runs": 100},
    seeds=1,
)
def setting(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """201 training and 601 test nodes, 33,409 parameters, 2,400 steps, 100 networks of each architecture"""
    width = 128
    nodes = config.intervals + 1, config.intervals * config.refinement + 1
    parameters = 2 * width + (config.depth - 1) * width * (width + 1) + width + 1
    networks = {cell: len(one["network"]) for cell, one in rows.items()}
    measured = {
        "training and test nodes": list(nodes),
        "parameters at width 128": parameters,
        "epochs": config.steps,
        "networks": networks,
        "seconds": nets.training_seconds(record, ("errors", "cutoffs", "evolution")),
    }
    holds = nodes == (201, 601) and parameters == 33_409 and config.steps == 2400 and set(networks.values()) == {100}
    note = (
        "full batch, PyTorch's initialisation, float32 training with the loss of Eq. 8, float64 kernels, pseudo-inverse cut off"
        " at (N + 1) ε; CKJ by SVD"
    )
    return Reading(measured, holds, note)


@on_runs(
    "conjugate-fig3-separation",
    "Figure 3",
    "NTK and CK test errors are clearly below the network's for all three targets",
    SMOOTH,
)
def separation(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """median network/NTK and network/CK >= 10 for each target"""
    found = {name: _medians(rows, "network", name) for name in ("ntk", "ck")}
    measured = {
        **{f"median network/{name.upper()}": one for name, one in found.items()},
        "median test error": _errors(rows),
    }
    holds = all(min(one.values()) >= SEPARATION for one in found.values())
    return Reading(measured, holds, "cut-off of the pseudo-inverse (N + 1) ε")


@on_runs(
    "conjugate-fig3-ntk-ck-similar",
    "Figure 3",
    "NTK and CK are close to each other compared with their distance from the network",
    SMOOTH,
)
def similar(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """median |log10 NTK/CK| < 0.5 median log10 network/CK for each target"""
    found = _closeness(rows)
    measured = {
        "median |log10 NTK/CK|, median log10 network/CK": found,
        "cut-offs at which it holds": {cell: _similar_at(config, record, cell, one) for cell, one in rows.items()},
    }
    note = f"median NTK/CK {_medians(rows, 'ntk', 'ck')}; cut-off (N + 1) ε; by cut-off over the watched networks"
    return Reading(measured, all(near < APART * far for near, far in found.values()), note)


def _similar_at(config: Any, record: Record, cell: str, rows: Rows) -> list[float]:
    """The cut-offs of the pseudo-inverse at which NTK and CK are close to each other, over the watched networks."""
    by_cutoff = nets.joined(record, f"cutoffs/{cell}")
    held = []
    for i, cutoff in enumerate(config.cutoffs if by_cutoff else ()):
        ntk, ck = (np.asarray(by_cutoff[name])[:, i] for name in ("ntk", "ck"))
        network = np.asarray(rows["network"][: len(ck)])
        if median(np.abs(np.log10(ntk / ck))) < APART * median(np.log10(network / ck)):
            held.append(cutoff)
    return held


@on_runs(
    "conjugate-fig3-ckj-orders-better",
    "Figure 3",
    "solving with the CK's features instead of its Gram matrix gains several orders of magnitude",
    SMOOTH,
)
def orders_better(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """median CK/CKJ >= 100 for each target"""
    found, holds = _gains(rows)
    trained = {cell: digits(median(one["ckj train"])) for cell, one in rows.items()}
    note = f"median training error of CKJ {trained}: where test errors stay above it, the nodes no longer resolve the target"
    return Reading({"median CK/CKJ": found}, holds, note)


@nets.on_evolution(
    "conjugate-fig4-faster-decay",
    "Figure 4",
    "kernel errors fall faster than the network's, CKJ fastest; mean of ten runs",
    SMOOTH,
)
def faster_decay(config: Any, record: Record) -> Reading:
    """at epoch 400 NTK and CK are below a third of the network's; CKJ < CK at every checkpoint after 200"""
    early, late = 2 * config.every, config.every
    measured: dict[str, Any] = {}
    holds = True
    for target in config.targets:
        one = config.evolution(record, Cell(target, SMOOTH))
        at, after = config.moments.index(early), np.asarray(config.moments) > late
        better = one["ckj"][after] < one["ck"][after]
        gains = {name: digits(one["network"][at] / one[name][at]) for name in ("ntk", "ck")}
        measured[target] = {f"network/kernel at {early}": gains, "CKJ < CK after": f"{better.sum()} of {after.sum()}"}
        holds &= min(gains.values()) > 3 and bool(better.all())
    watched = min(config.watched, config.networks)
    return Reading(measured, holds, f"geometric mean of {watched} networks")


@on_runs("conjugate-fig5-width-256", "Figure 5", "the same at width 256, where 257 features face 201 points", WIDE)
def width_256(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """the three checks of Figure 3 at width 256"""
    apart, near, (gains, gained) = _medians(rows, "network", "ck"), _closeness(rows), _gains(rows)
    holds = min(apart.values()) >= SEPARATION and all(a < APART * b for a, b in near.values()) and gained
    measured = {
        "median network/CK": apart,
        "median |log10 NTK/CK|, median log10 network/CK": near,
        "median CK/CKJ": gains,
        "median test error": _errors(rows),
    }
    return Reading(measured, holds, "257 features for 201 points")


@on_runs(
    "conjugate-fig6-relu",
    "Figure 6",
    "with ReLU the separation vanishes; NTK tests worst, CK is slightly better than the network",
    KINKED,
)
def relu(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """for each target: median network/CK from 1 to below 10, and median test error of NTK the highest of the three"""
    found, tests = _medians(rows, "network", "ck"), _errors(rows)
    better = [cell for cell, one in tests.items() if one["ntk"] < max(one["network"], one["ck"])]
    holds = all(1 <= value < SEPARATION for value in found.values()) and not better
    measured = {"median network/CK": found, "median test error": tests}
    return Reading(measured, holds, f"NTK is not the worst at: {', '.join(better)}" if better else "")


@nets.on_evolution(
    "conjugate-fig7-relu-evolution", "Figure 7", "the ReLU order persists through training; mean of ten runs", KINKED
)
def relu_evolution(config: Any, record: Record) -> Reading:
    """NTK test error >= CK test error at 80 % of the checkpoints or more, over all targets"""
    found, plain, total, above = {}, {}, 0, 0
    for target in config.targets:
        one = config.evolution(record, Cell(target, KINKED))
        worse = one["ntk"] >= one["ck"]
        found[target] = f"{worse.sum()} of {len(worse)}"
        steps = [record.metrics[f"evolution/{Cell(target, KINKED)}/{step}"] for step in config.moments]
        means = sum(bool(np.mean(each["ntk"]) >= np.mean(each["ck"])) for each in steps)
        plain[target] = f"{means} of {len(steps)}"
        total, above = total + len(worse), above + int(worse.sum())
    watched = min(config.watched, config.networks)
    measured = {"checkpoints with NTK >= CK": found, "by plain means": plain}
    note = f"geometric mean of {watched} networks at every checkpoint, the start among them"
    return Reading(measured, above >= 0.8 * total, note)


@on_runs(
    "conjugate-relu-ntk-overfits",
    "Section 6",
    "with ReLU the NTK machine fits training data far better than test data; its features are discontinuous",
    KINKED,
    legs=("kinks/{}",),
)
def ntk_overfits(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """median test/train larger for NTK than for CK; across a kink NTK features jump, CK features do not"""
    found = {
        cell: {name: digits(median(ratios(one, name, f"{name} train"))) for name in ("ntk", "ck")}
        for cell, one in rows.items()
    }
    jumps: dict[str, Any] = {}
    holds = all(one["ntk"] > one["ck"] for one in found.values())
    for cell in rows:
        across = record.metrics[f"kinks/{cell}"]
        steps = across["steps"]
        jumps[cell] = {name: [digits(across[name][i]) for i in (0, -1)] for name in ("ntk", "ck")}
        holds &= across["ntk"][-1] > 0.5 * across["ntk"][-2] > 0 and across["ck"][-1] < 1e-3 * across["ck"][0]
    measured = {"median test/train": found, "across a kink": jumps}
    note = f"distance of features on both sides of a kink, at steps {steps[0]:g} and {steps[-1]:g} from it"
    return Reading(measured, bool(holds), note)


@on_runs(
    "conjugate-activation-agnostic-network",
    "Section 8",
    "the network's own error hardly depends on the activation, the kernel machines' errors do",
    SMOOTH,
    KINKED,
)
def activation_agnostic(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """median error tanh/ReLU within 0.1 ... 10 for the network and outside for NTK and CK, for each target"""
    found, holds = {}, True
    for target in config.targets:
        smooth, kinked = (rows[str(Cell(target, name))] for name in (SMOOTH, KINKED))
        one = {name: digits(median(smooth[name]) / median(kinked[name])) for name in ("network", "ntk", "ck")}
        holds &= 0.1 <= one["network"] <= 10 and not any(0.1 <= one[name] <= 10 for name in ("ntk", "ck"))
        found[target] = one
    return Reading({"median tanh / median ReLU": found}, holds)


@on_runs(
    "conjugate-network-in-ck-span", "Eq. 26, 27, Section 8", "training errors are ordered NTK <= CK <= network", seeds=1
)
def in_ck_span(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """NTK <= CK (1 + 1e-6) + 1e-4 and CKJ <= network, training errors of every run"""
    ntk, ck, ckj, net = (np.asarray(flat(rows, f"{name} train")) for name in ("ntk", "ck", "ckj", "network"))
    measured = {
        "runs": len(ntk),
        "NTK <= CK up to rounding": int((ntk <= ck * (1 + 1e-6) + 1e-4).sum()),
        "NTK <= CK": int((ntk <= ck).sum()),
        "CKJ <= network": int((ckj <= net).sum()),
    }
    holds = measured["NTK <= CK up to rounding"] == measured["CKJ <= network"] == measured["runs"]
    note = "training errors; the pseudo-inverse of a Gram matrix is a projection only up to its rounding"
    return Reading(measured, holds, note)


@on_runs("conjugate-beta-below-one-is-empty", "Eq. 39, Theorem 4.1", "most targets have β < 1", SMOOTH, seeds=1)
def beta(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """the median of 1 - β is at least 1e-6 for each target, below which the constants exceed a million"""
    rest = {cell: 1 - np.asarray(one["beta"]) for cell, one in rows.items()}
    found = {cell: [digits(float(q)) for q in np.quantile(one, (0, 0.5, 1))] for cell, one in rest.items()}
    measured = {
        "1 - β: least, median, largest": found,
        "runs below 1e-6": {cell: f"{int((one < VACUOUS).sum())} of {len(one)}" for cell, one in rest.items()},
        "median rank of the NTK": {cell: median(one["ntk rank"]) for cell, one in rows.items()},
    }
    note = (
        "by Eq. 41, 1 - β is about half the square of the relative training error, so a good fit makes the constants"
        " √(2τ)/(1-β) and 4τ/(1-β)² say nothing; below about 1e-9 it is rounding, and may be negative"
    )
    return Reading(measured, all(one[1] >= VACUOUS for one in found.values()), note)


@nets.on_theorem(
    "conjugate-theorem-4-1",
    "Theorem 4.1, Eq. 45-47",
    "with piecewise monotone residuals: NTK <= √(2τ) CK and CK <= √(2τ)/(1-β) NTK",
    legs=("instances", "narrow/{0.task}"),
)
def theorem_4_1(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """holds on every run, network of one hidden unit and instance whose residuals are monotone between training nodes"""
    drawn = record.metrics["instances"]
    runs, all_hold = nets.of_theorem(rows, "theorem_4_1", "monotone residuals")
    narrow = under(record, "narrow/")
    few, few_hold = nets.of_theorem(
        {key: dict(one) for key, one in narrow.items()}, "theorem_4_1", "monotone residuals"
    )
    bent = sum(
        rank > 2
        for one in narrow.values()
        for rank, said in zip(one["ntk rank"], one["theorem_4_1"])
        if said is not None
    )
    measured = {
        **runs,
        "of one hidden unit": {**few, "of them not a straight line": bent},
        "instances with monotone residuals": drawn["monotone"],
        "of these it holds on": drawn["hold"],
    }
    holds = all_hold and few_hold and 0 < drawn["monotone"] == drawn["hold"]
    note = "" if runs["runs with monotone residuals"] else nets.VACUOUS
    note += "residuals of good fits oscillate between the nodes; instances: low polynomials on random targets, τ = 3"
    return Reading(measured, holds, note)


@nets.on_theorem(
    "conjugate-theorem-4-2",
    "Theorem 4.2, Eq. 48-51",
    "with Lipschitz residuals: NTK² <= 4τ CK² + 8(b-a)² L²/N² and CK² <= 4τ/(1-β)² NTK² + 8(b-a)² L²/N²",
)
def theorem_4_2(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """both inequalities with the corrected slack 4(b-a)³ L²/N² on every run"""
    drawn = record.metrics["instances"]
    runs, all_hold = nets.of_inequalities(rows, "4.2", "NTK <= CK in training")
    measured = {**runs, "instances": [drawn["4.2 said"], drawn["4.2 holds"]]}
    holds = all_hold and drawn["4.2 said"] == drawn["4.2 holds"]
    note = "corrected slack 4(b-a)³L²/N², equal to the printed 8(b-a)²L²/N² on [-1, 1]; L from the test nodes"
    return Reading(measured, holds, note)


@on_runs(
    "conjugate-retrain-last-layer",
    "Section 8",
    "solving only the last layer of a trained tanh network is a cheap way to a large gain",
    SMOOTH,
)
def retrained(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """lower test error than the network on at least 95 % of the tanh networks of each target"""
    lower = {cell: float(np.mean(ratios(one, "retrained", "network") < 1)) for cell, one in rows.items()}
    gain = _medians(rows, "network", "retrained")
    measured = {"share with a lower test error": lower, "median network/retrained": gain}
    note = "`retrain_last_layer` in float64 with the trapezoid weights"
    return Reading(measured, min(lower.values()) >= 0.95, note)
