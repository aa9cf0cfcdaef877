"""Where a function of one number changes quickly: kinks, jumps and steep places, found by bisection.

Between two such places the function is smooth on the scale of the distance to them, which is what quadrature with nodes that
crowd there resolves, however wide the Gaussian is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

Function: TypeAlias = Callable[[Tensor], Tensor]

ODD = 1.1728391  # panels end where no usual kink sits
SMALLEST = -12  # the first panel ends at ODD · 2⁻¹²
NODES = 12
SMOOTH = 1e-9  # of the largest value so far out: what interpolation on a panel may miss
LEVELS, MOST = 46, 4096
FOUND = 1e-10  # how far a place is from where it was found, relative to it
STEEP = 8  # a panel cut this often and more is a steep place
PLACES = 4


def transitions(functions: Sequence[Function], reach: float) -> tuple[float, ...]:
    """The places, sorted: the steepest ones, `PLACES` at most, and zero where the functions are not smooth around it.

    >>> [round(place, 6) for place in transitions([lambda z: z.clamp(-1, 1)], 50.0)]
    [-1.0, 1.0]
    >>> transitions([torch.tanh], 50.0)
    (0.0,)
    """
    steep = [dip for function in functions for dip in _steep(function, reach)]
    kept: list[tuple[float, float]] = []
    for width, place in sorted(steep):  # steepest first; what lies within a few panels of one is that one
        if all(abs(place - other) > max(STEEP * size, 1e-6 * abs(place)) for size, other in kept):
            near = [at for size, at in steep if abs(at - place) <= STEEP * size <= STEEP * 4 * width]
            kept.append((width, sum(near) / len(near)))
    places = [place for _, place in kept[:PLACES]]
    nearest = min((abs(place) for place in places), default=0.0)
    if not places or smooth_beside(functions, 0.0, nearest, across=True) * STEEP < nearest:
        places.append(0.0)
    return tuple(sorted(places))


def smooth_beside(functions: Sequence[Function], place: float, reach: float, across: bool = False) -> float:
    """How far from a place one panel on each side of it resolves the functions; one panel over both with `across`.

    >>> smooth_beside([torch.relu], 0.0, 4.0) >= 4, smooth_beside([torch.relu], 0.0, 4.0, across=True)
    (True, 0.0)
    """
    last = max(SMALLEST, math.ceil(math.log2(max(reach, 1e-300) / ODD)))
    sizes = ODD * 2.0 ** torch.arange(4 * SMALLEST, last + 1, dtype=torch.float64)
    sizes = sizes[sizes > FOUND * abs(place)]
    middle = torch.full_like(sizes, place)
    panels = [(place - sizes, place + sizes)] if across else [(place - sizes, middle), (middle, place + sizes)]
    passed = torch.ones(len(sizes), dtype=torch.bool)
    for function in functions:
        largest = torch.zeros(len(sizes), dtype=torch.float64)
        misses = []
        for left, right in panels:
            missed, values = _missed(function, left, right)
            largest = torch.maximum(largest, values)
            misses.append(missed)
        for missed in misses:
            passed &= missed <= SMOOTH * largest
    count = int(passed.cumprod(0).sum())  # larger panels pass where no node meets what happens
    return float(sizes[count - 1]) if count else 0.0


def _steep(function: Function, reach: float) -> list[tuple[float, float]]:
    """(width of the panel, place) of each steep place, by bisection of panels that double in size from zero outwards."""
    last = max(SMALLEST + 1, math.ceil(math.log2(max(reach, 1e-300) / ODD)))
    outer = ODD * 2.0 ** torch.arange(SMALLEST, last + 1, dtype=torch.float64)
    inner = torch.cat([torch.zeros(1, dtype=torch.float64), outer[:-1]])
    left, right = torch.cat([-outer.flip(0), inner]), torch.cat([-inner.flip(0), outer])
    size = right - left
    largest = torch.zeros(())
    leaves: list[tuple[Tensor, Tensor, Tensor]] = []
    for level in range(LEVELS):
        missed, values = _missed(function, left, right)
        if level == 0:  # the largest value up to each distance from zero
            half = len(outer)
            by_distance = torch.maximum(values[:half].flip(0), values[half:]).cummax(0).values
            largest = torch.cat([by_distance.flip(0), by_distance])
        rough = missed > SMOOTH * largest
        rough &= (right - left) > 4e-16 * torch.maximum(left.abs(), right.abs())
        if level == LEVELS - 1 or int(rough.sum()) > MOST:
            rough = torch.zeros_like(rough)
        leaves.append((left[~rough], right[~rough], size[~rough]))
        if not bool(rough.any()):
            break
        middle = (left + right)[rough] / 2
        left, right = torch.cat([left[rough], middle]), torch.cat([middle, right[rough]])
        size, largest = size[rough].repeat(2), largest[rough].repeat(2)
    left, right, size = (torch.cat(parts) for parts in zip(*leaves))
    order = left.argsort()
    left, right, size = left[order], right[order], size[order]
    return list(_dips(left.tolist(), right.tolist(), size.tolist()))


def _dips(left: list[float], right: list[float], size: list[float]) -> list[tuple[float, float]]:
    """Runs of panels narrower than those on both sides of them."""
    widths = [b - a for a, b in zip(left, right)]
    found, i = [], 0
    while i < len(widths):
        j = i
        while j + 1 < len(widths) and 0.75 < widths[j + 1] / widths[i] < 1.5:
            j += 1
        narrower = (i == 0 or widths[i - 1] > 1.5 * widths[i]) and (
            j + 1 == len(widths) or widths[j + 1] > 1.5 * widths[j]
        )
        if narrower and widths[i] * STEEP <= size[i]:
            found.append((widths[i], (left[i] + right[j]) / 2))
        i = j + 1
    return found


def _missed(function: Function, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """What a polynomial through a few nodes of each panel misses between them, and the largest value on it."""
    nodes, between, matrix = _interpolation()
    middle, half = (left + right)[:, None] / 2, (right - left)[:, None] / 2
    values, expected = function(middle + half * nodes), function(middle + half * between)
    largest = torch.maximum(values.abs().amax(1), expected.abs().amax(1))
    return (values @ matrix.T - expected).abs().amax(1), largest


@lru_cache(maxsize=1)
def _interpolation() -> tuple[Tensor, Tensor, Tensor]:
    """Legendre nodes, points between them, and the matrix of the interpolating polynomial."""
    nodes = np.polynomial.legendre.leggauss(NODES)[0]
    between = np.polynomial.legendre.leggauss(NODES + 3)[0] * (1 - 1e-3)
    inverse = np.linalg.inv(np.polynomial.legendre.legvander(nodes, NODES - 1))
    matrix = np.polynomial.legendre.legvander(between, NODES - 1) @ inverse
    return torch.from_numpy(nodes), torch.from_numpy(between), torch.from_numpy(matrix)
