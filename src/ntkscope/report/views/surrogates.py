"""Surrogates: which kernel machine ranks the test items as the network does, with intervals, and item by item."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import NONE, as_float, interval, number, percent
from ntkscope.report.plots import Point, Scale, forest, scatter
from ntkscope.report.plots.frame import Frame
from ntkscope.report.source import Drawing, Section, Source, mapping
from ntkscope.report.tables import Cell, table
from ntkscope.report.views.registry import VIEWS

EDGE = 1e-9  # probabilities closer than this to 0 or 1 are drawn here
POINTS = 400  # points per plot


@VIEWS.register("surrogates")
def surrogates(section: Section, source: Source) -> Drawing:
    """The table of kernels, and the scatter of probabilities."""
    rows = section.data["table"]
    best = max(rows, key=lambda row: as_float(row.get("tau")), default=None)
    ends = [v for row in rows for key in ("tau", "tau_low", "tau_high") if (v := as_float(row.get(key))) == v]
    low, high = (math.floor(min(ends) * 10) / 10, math.ceil(max(ends) * 10) / 10) if ends else (0.0, 1.0)
    axis = tag("small", f"{low:.1f} … {high:.1f}".replace("-", "−"), aria_hidden="true")
    heads = [
        "Kernel",
        "Kendall τ",
        axis,
        "TAD",
        "Agreement",
        "R²",
        "Pearson",
        "Accuracy",
        "Ties",
        "Literal τ",
        "Seconds",
    ]
    more = list(dict.fromkeys(name for row in rows for name in mapping(row.get("more"))))
    heads += [name.replace("-", " ").capitalize() for name in more]
    cells = [[*_row(row, row is best, (low, high)), *_more(row, more)] for row in rows]
    file = f"{source.record.name}-surrogates.csv"
    shown = table(heads, cells, name="Faithfulness of each surrogate", export=file, kind="snug")
    words = tag(
        "p",
        "How closely the surrogate ranks the test items as the network does: τ, 1 for the same order. How much more accurate it"
        " is than the network, in percentage points: TAD. How often both predict the same class: agreement. Ranges are 95 %"
        " intervals.",
        class_="soft small",
    )
    plots = _plots(list(dict.fromkeys(str(row["kernel"]) for row in rows)), source)
    return Drawing(join([shown, words, plots]))


def _points(value: Any) -> str:
    """Percentage points with their sign."""
    x = as_float(value)
    return "0.0" if abs(x) < 0.05 else f"{x:+.1f}".replace("-", "−") if x == x else NONE


def _row(row: Mapping[str, Any], best: bool, ends: tuple[float, float]) -> list[Cell]:
    def with_range(key: str, shown: Any = number) -> Cell:
        span = interval(row.get(f"{key}_low"), row.get(f"{key}_high"), shown)
        inner = join([shown(row.get(key)), tag("small", span, class_="range") if span else None])
        return Cell(inner, row.get(key), True)

    mark = forest(
        row.get("tau"),
        row.get("tau_low"),
        row.get("tau_high"),
        smallest=ends[0],
        largest=ends[1],
        kind="best" if best else "",
    )
    return [
        Cell(tag("b", row["kernel"]) if best else row["kernel"], row["kernel"], kind="strong"),
        with_range("tau"),
        Cell(mark),
        with_range("tad", _points),
        with_range("agreement", percent),
        Cell(number(row.get("r2")), row.get("r2"), True),
        Cell(number(row.get("pearson")), row.get("pearson"), True),
        Cell(percent(row.get("accuracy")), row.get("accuracy"), True),
        Cell(number(row.get("ties")), row.get("ties"), True),
        Cell(number(row.get("tau_literal")), row.get("tau_literal"), True),
        Cell(number(row.get("seconds"), 2), row.get("seconds"), True),
    ]


def _more(row: Mapping[str, Any], names: Sequence[str]) -> list[Cell]:
    """Additional measures, one column each."""
    values = mapping(row.get("more"))
    return [Cell(number(values.get(name)), values.get(name), True) for name in names]


def _plots(kernels: Sequence[str], source: Source) -> Markup | None:
    """One scatter plot per kernel: the network's probability of the true class against the surrogate's, in log-odds."""
    network = source.array("surrogates.network_probability")
    pairs = [(kernel, source.array(f"surrogates.probability.{kernel}")) for kernel in kernels]
    known = [(kernel, values) for kernel, values in pairs if values is not None and network is not None]
    if network is None or not known:
        return None
    every = np.clip(np.concatenate([network, *(values for _, values in known)]).astype(np.float64), EDGE, 1 - EDGE)
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if every.size else (0.1, 0.9)
    scale = Scale(max(EDGE, min(low, 0.3) * 0.7), min(1 - EDGE, 1 - (1 - max(high, 0.7)) * 0.7), "logit")
    chosen = _chosen(np.asarray(network), [np.asarray(values) for _, values in known])
    figures = [
        _plot(kernel, np.asarray(network), np.asarray(values), scale, chosen, source) for kernel, values in known
    ]
    some = (
        f" {len(chosen)} of {len(network)} items are drawn: those that differ most, and an even selection of the others."
        if len(chosen) < len(network)
        else ""
    )
    note = "Each mark is a test item; the axes are stretched near 0 and 1 (log-odds). " + (
        "On the dashed line the surrogate is exactly as confident as the network. Diamonds are items the network gets wrong."
    )
    return join(
        [tag("h3", "Probability of the true class, item by item"), tag("p", note + some, class_="soft small"),
         tag("div", *figures, class_="panels many", tabindex="0", role="region", aria_label="Scatter plots")]
    )  # fmt: skip


def _chosen(network: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """Which items to draw if there are too many: half those that differ most, half evenly spread."""
    n = len(network)
    if n <= POINTS:
        return np.arange(n)
    unlike = np.max([np.abs(np.asarray(other, dtype=np.float64) - network) for other in others], axis=0)
    first = np.argsort(-unlike, kind="stable")[: POINTS // 2]
    rest = np.setdiff1d(np.arange(n), first)
    return np.sort(np.concatenate([first, rest[:: max(1, -(-len(rest) // (POINTS // 2)))]]))


def _plot(
    kernel: str, network: np.ndarray, values: np.ndarray, scale: Scale, chosen: np.ndarray, source: Source
) -> Markup:
    frame = Frame(scale, scale, "network", "surrogate", width=360, height=330, left=70)
    labels, predicted = source.array("labels.test"), source.array("network.test_prediction")
    points = []
    for i in chosen.tolist():
        x, y = float(network[i]), float(values[i])
        if not np.isfinite([x, y]).all():
            continue
        wrong = bool(labels is not None and predicted is not None and labels[i] != predicted[i])
        of = f", {source.class_name(int(labels[i]))}" if labels is not None else ""
        points.append(Point(x, y, f"test item {i}{of}: network {number(x)}, surrogate {number(y)}", wrong, i))
    described = (
        f"Scatter of {len(points)} test items: probability of the true class, network against surrogate {kernel}"
    )
    drawn = scatter(frame, points, describe=described, diagonal=True)
    return tag("figure", tag("figcaption", kernel), drawn)
