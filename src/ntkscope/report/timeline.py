"""Curves over training: loss, largest values with the edge of the noise, alignments; stacked over one axis of steps.

And Q–Q plots: the last moment against the first; on the diagonal nothing changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from ntkscope.report.markup import Markup, tag
from ntkscope.report.numbers import number, whole
from ntkscope.report.plots import Frame, Line, Point, Scale, curve_key, lines, scatter
from ntkscope.report.plots.histogram import Axis
from ntkscope.report.track import Look, Spectrum, Track

TOP = 4  # spikes with a curve of their own
CURVES = 6  # in one picture
BOUNDED = 1.05  # measures within ± this share an axis
QUANTILES = 120


def steps_scale(track: Track) -> Scale:
    """Steps from the first to the last moment; logarithmic if most moments lie near the start."""
    steps = [moment.step for moment in track.moments] or [0.0]
    low, high = min(steps), max(max(steps), min(steps) + 1)
    early = float(np.median(steps)) - low < 0.25 * (high - low) and high > 20 and low >= 0
    return Scale(low, high, "log1p" if early else "linear")


def time_frame(x: Scale, y: Scale, name: str, *, last: bool = False) -> Frame:
    label = ("step, logarithmic" if x.kind == "log1p" else "step") if last else ""
    return Frame(x, y, label, name, width=420, height=146 if last else 128, bottom=46 if last else 28, top=10)


def timeline(spectrum: Spectrum, track: Track) -> Markup:
    """Loss, largest values with the edge, alignments: stacked, with one axis of steps; a script moves the cursor."""
    x = steps_scale(track)
    panels: list[tuple[str, list[Line], tuple[float, float] | None, str]] = []
    loss = [(moment.step, moment.loss) for moment in track.moments if math.isfinite(moment.loss)]
    if loss:
        panels.append(("loss", [_line("loss", loss)], None, "Loss"))
    if spectrum.looks:
        panels.append((f"{spectrum.noun}s", _top_values(spectrum), None, f"Largest {spectrum.noun}s"))
    bounded, others = _curves(spectrum)
    if bounded:
        low = min(0.0, *(y for curve in bounded for y in curve.y))
        panels.append(("alignment", bounded, (low, 1.0), "Alignment, from 0 to 1"))
    panels += [(curve.name, [curve], None, curve.name.capitalize()) for curve in others[:3]]
    drawn: list[Markup | None] = []
    for k, (label, curves, ends, words) in enumerate(panels):
        low, high = ends or _ends([y for curve in curves for y in curve.y])
        frame = time_frame(x, _value_scale(low, high, ends is None), label, last=k == len(panels) - 1)
        said = f"{words} of {spectrum.name} over training"
        drawn.append(tag("figcaption", words))
        drawn.append(_with_cursor(frame, curves, said))
        drawn.append(curve_key(curves))
    return tag("figure", *drawn, class_="timeline")


def _with_cursor(frame: Frame, curves: Sequence[Line], said: str) -> Markup:
    """Curves with their key below, which would cover them in a low frame, and a line for the moment shown."""
    floor = frame.height - frame.bottom
    cursor = tag("line", x1=frame.left, x2=frame.left, y1=frame.top, y2=floor, class_="cursor", visibility="hidden")
    return lines(frame, curves, describe=said, legend=False, under=[cursor])


def _line(name: str, pairs: Sequence[tuple[float, float]]) -> Line:
    return Line(name, [x for x, _ in pairs], [y for _, y in pairs])


def _top_values(spectrum: Spectrum) -> list[Line]:
    """The largest values over time, and the edge of the noise."""
    looks = [look for look in spectrum.looks if math.isfinite(look.step)]
    curves = [
        _line(word, [(look.step, float(look.values[k])) for look in looks if len(look.values) > k])
        for k, word in enumerate(("largest", "second", "third"))
    ]
    edge = _line("edge of the noise", [(look.step, look.edge) for look in looks if math.isfinite(look.edge)])
    return [curve for curve in (curves[0], edge, *curves[1:]) if curve.x]


def _curves(spectrum: Spectrum) -> tuple[list[Line], list[Line]]:
    """Alignments of spikes and measures between 0 and 1; and measures of another size."""
    spikes = max((len(look.alignments) for look in spectrum.looks), default=0)
    bounded, others = list[Line](), list[Line]()
    for k in range(min(spikes, TOP)):
        pairs = [(look.step, look.alignments[k]) for look in spectrum.looks if len(look.alignments) > k]
        pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
        if pairs:
            bounded.append(_line(f"spike {k + 1} with its closest direction", pairs))
    for name, measured in spectrum.measures.items():
        curve = _line(_words(name), measured)
        (bounded if all(abs(y) <= BOUNDED for y in curve.y) and name != "velocity" else others).append(curve)
    return some_of(bounded, CURVES), others


def some_of(curves: list[Line], count: int) -> list[Line]:
    """At most `count` of some curves, the first and the last among them.

    >>> [curve.name for curve in some_of([Line(str(k), [], []) for k in range(9)], 3)]
    ['0', '4', '8']
    """
    if len(curves) <= count:
        return curves
    return [curves[k] for k in np.linspace(0, len(curves) - 1, count).round().astype(int).tolist()]


def _words(name: str) -> str:
    """A measure in words a reader knows.

    >>> _words("kta"), _words("cumulative_power of the top 10")
    ('alignment with the labels (KTA)', 'labels in the top 10 eigenvectors')
    """
    known = {
        "kta": "alignment with the labels (KTA)",
        "centred_kta": "centred alignment (KTA)",
        "velocity": "kernel velocity",
    }
    if name.startswith("layer "):
        return name.removeprefix("layer ")
    if name.startswith("cumulative_power of the top "):
        return f"labels in the top {name.rsplit(' ', 1)[1]} eigenvectors"
    return known.get(name, name.replace("_", " "))


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0))


def _value_scale(low: float, high: float, pad: bool) -> Scale:
    """Linear, or logarithmic where positive values span more than a factor of thirty."""
    if pad and low > 0 and high > 30 * low:
        return Scale(low / 1.2, high * 1.2, "log")
    margin = 0.06 * (high - low) if pad else 0.0
    return Scale(max(0.0, low - margin) if low >= 0 else low - margin, high + margin)


def first_against_last(track: Track) -> Markup | None:
    """A Q–Q plot of every spectrum with two moments or more."""
    shown = []
    for spectrum in track.spectra:
        looks = [look for look in spectrum.looks if len(look.values) > 1]
        if len(looks) < 2:
            continue
        first, last = looks[0], looks[-1]
        caption = tag("figcaption", tag("code", spectrum.name))
        shown.append(tag("figure", caption, _quantile_plot(spectrum, first, last)))
    return tag("div", *shown, class_="panels qq") if shown else None


def quantiles(
    first: Float64[np.ndarray, " k"], last: Float64[np.ndarray, " j"], points: int = QUANTILES
) -> Float64[np.ndarray, "2 q"]:
    """The same quantiles of two samples; values themselves, the largest first, where both have equally many.

    >>> quantiles(np.array([2.0, 1.0]), np.array([3.0, 1.0])).tolist()
    [[2.0, 1.0], [3.0, 1.0]]
    """
    if len(first) != len(last):
        at = np.linspace(1, 0, 4 * points)
        first, last = np.quantile(first, at), np.quantile(last, at)
    few = min(10, len(first))
    chosen = np.unique(
        np.r_[np.arange(few), np.linspace(0, len(first) - 1, min(points, len(first))).round()].astype(int)
    )
    return np.stack([first[chosen], last[chosen]])


def _quantile_plot(spectrum: Spectrum, first: Look, last: Look) -> Markup:
    pairs = quantiles(first.values, last.values)
    scale = Axis.of([first.values, last.values]).scale
    inside = (pairs >= scale.low).all(0)
    frame = Frame(scale, scale, f"step {whole(first.step)}", f"step {whole(last.step)}", width=300, height=280, left=62)
    count = min(len(last.spikes), len(last.values))
    smallest = float(last.values[count - 1]) if count else math.inf
    points = [
        Point(a, b, f"{number(a)} at the first moment, {number(b)} at the last", stands_out=b >= smallest)
        for a, b in pairs[:, inside].T.tolist()
    ]
    said = (
        f"Quantiles of the {spectrum.noun}s of {spectrum.name}: first moment across, last moment up; on the diagonal nothing"
        " changed"
    )
    return scatter(frame, points, describe=said, diagonal=True)
