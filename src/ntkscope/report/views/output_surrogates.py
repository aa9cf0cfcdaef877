"""Surrogates of a regression: which kernel machine gives the network's outputs, with intervals, and item by item."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntkscope.report.help import tau
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import as_float, interval, number
from ntkscope.report.plots import Point, Scale, scatter
from ntkscope.report.plots.frame import Frame
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell, figures, table
from ntkscope.report.views._findings import TARGETS
from ntkscope.report.views.registry import VIEWS

POINTS = 400  # points per plot
PLOTS = 6


@VIEWS.register("output_surrogates")
def output_surrogates(section: Section, source: Source) -> Drawing:
    """The table of kernels, each output where there are several, and the scatter of the best one."""
    rows = section.data["table"]
    proper = [row for row in rows if not row["trivial"] and math.isfinite(as_float(row["r2"]))]
    best = max(proper, key=lambda row: as_float(row["r2"]), default=None)
    heads = [
        "Kernel",
        "Fitted to",
        "R² of the network's outputs",
        "Kendall τ",
        "Worst output",
        "R² of the targets",
        "Seconds",
    ]
    cells = [_row(row, row is best, source) for row in rows]
    shown = table(
        heads,
        cells,
        name="Faithfulness of each surrogate",
        export=f"{source.record.name}-surrogates.csv",
        kind="snug",
    )
    words = tag(
        "p",
        "R² of the network's outputs: the share of their variance on test items that the surrogate explains. τ: how closely it"
        " ranks the test items as the network does, 1 for the same order. Several outputs: the mean, and the smallest R² beside"
        f" it. The network's own R² of the targets is {number(section.data['network_r2'])}. Ranges are 95 % intervals.",
        class_="soft small",
    )
    return Drawing(join([shown, words, _each(best, source), _plots(best, source)]))


def _row(row: Mapping[str, Any], best: bool, source: Source) -> list[Cell]:
    def with_range(key: str, shown: Any = number) -> Cell:
        span = interval(row[f"{key}_low"], row[f"{key}_high"])
        inner = join([shown(row[key]), tag("small", span, class_="range") if span else None])
        return Cell(inner, row[key], True)

    name = source.kernel_mark(row["kernel"])
    pills = [tag("span", "best", class_="pill good")] if best else []
    pills += [tag("span", "trivial", class_="pill quiet")] if row["trivial"] else []
    return [
        Cell(join([tag("b", name) if best else name, *pills]), row["kernel"], kind="strong"),
        Cell(TARGETS.get(str(row["target"]), str(row["target"])), row["target"]),
        with_range("r2"),
        with_range("tau", tau),
        *figures(row["worst_r2"], row["r2_targets"]),
        Cell(number(row["seconds"], 2), row["seconds"], True),
    ]


def _each(best: Mapping[str, Any] | None, source: Source) -> Markup | None:
    """Every output of the best surrogate, if there are several."""
    found: Sequence[Mapping[str, Any]] = [] if best is None else best["outputs"]
    if best is None or len(found) < 2:
        return None
    rows = [
        [
            Cell(tag("bdi", source.output_name(row["output"])), source.output_name(row["output"]), kind="strong"),
            Cell(number(row["r2"]), row["r2"], True),
            Cell(tau(row["tau"]), row["tau"], True),
            Cell(number(row["rmse"]), row["rmse"], True),
        ]
        for row in found
    ]
    head = tag("h3", f"Each output of {source.kernel_name(best['kernel'])}")
    return join([head, table(["Output", "R²", "Kendall τ", "Distance (RMSE)"], rows, name="Each output", kind="snug")])


def _plots(best: Mapping[str, Any] | None, source: Source) -> Markup | None:
    """The network's output against the best surrogate's, one plot per output."""
    network = source.array("network.test_outputs")
    if best is None or network is None:
        return None
    values = source.array(f"surrogates.logits.{best['kernel']}.{best['target']}")
    if values is None or values.shape != network.shape or network.ndim != 2:
        return None
    drawn = [_plot(k, network[:, k], values[:, k], source) for k in range(min(PLOTS, network.shape[1]))]
    label = f"Scatter plots of {best['kernel']}"
    return join(
        [
            tag("h3", "Network and surrogate, item by item"),
            tag(
                "p",
                "Each mark is a test item; on the dashed line the surrogate's output is the network's.",
                class_="soft small",
            ),
            tag("div", *drawn, class_="panels many", tabindex="0", role="region", aria_label=label),
        ]
    )


def _plot(k: int, network: np.ndarray, values: np.ndarray, source: Source) -> Markup:
    both = np.stack([network, values], 1).astype(np.float64)
    rows = np.flatnonzero(np.isfinite(both).all(1))
    rows = (
        rows[np.unique(np.linspace(0, len(rows) - 1, min(POINTS, len(rows))).round().astype(int))]
        if len(rows)
        else rows
    )
    low, high = (float(both[rows].min()), float(both[rows].max())) if len(rows) else (0.0, 1.0)
    margin = 0.05 * (high - low) or 1.0
    scale = Scale(low - margin, high + margin)
    points = [
        Point(
            float(both[i, 0]),
            float(both[i, 1]),
            f"test item {source.items.number('test', i)}: network {number(float(both[i, 0]))}, surrogate"
            f" {number(float(both[i, 1]))}",
        )
        for i in rows.tolist()
    ]
    frame = Frame(scale, scale, "network", "surrogate", width=360, height=330, left=70)
    described = f"Scatter of {len(points)} test items: {source.output_name(k)}, network against surrogate"
    return tag(
        "figure",
        tag("figcaption", tag("bdi", source.output_name(k))),
        scatter(frame, points, describe=described, diagonal=True),
    )
