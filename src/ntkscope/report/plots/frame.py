"""The frame of a plot: axes, grid, labels, the transformation from values to pixels; and curves or points in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ntkscope.report.markup import Markup, tag
from ntkscope.report.plots.scales import Scale


@dataclass(frozen=True)
class Frame:
    """A rectangle with two axes; drawn at a width that a phone can show without shrinking the text."""

    x: Scale
    y: Scale
    x_label: str
    y_label: str
    width: int = 360
    height: int = 280
    left: int = 58
    right: int = 14
    top: int = 12
    bottom: int = 46

    def at(self, x: float | int, y: float | int) -> tuple[float, float]:
        """The pixel of a point, to a tenth."""
        across = self.width - self.left - self.right
        down = self.height - self.top - self.bottom
        return round(self.left + across * self.x(x), 1), round(self.top + down * (1 - self.y(y)), 1)

    def svg(self, *marks: Markup | Iterable[Markup], describe: str) -> Markup:
        """The plot with its marks; `describe` is the text for screen readers."""
        bottom, right = self.height - self.bottom, self.width - self.right
        parts = []
        for value, label in self.x.ticks():
            px, _ = self.at(value, self.y.low)
            parts.append(tag("line", x1=px, x2=px, y1=self.top, y2=bottom, class_="grid"))
            parts.append(tag("text", label, x=px, y=bottom + 16, text_anchor="middle", class_="tick"))
        for value, label in self.y.ticks():
            _, py = self.at(self.x.low, value)
            parts.append(tag("line", x1=self.left, x2=right, y1=py, y2=py, class_="grid"))
            parts.append(tag("text", label, x=self.left - 7, y=py + 4, text_anchor="end", class_="tick"))
        middle = (self.top + bottom) / 2
        parts.append(
            tag("text", self.x_label, x=(self.left + right) / 2, y=self.height - 8, text_anchor="middle", class_="name")
        )
        parts.append(
            tag(
                "text",
                self.y_label,
                transform=f"translate(13 {middle}) rotate(-90)",
                text_anchor="middle",
                class_="name",
            )
        )
        outline = tag("path", d=f"M{self.left} {self.top}V{bottom}H{right}", class_="axis")
        return svg(self.width, self.height, parts, outline, *marks, describe=describe)


def svg(width: int, height: int, *children: Markup | Iterable[Markup], describe: str, class_: str = "plot") -> Markup:
    """An SVG image that shrinks with the page and never grows beyond its own size."""
    size = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
    return tag("svg", tag("title", describe), *children, class_=class_, role="img", aria_label=describe, **size)


@dataclass(frozen=True)
class Line:
    """A named curve."""

    name: str
    x: Sequence[float | int]
    y: Sequence[float | int]


def lines(
    frame: Frame, curves: Sequence[Line], *, describe: str, legend: bool = True, under: Iterable[Markup] = ()
) -> Markup:
    """Curves in a frame, with a legend inside when there are several, over the marks `under`."""
    marks = [*under]
    for n, curve in enumerate(curves):
        at = [frame.at(x, y) for x, y in zip(curve.x, curve.y, strict=True)]
        path = "M" + "L".join(f"{px} {py}" for px, py in at)
        marks.append(tag("path", d=path, class_=f"curve series-{n % 6}"))
        # one invisible target per vertex would be too much for long curves: tooltips at some of them are enough
        for k in range(0, len(at), max(1, len(at) // 60)):
            tip = f"{curve.name}: {frame.y_label} {curve.y[k]:.3g} at {frame.x_label} {curve.x[k]:.6g}"
            marks.append(tag("circle", cx=at[k][0], cy=at[k][1], r=6, class_="target", data_tip=tip))
        if legend and len(curves) > 1:
            y, x = frame.top + 12 + 17 * n, frame.width - frame.right - 8
            marks.append(tag("text", curve.name, x=x - 28, y=y + 4, text_anchor="end", class_="legend"))
            marks.append(tag("line", x1=x - 22, x2=x, y1=y, y2=y, class_=f"curve series-{n % 6}"))
    return frame.svg(marks, describe=describe)


def curve_key(curves: Sequence[Line]) -> Markup | None:
    """The curves' names beside their strokes, for below a frame where a key inside would cover them; none for a single one."""
    if len(curves) < 2:
        return None
    rows = [
        tag("li", tag("i", class_=f"key-line line-{n % 6}", aria_hidden="true"), c.name) for n, c in enumerate(curves)
    ]
    return tag("ul", *rows, class_="key")


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
