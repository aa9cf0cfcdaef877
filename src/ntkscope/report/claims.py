"""Claims: the published value next to the measured one, and the verdict as a coloured word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ntkscope.core import Claim
from ntkscope.core.records.claims import OUTCOMES, SMALL
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import NONE, plain
from ntkscope.report.tables import Cell, table

KINDS = dict(zip(OUTCOMES, ("good", "bad", "good", "bad", "neither", "quiet"), strict=True))
SHOWN = 4  # entries of a value that are shown; the rest is folded
LONG = 160  # characters of a text that are shown


def pill(verdict: str, count: int | None = None) -> Markup:
    """A verdict as a coloured word, preceded by a count if one is given."""
    return tag(
        "span", verdict if count is None else f"{count:,} {verdict}", class_=f"pill {KINDS.get(verdict, 'quiet')}"
    )


def tally(claims: Sequence[Claim]) -> Markup:
    """How many claims have each outcome, and how many of them are too small to judge."""
    small = sum(claim.too_small for claim in claims)
    more = [tag("span", f"{small} of the stand-ins {SMALL}", class_="pill quiet")] if small else []
    return tag("p", *outcomes(claims), *more, class_="tally")


def outcomes(claims: Sequence[Claim]) -> list[Markup]:
    """A coloured count of each outcome that there is."""
    counts = Counter(claim.outcome for claim in claims)
    return [pill(outcome, counts[outcome]) for outcome in OUTCOMES if counts[outcome]]


def verdict(claim: Claim) -> Markup:
    """The outcome of a claim, and whether it is too small to judge."""
    small = [" ", tag("span", SMALL, class_="pill quiet")] if claim.too_small else []
    return join([pill(claim.outcome), *small])


def claims_table(claims: Sequence[Claim], *, before: Sequence[Sequence[Cell]] | None = None, **options: Any) -> Markup:
    """The claims, one per row: published, measured and verdict side by side; `before` adds columns on the left.

    The rest (source, tolerance, note) stands below the verdict; long values are folded.
    """
    heads = ["Claim", "Published", "Measured", "Verdict", "Source", "Check", "Note"]  # the last three for exports
    rows = [
        [
            Cell(
                join([tag("code", claim.id), tag("small", claim.source, class_="range")]), claim.id, kind="claim-name"
            ),
            _value(claim.published, "published"),
            _value(claim.measured, "measured"),
            Cell(join([verdict(claim), *_about(claim)]), claim.outcome, kind="claim-verdict"),
            Cell("", claim.source, kind="only-export"),
            Cell("", plain(claim.tolerance, 2000), kind="only-export"),
            Cell("", claim.note, kind="only-export"),
        ]
        for claim in claims
    ]
    if before is not None:
        heads = ["Record", *heads]
        rows = [[*first, *row] for first, row in zip(before, rows, strict=True)]
    return table(heads, rows, name="Claims", kind="claims", **{"export": "claims.csv", **options})


def _about(claim: Claim) -> list[Markup]:
    """The check and the note, the note folded if it is long."""
    found = []
    if claim.tolerance is not None:
        found.append(tag("div", tag("b", "Check: "), _short(plain(claim.tolerance, 2000)), class_="small soft"))
    if claim.note:
        found.append(tag("div", _short(claim.note), class_="small soft"))
    return found


def _value(value: Any, kind: str) -> Cell:
    """A value; of a mapping the first entries as a list of terms, the others folded."""
    sorted_by = plain(value, 2000) if isinstance(value, (Mapping, list, tuple)) else value
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Cell(_shown(value), sorted_by, numeric, kind=f"claim-value {kind}")


def _shown(value: Any) -> Any:
    if value is None:
        return NONE
    if not isinstance(value, Mapping):
        return _short(plain(value, 2000))
    rows = [tag("div", tag("dt", str(key)), tag("dd", _short(plain(item, 2000)))) for key, item in value.items()]
    first, rest = rows[:SHOWN], rows[SHOWN:]
    more = None
    if rest:
        more = tag("details", tag("summary", f"{len(rest):,} more"), tag("dl", *rest, class_="terms tight"))
    return join([tag("dl", *first, class_="terms tight"), more])


def _short(words: str) -> Any:
    """A text; one that is long begins with its first words and can be unfolded."""
    if len(words) <= LONG:
        return words
    cut = words.rfind(" ", 0, LONG - 20)
    cut = cut if cut > LONG // 2 else LONG - 20
    return tag("details", tag("summary", words[:cut], " …"), words[cut:], class_="long")
