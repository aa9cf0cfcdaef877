"""Fold or copy from a record: swap effects by depth, mirror images and attributions by distance."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.balakrishnan_2023.orthants.fold_claims import attributions_of, effect_of, swaps_of
from ntkscope_papers.balakrishnan_2023.orthants.machines import READINGS
from ntkscope_papers.framework import drawing

ARMS = {"plain": "labels as they are", "near": "neighbours exchanged", "far": "distant ones exchanged"}


def draw(record: Record) -> dict[str, Any]:
    """What the record has so far."""
    found = {"planted": planted(record)} if "planted" in record.metrics else {}
    if swaps_of(record):
        found["swaps"] = swaps(record)
        found["mirror-images"] = mirror_images(record)
    depths = [depth for depth in record.config["depths"] if attributions_of(record, depth)]
    if depths:
        found["attribution"] = attribution(record, depths)
    return found or {"swaps": drawing.canvas()[0]}


def planted(record: Record) -> Any:
    """Accuracies of the planted learners in the empty orthant."""
    figure, (axis,) = drawing.canvas()
    for k, kind in enumerate(("copier", "folder")):
        row = record.metrics["planted"][kind]
        for arm, at in (("near", 0), ("far", 1)):
            axis.plot(np.full(len(row[arm]), at + 0.1 * k), row[arm], "o", color=drawing.COLOURS[k], markersize=4)
        axis.plot([], [], "o", color=drawing.COLOURS[k], label=f"{kind}, effect {row['effect']:.3f}")
    axis.set_xticks([0, 1], [ARMS["near"], ARMS["far"]])
    drawing.label(axis, y="accuracy in the empty orthant", legend=True)
    return figure


def swaps(record: Record) -> Any:
    """Accuracies in the empty orthant by depth, and the effect with its bootstrap interval."""
    figure, (left, right) = drawing.canvas(1, 2, width=5.0)
    rows = swaps_of(record)
    for k, (arm, label) in enumerate(ARMS.items()):
        for depth, row in rows.items():
            values = [one["empty"] for one in row[arm]]
            at = depth + 0.22 * (k - 1)
            left.plot([at] * len(values), values, "o", color=drawing.COLOURS[k], markersize=3, alpha=0.5)
            left.plot([at - 0.09, at + 0.09], [np.mean(values)] * 2, color=drawing.COLOURS[k], linewidth=2)
        left.plot([], [], "o", color=drawing.COLOURS[k], label=label)
    left.axhline(0.5, color="#999999", linewidth=0.6, linestyle="--")
    drawing.label(left, y="accuracy in the empty orthant", legend=True)
    effects = {depth: effect_of(row) for depth, row in rows.items()}
    middle = np.array([effect.mean for effect in effects.values()])
    ends = np.array([[effect.low, effect.high] for effect in effects.values()]).T
    right.errorbar(list(effects), middle, yerr=abs(ends - middle), fmt="o", color=drawing.COLOURS[0], capsize=3)
    for value, name in ((0.0, "folds"), (1.0, "copies")):
        right.axhline(value, color="#999999", linewidth=0.6, linestyle="--")
        right.annotate(
            name, (0.02, value), xycoords=("axes fraction", "data"), fontsize=8, color="#666666", va="bottom"
        )
    right.set_ylabel("swap effect, 95 % bootstrap interval")
    for axis in (left, right):
        axis.set_xticks(list(rows))
        axis.set_xlabel("hidden layers")
    return figure


def mirror_images(record: Record) -> Any:
    """Correlation of mirror images by the signs in which they differ, from the empty orthant and over all pairs."""
    figure, axes = drawing.canvas(1, 2, width=5.0)
    for axis, which, title in zip(axes, ("empty", "all"), ("from the empty orthant", "over all pairs of orthants")):
        for k, (depth, row) in enumerate(swaps_of(record).items()):
            values = np.array([profile[which] for profile in row["folding"]], dtype=np.float64)
            known = ~np.isnan(values).all(0)
            means = np.nanmean(values[:, known], 0)
            axis.plot(
                np.flatnonzero(known), means, "o-", color=drawing.COLOURS[k % 6], markersize=4, label=f"depth {depth}"
            )
        axis.axhline(0, color="#999999", linewidth=0.6)
        drawing.label(axis, title=title, x="signs that differ")
    drawing.label(axes[0], y="correlation, radius removed", legend=True)
    return figure


def attribution(record: Record, depths: list[int]) -> Any:
    """Shares of the attribution by distance, beside the shares of the items."""
    figure, axes = drawing.canvas(1, 2, width=5.0)
    for axis, reading in zip(axes, READINGS):
        for k, depth in enumerate(depths):
            mass = np.mean([row[reading]["mass"] for row in attributions_of(record, depth)], 0)
            places = range(1, len(mass) + 1)
            axis.plot(places, mass, "o-", color=drawing.COLOURS[k % 6], markersize=4, label=f"depth {depth}")
        items = attributions_of(record, depths[0])[0][reading]["items"]
        axis.plot(range(1, len(items) + 1), items, "--", color="#999999", label="items")
        drawing.label(axis, title=f"tangent kernel of the {reading}", x="signs from the empty orthant")
    drawing.label(axes[0], y="share of Σ|c K|", legend=True)
    return figure
