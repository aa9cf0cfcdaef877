"""The picture of a shift: densities in the plane of two components, a classifier's scores, tests beside their nulls."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.stats
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#999999"  # Okabe & Ito (2008)
TITLES = {
    "c2st": "linear classifier (C2ST)\narea under the ROC curve",
    "mmd": "maximum mean discrepancy\nsquared, unbiased",
    "ks": "Kolmogorov–Smirnov\nlargest distance over components",
}
MOST_POINTS = 1500


def shift_figure(
    plane: Float64[np.ndarray, "n d"],
    scores: Float64[np.ndarray, " n"],
    first: int,
    nulls: Mapping[str, Float64[np.ndarray, " r"]],
    p: Mapping[str, float],
    verdict: str,
) -> Figure:
    """Left: both samples with density contours in their first two components. Middle: scores. Right: each test's null."""
    figure = Figure(figsize=(12.5, 4.6), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    outer = figure.add_gridspec(
        1, 3, width_ratios=[1.1, 1, 1], wspace=0.28, left=0.055, right=0.985, top=0.8, bottom=0.12
    )
    _draw_plane(figure.add_subplot(outer[0]), plane, first)
    _draw_scores(figure.add_subplot(outer[1]), scores, first)
    inner = outer[2].subgridspec(max(len(nulls), 1), 1, hspace=1.15)
    for place, (name, values) in enumerate(nulls.items()):
        _draw_null(figure.add_subplot(inner[place]), name, values, p[name])
    handles = [
        Line2D([], [], color=colour, linestyle=style, label=f"{name} ({count:,} items)")
        for name, colour, style, count in (("a", BLUE, "-", first), ("b", VERMILLION, "--", len(plane) - first))
    ]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.05, 0.94), ncols=2, frameon=False, fontsize=9)
    figure.suptitle(f"{verdict} (p = {p['holm']:.2g} after Holm)", fontsize=13, x=0.05, ha="left", y=0.985)
    return figure


def _draw_plane(axes: Axes, plane: Float64[np.ndarray, "n d"], first: int) -> None:
    if plane.shape[1] < 2:
        plane = np.column_stack([plane, np.zeros(len(plane))])
    for sample, colour, style, marker in ((plane[:first], BLUE, "-", "o"), (plane[first:], VERMILLION, "--", "x")):
        shown = sample[:: max(1, len(sample) // MOST_POINTS)]
        axes.scatter(shown[:, 0], shown[:, 1], s=6, c=colour, marker=marker, alpha=0.25, linewidths=0.6)
        if np.linalg.matrix_rank(np.cov(sample.T)) == 2:
            _contours(axes, sample, plane, colour, style)
    axes.set_xlabel("principal component 1", fontsize=9)
    axes.set_ylabel("principal component 2", fontsize=9)
    axes.set_title("Kernel density estimates\nin the first two components", fontsize=10)


def _contours(
    axes: Axes, sample: Float64[np.ndarray, "k 2"], plane: Float64[np.ndarray, "n 2"], colour: str, style: str
) -> None:
    """Lines that hold a half and nine tenths of the sample's estimated density."""
    kde = scipy.stats.gaussian_kde(sample.T)
    low, high = plane.min(0), plane.max(0)
    x, y = (np.linspace(a, b, 60) for a, b in zip(low, high))
    density = kde(np.stack([np.repeat(x, 60), np.tile(y, 60)])).reshape(60, 60)
    levels = np.quantile(kde(sample.T), [0.1, 0.5])
    if levels[0] < levels[1]:
        axes.contour(x, y, density.T, levels=levels, colors=colour, linestyles=style, linewidths=1.4)


def _draw_scores(axes: Axes, scores: Float64[np.ndarray, " n"], first: int) -> None:
    bins = np.linspace(scores.min(), scores.max() + 1e-12, 40).tolist()
    for sample, colour, style in ((scores[:first], BLUE, "-"), (scores[first:], VERMILLION, "--")):
        axes.hist(sample, bins=bins, density=True, histtype="step", color=colour, linestyle=style, linewidth=1.5)
    axes.set_xlabel("cross-fitted score (higher: more like b)", fontsize=9)
    axes.set_ylabel("density", fontsize=9)
    axes.set_title("Scores of a linear classifier\non items it was not fitted on", fontsize=10)


def _draw_null(axes: Axes, name: str, values: Float64[np.ndarray, " r"], p: float) -> None:
    axes.hist(values[1:], bins=30, color=GREY)
    axes.axvline(values[0], color=VERMILLION, linewidth=2)
    axes.set_yticks([])
    axes.tick_params(labelsize=7)
    axes.set_title(f"{TITLES.get(name, name)}: {values[0]:.3g} (p = {p:.2g})", fontsize=8, pad=3)
