"""Figures of the shift within Sentiment140: densities of components, and how well every view tells P from M."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from ntkscope.core import Record
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.results import under

MOST = 4000  # points of a density


def draw(record: Record) -> dict[str, Any]:
    """Figures 12 to 15, of what is in the record, and how well every view separates."""
    figures = {"separation": _separation(record)}
    views = {"MiniLM": "plane"} | {f"untrained {size}": f"plane-{size}" for size in record.config["sizes"]}
    views = {title: name for title, name in views.items() if f"{name}-P" in record.arrays}
    if "MiniLM" in views:
        figures |= {"figure12": _first(record), "figure13a": _planes({"": _samples(record, "plane")})}
    if views:
        figures["figure15"] = _planes({title: _samples(record, name) for title, name in views.items()})
    if "filter-before" in record.arrays:
        both = {"P": record.arrays["filter-before"], "filtered": record.arrays["filter-after"]}
        figures["figure14"] = _planes({"": {name: np.asarray(points, float) for name, points in both.items()}})
    if under(record, "filter/"):
        figures["filter"] = _filters(record)
    return figures


def _samples(record: Record, plane: str) -> dict[str, np.ndarray]:
    return {name: np.asarray(record.arrays[f"{plane}-{name}"], dtype=np.float64) for name in "PM"}


def _first(record: Record) -> Any:
    figure, (axis,) = drawing.canvas(1, 1, width=5)
    samples = _samples(record, "plane")
    both = np.concatenate([points[:, 0] for points in samples.values()])
    at = np.linspace(both.min(), both.max(), 300)
    for i, (name, points) in enumerate(samples.items()):
        density = stats.gaussian_kde(points[:, 0])(at)
        axis.fill_between(at, density, alpha=0.3, color=drawing.COLOURS[i])
        axis.plot(at, density, color=drawing.COLOURS[i], linewidth=1.2, label=f"{name} ({len(points):,} tweets)")
    drawing.label(axis, x="first principal component", y="density", legend=True)
    return figure


def _planes(panels: dict[str, dict[str, np.ndarray]]) -> Any:
    """Densities of two samples in a plane, one panel for each title."""
    figure, axes = drawing.canvas(1, len(panels), width=4.4, height=4.2)
    for axis, (title, samples) in zip(axes, panels.items()):
        both = np.concatenate(list(samples.values()))
        low, high = np.quantile(both, 0.002, axis=0), np.quantile(both, 0.998, axis=0)
        low, high = low - 0.15 * (high - low), high + 0.15 * (high - low)  # else densities end at a wall
        x, y = (np.linspace(low[k], high[k], 60) for k in (0, 1))
        grid = np.stack([each.ravel() for each in np.meshgrid(x, y)])
        for i, (name, points) in enumerate(samples.items()):
            few, colour = points[:: -(-len(points) // MOST)], drawing.COLOURS[i]
            axis.scatter(*few.T, s=3, alpha=0.15, linewidths=0, color=colour, rasterized=True)
            density = stats.gaussian_kde(few.T)(grid).reshape(60, 60)
            axis.contour(x, y, density, levels=5, colors=colour, linewidths=1)
            axis.plot([], [], color=colour, label=f"{name} ({len(points):,} tweets)")
        drawing.label(axis, title=title, x="first principal component", y="second", legend=True)
    return figure


def _filters(record: Record) -> Any:
    """Energy distances to P, of filtered tweets, as many at random, and M."""
    figure, (axis,) = drawing.canvas(1, 1, width=4.8)
    rows = [row["energy distance to P"]["in PC1–2"] for row in under(record, "filter/").values()]
    for i, name in enumerate(rows[0]):
        axis.bar(i, max(float(np.mean([row[name] for row in rows])), 0.0), 0.6, color=drawing.COLOURS[i])
    axis.set_xticks(range(len(rows[0])), list(rows[0]))
    axis.set_ylabel("energy distance to P in PC1–2")
    return figure


def _separation(record: Record) -> Any:
    """Areas under the curve by layer and pooling, and of untrained encoders by size."""
    figure, axes = drawing.canvas(1, 3, width=4.2)
    layers = {int(key): row for key, row in under(record, "layer/").items()}
    for axis, effect, title in zip(axes, ("auc", "auc_pc12_qda"), ("all dimensions, linear", "PC1–2, quadratic")):
        for i, pooling in enumerate(record.config["poolings"]):
            at = sorted(k for k, row in layers.items() if pooling in row)
            values = np.array([layers[k][pooling][effect] for k in at]).reshape(-1, 3)
            colour = drawing.COLOURS[i % len(drawing.COLOURS)]
            axis.plot(at, values[:, 0], "o-", markersize=3, linewidth=1.2, color=colour, label=pooling)
            axis.fill_between(at, values[:, 1], values[:, 2], alpha=0.15, color=colour)
        drawing.label(axis, title=title, x="layer", legend=True)
    sizes = list(record.config["sizes"])
    for i, (effect, label) in enumerate((("auc", "all dimensions"), ("auc_pc12_qda", "PC1–2"))):
        for k, size in enumerate(sizes):
            for d, row in enumerate(under(record, f"untrained/{size}/").values()):
                value, low, high = row[effect]
                name = label if k == d == 0 else None
                error = [[max(value - low, 0)], [max(high - value, 0)]]
                axes[2].errorbar(
                    k + 0.12 * d, value, yerr=error, fmt="o", markersize=3, color=drawing.COLOURS[i], label=name
                )
    axes[2].set_xticks(range(len(sizes)), sizes)
    axes[2].set_title("untrained encoders")
    if axes[2].get_legend_handles_labels()[0]:
        axes[2].legend()
    for axis in axes:
        axis.axhline(0.5, color="#999999", linewidth=0.6)
        axis.set_ylim(0.4, 1.02)
        axis.set_ylabel("area under the ROC curve, P against M")
    return figure
