"""Scatter: one mark per point, two kinds of points distinguished by colour and shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ntkscope.report.markup import Markup, tag
from ntkscope.report.plots.frame import Frame


@dataclass(frozen=True)
class Point:
    """A point, its tooltip, and whether it stands out."""

    x: float | int
    y: float | int
    tip: str = ""
    stands_out: bool = False
    item: int | None = None


def scatter(frame: Frame, points: Sequence[Point], *, describe: str, diagonal: bool = False) -> Markup:
    """Points in a frame; those that stand out are diamonds and lie on top."""
    marks = []
    if diagonal:
        (x1, y1), (x2, y2) = frame.at(frame.x.low, frame.y.low), frame.at(frame.x.high, frame.y.high)
        marks.append(tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="diagonal"))
    for point in sorted(points, key=lambda point: point.stands_out):
        px, py = frame.at(point.x, point.y)
        common = {"data_tip": point.tip or None, "data_item": point.item}
        if point.stands_out:
            marks.append(tag("path", d=f"M{px} {py}m0-4.5l4.5 4.5-4.5 4.5-4.5-4.5z", class_="mark odd", **common))
        else:
            marks.append(tag("circle", cx=px, cy=py, r=3, class_="mark", **common))
    return frame.svg(marks, describe=describe)
