"""Representations: where the probes agree in a sentence, accuracy and collapse by layer, and the numbers in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ntkscope.report.markup import Markup, folded, join, tag
from ntkscope.report.numbers import as_float, number, percent
from ntkscope.report.plots import Frame, Line, Scale, curve_key, lines
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell, figures, table
from ntkscope.report.views.registry import VIEWS

PROBES = {"knn": "nearest neighbours", "ncc": "nearest class centre", "svm": "support vector machine"}


@VIEWS.register("representations")
def representations(section: Section, source: Source) -> Drawing:
    """Where the network collapses, two pictures by layer, and the table."""
    layers = list(section.data["layers"])
    probed = [(n, layer) for n, layer in enumerate(layers, 1) if layer["accuracy"]]
    parts = [
        tag("p", sentence(section.data), class_="meaning"),
        tag("div", _accuracies(probed, section.data["accuracy"]), _collapse(probed), class_="pair") if probed else None,
        tag("h3", "In numbers"),
        _table(layers, source),
        _reasons(layers),
    ]
    return Drawing(join(parts))


def sentence(data: Mapping[str, Any]) -> str:
    """Where the three classifiers agree, and how firmly.

    >>> sentence({"collapse": None, "distribution": {"": 1.0}, "layers": [], "lasting": False})
    'At no layer do the three classifiers agree: the representation has not collapsed to its class means anywhere.'
    """
    name = data["collapse"]
    shares = {str(layer): as_float(share) for layer, share in data["distribution"].items()}
    if name is None:
        firm = shares.get("", 0.0)
        rest = "" if firm > 0.995 else f" In {percent(1 - firm, 0)} of resampled test sets they do at some layer."
        return (
            "At no layer do the three classifiers agree: the representation has not collapsed to its class means anywhere."
            f"{rest}"
        )
    first = data["layers"][0]["name"] == name
    where = f"Already at {name}, the first layer," if first else f"From {name} on" if data["lasting"] else f"At {name}"
    comma = "" if first or data["lasting"] else " for the first time"
    again = "" if data["lasting"] else " Later layers differ again, so this is no lasting collapse."
    return (
        f"{where}{comma} three different classifiers need the same few directions and do equally well: each class has become"
        f" nearly one point. In {percent(shares.get(str(name), 0.0), 0)} of resampled test sets it is the same layer.{again}"
    )


def _by_layer(first: int | float, last: int | float, y: Scale, label: str) -> Frame:
    return Frame(Scale(first, max(last, first + 1), "whole"), y, "layer", label, width=420, height=300)


def _accuracies(probed: Sequence[tuple[int, Mapping[str, Any]]], network: Any) -> Markup:
    at = [n for n, _ in probed]
    curves = [
        Line(words, at, [as_float(layer["accuracy"][probe]) for _, layer in probed]) for probe, words in PROBES.items()
    ]
    curves.append(Line("the network", [at[0], at[-1]], [as_float(network)] * 2))
    low = min(min(curve.y) for curve in curves)
    frame = _by_layer(at[0], at[-1], Scale(max(0.0, low - 0.05), 1.0), "accuracy")
    caption = "Test accuracy of each classifier on a layer's principal components, the best number of them"
    drawn = lines(frame, curves, describe="Accuracy of three probes by layer", legend=False)
    return tag("figure", tag("figcaption", caption), drawn, curve_key(curves))


def _collapse(probed: Sequence[tuple[int, Mapping[str, Any]]]) -> Markup | None:
    curves = []
    for key, words in (("nc1", "NC1"), ("cdnv", "CDNV")):
        found = [
            (n, as_float(layer[key])) for n, layer in probed if layer[key] is not None and as_float(layer[key]) > 0
        ]
        if found:
            curves.append(Line(words, [n for n, _ in found], [value for _, value in found]))
    if not curves:
        return None
    values = [value for curve in curves for value in curve.y]
    low, high = min(values) / 1.5, max(values) * 1.5
    last = max(max(curve.x) for curve in curves)
    first = min(min(curve.x) for curve in curves)
    frame = _by_layer(first, last, Scale(low, high, "log"), "variation within over between classes")
    caption = "How far each layer has collapsed to its class means: 0 is full collapse"
    drawn = lines(frame, curves, describe="NC1 and CDNV by layer, logarithmic", legend=False)
    return tag("figure", tag("figcaption", caption), drawn, curve_key(curves))


def _table(layers: Sequence[Mapping[str, Any]], source: Source) -> Markup:
    heads = [
        *("Order", "Layer", "Numbers", "Neighbours", "Class centre", "SVM", "Components for 90 %"),
        *("Agree", "NC1", "CDNV", "Centre ≠ network", "Dimension"),
    ]
    rows = [_row(n, layer) for n, layer in enumerate(layers, 1)]
    return table(heads, rows, name="Representations", export=f"{source.record.name}-representations.csv")


def _row(n: int, layer: Mapping[str, Any]) -> list[Cell]:
    accuracy, needed = layer["accuracy"], layer["components"]
    counts = " / ".join(number(needed.get(probe)) for probe in PROBES) if needed else "–"
    name = f"{layer['name']} (averaged over positions)" if layer["averaged"] else str(layer["name"])
    dimension, error = layer["dimension"], layer["dimension_error"]
    size = "–" if dimension is None else f"{number(dimension)} ± {number(error, 2)}"
    return [
        Cell(str(n), n, True, "soft"),
        Cell(tag("code", name), name),
        *figures(layer["width"]),
        *figures(*(accuracy.get(probe) for probe in PROBES), shown=percent),
        Cell(counts, counts),
        Cell(f"{'yes' if layer['agree'] else 'no'} ({percent(layer['share'], 0)})", layer["share"], True),
        *figures(layer["nc1"], layer["cdnv"]),
        *figures(layer["differs"], shown=percent),
        Cell(size, dimension, True),
    ]


def _reasons(layers: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Why some layers have no numbers."""
    silent = [layer for layer in layers if layer["reason"]]
    if not silent:
        return None
    rows = [tag("li", tag("code", layer["name"]), f": {layer['reason']}") for layer in silent]
    return folded(f"{len(silent)} layers without numbers", tag("ul", *rows))
