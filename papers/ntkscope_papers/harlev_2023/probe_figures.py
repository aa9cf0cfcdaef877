"""Figures 16 to 18 of Harlev et al. from a record, and where the network collapses beside them."""

from __future__ import annotations

from typing import Any

from matplotlib import colormaps

from ntkscope.core import Record
from ntkscope.measures.probe_agreement import PROBES, CollapseLayer
from ntkscope_papers.framework import drawing
from ntkscope_papers.harlev_2023.probe_readings import Network, agreement, complete

TITLES = {"knn": "10-NN", "ncc": "nearest class centre", "svm": "SVM"}


def draw(record: Record) -> dict[str, Any]:
    """For every complete network: sizes of its layers, accuracy over components, what 90 % of it needs, and collapse."""
    found: dict[str, Any] = {}
    for network in complete(record, record.config["networks"], record.config["seeds"]):
        name = network.label.replace("/", "-")
        found[f"figure16-{name}"] = sizes(network)
        found[f"figure17-{name}"] = accuracies(network)
        found[f"figure18-{name}"] = needs(network)
        found[f"collapse-{name}"] = collapsing(network, agreement(record, network, record.config["draws"]))
    if not found:
        figure, (axis,) = drawing.canvas()
        axis.set_title("no network has all its layers yet")
        found["figure16"] = figure
    return found


def _names(axis: Any, network: Network) -> None:
    axis.set_xticks(range(len(network.rows)), network.network.layers, rotation=35, ha="right", fontsize=7)


def sizes(network: Network) -> Any:
    figure, (axis,) = drawing.canvas(width=5.6)
    places = range(len(network.rows))
    axis.bar(places, [row["width"] for row in network.rows], color=drawing.COLOURS[5], label="numbers per image")
    axis.plot(places, [row["components"] for row in network.rows], "o", color=drawing.COLOURS[0], label="components")
    drawing.label(
        axis, title=f"{network.label}, {100 * network.accuracy:.2f} % correct", y="flattened size", legend=True
    )
    _names(axis, network)
    return figure


def accuracies(network: Network) -> Any:
    figure, axes = drawing.canvas(1, 3, width=4.2)
    shades = colormaps["viridis"]
    for axis, probe in zip(axes, PROBES):
        for k, (layer, row) in enumerate(zip(network.network.layers, network.rows)):
            colour = shades(0.95 - 0.9 * k / max(1, len(network.rows) - 1))
            axis.plot(row["dims"], row["accuracy"][probe], color=colour, linewidth=1.2, label=layer)
        axis.axhline(network.accuracy, color="#999999", linewidth=0.8, linestyle="--")
        drawing.label(axis, title=TITLES[probe], x="principal components", log="x")
    axes[0].set_ylabel("test accuracy")
    axes[-1].legend()
    return figure


def needs(network: Network) -> Any:
    figure, (left, right) = drawing.canvas(1, 2, width=4.8)
    for k, probe in enumerate(PROBES):
        colour = drawing.COLOURS[k]
        left.plot(network.counts(probe), "o-", color=colour, label=TITLES[probe], markersize=4)
        right.plot(network.variances(probe), "o-", color=colour, label=TITLES[probe], markersize=4)
    drawing.plain_log(left)
    left.set_ylabel("components for 90 % of the best accuracy")
    right.set_ylabel("share of variance in them")
    right.axhspan(0.2, 0.4, color="#dddddd", zorder=0, label="published, later half")
    for axis in (left, right):
        _names(axis, network)
        axis.legend()
    return figure


def collapsing(network: Network, found: CollapseLayer) -> Any:
    """NC1 and CDNV by layer, and how often each layer is the first at which the probes agree."""
    figure, (left, right) = drawing.canvas(1, 2, width=4.8)
    for k, name in enumerate(("nc1", "cdnv")):
        values = [row["collapse"][name] for row in network.rows]
        left.plot(values, "o-", color=drawing.COLOURS[k], label=name.upper(), markersize=4)
    drawing.plain_log(left)
    left.legend()
    _names(left, network)
    shares = [found.distribution[layer] for layer in network.network.layers]
    right.bar(range(len(shares)), shares, color=drawing.COLOURS[0])
    drawing.label(
        right,
        title=f"at no layer: {found.distribution[None]:.2f}",
        y="first layer where the probes agree, share of draws",
    )
    right.set_ylim(0, 1)
    _names(right, network)
    return figure
