"""The former way of a statement that one measurement decides; to go once `beaglehole_2024.early_time` has plain claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ntkscope.core import Claim, Record
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.results import rounded


@dataclass(frozen=True)
class TheoryClaim:
    published: Published
    measurement: str
    holds: Callable[[Mapping[str, Any]], bool]
    note: str = ""
    shown: tuple[str, ...] = ()


def theory_verdicts(claims: Iterable[TheoryClaim], record: Record, difference: str) -> Iterator[Claim]:
    for claim in claims:
        found = {key: value for key, value in record.metrics[claim.measurement].items() if key != "seconds"}
        shown = rounded({key: found[key] for key in claim.shown or found}, 4)
        yield claim.published.judged(shown, bool(claim.holds(found)), difference=difference, note=claim.note)
