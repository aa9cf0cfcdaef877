"""The NTK review, section 3: the depth at which a degree carries most of the variance, and the depth that predicts best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ntkscope import infinite
from ntkscope.core import Part, Record, Split, UsageError, numpy_generator
from ntkscope.infinite import Erf, Relu
from ntkscope.infinite.layer import Layer
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.results import summary
from ntkscope_papers.im_2021.cube import KINDS, fully_connected, low_degrees
from ntkscope_papers.im_2021.wide import on_sphere
from ntkscope_papers.shared.images import load_images

NETS = {  # function, σ_w², σ_b², which degrees are not zero
    "relu sb2=0": (Relu(), 2.0, 0.0, 1),
    "relu sb2=0.1": (Relu(), 2.0, 0.1, 1),
    "relu sb2=1": (Relu(), 2.0, 1.0, 1),
    "relu sb2=2": (Relu(), 2.0, 2.0, 1),
    "erf sw2=4": (Erf(), 4.0, 0.0, 2),
}
LEDGER = {  # weight layers at which degree 1 … 6 is largest
    "relu sb2=2": {"CK": [2, 2, 4, 4, 4, 5], "NTK": [2, 3, 7, 14, 23, 32]},
    "relu sb2=0": {"CK": [2, 2, 4, 5, 6, 7], "NTK": [2, 2, 4, 5, 7, 8]},
}
DEGREES = 6
VERIFIED = (2, 10)  # weight layers at which all digits are computed too
CLEAR = 2.0  # standard errors by which the ends must be worse than the best depth


@dataclass(frozen=True)
class OptimalDepth(Experiment):
    """NTK review, section 3: degree-k fractional variance against depth, CK against NTK, and depth on real data.

    `deepest`: weight layers searched on the cube; `hidden`: hidden layers tried on data sets, `biases` their σ_b².
    """

    name = "optimal-depth"
    free = ("seeds",)

    dimension: int = 128
    deepest: int = 59
    datasets: tuple[str, ...] = ("mnist", "cifar10")
    hidden: tuple[int, ...] = (1, 2, 3, 5, 8, 12, 20, 32, 64)
    biases: tuple[float, ...] = (0.0, 2.0)
    items: int = 500
    test_items: int = 1000
    seeds: int = 5

    smoke = {
        **{"dimension": 24, "deepest": 20, "hidden": (1, 2, 4, 16), "biases": (0.0,)},
        **{"datasets": ("digits",), "items": 80, "test_items": 100, "seeds": 2},
    }

    def __post_init__(self) -> None:
        if self.deepest < max(VERIFIED) or len(self.hidden) < 3:
            raise UsageError(
                f"got deepest={self.deepest}, hidden={self.hidden}; expected at least {max(VERIFIED)} weight layers and"
                " three depths"
            )

    def prepare(self, run: Run) -> dict[str, Split]:
        return {dataset: load_images(dataset, root=run.root, train=None, test=None) for dataset in self.datasets}

    @leg("cube/{}", over=lambda self: NETS)
    def by_depth(self, run: Run, name: str) -> dict[str, Any]:
        """Fractional variances by weight layers, and how far they are from all digits at some depths."""
        shares: dict[str, list[list[float]]] = {short: [] for short in KINDS}
        off = 0.0
        for layers in range(2, self.deepest + 1):
            net = network(name, layers)
            found = low_degrees(net, self.dimension, DEGREES)
            for short, kind in KINDS.items():
                shares[short].append([float(f"{value:.12g}") for value in found[kind].tolist()])
                if layers in VERIFIED:
                    exact = infinite.boolean_cube(net, self.dimension, kind).fractional_variance[: DEGREES + 1]
                    off = max(off, float((found[kind] - exact).abs().max()))
        return {**shares, "against all digits": off}

    @leg("data/{}/{:g}/{}", over=lambda self: product(self.datasets, self.biases, range(self.seeds)))
    def on_data(self, run: Run, dataset: str, bias: float, s: int) -> dict[str, Any]:
        """Kernel regression on one-hot labels (minus their mean) by depth: squared error, misclassified share of test items.

        Inputs are scaled to norm √d, ReLU with σ_w² = 2.
        """
        split = run.data[dataset]
        train, test = _subset(split.train, self.items, s, run.seed), _subset(split.test, self.test_items, s, run.seed)
        classes = len(split.classes)
        x, z = (on_sphere(part.x).to(run.device) for part in (train, test))
        y, truth = (torch.nn.functional.one_hot(part.y, classes).double() - 1 / classes for part in (train, test))
        found: dict[str, Any] = {short: {"squared": [], "wrong": [], "smallest eigenvalue": []} for short in KINDS}
        for depth in self.hidden:
            net = fully_connected(Relu(), depth, 2.0, bias)
            own, across = infinite.kernels(net, x), infinite.kernels(net, z, x)
            for short, K, K_test in (("CK", own.nngp, across.nngp), ("NTK", own.ntk, across.ntk)):
                outputs = infinite.kernel_regression(K, y.to(run.device), K_test).cpu()
                column = found[short]
                column["squared"].append(float((outputs - truth).square().sum(1).mean()))
                column["wrong"].append(float((outputs.argmax(1) != test.y).double().mean()))
                column["smallest eigenvalue"].append(float(torch.linalg.eigvalsh(K.dense())[0]))
        return found

    @claim("ntkreview-optimal-depth-finite", "Section 3", "degree-k fractional variance peaks at a finite depth")
    def finite(self, record: Record) -> Reading:
        """largest inside the depths searched for k = 3 ... 6 (odd ones for erf)"""
        at = _peaks(record)
        measured = {name: list(column.values()) for name, column in at.items()}
        inside = all(2 < column[k] < self.deepest for column in at.values() for k in column if k >= 3)
        ledger = all(measured[f"{name}, {short}"] == v for name, one in LEDGER.items() for short, v in one.items())
        off = max(record.metrics[f"cube/{name}"]["against all digits"] for name in NETS)
        same = "the ledger's depths to the layer" if ledger else "not the ledger's depths"
        constant = record.metrics["cube/relu sb2=2"]["CK"][-1][0]
        note = (
            f"weight layers at the peak of degree 1 to {DEGREES} (1, 3, 5 for erf), d = {self.dimension}, up to"
            f" {self.deepest}; {same}; double precision, {off:.1e} off all digits; degree 0 has no peak for the CK with"
            f" biases ({constant:.4f} at the deepest)"
        )
        return Reading(measured, inside, note)

    @claim("ntkreview-optimal-depth-grows", "Section 3", "the depth of the peak increases with k")
    def grows(self, record: Record) -> Reading:
        """not decreasing for k >= 1, and deeper at the last degree than at the first"""
        measured = {name: list(column.values()) for name, column in _peaks(record).items()}
        rising = all(late >= early for column in measured.values() for early, late in pairwise(column))
        holds = rising and all(column[-1] > column[0] for column in measured.values())
        return Reading(measured, holds, "σ_w² = 2 for ReLU with four σ_b², and erf with σ_w² = 4, σ_b = 0")

    @claim("ntkreview-optimal-depth-real", "Section 3", "an optimal finite depth is also seen on real data")
    def real_data(self, record: Record) -> Reading:
        """squared test error of kernel regression is least inside the depths; both ends worse by 2 standard errors"""
        measured, judged, outside = {}, [], []
        for dataset, bias, short in product(self.datasets, self.biases, KINDS):
            table = self._column(record, dataset, bias, short, "squared")
            best = int(table.mean(0).argmin())
            ends = [clear(table[:, end] - table[:, best]) for end in (0, -1)]
            interior = 0 < best < len(self.hidden) - 1 and all(ends)
            if bias == 0:
                judged.append(interior)
            elif not interior:
                outside.append(f"{dataset} {short}")
            wrong = self._column(record, dataset, bias, short, "wrong").mean(0)
            measured[f"{dataset}, {short}, σ_b² = {bias:g}"] = {
                "best hidden layers": self.hidden[best],
                "squared error, first, best, last": [round(float(table.mean(0)[i]), 4) for i in (0, best, -1)],
                "misclassified %, first, best, last": [round(100 * float(wrong[i]), 2) for i in (0, best, -1)],
            }
        note = (
            f"{self.items} training and {self.test_items} test items, {self.seeds} subsets, up to {self.hidden[-1]} hidden"
            " ReLU layers, σ_w² = 2; judged without biases"
        )
        if outside:
            note += f"; with biases no inner minimum for {', '.join(outside)}"
        return Reading(measured, all(judged), note)

    @claim("ntkreview-ntk-more-complex-than-ck", "Section 3", "for larger k the NTK has the larger fractional variance")
    def more_complex(self, record: Record) -> Reading:
        """for every k >= 2 that is not zero, at 2 and 3 weight layers and at the best depth"""
        wins: list[bool] = []
        measured: dict[str, Any] = {}
        for name, (*_, step) in NETS.items():
            ck, ntk = (np.array(record.metrics[f"cube/{name}"][short]) for short in ("CK", "NTK"))
            for k in range(3 if step == 2 else 2, DEGREES + 1, step):
                best = ck[:, k].max(), ntk[:, k].max()
                pairs = [(ck[i, k], ntk[i, k]) for i in (0, 1)] + [best]
                wins += [bool(b > a) for a, b in pairs if max(a, b) > 1e-9]
                if k in (3, 5):
                    measured[f"{name}, k = {k}, best depth"] = {"CK": round(best[0], 4), "NTK": round(best[1], 4)}
        measured["NTK larger"] = f"{sum(wins)} of {len(wins)}"
        note = "comparisons: k >= 2 with a share above 1e-9, at 2 and at 3 weight layers and each at its best depth"
        return Reading(measured, all(wins), note)

    def _column(self, record: Record, dataset: str, bias: float, short: str, what: str) -> Any:
        """What was measured on data: an array of seeds and depths."""
        seeds = range(self.seeds)
        return np.array([record.metrics[f"data/{dataset}/{bias:g}/{s}"][short][what] for s in seeds])

    @figure
    def cube(self, record: Record) -> Figure:
        """Shares by depth with their peaks; where the peaks are."""
        drawn, axes = drawing.canvas(1, 3, width=4.8)
        for axis, short in zip(axes, KINDS):
            table = np.array(record.metrics["cube/relu sb2=2"][short])
            depths = np.arange(2, 2 + len(table))
            for k in range(1, DEGREES + 1):
                colour = drawing.COLOURS[(k - 1) % len(drawing.COLOURS)]
                axis.plot(depths, table[:, k], color=colour, linewidth=1.2, label=f"k = {k}")
                best = int(table[:, k].argmax())
                axis.plot(depths[best], table[best, k], "o", markersize=4, color=colour)
            drawing.plain_log(axis)
            axis.set_title(f"{short}, ReLU, σ_w² = σ_b² = 2, d = {self.dimension}")
            axis.xaxis.get_major_locator().set_params(integer=True)
            drawing.label(axis, x="weight layers", y="degree-k fractional variance")
            axis.legend(ncols=2)
        for i, (name, column) in enumerate(_peaks(record).items()):
            written = name.replace("relu", "ReLU").replace("sb2", "σ_b²").replace("sw2", "σ_w²").replace("=", " = ")
            colour, style = drawing.COLOURS[i // len(KINDS)], ("o-", "s--")[i % len(KINDS)]
            axes[2].plot(list(column), list(column.values()), style, markersize=4, color=colour, label=written)
        drawing.plain_log(axes[2])
        drawing.label(axes[2], x="degree k", y="weight layers at the peak")
        axes[2].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return drawn

    @figure
    def data(self, record: Record) -> Figure:
        """Error on data by depth."""
        drawn, axes = drawing.canvas(len(self.datasets), 2, width=5.0)
        panels = product(self.datasets, (("squared", "squared test error"), ("wrong", "misclassified share")))
        for axis, (dataset, (what, label)) in zip(axes, panels):
            for which, short in enumerate(KINDS):
                for bias in self.biases:
                    several = map(summary, self._column(record, dataset, bias, short, what).T)
                    name = f"{short}, σ_b² = {bias:g}"
                    drawing.summaries(axis, self.hidden, several, which + 2 * (bias > 0), name)
            drawing.log_ticks(axis, self.hidden)
            drawing.label(axis, title=dataset, x="hidden layers", y=label, legend=True)
        return drawn


def network(name: str, layers: int) -> Layer:
    """One of `NETS` with `layers` weight layers."""
    function, weight, bias, _ = NETS[name]
    return fully_connected(function, layers - 1, weight, bias)


def _subset(part: Part, count: int, s: int, seed: int) -> Part:
    """`count` random items, a different subset for every `s`."""
    draw = numpy_generator(seed, "subset", s, count)
    return part.take(torch.from_numpy(np.sort(draw.permutation(len(part))[:count])))


def peaks(shares: list[list[float]], step: int) -> dict[int, int]:
    """The number of weight layers at which each degree's share is largest.

    >>> peaks([[0.5, 0.4, 0.1], [0.5, 0.3, 0.2], [0.6, 0.25, 0.15]], 1)
    {1: 2, 2: 3}
    """
    table = np.array(shares)
    return {k: 2 + int(table[:, k].argmax()) for k in range(1, table.shape[1], step)}


def _peaks(record: Record) -> dict[str, dict[int, int]]:
    """Those of every network and kernel."""
    every = product(NETS, KINDS)
    return {f"{name}, {short}": peaks(record.metrics[f"cube/{name}"][short], NETS[name][3]) for name, short in every}


def clear(gaps: Any) -> bool:
    """Whether paired differences over subsets are positive by `CLEAR` standard errors."""
    if len(gaps) < 2:
        return False
    return bool(gaps.mean() > CLEAR * gaps.std(ddof=1) / math.sqrt(len(gaps)))
