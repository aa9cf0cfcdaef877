"""A spectrum as a histogram: how many values lie where, the largest ones singly, spikes and the edge of the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.report.markup import Markup, tag
from ntkscope.report.numbers import number
from ntkscope.report.plots.frame import Frame
from ntkscope.report.plots.scales import Scale

BINS = (16, 60)  # at least and at most
SINGLY = 24  # largest values that have a mark of their own
WIDE = 12.0  # largest over median: a linear axis would squeeze the bulk
DECADES = 8  # of a logarithmic axis


@dataclass(frozen=True)
class Axis:
    """The axis that several spectra share, and the edges of its bins."""

    scale: Scale
    edges: Float64[np.ndarray, " bins+1"]

    def counts(self, values: Float64[np.ndarray, " k"]) -> Int64[np.ndarray, " bins"]:
        """How many values lie in each bin; what is below a logarithmic axis is in none.

        >>> Axis.of([np.array([4.0, 1.0, 1.0])]).counts(np.array([4.0, 1.0, 1.0])).sum()
        np.int64(3)
        """
        return np.histogram(values, self.edges)[0].astype(np.int64)

    def below(self, values: Float64[np.ndarray, " k"]) -> int:
        """How many values are too small for the axis."""
        return int((values < self.edges[0]).sum())

    @classmethod
    def of(cls, spectra: Sequence[Float64[np.ndarray, " k"]], marks: Sequence[float] = ()) -> Axis:
        """From zero to the largest value; logarithmic where the largest is far from the median. `marks` fit as well."""
        every = np.concatenate([np.asarray(values, dtype=np.float64) for values in spectra] or [np.zeros(0)])
        every = every[np.isfinite(every)]
        high = max([float(every.max(initial=0.0)), *(mark for mark in marks if math.isfinite(mark))])
        bins = int(np.clip(2 * math.sqrt(max((len(values) for values in spectra), default=0)), *BINS))
        if not (high > 0 and math.isfinite(high * 1.2)):
            return cls(Scale(0, 1), np.linspace(0, 1, bins + 1))
        positive = every[every > 0]
        if positive.size and high > WIDE * float(np.median(every)):
            low = max(float(positive.min()), high * 10.0**-DECADES) * 0.9
            return cls(Scale(low, high * 1.2, "log"), np.geomspace(low, high * 1.2, bins + 1))
        return cls(Scale(0, high * 1.04), np.linspace(0, high * 1.04, bins + 1))


def histogram_frame(axis: Axis, tallest: int, noun: str, *, small: bool = False) -> Frame:
    """The frame for histograms of up to `tallest` values per bin; counts on a square-root scale, so that one is seen."""
    y = Scale(0, max(tallest, 4), "sqrt")
    if small:
        return Frame(axis.scale, y, "", "", width=240, height=150, left=34, bottom=26, top=8, right=10)
    log = ", logarithmic" if axis.scale.kind == "log" else ""
    return Frame(axis.scale, y, f"{noun}{log}", "values per bin (square-root scale)", width=420, height=330)


def bars_path(frame: Frame, axis: Axis, counts: Sequence[int]) -> str:
    """The bars as one path."""
    parts, floor = [], frame.height - frame.bottom
    for low, high, count in zip(axis.edges[:-1].tolist(), axis.edges[1:].tolist(), counts, strict=True):
        if count:
            (left, top), (right, _) = frame.at(low, count), frame.at(high, 0)
            parts.append(f"M{left} {floor}V{top}H{right}V{floor}z")
    return "".join(parts)


def outline_path(frame: Frame, axis: Axis, counts: Sequence[int]) -> str:
    """The upper contour of the bars, for comparison with others."""
    floor = frame.height - frame.bottom
    parts = [f"M{frame.at(axis.edges[0], 0)[0]} {floor}"]
    for high, count in zip(axis.edges[1:].tolist(), counts, strict=True):
        right, top = frame.at(high, count)
        parts.append(f"V{top}H{right}")
    return "".join([*parts, f"V{floor}"])


def histogram(
    frame: Frame,
    axis: Axis,
    values: Float64[np.ndarray, " k"],
    *,
    describe: str,
    first: Float64[np.ndarray, " j"] | None = None,
    edge: float = math.nan,
    spikes: Sequence[float] = (),
) -> Markup:
    """Bars; the outline of the spectrum `first`; a dashed line at the edge of the noise; a tick per large value; diamonds."""
    floor = frame.height - frame.bottom
    marks = [tag("path", d=bars_path(frame, axis, axis.counts(values).tolist()), class_="bars-of")]
    if first is not None:
        marks.append(tag("path", d=outline_path(frame, axis, axis.counts(first).tolist()), class_="first"))
    known = math.isfinite(edge) and edge > 0
    x = frame.at(edge, 0)[0] if known else 0
    tip = f"edge of the noise: {number(edge)}" if known else None
    marks.append(tag("path", d=f"M{x} {frame.top}V{floor}" if known else "", class_="edge", data_tip=tip))
    marks += [tag("path", d=ticks_path(frame, values[:SINGLY].tolist()), class_="rug")]
    marks += [tag("path", d=diamonds_path(frame, spikes), class_="mark odd spikes")]
    return frame.svg(marks, describe=describe)


def ticks_path(frame: Frame, values: Sequence[float]) -> str:
    """A short tick below the axis for each value."""
    floor = frame.height - frame.bottom
    return "".join(f"M{frame.at(value, 0)[0]} {floor}v5" for value in values if value >= frame.x.low)


def diamonds_path(frame: Frame, values: Sequence[float]) -> str:
    """A diamond just above the axis for each value."""
    at = frame.height - frame.bottom - 13
    return "".join(
        f"M{frame.at(value, 0)[0]} {at}m0-5.5l5.5 5.5-5.5 5.5-5.5-5.5z" for value in values if value >= frame.x.low
    )


def histogram_key(parts: Sequence[tuple[str, str]], tested: bool) -> Markup:
    """What the marks of a histogram mean, by their kind; where spikes were tested, those of the test too."""
    of_test = [("edge", "edge of the noise"), ("spikes", "spike: outside the noise")] if tested else []
    rows = [tag("li", tag("i", class_=f"key-{kind}", aria_hidden="true"), words) for kind, words in (*parts, *of_test)]
    return tag("ul", *rows, class_="key")
