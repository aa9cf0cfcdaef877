"""Lines: one or several curves in a frame, distinguished by colour and dashes, named at their end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ntkscope.report.markup import Markup, tag
from ntkscope.report.plots.frame import Frame


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
