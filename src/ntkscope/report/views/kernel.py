"""The kernel itself: its matrix ordered by class, its spectrum, its alignment with the labels, and how it changed."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import as_float, number
from ntkscope.report.plots import Frame, Line, Scale, heatmap, lines
from ntkscope.report.source import Drawing, Section, Source, mapping
from ntkscope.report.views._directions import directions
from ntkscope.report.views.registry import VIEWS

TILES = (
    ("effective_rank", "Effective rank", "how many directions the kernel effectively uses"),
    ("alignment", "Alignment with labels", "1 if the kernel depended on the labels alone"),
    ("centred_alignment", "Centred alignment", "the same, without the part common to all items"),
    ("condition_number", "Condition number", "largest over smallest eigenvalue"),
)


@VIEWS.register("kernel")
def kernel(section: Section, source: Source) -> Drawing:
    """Tiles of numbers, heat map and spectrum."""
    data = section.data
    initial = data.get("initial") or {}
    tiles = [_tile(name, words, data.get(key), _was(initial, key)) for key, name, words in _tiles(source)]
    tiles += [
        _tile(name, "another measure of the kernel and the labels", value)
        for name, value in mapping(data.get("more")).items()
    ]
    if initial:
        moved = (
            "1 − cosine between the kernels before and after training, with what all items have in common; the rotation in the"
            " summary is without it (1 − CKA)"
        )
        tiles.append(_tile("Rotation, not centred", moved, initial.get("distance")))
    plots = [plot for plot in (_heat(data, source), _spectrum(source, initial)) if plot is not None]
    parts = [tag("div", *tiles, class_="tiles")]
    if not initial:
        parts.append(
            tag("p", "Give the initial weights to see how far the kernel moved during training.", class_="soft small")
        )
    return Drawing(join([*parts, tag("div", *plots, class_="panels wide"), directions(source)]))


def _tiles(source: Source) -> list[tuple[str, str, str]]:
    """The tiles, in the words of the task."""
    if not source.regression:
        return list(TILES)
    return [(key, name.replace("labels", "targets"), words.replace("labels", "targets")) for key, name, words in TILES]


def _was(initial: Mapping[str, Any], key: str) -> str | None:
    """A figure before training, with its current value on the same items if those are fewer."""
    if key not in initial or not isfinite(as_float(initial[key])):
        return None
    before, now, items = initial[key], initial.get(f"now_{key}"), initial.get("items")
    if not isfinite(as_float(now)) or not items:
        return f"before training {number(before)}"
    return f"{number(before)} before, {number(now)} after, on the same {number(items)} items"


def _tile(name: str, words: str, value: Any, was: str | None = None) -> Markup:
    return tag(
        "div",
        tag("span", name, class_="tile-name"),
        tag("b", number(value)),
        None if was is None else tag("span", was, class_="was"),
        tag("small", words),
        class_="tile",
    )


def _heat(data: Mapping[str, Any], source: Source) -> Markup | None:
    values = source.array("kernel.heatmap")
    if values is None or values.ndim != 2 or 0 in values.shape:
        return None
    name, by = str(data.get("name", "kernel")), "target" if source.regression else "class"
    described = f"Heat map of {name} over {values.shape[0]} training items ordered by {by}; bright is similar"
    drawn = heatmap(np.asarray(values), source.array("kernel.heatmap_labels"), source.classes, describe=described)
    shown = f"{name} of {values.shape[0]} training items, ordered by {by}; bright is similar"
    return tag("figure", tag("figcaption", shown), drawn)


def _spectrum(source: Source, initial: Mapping[str, Any]) -> Markup | None:
    """Eigenvalues by rank, both axes logarithmic, before and after on the same items, without values ≤ 0."""
    curves = []
    alike = source.array("kernel.current_eigenvalues") is not None
    after = "kernel.current_eigenvalues" if alike else "kernel.eigenvalues"
    caption = "Spectrum: eigenvalues by rank"
    if alike and initial.get("items"):
        caption += f", on the {number(initial['items'])} items of both kernels"
    for name, key in (("after training", after), ("before", "kernel.initial_eigenvalues")):
        values = source.array(key)
        if values is None:
            continue
        found = np.sort(np.asarray(values, dtype=np.float64).ravel())[::-1]
        found = found[np.isfinite(found) & (found > 0)]
        if found.size:
            ranks = np.unique(np.rint(np.geomspace(1, found.size, 200)).astype(int))
            curves.append(Line(name, ranks.tolist(), found[ranks - 1].tolist()))
    if not curves:
        return None
    high = max(max(curve.y) for curve in curves)
    low = max(min(min(curve.y) for curve in curves), high * 1e-14)
    frame = Frame(
        Scale(1, max(2, *(max(curve.x) for curve in curves)), "log"),
        Scale(low * 0.7, high * 1.5, "log"),
        "rank",
        "eigenvalue",
        width=420,
        height=340,
    )
    drawn = lines(frame, curves, describe="Spectrum: eigenvalues by rank, both axes logarithmic")
    return tag("figure", tag("figcaption", caption), drawn)
