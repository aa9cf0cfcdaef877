"""Q–Q plots of tracked spectra: the last moment against the first; on the diagonal nothing changed."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64

from ntkscope.report.markup import Markup, tag
from ntkscope.report.numbers import number, whole
from ntkscope.report.plots import Point, scatter
from ntkscope.report.plots.frame import Frame
from ntkscope.report.plots.histogram import Axis
from ntkscope.report.track import Look, Spectrum, Track

QUANTILES = 120


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
