"""Logistic regression: what was published, and the checks on what a record holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.framework import Reading, claim
from ntkscope_papers.framework.results import digits
from ntkscope_papers.qadeer_2023 import networks as nets
from ntkscope_papers.qadeer_2023.grids import logistic_boundary
from ntkscope_papers.qadeer_2023.networks import KINKED, SMOOTH, Cell, Rows, flat, median, on_runs

NARROW = "tanh-64"
GAP = 0.05
LEAST_MARGIN = 1e-9  # of the linear programme on orthonormal features; its rounding is about 1e-14
COUNTS = {"train": 96, "test": 506}
SHARES = {"F1": [0.552, 0.540], "F2": [0.479, 0.494]}


def _medians(one: Rows, key: str) -> dict[str, float]:
    """Medians of the network and its machines, for a table."""
    return {name: digits(median(one[f"{name} {key}"])) for name in ("network", "ntk", "ck")}


def _gaps(one: Rows) -> tuple[float, float]:
    """The median of CK - network, and of |NTK - CK|, in accuracy."""
    network, ntk, ck = (np.asarray(one[f"{name} accuracy"]) for name in ("network", "ntk", "ck"))
    return median(ck - network), median(np.abs(ntk - ck))


def _gap(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    gaps = {cell: _gaps(one) for cell, one in rows.items()}
    holds = all(gap >= GAP and near < gap for gap, near in gaps.values())
    measured = {
        "median CK - network, median |NTK - CK|": {cell: [digits(v) for v in pair] for cell, pair in gaps.items()},
        **_accuracy_and_loss(rows),
    }
    ahead = {
        cell: digits(float(np.mean(np.asarray(one["ntk loss"]) < np.asarray(one["ck loss"]))))
        for cell, one in rows.items()
    }
    note = (
        f"ridge {config.ridge:g} in the kernel's norm; share of runs with a lower NTK cross-entropy than CK's: {ahead}"
    )
    return Reading(measured, holds, note)


def _accuracy_and_loss(rows: dict[str, Rows]) -> dict[str, Any]:
    return {
        "median accuracy": {cell: _medians(one, "accuracy") for cell, one in rows.items()},
        "median summed cross-entropy": {cell: _medians(one, "loss") for cell, one in rows.items()},
    }


width_128 = on_runs(
    "conjugate-fig8-logistic",
    "Figure 8",
    "both kernels clearly beat the network in test cross-entropy and accuracy; NTK slightly ahead of CK",
    SMOOTH,
    check="median CK - network accuracy >= 0.05, and median |NTK - CK| smaller than that, for each boundary",
)(_gap)
width_64 = on_runs(
    "conjugate-fig9-width-64", "Figure 9", "the gap remains at width 64", NARROW, check="as Figure 8 at width 64"
)(_gap)


@on_runs(
    "conjugate-fig10-relu-logistic",
    "Figure 10",
    "with ReLU the clear gap between kernels and network disappears",
    SMOOTH,
    KINKED,
)
def relu(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """the median gap in accuracy is smaller than half of tanh's, for each boundary"""
    found, holds = {}, True
    for boundary in config.boundaries:
        smooth, kinked = (_gaps(rows[str(Cell(boundary, name))])[0] for name in (SMOOTH, KINKED))
        found[boundary] = {"tanh": digits(smooth), "relu": digits(kinked)}
        holds &= kinked < smooth / 2
    unridged = {cell: one for cell in rows if (one := nets.joined(record, f"unridged/{cell}"))}
    measured = {
        "median CK - network accuracy": found,
        "by ridge, watched networks": {cell: _gaps_by_ridge(config, record, cell, one) for cell, one in rows.items()},
        "Newton without a ridge, watched networks": {
            cell: {key: _medians(one, key) for key in ("accuracy", "loss")} for cell, one in unridged.items()
        },
        **_accuracy_and_loss(rows),
        "median epochs until the stop": {cell: median(one["epochs"]) for cell, one in rows.items()},
    }
    note = (
        f"ridge {config.ridge:g}: at no ridge does the gap vanish with ReLU and stay with tanh; without one the classes have no"
        " minimum, and where Newton's method stops decides the losses"
    )
    return Reading(measured, holds, note)


def _gaps_by_ridge(config: Any, record: Record, cell: str, rows: Rows) -> dict[str, float]:
    """The median of CK - network in accuracy for every ridge."""
    by_ridge = nets.joined(record, f"ridges/{cell}")
    if not by_ridge:
        return {}
    own = np.asarray(rows["network accuracy"][: len(by_ridge["ck accuracy"])])
    gaps = np.asarray(by_ridge["ck accuracy"]) - own[:, None]
    return {f"{ridge:g}": digits(float(gap)) for ridge, gap in zip(config.ridges, np.median(gaps, axis=0))}


@nets.on_evolution(
    "conjugate-fig11-evolution",
    "Figure 11",
    "kernels stay ahead, the NTK-CK gap shrinks, kernels of a hardly trained network beat the final network",
    SMOOTH,
)
def through_training(config: Any, record: Record) -> Reading:
    """kernel accuracy at the first checkpoint > network's at the last; |NTK - CK| smaller at the end; each boundary"""
    measured: dict[str, Any] = {}
    holds = True
    for boundary in config.boundaries:
        one = config.evolution(record, Cell(boundary, SMOOTH))
        apart = np.abs(one["ntk accuracy"] - one["ck accuracy"])
        holds &= bool(min(one["ntk accuracy"][0], one["ck accuracy"][0]) > one["network accuracy"][-1])
        holds &= bool(apart[-1] < apart[0])
        measured[boundary] = {
            "accuracy of NTK, CK at the start": [digits(float(one[f"{name} accuracy"][0])) for name in ("ntk", "ck")],
            "accuracy of the network at the end": digits(float(one["network accuracy"][-1])),
            "|NTK - CK| at start and end": [digits(float(apart[0])), digits(float(apart[-1]))],
            "cross-entropy |NTK - CK| at start and end": [
                digits(float(abs(one["ntk loss"][i] - one["ck loss"][i]))) for i in (0, -1)
            ],
        }
    watched = min(config.watched, config.networks)
    note = (
        f"mean of {watched} networks after {', '.join(map(str, config.checkpoints))} epochs, without the stop; one test node is"
        " 0.002 of the accuracy"
    )
    return Reading(measured, holds, note)


@on_runs(
    "conjugate-logistic-minimiser-missing",
    "Eq. 15, Section 6",
    "Newton's method minimises the kernel logistic losses to a zero gradient",
    seeds=1,
)
def minimiser(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """a minimum exists: the linear programme finds no separating direction in the CK's features, on every run"""
    margins = {cell: np.asarray(one["margin"], dtype=float) for cell, one in rows.items()}
    measured = {
        "runs whose classes the CK separates": {
            cell: f"{int((one > LEAST_MARGIN).sum())} of {len(one)}" for cell, one in margins.items()
        },
        "least margin": {cell: digits(float(one.min())) for cell, one in margins.items()},
        "runs where Newton's method converged": {
            cell: [int(np.sum(one[f"{name} converged"])) for name in ("ntk", "ck")] for cell, one in rows.items()
        },
    }
    note = (
        f"where classes are separable the loss falls to 0 and no minimum exists, so every fit has a ridge of {config.ridge:g}"
        " in the kernel's norm; the NTK's features contain the CK's and separate them too"
    )
    return Reading(measured, all(bool((one <= LEAST_MARGIN).all()) for one in margins.values()), note)


@nets.on_theorem(
    "conjugate-theorem-5-1",
    "Theorem 5.1, Eq. 65-67",
    "under the corner condition l_NTK <= τ1 τ2 l_CK and l_CK <= τ1 τ2 ω l_NTK",
    legs=("instances", "narrow"),
)
def theorem_5_1(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """with (2τ1+1)(2τ2+1) in place of τ1 τ2, on every run, network of one hidden unit and instance that satisfies the
    condition"""
    drawn, narrow = record.metrics["instances"], record.metrics["narrow"]
    runs, all_hold = nets.of_theorem(rows, "theorem_5_1", "the corner condition")
    measured = {
        **runs,
        "runs with both inequalities, condition or not": sum(flat(rows, "inequalities of 5.1")),
        "of one hidden unit": {
            "runs": narrow["drawn"],
            "with it": narrow["corner"],
            "of them it holds on": narrow["5.1 holds"],
        },
        "instances with the condition": drawn["corner"],
        "of these it holds on": drawn["5.1 holds"],
        "of these as printed": drawn["5.1 holds as printed"],
    }
    holds = all_hold and 0 < drawn["corner"] == drawn["5.1 holds"] and narrow["corner"] == narrow["5.1 holds"]
    note = "" if runs["runs with the corner condition"] else nets.VACUOUS
    note += "a corner can dominate the test nodes of its four cells, so the printed τ1 τ2 is too small (Lemma 5.1)"
    return Reading(measured, holds, note)


@nets.on_theorem(
    "conjugate-theorem-5-2",
    "Theorem 5.2, Eq. 68-70",
    "with Lipschitz scores and matching labels l_NTK <= exp(h L_NTK) l_CK and l_CK <= ω exp(h L_CK) l_NTK",
)
def theorem_5_2(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """with the factor (2τ1+1)(2τ2+1) in front of both constants, on every run"""
    drawn = record.metrics["instances"]
    runs, all_hold = nets.of_inequalities(rows, "5.2", "matching labels and NTK <= CK in training")
    measured = {**runs, "instances": {key: drawn[key] for key in ("matching", "5.2 holds", "5.2 holds as printed")}}
    holds = all_hold and drawn["matching"] == drawn["5.2 holds"]
    steep = {cell: digits(median(one["lipschitz_ck"])) for cell, one in rows.items()}
    note = f"median L of the CK's score {steep}: exp(h L) with h = 0.339 is large, and the bound far from tight"
    return Reading(measured, holds, note)


@on_runs(
    "conjugate-logistic-setting",
    "Section 6, Eq. 72",
    {"hidden layers": 2, "width": 128, "lr": 1e-5, "stop at accuracy": 0.85, "epochs": 4000, "runs": 100},
    seeds=1,
)
def setting(config: Any, record: Record, rows: dict[str, Rows]) -> Reading:
    """every network stops at its first accuracy >= 0.85 (82 of 96), or after 4,000 epochs; 100 of each architecture"""
    stopped = flat(rows, "epochs")
    reached = [
        accuracy >= config.accuracy or count == config.epochs
        for accuracy, count in zip(flat(rows, "network accuracy train"), stopped)
    ]
    measured = {
        "epochs: least, median, most": {
            cell: [int(np.min(one["epochs"])), median(one["epochs"]), int(np.max(one["epochs"]))]
            for cell, one in rows.items()
        },
        "runs that stopped": f"{sum(count < config.epochs for count in stopped)} of {len(stopped)}",
        "stopped as they should": f"{sum(reached)} of {len(reached)}",
        "seconds": nets.training_seconds(record, ("runs", "ridges", "evolution")),
    }
    # a node within rounding of the decision boundary may change sides between float32 and float64
    holds = bool(np.mean(reached) >= 0.99 and config.networks == 100)
    note = "full batch, PyTorch's initialisation, float32 training, accuracies of the same weights in float64"
    return Reading(measured, holds, note)


@claim(
    "conjugate-logistic-grids",
    "Section 5.1, Section 6",
    {"N1": 11, "N2": 7, "M1": 22, "M2": 21, "τ": [2, 3], "train": 96, "test": 506, "h": 0.33866},
)
def grids(config: Any, record: Record) -> Reading:
    """counts and τ exact, h to 1e-5; class-1 shares 0.552, 0.479 in training, 0.540, 0.494 in test; no node on a boundary"""
    shares, least, counts = {}, {}, {}
    options = {"intervals": config.intervals, "refinement": config.refinement, "dtype": "float64"}
    for boundary in config.boundaries:
        split = logistic_boundary(boundary, **options)
        parts = (split.train, split.test)
        counts = {"train": len(split.train), "test": len(split.test)}
        shares[boundary] = [round(float(part.y.double().mean()), 3) for part in parts]
        least[boundary] = digits(min(float(part.extras["boundary"].abs().min()) for part in parts))
    h = float(np.hypot(*(2 / n for n in config.intervals)))
    ratios = list(config.refinement)
    measured = {
        **counts,
        "τ": ratios,
        "h": round(h, 5),
        "class-1 shares in training and test": shares,
        "least |F|": least,
    }
    wanted = {name: SHARES[name] for name in shares if name in SHARES}
    same = counts == COUNTS and ratios == [2, 3] and abs(h - 0.33866) <= 1e-5
    holds = same and shares == wanted and min(least.values()) > 0
    return Reading(measured, holds, "the kernel matrix has (N1 + 1)(N2 + 1) = 96 rows; N1 N2 is printed")
