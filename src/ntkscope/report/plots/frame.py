"""The frame of a plot: axes, grid, labels, and the transformation from values to pixels."""

from __future__ import annotations

from collections.abc import Iterable
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
