"""Leading directions of the kernel: what its eigenvectors tell apart, in pictures, and a map along the first two."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.report.items import image_uri
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import percent
from ntkscope.report.plots import Frame, Scale
from ntkscope.report.source import Source

ENDS = 5  # items shown at each end of a direction
POINTS = 300  # items of the map


def directions(source: Source) -> Markup | None:
    """The map and the directions; None for a record that does not hold them."""
    found, rows = source.array("kernel.directions"), source.array("kernel.direction_rows")
    if found is None or rows is None or found.ndim != 2 or len(found) != len(rows) or not found.size:
        return None
    values = np.asarray(found, dtype=np.float64)
    if not np.isfinite(values).all():
        return None
    index = np.asarray(rows, dtype=np.int64)
    strengths, total = source.array("kernel.direction_values"), source.array("kernel.direction_total")
    shares = None if strengths is None or total is None or not total[0] > 0 else np.asarray(strengths) / float(total[0])
    cards = [
        _direction(j, values[:, j], index, None if shares is None else shares[j], source)
        for j in range(values.shape[1])
    ]
    words = (
        "The directions along which the network's kernel spreads the training items most (eigenvectors of the centred kernel):"
        " items at opposite ends are those it tells apart most strongly."
    )
    pictures = (
        " The first picture of each end is the mean of its items." if source.array("thumbs.train") is not None else ""
    )
    return join(
        [
            tag("h3", "What the kernel tells apart"),
            tag("p", words + pictures, class_="soft small"),
            _map(values, index, source) if values.shape[1] >= 2 else None,
            tag("ul", *cards, class_="directions"),
        ]
    )


def _direction(j: int, values: np.ndarray, rows: np.ndarray, share: Any, source: Source) -> Markup:
    order = np.argsort(-values, kind="stable")
    few = min(ENDS, max(1, len(order) // 2))
    ends = [
        _end(order[:few], np.maximum(values, 0), rows, source),
        _end(order[::-1][:few], np.maximum(-values, 0), rows, source),
    ]
    told = f" ({percent(share)} of the kernel's spread)" if share is not None else ""
    head = tag("p", tag("b", f"Direction {j + 1}"), told)
    return tag("li", head, tag("div", *ends, class_="ends"), class_="card")


def _end(few: np.ndarray, weights: np.ndarray, rows: np.ndarray, source: Source) -> Markup:
    """One end of a direction: the mean picture of its items weighted by how far out they are, and the outermost items."""
    labels = source.array("labels.train")
    said = None
    if labels is not None and weights.sum() > 0:
        mass = np.bincount(np.asarray(labels)[rows], weights=weights)
        top = np.argsort(-mass, kind="stable")[:3]
        names = [source.class_mark(int(k)) for k in top if mass[k] > 0.1 * mass.sum()]
        said = tag("p", "mostly ", *(join([", " if n else None, name]) for n, name in enumerate(names)), class_="small")
    items = [source.items.link("train", int(rows[i]), longest=80) for i in few]
    return tag("div", said, _mean(weights, rows, source), *items, class_="end")


def _mean(weights: np.ndarray, rows: np.ndarray, source: Source) -> Markup | None:
    thumbs = source.array("thumbs.train")
    if (
        thumbs is None
        or thumbs.ndim != 4
        or thumbs.dtype != np.uint8
        or thumbs.shape[-1] not in (1, 3)
        or not weights.sum() > 0
    ):
        return None
    chosen = np.flatnonzero(weights)
    whole = np.tensordot(
        weights[chosen] / weights[chosen].sum(), np.asarray(thumbs)[rows[chosen]].astype(np.float64), axes=1
    )
    return tag("img", src=image_uri(np.rint(whole).astype(np.uint8)), alt="mean picture of this end", class_="mean")


def _map(values: np.ndarray, rows: np.ndarray, source: Source) -> Markup:
    """The items along the first two directions, coloured by class; the name of each class stands at its middle."""
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(POINTS, len(rows))).round().astype(int))
    x, y = values[:, 0], values[:, 1]
    margin = [0.05 * float(np.ptp(each)) or 1.0 for each in (x, y)]
    frame = Frame(
        Scale(float(x.min()) - margin[0], float(x.max()) + margin[0]),
        Scale(float(y.min()) - margin[1], float(y.max()) + margin[1]),
        "direction 1",
        "direction 2",
        width=640,
        height=440,
    )
    labels = source.array("labels.train")
    classes = max(1, len(source.classes))
    marks = []
    for k in chosen.tolist():
        item = int(rows[k])
        label = None if labels is None or item >= len(labels) else int(labels[item])
        source.items.slot("train", item)
        px, py = frame.at(float(x[k]), float(y[k]))
        named = "" if label is None else f", {source.class_name(label)}"
        tip = f"training item {source.items.number('train', item)}{named}"
        style = None if label is None else f"fill:oklch(62% .16 {360 * label / classes:.0f})"
        mark = tag("circle", cx=px, cy=py, r=4, class_="mark", style=style, data_tip=tip)
        marks.append(tag("a", mark, href=source.items.address("train", item), aria_label=tip))
    marks += _names(x, y, rows, frame, source)
    drawn = frame.svg(
        marks, describe=f"Map of {len(chosen):,} training items along the first two directions of the kernel"
    )
    some = f" {len(chosen):,} of {len(rows):,} items are drawn." if len(chosen) < len(rows) else ""
    caption = tag("figcaption", "Map of the training items")
    return tag(
        "figure",
        caption,
        drawn,
        tag("p", f"Point at an item to see what it is, press it to open it.{some}", class_="soft small"),
        class_="map",
    )


def _names(x: np.ndarray, y: np.ndarray, rows: np.ndarray, frame: Frame, source: Source) -> list[Markup]:
    labels = source.array("labels.train")
    if labels is None or len(source.classes) > 30:
        return []
    of_rows = np.asarray(labels)[rows]
    found = []
    for k in np.unique(of_rows).tolist():
        px, py = frame.at(float(np.median(x[of_rows == k])), float(np.median(y[of_rows == k])))
        found.append(tag("text", source.class_name(int(k)), x=px, y=py, text_anchor="middle", class_="at"))
    return found
