"""Orthant shells from a record: Tables 1 and 2 as pictures, Figures 1 and 2, and accuracy by distance from dense orthants."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps, ticker
from matplotlib.figure import Figure

from ntkscope.core import Record
from ntkscope.data.orthant_shells import orthant_shells
from ntkscope_papers.balakrishnan_2023.orthants import readings as read
from ntkscope_papers.balakrishnan_2023.orthants.arithmetic import TABLE_1, TABLE_2
from ntkscope_papers.balakrishnan_2023.orthants.data import radii_probed
from ntkscope_papers.balakrishnan_2023.orthants.machines import READINGS
from ntkscope_papers.framework import drawing

CLASSES = ("#c0504d", "#4f9a52")
TITLES = {"empty": "empty orthant", "neighbour": "a neighbour", "other": "another orthant"}
KINDS = {"dense": "o", "sparse": "^", "empty": "s"}


def _measured(config: Any, record: Record) -> list[int]:
    return [depth for depth in config.depths if read.networks_of(record, depth)]


def _profiled(config: Any, record: Record) -> list[int]:
    return [depth for depth in _measured(config, record) if read.array_of(record, f"profile-{depth}") in record.arrays]


def figure_1(config: Any, record: Record) -> dict[str, Figure]:
    """The data in two and three dimensions, faded where training has none."""
    figure, (flat, _) = drawing.canvas(1, 2, width=4.6, height=4.4)
    figure.delaxes(figure.axes[1])
    deep = figure.add_subplot(1, 2, 2, projection="3d")
    for axis, dimension in ((flat, 2), (deep, 3)):
        split = orthant_shells(dimension=dimension, per_class=40, test_per_class=40, seed=1)
        x, y = split.test.x.numpy(), split.test.y.numpy()
        seen = split.test.extras["orthant"].numpy() != int(split.extras["empty"].item())
        for label in (0, 1):
            for there, alpha in ((seen, 0.8), (~seen, 0.15)):
                points = x[(y == label) & there].T
                axis.scatter(*points, s=6, alpha=alpha, color=CLASSES[label], linewidths=0)
        axis.set_aspect("equal")
        axis.set_title(f"{dimension} dimensions")
    return {"figure1": figure}


def table_1(config: Any, record: Record) -> dict[str, Figure]:
    """Accuracies of every seed, and those printed."""
    if not (depths := _measured(config, record)):
        return {}
    figure, axes = drawing.canvas(1, 2, width=6.4)
    groups: list[tuple[str, list[Any], int]] = [
        (title, list(read.machines_of(record, name).values()), 3)
        for title, name in (("Linear SVM", "linear"), ("RBF SVM", "rbf"))
    ]
    for depth in depths:
        groups.append((f"{depth}-NN", list(read.networks_of(record, depth)), 0))
        groups += [
            (f"{depth}-NTK {reading}", list(read.tangent_of(record, depth, reading).values()), 1 + k)
            for k, reading in enumerate(READINGS)
        ]
    for axis, column, place in zip(axes, read.COLUMNS, (0, 2)):
        for at, (title, rows, colour) in enumerate(groups):
            values = [row[column] for row in rows]
            axis.plot([at] * len(values), values, "o", markersize=3, alpha=0.5, color=drawing.COLOURS[colour])
            if values:
                axis.plot([at - 0.3, at + 0.3], [np.mean(values)] * 2, color=drawing.COLOURS[colour], linewidth=2)
            axis.plot(at, TABLE_1[title.split(" ")[0] if "NTK" in title else title][place], "k_", markersize=9)
        axis.set_xticks(range(len(groups)), [title for title, _, _ in groups], rotation=75, fontsize=7)
        axis.axhline(0.5, color="#999999", linewidth=0.6, linestyle="--")
        drawing.label(
            axis,
            title=f"{column} orthant{'s' if column == 'remaining' else ''}; printed: black",
            y="accuracy, one point per seed",
        )
    return {"table1": figure}


def table_2(config: Any, record: Record) -> dict[str, Figure]:
    """Match fractions before and after training."""
    if not (depths := _measured(config, record)):
        return {}
    figure, axes = drawing.canvas(1, 2, width=4.8)
    for axis, label in zip(axes, (0, 1)):
        for k, moment in enumerate(("initial", "final")):
            rows = [read.matches_of(read.networks_of(record, depth))[f"class {label} {moment}"] for depth in depths]
            spread = [[row["mean"] - row["low"] for row in rows], [row["high"] - row["mean"] for row in rows]]
            axis.errorbar(
                [depth + 0.12 * (k - 0.5) for depth in depths],
                [row["mean"] for row in rows],
                yerr=np.maximum(spread, 0),
                fmt="o",
                color=drawing.COLOURS[k],
                capsize=2,
                markersize=4,
                label=moment,
            )
            printed = [TABLE_2[depth][2 * label + k][0] for depth in depths]
            axis.plot(depths, printed, "_", color=drawing.COLOURS[k], markersize=14, label=f"{moment}, printed")
        axis.set_xticks(depths)
        drawing.label(axis, title=f"class {label}", x="hidden layers")
        axis.set_ylim(-0.05, 1.05)
    drawing.label(axes[0], y="nearest training point has the same class", legend=True)
    return {"table2": figure}


def figure_2(config: Any, record: Record) -> dict[str, Figure]:
    return {f"figure2-depth{depth}": _radial_curves(record, depth) for depth in _profiled(config, record)}


def _radial_curves(record: Record, depth: int) -> Figure:
    """Radial curves in three orthants: thin lines are seeds, thick ones their means."""
    figure, axes = drawing.canvas(1, 3, width=4.0)
    radii = radii_probed().numpy()
    curves = {"network, mean probability": read.network_curves(record, depth)}
    curves |= {f"NTK of the {reading}, share": read.machine_curves(record, reading, depth) for reading in READINGS}
    for k, (label, values) in enumerate(curves.items()):
        for axis, place in zip(axes, range(3) if values is not None else ()):
            assert values is not None
            axis.plot(radii, values[:, place].T, color=drawing.COLOURS[k], linewidth=0.5, alpha=0.35)
            axis.plot(radii, values[:, place].mean(0), color=drawing.COLOURS[k], linewidth=2, label=label)
    for axis, name in zip(axes, read.SHOWN):
        drawing.label(axis, title=TITLES[name], x="radius")
        axis.set_ylim(-0.02, 1.02)
    axes[0].set_ylabel(f"class 1, {depth} hidden layer{'s' if depth > 1 else ''}")
    axes[-1].legend()
    return figure


def profiles(config: Any, record: Record) -> dict[str, Figure]:
    """Mean probability over the radius in all orthants, by how many signs they are from the empty one."""
    if not (depths := _profiled(config, record)):
        return {}
    figure, axes = drawing.canvas(1, len(depths), width=3.4)
    radii, shades = radii_probed().numpy(), colormaps["viridis"]
    for axis, depth in zip(axes, depths):
        mean = np.asarray(record.arrays[read.array_of(record, f"profile-{depth}")], dtype=np.float64).mean(0)
        far = np.bitwise_count(np.arange(len(mean)))
        for k in range(int(far.max()) + 1):
            shade = "#c0504d" if k == 0 else shades(0.9 * k / far.max())
            axis.plot(radii, mean[far == k].mean(0), color=shade, linewidth=2 if k == 0 else 1, label=f"{k} signs away")
        drawing.label(axis, title=f"depth {depth}", x="radius")
        axis.set_ylim(-0.02, 1.02)
    axes[0].set_ylabel("mean probability of class 1")
    axes[-1].legend()
    return {"profiles": figure}


def _covered(config: Any, record: Record, depth: int) -> dict[int, Any]:
    """Results by the number of empty orthants; with one, those of the main networks."""
    found = {n: row for n in config.empties if (row := record.metrics.get(f"coverage/{depth}/{n}")) is not None}
    one = [{"dense": {"0": row["remaining"]}, "empty": {"1": row["empty"]}} for row in read.networks_of(record, depth)]
    return {1: {"scattered": one, "gathered": one}, **found} if found and one else found


def coverage(config: Any, record: Record) -> dict[str, Figure]:
    """Accuracy by distance from the nearest dense orthant: rows of panels by arrangement, columns by depth."""
    covered = {depth: results for depth in config.depths if (results := _covered(config, record, depth))}
    if not covered:
        return {}
    figure, axes = drawing.canvas(2, len(covered), width=3.2, height=3.0)
    for row, arrangement in enumerate(("scattered", "gathered")):
        for column, (depth, results) in enumerate(covered.items()):
            axis = axes[row * len(covered) + column]
            for k, (empties, result) in enumerate(results.items()):
                for kind, marker in KINDS.items():
                    told = [one.get(kind, {}) for one in result[arrangement]]
                    steps = sorted({int(step) for one in told for step in one})
                    means = [np.mean([one[str(step)] for one in told if str(step) in one]) for step in steps]
                    label = f"{empties} empty" if kind == "empty" else None
                    axis.plot(steps, means, marker + "-", color=drawing.COLOURS[k], markersize=4, label=label)
            axis.axhline(0.5, color="#999999", linewidth=0.6, linestyle="--")
            axis.set_ylim(0.3, 1.02)
            drawing.label(axis, title=f"depth {depth}, {arrangement}", x="signs from a dense orthant")
            axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    drawing.label(axes[0], y="accuracy: ○ dense, △ sparse, □ empty", legend=True)
    return {"coverage": figure}
