"""Verdicts on the statements of `hidden-polynomial` from its record.

Every statement is judged on raw targets, those of the text and its public code; what unit targets say is in the note. Networks
have the width (and rate) with the smallest mean validation MSE at each degree. "SVR" is the ε-insensitive one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.balakrishnan_2023.polynomials import readings as read
from ntkscope_papers.balakrishnan_2023.polynomials.data import Task
from ntkscope_papers.balakrishnan_2023.polynomials.networks import LOSS, OPTIMIZER, network
from ntkscope_papers.balakrishnan_2023.polynomials.readings import (
    FAILS,
    FITS,
    MACHINES,
    Results,
    on_targets,
    over_seeds,
)
from ntkscope_papers.framework import Reading, claim
from ntkscope_papers.framework.intervals import R2, interval, short

SHARE = 0.05  # of units that are aligned
NTK, RBF = "ntk svr", "rbf svr"


@claim(
    "relu-poly-data",
    "Section 5.1.1",
    {"dimension": 100, "hidden": list(range(3, 10)), "direct": list(range(9, 21)), "range of v": [-2, 2]},
    needs=["identities"],
)
def data(config: Any, record: Record) -> Reading:
    """max |v| = 2 after rescaling; exactly as many distinct roots in [-2, 2] as the degree, 3 to 20; a = (max|v| / 2)², not
    max|v|"""
    found = record.metrics["identities"]
    counts = {int(degree): count for degree, count in found["roots in range"].items()}
    stated = [float(f"{1 / before:.4g}") for before in found["max |v| before"]]
    variances = [float(f"{scale**2:.4g}") for scale in found["scale"]]
    right = all(
        abs(scale**2 * (before / 2) ** 2 - 1) < 1e-4 for scale, before in zip(found["scale"], found["max |v| before"])
    )
    measured = {
        "max |v|": found["largest |v|"],
        "degrees with all roots in range": sum(count == degree for degree, count in counts.items()),
        "std of v": over_seeds(found["std of v"]),
        "variance of a coordinate": variances[0],
        "1 / a with a = max|v|": stated[0],
    }
    holds = (
        abs(found["largest |v|"] - 2) <= 1e-12 and all(count == degree for degree, count in counts.items()) and right
    )
    note = "erratum: the covariance is I / a with a = (max|v| / 2)²; few items lie near the ends of the range"
    return Reading(measured, holds, note, exact=True)


@claim(
    "relu-poly-optim",
    "Section 5.1.1",
    {"optimiser": "AdaDelta", "loss": "L1", "score": "MSE", "hidden layers": 1, "activation": "ReLU"},
)
def optim(config: Any, record: Record) -> Reading:
    """configuration"""
    layers = [type(module).__name__ for module in network(config.dimension, config.widths[0], 0).children()]
    measured = {"optimiser": OPTIMIZER, "loss": LOSS, "layers": layers, "score": "MSE and R²"}
    note = "sizes, batch, epochs and patience are those of the public code; rate 1, PyTorch's default"
    return Reading(measured, layers == ["Flatten", "Linear", "ReLU", "Linear"] and OPTIMIZER == "adadelta", note)


@claim(
    "relu-poly-corr-cov",
    "Section 5.1.1, 5.2.1",
    {"variance of v, correlated": 10100, "isotropic": 100, "largest eigenvalue": 101},
    needs=["identities"],
)
def covariance(config: Any, record: Record) -> Reading:
    """sample covariance of 100,000 draws within 5 %, its first eigenvector parallel to 1 (|cos| ≥ 0.999)"""
    found = record.metrics["identities"]
    names = ("variance of v, correlated", "variance of v, isotropic", "largest eigenvalue")
    measured = {name: found[name] for name in (*names, "covariance, relative error", "|cos| of its vector with 1")}
    near = all(abs(found[name] / value - 1) <= 0.05 for name, value in zip(names, (10100, 100, 101)))
    holds = near and found["covariance, relative error"] <= 0.05 and found["|cos| of its vector with 1"] >= 0.999
    return Reading(measured, holds, exact=True)


@claim("relu-poly-even-optimum", "Section 5.2.1", "even degrees have an optimum at v = 0", needs=["identities"])
def even(config: Any, record: Record) -> Reading:
    """|p'(0)| ≤ 1e-9 at even degrees; share of variance of the best line, means over ten draws: ≤ 0.005 at even degrees,
    0.96 ± 0.02 at 3, 0.29 ± 0.06 at 5, ≤ 0.01 from 7"""
    found = record.metrics["identities"]
    slope = max(abs(value) for value in found["slope at 0"].values())
    lines = {int(d): float(np.mean(shares)) for d, shares in found["share of variance of the best line"].items()}
    holds = slope <= 1e-9 and all(share <= 0.005 for d, share in lines.items() if d % 2 == 0)
    holds = holds and abs(lines[3] - 0.96) <= 0.02 and abs(lines[5] - 0.29) <= 0.06
    holds = holds and all(share <= 0.01 for d, share in lines.items() if d >= 7)
    measured = {"largest |p'(0)|": slope, "best line": {str(d): round(share, 4) for d, share in lines.items()}}
    note = "the share from degree 7 on depends on the draw of roots; at 7 it is above 0.01 in many"
    return Reading(measured, holds, note, exact=True)


@on_targets("relu-poly-odd-align-fast", "Section 5.2.1", {"degrees": [3, 5, 7], "epochs": [1, 2]}, isotropic=(3, 5, 7))
def odd_fast(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """mean share of units with |cos| ≥ 0.7 at least 0.05 after epoch 2 at degrees 3 and 5, after epoch 5 at 7"""
    measured, holds = {}, True
    for task, epoch in zip(tasks, (2, 2, 5)):
        place = max(i for i, moment in enumerate(results.moments(task)) if moment <= epoch)
        found = results.aligned(task)[:, place]
        measured[str(task.degree)] = {"epoch": epoch, "share aligned": over_seeds(found, (0, 1))}
        holds = holds and float(found.mean()) >= SHARE
    return measured, holds


@on_targets(
    "relu-poly-even-align-slow", "Section 5.2.1", {"degrees": [4, 6], "epochs": [5, 10]}, isotropic=(3, 4, 5, 6)
)
def even_slow(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """median first epoch with 5 % of units at |cos| ≥ 0.7 later than at degrees 3 and 5, and at most 20"""
    first = {task.degree: read.first_epochs(results.aligned(task), results.moments(task), SHARE) for task in tasks}
    middle = {degree: float(np.median(values)) for degree, values in first.items()}
    measured = {
        str(degree): {"median first epoch": middle[degree], "never": sum(np.isinf(values))}
        for degree, values in first.items()
    }
    return measured, all(max(middle[3], middle[5]) < middle[degree] <= 20 for degree in (4, 6))


@on_targets(
    "relu-poly-8-9-fail",
    "Section 5.2.1",
    {"degrees": [8, 9]},
    isotropic=(8, 9),
    note="near its initial level: a rise of at most 0.2",
)
def fails(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """mean test R² ≤ 0.3, and the largest |cos| of a unit rises by at most 0.2 on average"""
    measured, holds = {}, True
    for task in tasks:
        start, end = results.largest(task)
        measured[str(task.degree)] = {
            "R²": over_seeds(results.r2(task), R2),
            "largest |cos|, start": over_seeds(start, (0, 1)),
            "largest |cos|, end": over_seeds(end, (0, 1)),
            "share aligned, end": over_seeds(np.array(results.network(task)["aligned"])[:, -1], (0, 1)),
        }
        holds = holds and float(results.r2(task).mean()) <= FAILS and float((end - start).mean()) <= 0.2
    return measured, holds


def _of_kind(tasks: Sequence[Task], kind: str) -> list[Task]:
    return [task for task in tasks if task.kind == kind]


def _by_degree(results: Results, tasks: Sequence[Task]) -> dict[str, Any]:
    """R² over seeds with the width chosen; the explained share of a constant's mean absolute error, its mean over seeds, and
    the highest degree with half of it."""
    means = {task.degree: float(np.mean(results.network(task)["l1"])) for task in tasks}
    return {
        "R²": {str(task.degree): over_seeds(results.r2(task), R2) for task in tasks},
        "width": {str(task.degree): results.chosen(task)[0] for task in tasks},
        "L1": {str(degree): round(mean, 4) for degree, mean in means.items()},
        "highest degree by L1": read.highest({degree: mean >= read.ROUGH for degree, mean in means.items()}),
    }


def _highest(results: Results, tasks: Sequence[Task], least: float) -> int | None:
    """The highest degree whose mean R² is at least this."""
    return read.highest({task.degree: float(results.r2(task).mean()) >= least for task in tasks})


@on_targets("relu-poly-max-degree-indep", "Section 5.2.1, Figure 3", {"fits up to": 7, "fails from": 8}, isotropic=())
def indep(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """a degree t from 6 to 8 with mean test R² ≥ 0.7 at t and ≤ 0.3 at t + 1"""
    at = read.threshold({task.degree: float(results.r2(task).mean()) for task in tasks if task.degree >= 6})
    return {**_by_degree(results, tasks), "threshold": at}, at is not None and 6 <= at <= 8


@on_targets(
    "relu-poly-max-degree-corr", "Section 5.2.1", {"fits up to": 11, "fails from": 12}, isotropic=(), correlated=()
)
def corr(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """highest degree with mean test R² ≥ 0.7 from 9 to 14, and above that of independent features"""
    tops = {kind: _highest(results, _of_kind(tasks, kind), FITS) for kind in ("isotropic", "correlated")}
    measured = {**_by_degree(results, _of_kind(tasks, "correlated")), "highest degree": tops}
    top = tops["correlated"]
    return measured, top is not None and 9 <= top <= 14 and top > (tops["isotropic"] or 0)


@on_targets(
    "relu-poly-corr-rbf-over-ntk",
    "Section 5.2.1",
    "with correlation the RBF kernel consistently outperforms the NTK",
    correlated=(),
    kernels=True,
)
def corr_rbf(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """SVRs: mean validation MSE of RBF below that of NTK at most of the degrees 3 to 11"""
    wins, measured = 0, {}
    for task in tasks:
        if task.degree > 11:
            continue
        ntk, rbf = (results.machine(task, model, "mse validation") for model in (NTK, RBF))
        wins += float(rbf.mean()) < float(ntk.mean())
        squared = [float(results.machine(task, f"{k} ridge", "mse validation").mean()) for k in ("rbf", "ntk")]
        measured[str(task.degree)] = {
            "RBF": over_seeds(rbf, R2),
            "NTK": over_seeds(ntk, R2),
            "ridge, RBF and NTK": [round(value, 5) for value in squared],
        }
    return {"validation MSE": measured, "RBF better": wins, "degrees": len(measured)}, wins > len(measured) / 2


@on_targets("relu-direct-max-degree", "Section 5.2.2, Figure 4", {"fits up to": 18, "fails": [19, 20]}, direct=())
def direct(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """highest degree with mean test R² ≥ 0.5 from 14 to 20"""
    top = _highest(results, tasks, read.ROUGH)
    spreads = {str(task.degree): over_seeds(results.network(task)["spread"]) for task in tasks}
    measured = {**_by_degree(results, tasks), "spread of predictions": spreads, "highest degree": top}
    return measured, top is not None and 14 <= top <= 20


@on_targets("relu-direct-beats-hidden", "Section 5.2.2", {"v given": 18, "v hidden": 7}, isotropic=(), direct=())
def beats(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """highest degree with test R² ≥ 0.5 larger with v given: interval over seeds of the difference above 0"""
    tops = {}
    for kind in ("isotropic", "direct"):
        fitted = {task.degree: results.r2(task) >= read.ROUGH for task in _of_kind(tasks, kind)}
        seeds = range(len(next(iter(fitted.values()))))
        tops[kind] = [read.highest({degree: each[s] for degree, each in fitted.items()}) or 0 for s in seeds]
    more = np.subtract(tops["direct"], tops["isotropic"])
    measured = {"hidden": tops["isotropic"], "given": tops["direct"], "difference": over_seeds(more)}
    return measured, interval(more)["low"] > 0


@on_targets("relu-fig3-fit", "Figure 3", "the network follows the curve at degree 7, not at 8", isotropic=(7, 8))
def fig3(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """mean test R² ≥ 0.7 at degree 7 and ≤ 0.3 at 8"""
    measured = {
        str(task.degree): {
            "test": over_seeds(results.r2(task), R2),
            "train": over_seeds(results.network(task)["r2 train"], R2),
        }
        for task in tasks
    }
    seven, eight = (float(results.r2(task).mean()) for task in tasks)
    return measured, seven >= FITS and eight <= FAILS


@on_targets(
    "relu-fig5-ntk-fit",
    "Figure 5, Section 5.2.4",
    "the NTK fits degree 7 more smoothly than the network, and fails at 8",
    isotropic=(7, 8),
    kernels=True,
)
def fig5(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """scatter of predictions around the best polynomial of degree 7: NTK's mean below the network's; NTK's mean R² at 8 ≤
    0.3"""
    fuzz = {"network": results.paired(tasks[0], "fuzz"), "NTK": results.machine(tasks[0], NTK, "fuzz")}
    r2 = {str(task.degree): results.machine(task, NTK, "r2 test") for task in tasks}
    gap = fuzz["NTK"] - fuzz["network"]
    measured = {
        "scatter": {name: over_seeds(values) for name, values in fuzz.items()},
        "difference": over_seeds(gap),
        "R² of the NTK": {name: over_seeds(values, R2) for name, values in r2.items()},
    }
    return measured, float(gap.mean()) < 0 and float(r2["8"].mean()) <= FAILS


@on_targets(
    "relu-rbf-mse-threshold",
    "Section 5.2.4",
    {"threshold": 0.1, "below": [3], "not below": [4, 5, 6, 7, 8, 9]},
    isotropic=(),
    kernels=True,
    note="the variance of raw targets falls with the degree, so a fixed MSE says little",
)
def rbf(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """mean test MSE of the RBF SVR below 0.1 at degree 3 and not at 4 to 9"""
    found = {task.degree: results.machine(task, RBF) for task in tasks}
    r2 = {str(task.degree): round(float(results.machine(task, RBF, "r2 test").mean()), 4) for task in tasks}
    measured = {"MSE": {str(degree): over_seeds(values) for degree, values in found.items()}, "R²": r2}
    return measured, all((float(values.mean()) < 0.1) == (degree == 3) for degree, values in found.items())


@on_targets("relu-ntk-beats-rbf-4-7", "Section 5.2.4", {"degrees": [4, 5, 6, 7]}, isotropic=(4, 5, 6, 7), kernels=True)
def beats_rbf(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """mean test MSE of the NTK SVR at most 0.7 of the RBF SVR's at each of these degrees that the network fits (mean R² ≥
    0.7), of which there is at least one"""
    ratios = {
        task.degree: float(results.machine(task, NTK).mean() / results.machine(task, RBF).mean()) for task in tasks
    }
    fitted = [task.degree for task in tasks if float(results.r2(task).mean()) >= FITS]
    measured = {"NTK / RBF": {str(d): round(ratio, 4) for d, ratio in ratios.items()}, "network fits": fitted}
    return measured, bool(fitted) and all(ratios[degree] <= 0.7 for degree in fitted)


@on_targets("relu-ntk-rbf-tie-8-9", "Section 5.2.4", {"degrees": [8, 9]}, isotropic=(8, 9), kernels=True)
def tie(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """ratio of mean validation MSEs, NTK over RBF, from 0.7 to 1.4"""
    ratios = {}
    for task in tasks:
        ntk, rbf = (results.machine(task, model, "mse validation").mean() for model in (NTK, RBF))
        ratios[str(task.degree)] = round(float(ntk / rbf), 4)
    return ratios, all(0.7 <= ratio <= 1.4 for ratio in ratios.values())


@on_targets(
    "relu-rbf-overfit-ntk-underfit",
    "Section 5.2.4",
    "at 8 and 9 RBF has a training loss near 0 and the NTK predicts a constant",
    isotropic=(8, 9),
    kernels=True,
)
def overfit(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """means: RBF's training MSE ≤ 0.1 of its test MSE; spread of the NTK's predictions ≤ 0.2 of the targets'"""
    measured, holds = {}, True
    for task in tasks:
        share = float(results.machine(task, RBF, "mse train").mean() / results.machine(task, RBF).mean())
        spreads = {model: results.machine(task, model, "spread") for model in (NTK, RBF)}
        measured[str(task.degree)] = {
            "RBF, train / test MSE": round(share, 5),
            "spread of NTK": over_seeds(spreads[NTK]),
            "spread of RBF": over_seeds(spreads[RBF]),
            "C of RBF": results.machine(task, RBF, "C").tolist(),
        }
        holds = holds and share <= 0.1 and float(spreads[NTK].mean()) <= 0.2
    return measured, holds


@on_targets(
    "relu-ntk-slightly-better-than-nn",
    "Section 5.2.4",
    "the NTK has marginally better losses than the network at all degrees",
    isotropic=(3, 4, 5, 6, 7),
    kernels=True,
)
def slightly(results: Results, tasks: Sequence[Task]) -> tuple[Any, bool]:
    """mean test MSE of the NTK SVR at most the network's at most of the degrees 3 to 7, difference ≤ 0.1 of the targets'
    variance"""
    measured, wins, small = {}, 0, True
    for task in tasks:
        gap = results.machine(task, NTK) - results.paired(task)
        share = float(abs(gap.mean()) / results.paired(task, "variance").mean())
        measured[str(task.degree)] = {
            "NTK - network": over_seeds(gap),
            "of the variance": round(share, 4),
            "seeds with NTK better": f"{int((gap <= 0).sum())} of {len(gap)}",
        }
        wins, small = wins + (float(gap.mean()) <= 0), small and share <= 0.1
    return measured, wins >= 3 and small


@claim(
    "relu-damian-no-change",
    "Section 5.2.4",
    "label noise, symmetric start and the algorithm of Damian et al. make no significant change",
    needs=lambda config: [read.SYMMETRIC, *(f"damian/{degree}" for degree in config.isotropic)],
    seeds=MACHINES,
)
def damian(config: Any, record: Record) -> Reading:
    """from a symmetric start on noisy labels the NTK's test MSE is no worse than the network's (interval of the paired
    difference not above 0) at most degrees, and so with Damian's algorithm; its start puts out exactly 0"""
    pairs = {"symmetric start": (None, "symmetric start, ntk svr"), "algorithm": ("algorithm", "algorithm, ntk ridge")}
    measured: dict[str, Any] = {}
    holds, starts = True, 0.0
    for name, (own, kernel) in pairs.items():
        good = 0
        for degree in config.isotropic:
            leg = record.metrics[f"damian/{degree}"]
            starts = max(starts, leg["largest |output| at the start"])
            ntk = np.array(leg["models"][kernel]["mse test"])
            networks = (
                record.metrics[read.SYMMETRIC]["tasks"][Task("isotropic", degree, config.targets[0]).key]
                if own is None
                else leg["models"][own]
            )
            gap = interval(ntk - np.array(networks["mse test"])[: len(ntk)])
            good += gap["low"] <= 0
            measured.setdefault(str(degree), {})[name] = {
                "R²": over_seeds(networks["r2 test"]),
                "NTK - network": short(gap, 5),
            }
        measured[f"{name}, no worse"] = good
        holds = holds and good > len(config.isotropic) / 2
    measured["largest |output| at the start"] = starts
    note = "Damian's step needs a quadratic part of the target: odd degrees have none"
    return Reading(measured, holds and starts == 0.0, note, seeds=config.kernel_seeds)
