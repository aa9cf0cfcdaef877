"""Tables 1 and 2 of Balakrishnan (2023) as printed, and what their intervals say of the number of items behind them."""

from __future__ import annotations

from typing import Any

from ntkscope.measures.uncertainty import normal_quantile, wald_trials, wilson

# accuracy and half-width in the empty orthant, then in the others
TABLE_1: dict[str, tuple[float, float, float, float]] = {
    "Linear SVM": (0.5, 0.0, 0.5, 0.0),
    "RBF SVM": (0.5, 0.0, 1.0, 0.0),
    "1-NN": (0.741, 0.00384, 0.9333, 0.002186),
    "1-NTK": (0.705, 0.003997, 0.8757, 0.002891),
    "2-NN": (0.558, 0.004353, 0.8874, 0.002771),
    "2-NTK": (0.54, 0.004368, 0.8514, 0.003118),
    "3-NN": (0.829, 0.0033, 0.9773, 0.001304),
    "3-NTK": (0.702, 0.004009, 0.73, 0.003891),
    "4-NN": (0.5, 0.0, 0.8951, 0.002685),
    "4-NTK": (0.498, 0.004382, 0.8487, 0.00314),
    "5-NN": (0.5, 0.0, 0.9923, 0.0007651),
    "5-NTK": (0.5, 0.0, 0.815, 0.003403),
}
# by depth: class 0 before and after training, class 1 before and after, each with its half-width
TABLE_2: dict[int, tuple[tuple[float, float], ...]] = {
    1: ((0.0, 0.0), (0.0, 0.0), (1.0, 0.0), (1.0, 0.0)),
    2: ((0.0, 0.0), (0.1348, 0.02969), (1.0, 0.0), (0.9386, 0.02069)),
    3: ((0.03557, 0.01578), (0.7957, 0.03513), (0.9863, 0.009457), (0.8771, 0.02852)),
    4: ((0.0, 0.0), (0.03358, 0.01532), (0.9724, 0.01385), (0.9863, 0.009457)),
    5: ((0.0, 0.0), (0.0, 0.0), (1.0, 0.0), (1.0, 0.0)),
}
ENTRIES = ("class 0 initial", "class 0 final", "class 1 initial", "class 1 final")
POOLED = 500  # 100 items of a class in each of five runs
PRINTED = 4  # significant digits
NEAR = 0.02  # a recovered count this near a whole number is one


def implied_counts() -> dict[str, Any]:
    """The n of every non-zero half-width of Table 1, if it is 1.96 sqrt(p (1 - p) / n)."""
    found: dict[str, list[int]] = {"empty": [], "remaining": []}
    for values in TABLE_1.values():
        for name, share, half in zip(found, values[::2], values[1::2]):
            if half > 0:
                found[name].append(round(wald_trials(share, half)))
    every = found["empty"] + found["remaining"]
    return {**found, "entries": len(every), "largest deviation from 50,000": max(abs(n / 50_000 - 1) for n in every)}


def recovered_counts() -> dict[str, Any]:
    """The counts of 500 behind Table 2's entries, read as Wilson centres, and whether both numbers come back as printed.

    Entries of 0 ± 0 and 1 ± 0 break the rule: Wilson's half-width is never 0.
    """
    square = normal_quantile(0.95) ** 2
    counts, same, whole, degenerate = {}, [], [], 0
    for depth, entries in TABLE_2.items():
        for name, (centre, half) in zip(ENTRIES, entries):
            if half == 0:
                degenerate += 1
                continue
            exact = centre * (POOLED + square) - square / 2
            count = round(exact)
            again = wilson(count, POOLED)
            counts[f"depth {depth}, {name}"] = count
            whole.append(abs(exact - count) <= NEAR + 0.5 * 10.0**-PRINTED * (POOLED + square))
            same.append(all(_printed(a) == _printed(b) for a, b in zip(again, (centre, half))))
    return {
        "counts of 500": counts,
        "entries as printed": sum(same),
        "whole counts": sum(whole),
        "entries": len(same),
        "entries of 0 ± 0 or 1 ± 0": degenerate,
    }


def _printed(value: float) -> str:
    return f"{value:.{PRINTED}g}"
