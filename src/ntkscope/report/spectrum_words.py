"""Spectra in words: what a class of spectra means, and how one changed, for readers who do not know the terms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ntkscope.report.numbers import as_float, number

if TYPE_CHECKING:
    from ntkscope.report.track import Look

STEADY = 0.02  # a change by less than that is called none
FEW_ENTRIES = 0.05  # share of a vector's entries: fewer are no direction that many share


def shape_text(shape: Sequence[int]) -> str:
    """A shape as people write it.

    >>> shape_text([16, 54]), shape_text([])
    ('16 × 54', '')
    """
    return " × ".join(f"{side:,}" for side in shape)


def times(factor: float) -> str:
    """A growth or a decrease in words.

    >>> times(1.8), times(0.5), times(1.01), times(250.0)
    ('grew 1.8-fold', 'shrank to 50 %', 'stayed as it was', 'grew 250-fold')
    """
    if abs(factor - 1) <= STEADY:
        return "stayed as it was"
    if factor < 1:
        return f"shrank to {100 * factor:.{0 if factor >= 0.01 else 2}f} %"
    return f"grew by {100 * (factor - 1):.0f} %" if factor < 1.5 else f"grew {number(factor, 2)}-fold"


def spikes_text(count: int) -> str:
    """
    >>> spikes_text(0), spikes_text(1), spikes_text(3)
    ('no direction stands out', '1 direction stands out', '3 directions stand out')
    """
    if not count:
        return "no direction stands out"
    return "1 direction stands out" if count == 1 else f"{count:,} directions stand out"


def change_sentence(noun: str, first: Look, last: Look, tested: bool) -> str:
    """What happened to a spectrum between two moments, in a sentence or two."""
    if not len(first.values) or not len(last.values):
        return f"No finite {noun}s at the {'first' if not len(first.values) else 'last'} moment."
    if first.moment == last.moment:
        said = f"Measured once: the largest {noun} is {number(float(last.values[0]))}."
    else:
        middle = [float(look.values[len(look.values) // 2]) for look in (first, last)]
        top = [float(look.values[0]) for look in (first, last)]
        said = f"The largest {noun} {_growth(top)}, the median {_growth(middle)}."
    if not tested:
        return said
    before, after = len(first.spikes), len(last.spikes)
    if first.moment == last.moment or before == after:
        return f"{said} {spikes_text(after).capitalize()} of the noise."
    return f"{said} {spikes_text(after).capitalize()} of the noise at the last moment; at the first {before or 'none'} did."


def _growth(values: Sequence[float]) -> str:
    before, after = values
    if before <= 0:
        return f"went from {number(before)} to {number(after)}"
    return f"{times(after / before)} ({number(before)} → {number(after)})"


# -- one weight matrix ----------------------------------------------------------------------------------------------------


def stands_out(layer: Mapping[str, Any], level: float) -> bool:
    """Whether a matrix has spikes that the number of matrices does not explain (p after Holm).

    >>> stands_out({"count": 1, "holm": 0.2}, 0.05), stands_out({"count": 1, "holm": 0.01}, 0.05)
    (False, True)
    """
    holm = layer["holm"]
    return bool(layer["count"]) and (holm is None or holm <= level)


def layer_sentence(layer: Mapping[str, Any], level: float) -> str:
    """What the singular values of one matrix say, for a reader who knows neither the test nor its name."""
    label, count = str(layer["label"]), int(layer["count"])
    if label == "heavy tail":
        return _heavy(layer)
    if label == "undecided":
        why = str(layer["reason"]) or "the signs contradict each other"
        return f"It cannot be told whether training wrote anything here: {why}."
    if not count:
        return (
            f"Its singular values are those of random entries of this size: no direction stands out (the largest is"
            f" {_ratio(layer)} the edge of the noise). Training may have moved the weights, but it wrote no single direction"
            " into them."
        )
    if not stands_out(layer, level):
        return (
            f"{spikes_text(count).capitalize()} when this matrix is looked at alone (p = {number(layer['p'], 2)}), but among"
            f" all matrices of the network that is to be expected by chance (p = {number(layer['holm'], 2)} after Holm)."
        )
    said = (
        f"{spikes_text(count).capitalize()} of what otherwise looks like noise; the largest is {_ratio(layer)} its edge."
        f" Training wrote {'it' if count == 1 else 'them'} into the matrix"
    )
    spread = as_float(layer["spread"])
    if spread < FEW_ENTRIES:
        return f"{said}, as a few large entries rather than a direction shared by many rows and columns."
    return f"{said}: rows and columns share {'this pattern' if count == 1 else 'these patterns'}."


def _heavy(layer: Mapping[str, Any]) -> str:
    alpha = as_float(layer["alpha"])
    fall = f" (exponent {number(alpha)})" if math.isfinite(alpha) else ""
    if layer["cause"] == "a few huge entries":
        return (
            f"A few huge entries make its largest singular values, which have a heavy tail{fall}. They are single weights, not"
            " directions that many rows and columns share: look at these weights, or at how the layer was initialised."
        )
    many = (
        f"{int(layer['count']):,} singular values lie beyond the edge of the noise and reach down to it"
        if layer["count"]
        else ("Its largest singular values reach down to the noise")
    )
    return (
        f"{many}, as a heavy tail{fall}: no gap separates what was learned from noise. Training correlated the weights in many"
        " directions of all sizes."
    )


def _ratio(layer: Mapping[str, Any]) -> str:
    edge, largest = as_float(layer["edge"]), as_float(layer["largest"])
    return f"{number(largest / edge, 2)} ×" if edge > 0 and math.isfinite(largest / edge) else "beyond"
