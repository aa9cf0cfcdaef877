"""The registry of measures: what each is a function of, and where its values lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ntkscope.core import Registry

Of = Literal[
    "two scores",
    "logits and labels",
    "two logits",
    "two logits and labels",
    "two outputs",
    "kernel and labels",
    "kernel decomposed and labels",  # costs an eigendecomposition, so an X-ray does not add it to every page
    "two kernels",
    "two subspaces",
    "two changes",
    "weights and tangents",
    "weights, initial weights and tangents",
    "features and labels",
    "features, labels and readout",
    "features, labels and decisions",
]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Measure:
    """A function from arrays to one number in [low, high]; `of` says which arrays, `best` is the value at perfect agreement."""

    func: Callable[..., float]
    of: Of
    low: float | int = -math.inf
    high: float | int = math.inf
    best: float | int | None = None

    def __call__(self, *arrays: Any, **options: Any) -> float:
        return self.func(*arrays, **options)


MEASURES: Registry[Measure] = Registry("measure")


def measure(
    name: str, *, of: Of, low: float | int = -math.inf, high: float | int = math.inf, best: float | int | None = None
) -> Callable[[F], F]:
    """Decorator: register a function as the measure `name` and return it unchanged."""

    def decorate(func: F) -> F:
        MEASURES.add(name, Measure(func, of, low, high, best))
        return func

    return decorate
