"""Verdicts on statements that one measurement each decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ntkscope.core import Claim, Record
from ntkscope_papers.qadeer_2023.networks import digits
from ntkscope_papers.qadeer_2023.theory_claims import TheoryClaim


def theory_verdicts(claims: Iterable[TheoryClaim], record: Record, difference: str) -> Iterator[Claim]:
    """Every check on what the record holds."""
    for claim in claims:
        found = {key: value for key, value in record.metrics[claim.measurement].items() if key != "seconds"}
        shown = rounded({key: found[key] for key in claim.shown or found})
        yield claim.published.judged(shown, bool(claim.holds(found)), difference=difference, note=claim.note)


def rounded(value: Any) -> Any:
    """Numbers of a result to four digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return digits(value, 4) if isinstance(value, float) else value
