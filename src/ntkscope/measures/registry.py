"""The registry of measures: what each is a function of, and where its values lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ntkscope.core import Registry
from ntkscope.core.checked import SQUARES, SUMS, checked

Of = Literal[
    "two scores",
    "logits and labels",
    "two logits",
    "two logits and labels",
    "two outputs",
    "kernel and labels",
    "two kernels",
    "two changes",
    "weights and tangents",
    "features and labels",
    "features, labels and readout",
    "features, labels and decisions",
]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Measure:
    """A function from arrays to one number in [low, high]; `of` says which arrays, `best` is the value at perfect agreement.

    Examples:
        >>> measure = MEASURES["agreement"]
        >>> measure.of, measure.best, measure([[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]])
        ('two logits', 1, 0.5)
    """

    func: Callable[..., float]
    of: Of
    low: float | int = -math.inf
    high: float | int = math.inf
    best: float | int | None = None

    def __call__(self, *arrays: Any, **options: Any) -> float:
        return self.func(*arrays, **options)


MEASURES: Registry[Measure] = Registry("measure")


def measure(
    name: str,
    *,
    of: Of,
    low: float | int = -math.inf,
    high: float | int = math.inf,
    best: float | int | None = None,
    squares: bool = False,
) -> Callable[[F], F]:
    """Decorator: have a function check its arguments, register it as the measure `name` and return it.

    Examples:
        >>> from ntkscope.core.checked import Numbers
        >>> @measure("largest-difference", of="two scores", low=0, best=0)
        ... def largest_difference(a: Numbers, b: Numbers) -> float:
        ...     return float(np.abs(np.subtract(a, b)).max())
        >>> largest_difference([1.0, 2.0], [1.0, 5.0])
        3.0
    """

    def decorate(func: F) -> F:
        func = checked(func, SQUARES if squares else SUMS)
        MEASURES.add(name, Measure(func, of, low, high, best))
        return func

    return decorate
