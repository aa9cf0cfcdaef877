"""Traces of words in a free element by non-crossing partitions: the definition, for a handful of letters.

tr(a₁ r a₂ r … a_n r) = Σ_π κ_π Π_{cycles of π⁻¹γ} tr(letters), over non-crossing π, γ = (1 2 … n). Nica & Speicher (2006),
Theorem 14.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for smaller in partitions(rest):
        yield [[first], *smaller]
        for i, block in enumerate(smaller):
            yield [*smaller[:i], sorted([first, *block]), *smaller[i + 1 :]]


def cycles(permutation: Sequence[int]) -> list[list[int]]:
    left, found = set(range(len(permutation))), []
    while left:
        start = min(left)
        cycle, at = [], start
        while at in left:
            left.remove(at)
            cycle.append(at)
            at = permutation[at]
        found.append(cycle)
    return found


def non_crossing(n: int) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """Every non-crossing partition of n points and its Kreweras complement."""
    for blocks in partitions(list(range(n))):
        before = [0] * n  # π⁻¹
        for block in blocks:
            for i, item in enumerate(block):
                before[item] = block[i - 1]
        complement = cycles([before[(i + 1) % n] for i in range(n)])
        if len(blocks) + len(complement) == n + 1:
            yield blocks, complement


def moment(cumulants: Sequence[float], n: int) -> float:
    """tr[rⁿ]."""
    total = 0.0
    for blocks, _ in non_crossing(n):
        term = 1.0
        for block in blocks:
            term *= cumulants[len(block) - 1]
        total += term
    return total


def word(letters: Sequence[Tensor], cumulants: Sequence[float]) -> float:
    """tr(a₁ r a₂ r … a_n r) for r free of the letters."""
    n, d = len(letters), len(letters[0])
    between = [letters[(i + 1) % n] for i in range(n)]
    total = 0.0
    for blocks, complement in non_crossing(n):
        term = 1.0
        for block in blocks:
            term *= cumulants[len(block) - 1]
        for cycle in complement:
            product = torch.eye(d, dtype=torch.float64)
            for i in cycle:
                product = product @ between[i]
            term *= float(product.trace()) / d
        total += term
    return total
