"""Surrogates: which kernel machine ranks the test items, or predicts their outputs, as the network does; and item by item."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ntkscope.report.help import tau
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import NONE, as_float, number, percent
from ntkscope.report.plots import Frame, Point, Scale, forest, scatter
from ntkscope.report.source import Drawing, Section, Source, mapping
from ntkscope.report.tables import Cell, figures, table, with_range
from ntkscope.report.views._findings import TARGETS, best_of
from ntkscope.report.views.registry import VIEWS

EDGE = 1e-9  # probabilities closer than this to 0 or 1 are drawn here
MAIN = 8  # columns that are shown on a phone as well
POINTS = 200  # points per plot
PLOTS = 6  # of outputs of a regression


@VIEWS.register("surrogates")
def surrogates(section: Section, source: Source) -> Drawing:
    """The table of kernels, and the scatter of probabilities."""
    rows = section.data["table"]
    best = best_of(rows, source)
    ends = [v for row in rows for key in ("tau", "tau_low", "tau_high") if (v := as_float(row.get(key))) == v]
    low, high = (math.floor(min(ends) * 10) / 10, math.ceil(max(ends) * 10) / 10) if ends else (0.0, 1.0)
    axis = tag("small", f"{low:.1f} … {high:.1f}".replace("-", "−"), aria_hidden="true")
    wrong = max((int(row.get("wrong") or 0) for row in rows), default=0)
    heads = [
        "Kernel",
        "Fitted to",
        f"Agreement on the {wrong:,} errors" if wrong else "Agreement on errors",
        "Kendall τ",
        axis,
        "Agreement",
        "R² of the logits",
        "TAD",
        "R²",
        "Pearson",
        "Accuracy",
        "Ties",
        "Literal τ",
        "Seconds",
    ]
    more = list(dict.fromkeys(name for row in rows for name in mapping(row.get("more"))))
    heads += [name.replace("-", " ").capitalize() for name in more]
    cells = [[*_row(row, row is best, (low, high), source), *_more(row, more)] for row in rows]
    shown = _faithfulness(heads, cells, source)
    words = tag(
        "p",
        "Agreement: how often surrogate and network predict the same class, on all test items and on those the network gets"
        " wrong. τ: how closely the surrogate ranks the test items as the network does, 1 for the same order; press one to see"
        " what it means. TAD: how much more accurate the surrogate is than the network, in percentage points. Ranges are 95 %"
        " intervals.",
        class_="soft small",
    )
    trivial = [str(row["kernel"]) for row in rows if row.get("trivial")]
    note = None
    if trivial:
        names = ", ".join(source.kernel_name(name) for name in dict.fromkeys(trivial))
        note = tag(
            "p",
            f"{names}: the network's logits are linear in this kernel's features, so a fit to the logits is faithful by"
            " construction and says nothing; it is never called the best.",
            class_="soft small",
        )
    return Drawing(join([shown, words, note, _plots(rows, source)]))


def _points(value: Any) -> str:
    """Percentage points with their sign."""
    x = as_float(value)
    return "0.0" if abs(x) < 0.05 else f"{x:+.1f}".replace("-", "−") if x == x else NONE


def _faithfulness(heads: Sequence[Any], rows: Sequence[Sequence[Cell]], source: Source) -> Markup:
    file = f"{source.record.name}-surrogates.csv"
    cells = [[*row[:MAIN], *(replace(cell, kind="minor") for cell in row[MAIN:])] for row in rows]
    return table(heads, cells, name="Faithfulness of each surrogate", export=file, kind="snug carded")


def _pills(row: Mapping[str, Any], best: bool) -> list[Markup]:
    pills = [tag("span", "best", class_="pill good")] if best else []
    return pills + ([tag("span", "trivial", class_="pill quiet")] if row.get("trivial") else [])


def _row(row: Mapping[str, Any], best: bool, ends: tuple[float, float], source: Source) -> list[Cell]:
    taus = (row.get(key) for key in ("tau", "tau_low", "tau_high"))
    mark = forest(*taus, smallest=ends[0], largest=ends[1], kind="best" if best else "")
    name = source.kernel_mark(row["kernel"])
    pills = _pills(row, best)
    target = str(row.get("target") or "")
    return [
        Cell(
            join([tag("b", name) if best else name, tag("div", *pills) if pills else None]),
            row["kernel"],
            kind="strong",
        ),
        Cell(TARGETS.get(target, target), target),
        with_range(row, "agreement_wrong", percent, "small"),
        with_range(row, "tau", tau, "small"),
        Cell(mark, kind="minor"),
        with_range(row, "agreement", percent, "small"),
        *figures(row.get("r2_logits")),
        with_range(row, "tad", _points, "small"),
        *figures(row.get("r2"), row.get("pearson")),
        *figures(row.get("accuracy"), shown=percent),
        *figures(row.get("ties"), row.get("tau_literal")),
        *figures(row.get("seconds"), digits=2),
    ]


def _more(row: Mapping[str, Any], names: Sequence[str]) -> list[Cell]:
    """Additional measures, one column each."""
    values = mapping(row.get("more"))
    return figures(*(values.get(name) for name in names))


def _plots(rows: Sequence[Mapping[str, Any]], source: Source) -> Markup | None:
    """One scatter plot per surrogate: the network's probability of the true class against the surrogate's, in log-odds."""
    network = source.array("surrogates.network_probability")
    known = []
    for row in rows:
        target = str(row.get("target") or "labels")
        values = source.array(f"surrogates.probability.{row['kernel']}" + (f".{target}" if target != "labels" else ""))
        if values is not None and network is not None and values.shape == network.shape:
            known.append((str(row["kernel"]), target, np.asarray(values)))
    if network is None or not known:
        return None
    every = np.clip(np.concatenate([network, *(values for *_, values in known)]).astype(np.float64), EDGE, 1 - EDGE)
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if every.size else (0.1, 0.9)
    scale = Scale(max(EDGE, min(low, 0.3) * 0.7), min(1 - EDGE, 1 - (1 - max(high, 0.7)) * 0.7), "logit")
    chosen = _chosen(np.asarray(network), [values for *_, values in known])
    some = (
        f" {len(chosen):,} of {len(network):,} items are drawn: those that differ most, and an even selection of the others."
        if len(chosen) < len(network)
        else ""
    )
    note = "Each mark is a test item; the axes are stretched near 0 and 1 (log-odds). " + (
        "On the dashed line the surrogate is exactly as confident as the network. Diamonds are items the network gets wrong."
    )
    parts: list[Any] = [
        tag("h3", "Probability of the true class, item by item"),
        tag("p", note + some, class_="soft small"),
    ]
    several = len({target for _, target, _ in known}) > 1
    for n, target in enumerate(dict.fromkeys(target for _, target, _ in known)):
        drawn = [_plot(kernel, np.asarray(network), v, scale, chosen, source) for kernel, t, v in known if t == target]
        label = f"Scatter plots, fitted to {TARGETS.get(target, target)}"
        panels = _panels(drawn, label)
        if several:
            head = tag("summary", f"Surrogates fitted to {TARGETS.get(target, target)}")
            panels = tag("details", head, panels, open=n == 0)
        parts.append(panels)
    return join(parts)


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
    labels, predicted = source.array("labels.test"), source.array("network.test_prediction")
    points = []
    for i in chosen.tolist():
        x, y = float(network[i]), float(values[i])
        if not np.isfinite([x, y]).all():
            continue
        wrong = bool(labels is not None and predicted is not None and labels[i] != predicted[i])
        of = f", {source.class_name(int(labels[i]))}" if labels is not None else ""
        name = f"test item {source.items.number('test', i)}{of}"
        points.append(Point(x, y, f"{name}: network {number(x)}, surrogate {number(y)}", wrong, i))
    described = (
        f"Scatter of {len(points):,} test items: probability of the true class, network against surrogate {kernel}"
    )
    return _figure(source.kernel_name(kernel), points, scale, described)


def _panels(drawn: Sequence[Markup], label: str) -> Markup:
    return tag("div", *drawn, class_="panels many", tabindex="0", role="region", aria_label=label)


def _figure(caption: Any, points: Sequence[Point], scale: Scale, described: str) -> Markup:
    """The network across, the surrogate up."""
    frame = Frame(scale, scale, "network", "surrogate", width=360, height=330, left=70)
    return tag("figure", tag("figcaption", caption), scatter(frame, points, describe=described, diagonal=True))


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
    cells = [_output_row(row, row is best, source) for row in rows]
    shown = _faithfulness(heads, cells, source)
    words = tag(
        "p",
        "R² of the network's outputs: the share of their variance on test items that the surrogate explains. τ: how closely it"
        " ranks the test items as the network does, 1 for the same order. Several outputs: the mean, and the smallest R² beside"
        f" it. The network's own R² of the targets is {number(section.data['network_r2'])}. Ranges are 95 % intervals.",
        class_="soft small",
    )
    return Drawing(join([shown, words, _each(best, source), _output_plots(best, source)]))


def _output_row(row: Mapping[str, Any], best: bool, source: Source) -> list[Cell]:
    name = source.kernel_mark(row["kernel"])
    return [
        Cell(join([tag("b", name) if best else name, *_pills(row, best)]), row["kernel"], kind="strong"),
        Cell(TARGETS.get(str(row["target"]), str(row["target"])), row["target"]),
        with_range(row, "r2", number, "small"),
        with_range(row, "tau", tau, "small"),
        *figures(row["worst_r2"], row["r2_targets"]),
        *figures(row["seconds"], digits=2),
    ]


def _each(best: Mapping[str, Any] | None, source: Source) -> Markup | None:
    """Every output of the best surrogate, if there are several."""
    found: Sequence[Mapping[str, Any]] = [] if best is None else best["outputs"]
    if best is None or len(found) < 2:
        return None
    rows = [
        [
            Cell(tag("bdi", source.output_name(row["output"])), source.output_name(row["output"]), kind="strong"),
            *figures(row["r2"]),
            *figures(row["tau"], shown=tau),
            *figures(row["rmse"]),
        ]
        for row in found
    ]
    head = tag("h3", f"Each output of {source.kernel_name(best['kernel'])}")
    return join([head, table(["Output", "R²", "Kendall τ", "Distance (RMSE)"], rows, name="Each output", kind="snug")])


def _output_plots(best: Mapping[str, Any] | None, source: Source) -> Markup | None:
    """The network's output against the best surrogate's, one plot per output."""
    network = source.array("network.test_outputs")
    if best is None or network is None:
        return None
    values = source.array(f"surrogates.logits.{best['kernel']}.{best['target']}")
    if values is None or values.shape != network.shape or network.ndim != 2:
        return None
    drawn = [_output_plot(k, network[:, k], values[:, k], source) for k in range(min(PLOTS, network.shape[1]))]
    label = f"Scatter plots of {best['kernel']}"
    words = "Each mark is a test item; on the dashed line the surrogate's output is the network's."
    head = [tag("h3", "Network and surrogate, item by item"), tag("p", words, class_="soft small")]
    return join([*head, _panels(drawn, label)])


def _output_plot(k: int, network: np.ndarray, values: np.ndarray, source: Source) -> Markup:
    both = np.stack([network, values], 1).astype(np.float64)
    rows = np.flatnonzero(np.isfinite(both).all(1))
    rows = rows[np.unique(np.linspace(0, max(len(rows) - 1, 0), min(POINTS, len(rows))).round().astype(int))]
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
    described = f"Scatter of {len(points):,} test items: {source.output_name(k)}, network against surrogate"
    return _figure(tag("bdi", source.output_name(k)), points, scale, described)
