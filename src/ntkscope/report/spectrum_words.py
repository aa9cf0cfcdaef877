"""Spectra in words: what a class of spectra means, and how one changed, for readers who do not know the terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ntkscope.report.numbers import number

if TYPE_CHECKING:
    from ntkscope.report.track import Look

CLASSES = {
    "invariant bulk": "looks like random entries: nothing stands out",
    "bulk + spikes": "a few directions stand out of what otherwise looks like random entries",
    "heavy tail": "the largest values fall off like a power law: no edge separates what was learned from noise",
    "undecided": "not enough to tell",
}
STEADY = 0.02  # a change by less than that is called none


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
        middle = [float(look.values[(len(look.values) - 1) // 2]) for look in (first, last)]
        top = [float(look.values[0]) for look in (first, last)]
        said = f"The largest {noun} {_growth(top)}, the median {_growth(middle)}."
    if not tested:
        return said
    before, after = len(first.spikes), len(last.spikes)
    if first.moment == last.moment or before == after:
        return f"{said} {spikes_text(after).capitalize()} of the noise."
    return f"{said} {spikes_text(after).capitalize()} of the noise at the end; at the first moment {before or 'none'} did."


def _growth(values: Sequence[float]) -> str:
    before, after = values
    if before <= 0:
        return f"went from {number(before)} to {number(after)}"
    return f"{times(after / before)} ({number(before)} → {number(after)})"
