"""Spectra: each weight matrix in a sentence, its singular values against what noise reaches, and the numbers in a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntkscope.report.markup import Markup, folded, join, tag
from ntkscope.report.numbers import as_float, number
from ntkscope.report.plots.histogram import Axis, histogram, histogram_frame, histogram_key
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.spectrum_words import layer_sentence, shape_text, stands_out
from ntkscope.report.tables import Cell, figures, table, with_range
from ntkscope.report.views.registry import VIEWS

PICTURES = 24  # matrices with a picture
_PILLS = {"bulk + spikes": "lazy", "heavy tail": "rich"}


@VIEWS.register("weight_spectra")
def weight_spectra(section: Section, source: Source) -> Drawing:
    """The summary in a line, a card per matrix, and the table."""
    layers, level = list(section.data["layers"]), as_float(section.data["level"])
    cards = [_card(n, layer, level, source) for n, layer in enumerate(layers)]
    first, rest = cards[:PICTURES], cards[PICTURES:]
    parts = [
        tag("p", summary(layers, level), class_="meaning"),
        _legend(section.data["tested"], section.data["initial"]),
        tag("div", *first, class_="cards layers-of-spectra"),
        folded(f"{len(rest):,} more matrices", tag("div", *rest, class_="cards layers-of-spectra")) if rest else None,
        tag("h3", "In numbers"),
        _table(layers, source),
    ]
    return Drawing(join(parts))


def summary(layers: Sequence[Mapping[str, Any]], level: float) -> str:
    """All matrices in a sentence or two.

    >>> summary([{"label": "undecided", "count": 0, "holm": None}], 0.05)
    'The only weight matrix is too small to tell.'
    """
    total = len(layers)
    if total == 1:
        return _only(layers[0], level)
    told = [layer for layer in layers if layer["label"] != "undecided"]
    if not told:
        return f"None of the {total} weight matrices is large enough, or clear enough, to tell."
    spiked = [layer for layer in told if layer["label"] == "bulk + spikes" and stands_out(layer, level)]
    heavy = [layer for layer in told if layer["label"] == "heavy tail"]
    said = []
    if spiked:
        count = sum(int(layer["count"]) for layer in spiked)
        which = "one direction stands" if count == 1 else f"{count:,} directions stand"
        said.append(f"In {len(spiked)} of {total} weight matrices, {which} out of the noise")
    if heavy:
        of = total if said else f"{total} weight matrices"
        said.append(f"{len(heavy)} of {of} {'has' if len(heavy) == 1 else 'have'} a heavy tail")
    quiet = len(told) - len(spiked) - len(heavy)
    if quiet:
        said.append(f"{quiet} look{'s' if quiet == 1 else ''} like random entries")
    if total > len(told):
        said.append(f"{total - len(told)} {'is' if total - len(told) == 1 else 'are'} undecided")
    return "; ".join(said) + "."


def _only(layer: Mapping[str, Any], level: float) -> str:
    if layer["label"] == "undecided":
        return "The only weight matrix is too small to tell."
    if layer["label"] == "heavy tail":
        return "The only weight matrix has a heavy tail."
    outside = stands_out(layer, level)
    return f"The only weight matrix {'has directions outside the noise' if outside else 'looks like random entries'}."


def _card(n: int, layer: Mapping[str, Any], level: float, source: Source) -> Markup:
    label = str(layer["label"])
    outside = stands_out(layer, level)
    kind = _PILLS.get(label, "quiet") if outside or label == "heavy tail" else "quiet"
    return tag(
        "div",
        tag(
            "h3",
            tag("code", layer["name"]),
            tag("span", shape_text([layer["rows"], layer["columns"]]), class_="count"),
        ),
        tag("p", tag("span", label, class_=f"pill {kind}")),
        _picture(n, layer, source) if n < PICTURES else None,
        tag("p", layer_sentence(layer, level), class_="small"),
        class_="card",
    )


def _picture(n: int, layer: Mapping[str, Any], source: Source) -> Markup | None:
    values = source.array(f"weight_spectra.values.{n}")
    if values is None or values.ndim != 1 or not values.size:
        return None
    found = np.sort(np.asarray(values, dtype=np.float64))[::-1]
    found = found[np.isfinite(found)]
    edge = as_float(layer["edge"])
    before = source.array(f"weight_spectra.initial.{n}")
    first = None if before is None else np.sort(np.asarray(before, dtype=np.float64).ravel())[::-1]
    axis = Axis.of([found, *([] if first is None else [first])], [edge])
    frame = histogram_frame(axis, int(axis.counts(found).max(initial=0)), "singular value", small=True)
    spikes = found[: int(layer["count"])].tolist()
    said = f"Singular values of {layer['name']}: {found.size} values, the largest {number(layer['largest'])}"
    if math.isfinite(edge):
        said += f"; noise ends at {number(edge)}"
    return histogram(frame, axis, found, describe=said, first=first, edge=edge, spikes=spikes)


def _legend(tested: Any, initial: Any) -> Markup:
    parts = [("bars-of", "singular values, how many per bin (square-root scale)"), ("rug", "each of the largest")]
    if initial:
        parts.append(("first", "before training"))
    return histogram_key(parts, bool(tested))


def _table(layers: Sequence[Mapping[str, Any]], source: Source) -> Markup:
    rows = [
        [
            Cell(tag("code", layer["name"]), layer["name"]),
            Cell(shape_text([layer["rows"], layer["columns"]]), shape_text([layer["rows"], layer["columns"]])),
            Cell(layer["label"], layer["label"]),
            *figures(layer["count"], layer["largest"], layer["edge"], max(layer["strengths"], default=None)),
            *figures(layer["p"], layer["holm"], digits=2),
            with_range(layer, "alpha"),
        ]
        for layer in layers
    ]
    heads = ["Weight", "Shape", "Class", "Spikes", "Largest", "Edge", "Strength", "p", "p, Holm", "Tail exponent"]
    return table(heads, rows, name="Spectra of the weights", export=f"{source.record.name}-spectra.csv", kind="snug")
