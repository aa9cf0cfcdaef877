"""Several tests at once: p-values corrected so that all together err as rarely as one."""

from __future__ import annotations

from collections.abc import Sequence

from ntkscope.core.arguments import number


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) p-values: the k-th smallest of m times m - k + 1, never below the ones before, at most 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    p_values = [number(p, "a p-value", low=0, high=1) for p in p_values]
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    out, highest = [0.0] * len(p_values), 0.0
    for place, k in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[k]))
        out[k] = highest
    return out
