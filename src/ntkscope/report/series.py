"""Series of a record: their numbers as curves, and how they ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope.core.errors import RecordError
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import as_float, number
from ntkscope.report.plots import Frame, Line, Scale, lines
from ntkscope.report.views._generic import terms

POINTS = 200  # points per curve; a longer series is thinned
CURVES = 12  # plots per series
ORDER = ("step", "epoch", "time", "seconds")  # a column with one of these names is the axis


def series(record: Record) -> Markup | None:
    """Every series of a record; one that cannot be read is reported, and the others are shown."""
    parts = [_one(record, name) for name in record.series_names]
    return join(parts) if parts else None


def _one(record: Record, name: str) -> Markup:
    head = tag("h3", name)
    try:
        rows = record.series(name)
        columns = rows.columns()
    except RecordError as error:
        return join([head, tag("p", str(error), class_="note")])
    if not len(rows):
        return join([head, tag("p", "No rows yet.", class_="soft")])
    axis = next((key for key in ORDER if _is_numeric(columns.get(key))), "")
    x = [as_float(value) for value in columns[axis]] if axis else [float(place) for place in range(len(rows))]
    chosen = [key for key in columns if key != axis and _is_numeric(columns[key])]
    plots = [_plot(key, axis or "row", x, [as_float(value) for value in columns[key]]) for key in chosen[:CURVES]]
    drawn = [plot for plot in plots if plot is not None]
    last: Mapping[str, Any] = {key: values[-1] for key, values in columns.items()}
    return join(
        [
            head,
            tag("p", f"{number(len(rows))} rows; the last one:", class_="soft"),
            terms(last),
            tag("div", *drawn, class_="figures") if drawn else None,
        ]
    )


def _is_numeric(values: Sequence[Any] | None) -> bool:
    return values is not None and any(math.isfinite(as_float(value)) for value in values)


def _plot(name: str, axis: str, x: Sequence[float], y: Sequence[float]) -> Markup | None:
    """One curve of the finite values, thinned to a few hundred points; None for a single point."""
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    if len(pairs) < 2:
        return None
    chosen = np.unique(np.linspace(0, len(pairs) - 1, min(POINTS, len(pairs))).round().astype(int))
    across, up = ([pairs[k][side] for k in chosen.tolist()] for side in (0, 1))
    (left, right), (low, high) = ((min(values), max(values)) for values in (across, up))
    if left == right:
        return None
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    frame = Frame(Scale(left, right), Scale(low - margin, high + margin), axis, name)
    if not all(math.isfinite(end) for end in (right - left, high + margin - (low - margin))):
        return None
    return tag("figure", lines(frame, [Line(name, across, up)], describe=f"{name} by {axis}"), tag("figcaption", name))
