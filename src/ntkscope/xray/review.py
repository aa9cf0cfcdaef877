"""A label review: the decisions a person made on an X-ray's page, read back from the file the page saved."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from ntkscope.core import Record, UsageError
from ntkscope.core.arguments import path_of
from ntkscope.core.errors import DataCorrupt
from ntkscope.core.files.safe_files import parse_json, read_bytes
from ntkscope.core.files.schema import Mismatch, fields, list_of, one_of, optional, text, whole
from ntkscope.core.records.record_id import record_id

DECISIONS = ("accept", "reject", "undecided")
LARGEST = 1 << 26  # bytes of a review
MOST = 1_000_000  # decisions
NUMBERS = ("index", "original", "label", "suggested")
REMEDY = "save the review again from the page of its X-ray"

_decision = fields({**dict.fromkeys(NUMBERS, whole()), "decision": one_of(*DECISIONS)}, {"id": optional(text())})
_review = fields(
    {
        "format": one_of("ntkscope-review"),
        "version": one_of(1),
        "record": text(),
        "decisions": list_of(_decision, MOST),
    }
)


@dataclass(frozen=True)
class Decision:
    """What was decided about one training item: `accept` the suggested label, `reject` it, or `undecided`.

    `index` is its place in the X-ray, `original` its place in the data, `id` the user's own name for it if the data had one.
    """

    index: int
    original: int
    label: int
    suggested: int
    decision: str
    id: str | None = None


@dataclass(frozen=True)
class Review:
    """The decisions on the doubtful labels of one X-ray, `record` by its id.

    Examples:
        >>> review = Review("0" * 16, (Decision(0, 2, label=1, suggested=3, decision="accept"),))
        >>> review, review.accepted[0].suggested
        (Review(1 accepted, 0 rejected, 0 undecided), 3)
    """

    record: str
    decisions: tuple[Decision, ...]

    @property
    def accepted(self) -> tuple[Decision, ...]:
        """The items whose label is to be replaced by the suggested one."""
        return tuple(each for each in self.decisions if each.decision == "accept")

    @property
    def rejected(self) -> tuple[Decision, ...]:
        """The items whose label was confirmed."""
        return tuple(each for each in self.decisions if each.decision == "reject")

    def corrected(self, y: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The labels of the whole training set with the accepted suggestions in place; a label that differs from the one
        reviewed is an error, as are an item that is not there and a suggestion that the labels' type cannot hold.

        Examples:
            >>> review = Review("0" * 16, (Decision(0, 2, label=1, suggested=3, decision="accept"),))
            >>> review.corrected(np.array([0, 0, 1])).tolist()
            [0, 0, 3]
        """
        labels = np.array(y, copy=True)
        if labels.ndim != 1 or labels.dtype.kind not in "biuf":
            raise UsageError(
                f"got labels of type {labels.dtype} and shape {labels.shape}; expected a whole number per item: the labels"
                " that were X-rayed"
            )
        for each in self.accepted:
            if each.original >= len(labels):
                raise UsageError(
                    f"got {len(labels)} labels, and the review is of item {each.original}; expected the labels of the whole"
                    " training set, in its order"
                )
            if labels[each.original] != each.label:
                raise UsageError(
                    f"item {each.original} has label {labels[each.original]}, and the review is of label {each.label};"
                    " expected the labels that were X-rayed, in their order"
                )
            labels[each.original] = np.array(each.suggested).astype(labels.dtype)
            if labels[each.original] != each.suggested:
                raise UsageError(
                    f"got labels of type {labels.dtype}, which cannot hold the suggested label {each.suggested} of item"
                    f" {each.original}; expected labels of type int64"
                )
        return labels

    def check(self, record: Record) -> None:
        """Raise a `UsageError` unless this is a review of `record`."""
        if self.record != record_id(record):
            raise UsageError(
                f"the review is of the X-ray {self.record}, and {record.folder} holds {record_id(record)}; expected the X-ray"
                " the review was made from"
            )

    def __repr__(self) -> str:
        open_ = len(self.decisions) - len(self.accepted) - len(self.rejected)
        return f"Review({len(self.accepted)} accepted, {len(self.rejected)} rejected, {open_} undecided)"


def read_review(path: str | Path) -> Review:
    """A review that was saved from a page, as JSON or CSV; anything else is a `DataCorrupt` that says what is wrong.

    Examples:
        >>> import json
        >>> decision = {"index": 0, "original": 2, "label": 1, "suggested": 3, "decision": "accept"}
        >>> saved = {"format": "ntkscope-review", "version": 1, "record": "0" * 16, "decisions": [decision]}
        >>> _ = Path(folder + ".json").write_text(json.dumps(saved))
        >>> read_review(folder + ".json").corrected(np.array([0, 0, 1]))
        array([0, 0, 3])
    """
    path = path_of(path, "path")
    try:
        content = read_bytes(path, DataCorrupt, limit=LARGEST)
    except OSError as error:
        raise UsageError(
            f"cannot read {str(path)[:300]}: {error.strerror}; expected a review saved from a page"
        ) from error
    value = _from_csv(content, path) if path.suffix.lower() == ".csv" else parse_json(content, str(path), DataCorrupt)
    try:
        _review(value, "")
    except Mismatch as error:
        raise DataCorrupt(f"{path} is not a label review: {str(error).strip()}; {REMEDY}") from error
    rows = value["decisions"]
    twice = len(rows) - len({row["index"] for row in rows}) or len(rows) - len({row["original"] for row in rows})
    if twice:
        raise DataCorrupt(f"{path} decides {twice} items more than once; expected one decision per item: {REMEDY}")
    found = (Decision(**{key: row.get(key) for key in (*NUMBERS, "decision", "id")}) for row in rows)
    return Review(value["record"], tuple(found))


def _from_csv(content: bytes, path: Path) -> Mapping[str, Any]:
    """The same content as the JSON form has."""
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        names, rows = list(reader.fieldnames or ()), list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataCorrupt(f"{path} is not a CSV file in UTF-8 ({error}); {REMEDY}") from error
    wrong = [name for name in ("record", *NUMBERS, "decision") if names.count(name) != 1]
    if wrong:
        raise DataCorrupt(f"{path} has no column {', '.join(wrong)}, or several; expected a label review: {REMEDY}")
    if any(None in row for row in rows):
        raise DataCorrupt(f"{path} has rows with more values than columns; expected a label review: {REMEDY}")
    records = {row["record"] for row in rows}
    if len(records) != 1:
        raise DataCorrupt(f"{path} has decisions on {len(records)} X-rays; expected those on one: {REMEDY}")
    decisions = [
        {
            **{name: _whole(row[name]) for name in NUMBERS},
            "decision": row["decision"],
            "id": _plain(row.get("id")),
        }
        for row in rows
    ]
    return {"format": "ntkscope-review", "version": 1, "record": records.pop(), "decisions": decisions}


def _whole(value: str | None) -> Any:
    """A whole number if it is written as one, else the text, which the schema refuses."""
    return int(value) if value is not None and value.isascii() and value.isdigit() and len(value) <= 15 else value


def _plain(value: str | None) -> str | None:
    """A text without the apostrophe that keeps a spreadsheet from evaluating it."""
    if not value:
        return None
    return value[1:] if value[0] == "'" and value[1:2] in tuple("=+-@\t\r") and value[1:] else value
