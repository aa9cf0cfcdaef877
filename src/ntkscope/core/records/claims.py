"""A claim: one published number or statement, what was measured here, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from ntkscope.core.errors import RecordError, UsageError

Verdict: TypeAlias = Literal["reproduced", "not reproduced", "stand-in", "not testable here"]
HOLDS, FAILS, SMALL = "the check holds", "the check does not hold", "too small to judge"  # how a stand-in's note begins
VERDICTS: tuple[str, ...] = get_args(Verdict)
OUTCOMES = (  # the verdicts in the words of pages and totals
    *("reproduced", "not reproduced", "reproduced on a stand-in", "not reproduced on a stand-in"),
    *("stand-in, not judged", "not testable here"),
)


@dataclass(frozen=True)
class Claim:
    """What a document says, what a run measured, and the verdict.

    `published`, `measured` and `tolerance` are numbers, texts, or lists and mappings of them. A *stand-in* was measured
    on a smaller or different setting than the published one, perhaps one too small to judge it; *not testable here*: its
    data or machine is missing, so it has no measured value.

    Examples:
        >>> claim = Claim("relu-t1-1nn", "Table 1", published=0.741, measured=0.744, tolerance=0.01, verdict="reproduced")
        >>> Claim.from_json(claim.to_json()) == claim
        True
        >>> Claim("relu-t1-1nn", "Table 1", 0.741, 0.5, 0.01, verdict="maybe")
        Traceback (most recent call last):
        ...
        ntkscope.core.errors.UsageError: claim 'relu-t1-1nn' has verdict 'maybe'; expected one of: reproduced, ...
    """

    id: str
    source: str
    published: Any
    measured: Any
    tolerance: Any
    verdict: str
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("id", "source", "note"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"claim {self.id!r} has {name} {getattr(self, name)!r}; expected a text")
        if not self.id.strip():
            raise UsageError("got a claim without an id; give it the id it has in the ledger of claims")
        if self.verdict not in VERDICTS:
            raise UsageError(f"claim {self.id!r} has verdict {self.verdict!r}; expected one of: {', '.join(VERDICTS)}")
        if self.verdict == "not testable here" and self.measured is not None:
            raise UsageError(
                f"claim {self.id!r} is 'not testable here' but has measured {self.measured!r};"
                " leave measured=None, or call it a 'stand-in'"
            )
        if self.verdict != "not testable here" and self.measured is None:
            raise UsageError(f"claim {self.id!r} is {self.verdict!r} without a measured value; say what was measured")

    @property
    def holds(self) -> bool | None:
        """Whether its check held, also where only a stand-in was measured; None if nothing was checked.

        Examples:
            >>> Claim("a", "Table 1", 1, 2, "at least 3", "stand-in", "the check does not hold; 1 of 5 networks").holds
            False
        """
        if self.verdict in ("reproduced", "not reproduced"):
            return self.verdict == "reproduced"
        if self.verdict == "stand-in" and self.note.startswith((HOLDS, FAILS)):
            return self.note.startswith(HOLDS)
        return None

    @property
    def outcome(self) -> str:
        """The verdict, and of a stand-in whether its check held, in the words of pages and totals.

        Examples:
            >>> Claim("a", "Table 1", 1, 2, "at least 3", "stand-in", "the check does not hold; another network").outcome
            'not reproduced on a stand-in'
        """
        if self.verdict != "stand-in":
            return self.verdict
        words = {True: "reproduced on a stand-in", False: "not reproduced on a stand-in", None: "stand-in, not judged"}
        return words[self.holds]

    @property
    def too_small(self) -> bool:
        """Whether it was measured at a scale that tries the mechanics alone, where its check says nothing."""
        return self.verdict == "stand-in" and self.note.startswith(SMALL)

    def to_json(self) -> dict[str, Any]:
        """The claim as a mapping, keys in the order of the fields."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Claim:
        """The claim a mapping holds; unknown and missing keys are errors."""
        if not isinstance(value, Mapping):
            raise RecordError(f"got a {type(value).__name__} as a claim; expected an object with the fields of a claim")
        known = [field.name for field in fields(cls)]
        missing = [name for name in known if name not in value and name != "note"]
        unknown = [name for name in value if name not in known]
        if missing or unknown:
            raise RecordError(
                f"claim {value.get('id', '?')!r} lacks {', '.join(missing) or 'nothing'}"
                f" and has unknown {', '.join(unknown) or 'nothing'}; expected: {', '.join(known)}"
            )
        return cls(**value)
