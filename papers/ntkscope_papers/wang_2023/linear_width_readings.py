"""What a record of `linear-width` says: scores by case, spectra, classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ntkscope.core import Record
from ntkscope_papers.framework.results import summary

Member = Mapping[str, Any]
CASES = ("case1", "case2", "case3", "case4", "lazy")


def key_of(case: str, zero: bool = False) -> str:
    """The leg of a case, at τ = 0 or as published.

    >>> key_of("lazy"), key_of("case1"), key_of("case1", zero=True)
    ('lazy', 'table8/case1', 'tau-zero/case1')
    """
    if zero:
        return f"tau-zero/{case}"
    return case if case == "lazy" else f"table8/{case}"


def members(record: Record, key: str) -> list[Member]:
    """The networks of a leg that did not diverge."""
    return [one for one in record.metrics[key]["members"] if not one.get("diverged")]


def missing(record: Record, *keys: str) -> tuple[str, ...]:
    return tuple(key for key in keys if key not in record.metrics)


def average(values: Iterable[float]) -> float:
    """Their mean; NaN without any."""
    several = list(values)
    return summary(several)["mean"] if several else float("nan")


def row(record: Record, case: str, zero: bool = False) -> dict[str, float]:
    """R² and test error of a case, means over seeds with the standard error of R²."""
    found = members(record, key_of(case, zero))
    r2 = summary(one["r2"] for one in found) if found else {"mean": float("nan"), "sem": 0.0, "n": 0}
    return {
        "r2": r2["mean"],
        "r2_sem": r2["sem"],
        "test_error": average(one["test_error"] for one in found),
        "networks": r2["n"],
        "diverged": len(record.metrics[key_of(case, zero)]["members"]) - len(found),
    }


def labels(record: Record, case: str, kind: str = "weights") -> dict[str, int]:
    """How often each class was given."""
    found: dict[str, int] = {}
    for one in members(record, key_of(case)):
        label = one["classes"][kind]["label"]
        found[label] = found.get(label, 0) + 1
    return found


def mostly(found: Mapping[str, int], label: str) -> bool:
    """Whether `label` was given to at least four of five."""
    return bool(found) and found.get(label, 0) >= 0.8 * sum(found.values())


def in_order(record: Record, zero: bool) -> tuple[dict[str, float], bool, int, int]:
    """R² by case, whether their means are ordered as published, and in how many seeds of how many they are."""
    values = {case: row(record, case, zero)["r2"] for case in CASES}
    each = list(zip(*(record.metrics[key_of(case, zero)]["members"] for case in CASES)))
    complete = [seed for seed in each if not any(one.get("diverged") for one in seed)]
    holding = sum(ordered(dict(zip(CASES, (one["r2"] for one in seed)))) for seed in complete)
    return values, ordered(values), holding, len(each)


def ordered(r2: Mapping[str, float]) -> bool:
    """min(case 4, case 3) above lazy above max(case 1, case 2)."""
    return min(r2["case3"], r2["case4"]) > r2["lazy"] > max(r2["case1"], r2["case2"])
