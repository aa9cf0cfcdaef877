"""Means of traces of words in A, B and R = Wᵀ diag(a²) W over Gaussian W and a, exact at any size.

R = Σ_s a_s² w_s w_sᵀ, so a word with p factors R is a polynomial in Gaussian numbers, and its mean a sum over the (2p - 1)!!
pairings of its 2p vectors w (Isserlis): each pairing closes loops, which are traces of words in A and B alone, and the units
s of the p factors may coincide at will as long as paired vectors belong to one unit. Free probability keeps those pairings
that survive d, k → ∞ with bounded spectra; data with a few dominating directions need the others too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from jaxtyping import Float64
from torch import Tensor

Square = Float64[Tensor, "d d"]


def _pairings(legs: tuple[int, ...]) -> Iterator[dict[int, int]]:
    """Every way to pair the legs, as a map from each to its partner."""
    if not legs:
        yield {}
        return
    first, rest = legs[0], legs[1:]
    for i, other in enumerate(rest):
        for smaller in _pairings(rest[:i] + rest[i + 1 :]):
            yield {first: other, other: first, **smaller}


def canonical(word: Sequence[str]) -> str:
    """Words of symmetric letters with one trace: the least among rotations and their reversals.

    >>> canonical("BAA"), canonical("BABA")
    ('AAB', 'ABAB')
    """
    text = "".join(word)
    turned = [text[i:] + text[:i] for i in range(len(text))]
    return min(turned + [one[::-1] for one in turned])


def _loops(letters: str, partner: Mapping[int, int]) -> list[str]:
    """Words that a pairing closes. Leg 2i is left of factor i (it follows letter i), leg 2i + 1 right of it."""
    p = len(letters)
    left = set(range(p))
    found = []
    while left:
        at, forward, word = min(left), True, []
        while at in left:
            left.remove(at)
            word.append(letters[at])
            other = partner[2 * at if forward else (2 * at - 1) % (2 * p)]
            # An odd leg stands before the next letter, which is entered from its left; an even one after its own.
            forward = other % 2 == 1
            at = (other // 2 + 1) % p if forward else other // 2
        found.append(canonical(word))
    return sorted(found)


def _components(p: int, partner: Mapping[int, int]) -> list[int]:
    """Which factors share a unit because their vectors are paired: a label for each."""
    label = list(range(p))
    for one, other in partner.items():
        new, old = label[one // 2], label[other // 2]
        label = [new if x == old else x for x in label]
    return label


def _partitions(sizes: list[int]) -> Iterator[list[int]]:
    """Every way to merge components, as the sizes of what comes out."""
    if not sizes:
        yield []
        return
    first, rest = sizes[0], sizes[1:]
    for merged in _partitions(rest):
        yield [first, *merged]
        for i in range(len(merged)):
            yield [*merged[:i], merged[i] + first, *merged[i + 1 :]]


@lru_cache(maxsize=64)
def _diagrams(letters: str) -> tuple[tuple[tuple[str, ...], tuple[int, ...], int], ...]:
    """Loops of a pairing, sizes of the groups of factors that share a unit, and how often both occur together."""
    p = len(letters)
    found: Counter[tuple[tuple[str, ...], tuple[int, ...]]] = Counter()
    for partner in _pairings(tuple(range(2 * p))):
        label = _components(p, partner)
        loops = tuple(_loops(letters, partner))
        for blocks in _partitions([label.count(x) for x in sorted(set(label))]):
            found[loops, tuple(sorted(blocks))] += 1
    return tuple((loops, blocks, count) for (loops, blocks), count in found.items())


def mean_word(letters: str, traces: Mapping[str, float], width: int) -> float:
    """E[Tr(a₁ R a₂ R … a_p R)] from the traces (not normalised) of words in the letters.

    >>> mean_word("I", {"I": 3.0}, 5)  # E[Tr R] = d
    3.0
    >>> round(mean_word("II", {"I": 3.0, "II": 3.0}, 5), 6)  # 3 d (d + 2) / k + (1 - 1/k) d
    11.4
    """
    total = 0.0
    for loops, blocks, count in _diagrams(letters):
        units = math.prod((width - i) / width for i in range(len(blocks)))  # choices of distinct units
        even = (math.prod(range(1, 2 * m, 2)) for m in blocks)  # E[a^(2m)] of a standard normal: (2m - 1)!!
        moments = math.prod(even) / width ** (len(letters) - len(blocks))
        total += count * units * moments * math.prod(traces[loop] for loop in loops)
    return total


def words_of(A: Square, B: Square) -> dict[str, float]:
    """Tr of every word that a mean of Eqs. 17, 21 and 23 needs; three products of d × d matrices."""
    ab, aa, bb = A @ B, A @ A, B @ B

    def tr(left: Square, right: Square) -> float:
        return float((left * right.T).sum())

    return {
        "A": float(A.trace()),
        "B": float(B.trace()),
        "AA": float(aa.trace()),
        "AB": float(ab.trace()),
        "BB": float(bb.trace()),
        "AAB": tr(aa, B),
        "ABB": tr(A, bb),
        "AABB": tr(aa, bb),
        "ABAB": tr(ab, ab),
    }


def mean_moments(dimension: int, width: int) -> tuple[float, ...]:
    """E tr[R^p], p = 1 … 4, normalised, at these sizes.

    >>> [round(value, 3) for value in mean_moments(1024, 1024)]
    [1.0, 4.005, 25.094, 203.584]
    """
    traces = {"I" * p: float(dimension) for p in range(1, 5)}
    return tuple(mean_word("I" * p, traces, width) / dimension for p in range(1, 5))
