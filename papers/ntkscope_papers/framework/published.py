"""A published statement as an experiment file writes it down, and how it becomes a claim of a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ntkscope.core import Claim
from ntkscope.core.claims import FAILS, HOLDS

PREFIX = "surrogate-"  # paper 1 of the report on the mathematics of machine learning
UNDECIDED = "no threshold is published; reported only"


@dataclass(frozen=True)
class Published:
    """A published statement: the claim's id in the ledger, its source, its figures, and the check for a verdict.

    `stand_in` says why the published setting is not available at all (another data set, another encoder); empty if it is.
    `seeds` is how many networks the check needs; a verdict from fewer is a stand-in.
    """

    id: str
    source: str
    values: Any
    check: str
    stand_in: str = ""
    seeds: int = 1

    def judged(
        self, measured: Any, holds: bool | None, *, difference: str = "", note: str = "", seeds: int | None = None
    ) -> Claim:
        """The claim: *reproduced* or *not reproduced* in the published setting, else a *stand-in* that says what held.

        `holds=None` is for statements without a threshold, `measured=None` for what could not be measured; `seeds` is how
        many networks were measured, where that can be fewer than the check asks for.

        >>> claim = Published("surrogate-x", "Table 9", 0.7, "at least 0.6")
        >>> claim.judged(0.65, True).verdict, claim.judged(0.65, True, difference="seeds=1 instead of 5").verdict
        ('reproduced', 'stand-in')
        """
        if measured is None:
            return Claim(self.id, self.source, self.values, None, self.check, "not testable here", note)
        few = f"{seeds} network(s) where the check asks for {self.seeds}" if (seeds or self.seeds) < self.seeds else ""
        why = "; ".join(text for text in (self.stand_in, difference, few) if text)
        if holds is None:
            verdict, said = "stand-in", UNDECIDED
        elif why:
            verdict, said = "stand-in", HOLDS if holds else FAILS
        else:
            verdict, said = "reproduced" if holds else "not reproduced", ""
        words = "; ".join(text for text in (said, why, note) if text)
        return Claim(self.id, self.source, self.values, measured, self.check, verdict, words)
