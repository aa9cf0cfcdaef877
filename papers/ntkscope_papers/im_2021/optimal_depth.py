"""The NTK review, section 3: the depth at which a degree carries most of the variance, and the depth that predicts best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope import infinite
from ntkscope.core import Claim, Part, Record, UsageError, numpy_generator
from ntkscope.infinite import Erf, Layer, Relu
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.results import once
from ntkscope_papers.im_2021.cube import fully_connected, low_degrees
from ntkscope_papers.shared.images import load_images

KINDS = {"CK": "nngp", "NTK": "ntk"}
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

PUBLISHED = {
    claim.id.removeprefix("ntkreview-"): claim
    for claim in (
        Published(
            "ntkreview-optimal-depth-finite",
            "Section 3",
            "degree-k fractional variance peaks at a finite depth",
            "largest inside the depths searched for k = 3 ... 6 (odd ones for erf)",
        ),
        Published(
            "ntkreview-optimal-depth-grows",
            "Section 3",
            "the depth of the peak increases with k",
            "not decreasing for k >= 1",
        ),
        Published(
            "ntkreview-optimal-depth-real",
            "Section 3",
            "an optimal finite depth is also seen on real data",
            "squared test error of kernel regression is least inside the depths; both ends worse by 2 standard errors",
        ),
        Published(
            "ntkreview-ntk-more-complex-than-ck",
            "Section 3",
            "for larger k the NTK has the larger fractional variance",
            "for every k >= 2 that is not zero, at 2 and 3 weight layers and at the best depth",
        ),
    )
}


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
        "dimension": 24,
        "deepest": 20,
        "datasets": ("digits",),
        "hidden": (1, 2, 4, 16),
        "biases": (0.0,),
        "items": 80,
        "test_items": 100,
        "seeds": 2,
    }

    def measure(self, run: Run) -> None:
        if self.deepest < max(VERIFIED) or len(self.hidden) < 3:
            raise UsageError(
                f"got deepest={self.deepest}, hidden={self.hidden}; expected at least {max(VERIFIED)} weight layers and"
                " three depths"
            )
        total = len(NETS) + len(self.datasets) * len(self.biases) * self.seeds
        with run.record.stage("depths", total=total, progress="auto" if run.progress else False) as stage:
            for name in NETS:
                once(run.record, f"cube/{name}", partial(by_depth, name, self.dimension, self.deepest))
                stage.advance(stage.done < total)
            for dataset in self.datasets:
                split = load_images(dataset, root=run.root, train=None, test=None)
                for s in range(self.seeds):
                    train = _subset(split.train, self.items, s, run.seed)
                    test = _subset(split.test, self.test_items, s, run.seed)
                    for bias in self.biases:
                        key = f"data/{dataset}/{bias:g}/{s}"
                        once(
                            run.record,
                            key,
                            partial(on_data, train, test, self.hidden, bias, len(split.classes), run.device),
                        )
                        stage.advance(stage.done < total)

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return tuple(PUBLISHED.values())

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return judge(self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def network(name: str, layers: int) -> Layer:
    """One of `NETS` with `layers` weight layers."""
    function, weight, bias, _ = NETS[name]
    return fully_connected(function, layers - 1, weight, bias)


def by_depth(name: str, d: int, deepest: int) -> dict[str, Any]:
    """Fractional variances by weight layers, and how far they are from all digits at some depths."""
    shares: dict[str, list[list[float]]] = {short: [] for short in KINDS}
    off = 0.0
    for layers in range(2, deepest + 1):
        net = network(name, layers)
        found = low_degrees(net, d, DEGREES)
        for short, kind in KINDS.items():
            shares[short].append([float(f"{value:.12g}") for value in found[kind].tolist()])
            if layers in VERIFIED:
                exact = infinite.boolean_cube(net, d, kind).fractional_variance[: DEGREES + 1]
                off = max(off, float((found[kind] - exact).abs().max()))
    return {**shares, "against all digits": off}


def _subset(part: Part, count: int, s: int, seed: int) -> Part:
    """`count` random items, a different subset for every `s`."""
    draw = numpy_generator(seed, "subset", s, count)
    return part.take(torch.from_numpy(np.sort(draw.permutation(len(part))[:count])))


def on_data(
    train: Part, test: Part, hidden: tuple[int, ...], bias: float, classes: int, device: torch.device
) -> dict[str, Any]:
    """Kernel regression on one-hot labels (minus their mean) by depth: squared error and misclassified share of test items.

    Inputs are scaled to norm √d, ReLU with σ_w² = 2.
    """
    x, z = (_on_sphere(part.x).to(device) for part in (train, test))
    y, truth = (torch.nn.functional.one_hot(part.y, classes).double() - 1 / classes for part in (train, test))
    found: dict[str, Any] = {short: {"squared": [], "wrong": [], "smallest eigenvalue": []} for short in KINDS}
    for depth in hidden:
        net = fully_connected(Relu(), depth, 2.0, bias)
        own, across = infinite.kernels(net, x), infinite.kernels(net, z, x)
        for short, K, K_test in (("CK", own.nngp, across.nngp), ("NTK", own.ntk, across.ntk)):
            outputs = infinite.kernel_regression(K, y.to(device), K_test).cpu()
            column = found[short]
            column["squared"].append(float((outputs - truth).square().sum(1).mean()))
            column["wrong"].append(float((outputs.argmax(1) != test.y).double().mean()))
            column["smallest eigenvalue"].append(float(torch.linalg.eigvalsh(K.dense())[0]))
    return found


def _on_sphere(images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
    x = images.flatten(1).double()
    return x / x.norm(dim=1, keepdim=True) * math.sqrt(x.shape[1])


def peaks(shares: list[list[float]], step: int) -> dict[int, int]:
    """The number of weight layers at which each degree's share is largest.

    >>> peaks([[0.5, 0.4, 0.1], [0.5, 0.3, 0.2], [0.6, 0.25, 0.15]], 1)
    {1: 2, 2: 3}
    """
    table = np.array(shares)
    return {k: 2 + int(table[:, k].argmax()) for k in range(1, table.shape[1], step)}


def judge(config: OptimalDepth, record: Record, difference: str) -> Iterator[Claim]:
    """Peaks, their order, NTK against CK, and the least error on data."""

    def claim(name: str, measured: Any, holds: bool | None, note: str = "", **options: Any) -> Claim:
        return PUBLISHED[name].judged(measured, holds, difference=difference, note=note, **options)

    found = {name: record.metrics[f"cube/{name}"] for name in NETS}
    at = {(name, short): peaks(found[name][short], NETS[name][3]) for name in NETS for short in KINDS}
    measured = {f"{name}, {short}": list(column.values()) for (name, short), column in at.items()}
    inside = all(2 < column[k] < config.deepest for column in at.values() for k in column if k >= 3)
    ledger = all(measured[f"{name}, {short}"] == v for name, one in LEDGER.items() for short, v in one.items())
    off = max(one["against all digits"] for one in found.values())
    same = "the ledger's depths to the layer" if ledger else "not the ledger's depths"
    constant = found["relu sb2=2"]["CK"][-1][0]
    note = (
        f"weight layers at the peak of degree 1 to {DEGREES} (1, 3, 5 for erf), d = {config.dimension}, up to"
        f" {config.deepest}; {same}; double precision, {off:.1e} off all digits; degree 0 has no peak for the CK with"
        f" biases ({constant:.4f} at the deepest)"
    )
    yield claim("optimal-depth-finite", measured, inside, note)
    grows = all(_rises(list(column.values())) for column in at.values())
    yield claim(
        "optimal-depth-grows", measured, grows, "σ_w² = 2 for ReLU with four σ_b², and erf with σ_w² = 4, σ_b = 0"
    )
    yield _on_data(config, record, claim)
    wins: list[bool] = []
    tables: dict[str, Any] = {}
    for name in NETS:
        step = NETS[name][3]
        degrees = range(3 if step == 2 else 2, DEGREES + 1, step)
        ck, ntk = (np.array(found[name][short]) for short in ("CK", "NTK"))
        for k in degrees:
            pairs = [(ck[i, k], ntk[i, k]) for i in (0, 1)] + [(ck[:, k].max(), ntk[:, k].max())]
            wins += [bool(b > a) for a, b in pairs if max(a, b) > 1e-9]
            if k in (3, 5):
                tables[f"{name}, k = {k}, best depth"] = {
                    "CK": round(ck[:, k].max(), 4),
                    "NTK": round(ntk[:, k].max(), 4),
                }
    tables["NTK larger"] = f"{sum(wins)} of {len(wins)}"
    note = "comparisons: k >= 2 with a share above 1e-9, at 2 and at 3 weight layers and each at its best depth"
    yield claim("ntk-more-complex-than-ck", tables, all(wins), note)


def _rises(values: list[int]) -> bool:
    return all(late >= early for early, late in pairwise(values))


def _on_data(config: OptimalDepth, record: Record, claim: Callable[..., Claim]) -> Claim:
    measured, judged, outside = {}, [], []
    for dataset in config.datasets:
        for bias in config.biases:
            for short in KINDS:
                table = _column(record, dataset, bias, short, "squared", config.seeds)
                best = int(table.mean(0).argmin())
                ends = [_clear(table[:, end] - table[:, best]) for end in (0, -1)]
                interior = 0 < best < len(config.hidden) - 1 and all(ends)
                if bias == 0:
                    judged.append(interior)
                elif not interior:
                    outside.append(f"{dataset} {short}")
                wrong = _column(record, dataset, bias, short, "wrong", config.seeds).mean(0)
                measured[f"{dataset}, {short}, σ_b² = {bias:g}"] = {
                    "best hidden layers": config.hidden[best],
                    "squared error, first, best, last": [round(float(table.mean(0)[i]), 4) for i in (0, best, -1)],
                    "misclassified %, first, best, last": [round(100 * float(wrong[i]), 2) for i in (0, best, -1)],
                }
    note = (
        f"{config.items} training and {config.test_items} test items, {config.seeds} subsets, up to {config.hidden[-1]} hidden"
        " ReLU layers, σ_w² = 2; judged without biases"
    )
    if outside:
        note += f"; with biases no inner minimum for {', '.join(outside)}"
    return claim("optimal-depth-real", measured, all(judged), note)


def _column(record: Record, dataset: str, bias: float, short: str, what: str, seeds: int) -> Any:
    return np.array([record.metrics[f"data/{dataset}/{bias:g}/{s}"][short][what] for s in range(seeds)])


def _clear(gaps: Any) -> bool:
    """Whether paired differences over subsets are positive by `CLEAR` standard errors."""
    if len(gaps) < 2:
        return False
    return bool(gaps.mean() > CLEAR * gaps.std(ddof=1) / math.sqrt(len(gaps)))


def _written(name: str) -> str:
    return name.replace("relu", "ReLU").replace("sb2", "σ_b²").replace("sw2", "σ_w²").replace("=", " = ")


def draw(record: Record) -> dict[str, Any]:
    """Shares by depth with their peaks; where the peaks are; error on data by depth."""
    config, found = record.config, record.metrics
    figure, axes = drawing.canvas(1, 3, width=4.8)
    shown = found["cube/relu sb2=2"]
    for axis, short in zip(axes, KINDS):
        table = np.array(shown[short])
        depths = np.arange(2, 2 + len(table))
        for k in range(1, DEGREES + 1):
            colour = drawing.COLOURS[(k - 1) % len(drawing.COLOURS)]
            axis.plot(depths, table[:, k], color=colour, linewidth=1.2, label=f"k = {k}")
            best = int(table[:, k].argmax())
            axis.plot(depths[best], table[best, k], "o", markersize=4, color=colour)
        drawing.plain_log(axis)
        axis.set_title(f"{short}, ReLU, σ_w² = σ_b² = 2, d = {config['dimension']}")
        axis.xaxis.get_major_locator().set_params(integer=True)
        drawing.label(axis, x="weight layers", y="degree-k fractional variance")
        axis.legend(ncols=2)
    for i, name in enumerate(NETS):
        for short, style in zip(KINDS, ("o-", "s--")):
            column = peaks(found[f"cube/{name}"][short], NETS[name][3])
            places, label = (list(column), list(column.values())), f"{_written(name)}, {short}"
            axes[2].plot(*places, style, markersize=4, color=drawing.COLOURS[i], label=label)
    drawing.plain_log(axes[2])
    drawing.label(axes[2], x="degree k", y="weight layers at the peak")
    axes[2].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    data, panels = drawing.canvas(len(config["datasets"]), 2, width=5.0)
    hidden = list(config["hidden"])
    for i, dataset in enumerate(config["datasets"]):
        for j, (what, label) in enumerate((("squared", "squared test error"), ("wrong", "misclassified share"))):
            axis = panels[2 * i + j]
            for which, short in enumerate(KINDS):
                for bias in config["biases"]:
                    table = _column(record, dataset, bias, short, what, config["seeds"])
                    errors = table.std(0, ddof=1) / math.sqrt(len(table)) if len(table) > 1 else np.zeros(len(hidden))
                    drawing.line_with_errors(
                        axis, hidden, table.mean(0), errors, which + 2 * (bias > 0), f"{short}, σ_b² = {bias:g}"
                    )
            axis.set_xscale("log")
            axis.set_xticks(hidden, [str(h) for h in hidden])
            axis.minorticks_off()
            drawing.label(axis, title=dataset, x="hidden layers", y=label, legend=True)
    return {"cube": figure, "data": data}
