"""Claims: the published value next to the measured one, and the verdict as a coloured word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ntkscope.core import Claim
from ntkscope.core.claims import VERDICTS
from ntkscope.report.markup import Markup, tag
from ntkscope.report.tables import Cell, table

KINDS = {"reproduced": "good", "not reproduced": "bad", "stand-in": "neither", "not testable here": "quiet"}


def pill(verdict: str, count: int | None = None) -> Markup:
    """A verdict as a coloured word, preceded by a count if one is given."""
    return tag("span", verdict if count is None else f"{count} {verdict}", class_=f"pill {KINDS.get(verdict, 'quiet')}")


def tally(claims: Sequence[Claim]) -> Markup:
    """How many claims have each verdict."""
    counts = Counter(claim.verdict for claim in claims)
    return tag("p", *(pill(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]), class_="tally")


def claims_table(claims: Sequence[Claim], *, before: Sequence[Sequence[Cell]] | None = None, **options: Any) -> Markup:
    """The claims, one per row, published next to measured; `before` adds columns on the left."""
    heads = ["Claim", "Source", "Published", "Measured", "Tolerance", "Verdict", "Note"]
    rows = [
        [
            Cell(tag("code", claim.id), claim.id),
            Cell(claim.source, claim.source),
            Cell.of(claim.published),
            Cell.of(claim.measured),
            Cell.of(claim.tolerance),
            Cell(pill(claim.verdict), claim.verdict),
            Cell(claim.note, claim.note, kind="wide soft"),
        ]
        for claim in claims
    ]
    if before is not None:
        heads = ["Record", *heads]
        rows = [[*first, *row] for first, row in zip(before, rows, strict=True)]
    return table(heads, rows, name="Claims", kind="claims", **{"export": "claims.csv", **options})
