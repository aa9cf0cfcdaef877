"""A label review: what a page saved is read back; anything else is refused with what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doors.bounds import refused
from ntkscope.core import Record, UsageError
from ntkscope.core.errors import DataCorrupt
from ntkscope.core.records.record_id import record_id
from ntkscope.xray import Review, read_review
from ntkscope.xray.review import Decision

ROW = {"index": 4, "original": 40, "id": "a/b.png", "label": 1, "suggested": 2, "decision": "accept"}
GOOD: dict[str, Any] = {
    "format": "ntkscope-review",
    "version": 1,
    "record": "0123456789abcdef",
    "decisions": [ROW, {**ROW, "index": 5, "original": 50, "id": None, "decision": "reject"}],
}


def written(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_a_review_comes_back(tmp_path: Path) -> None:
    review = read_review(written(tmp_path / "r.json", GOOD))
    assert review.record == GOOD["record"]
    assert review.accepted == (Decision(4, 40, 1, 2, "accept", "a/b.png"),)
    assert review.rejected == (Decision(5, 50, 1, 2, "reject", None),)
    assert repr(review) == "Review(1 accepted, 1 rejected, 0 undecided)"


def test_csv_says_the_same(tmp_path: Path) -> None:
    lines = [
        "record,index,original,id,label,suggested,decision,label_name,suggested_name",
        '0123456789abcdef,4,40,a/b.png,1,2,accept,"x, y",z',
        "0123456789abcdef,5,50,,1,2,reject,x,z",
    ]
    csv = written(tmp_path / "r.csv", "\ufeff" + "\r\n".join(lines) + "\r\n")
    assert read_review(csv) == read_review(written(tmp_path / "r.json", GOOD))
    formula = written(tmp_path / "f.csv", "\r\n".join([lines[0], "0123456789abcdef,4,40,'=1+1,1,2,accept,x,z"]))
    assert read_review(formula).decisions[0].id == "=1+1"


def test_corrected_labels() -> None:
    review = Review(
        "x", (Decision(0, 2, 1, 3, "accept"), Decision(1, 0, 0, 3, "reject"), Decision(2, 1, 0, 3, "undecided"))
    )
    y = np.array([0, 0, 1])
    assert review.corrected(y).tolist() == [0, 0, 3]
    assert y.tolist() == [0, 0, 1]
    with pytest.raises(UsageError, match="item 2 has label 0, and the review is of label 1"):
        review.corrected(np.array([0, 0, 0]))
    with pytest.raises(UsageError, match="got 2 labels"):
        review.corrected(np.array([0, 0]))


LABELS: dict[str, tuple[Any, str]] = {
    "text": (np.array(["0", "0", "1"]), "got labels of type <U1"),
    "rows": (np.zeros((3, 2)), r"shape \(3, 2\)"),
    "nothing": (None, "got labels of type object"),
    "one number": (5, r"shape \(\)"),
    "halves": (np.array([0, 0, 1.5]), "item 2 has label 1.5"),
    "not a number": (np.array([0, 0, np.nan]), "item 2 has label nan"),
    "bits": (np.array([False, False, True]), "cannot hold the suggested label 300 of item 2"),
    "bytes": (np.array([0, 0, 1], dtype=np.uint8), "cannot hold the suggested label 300"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_that_cannot_be_corrected(name: str) -> None:
    """None of these is replaced by what fits, such as the text '3' or the byte 44."""
    review = Review("x", (Decision(0, 2, 1, 300, "accept"),))
    y, message = LABELS[name]
    with pytest.raises(UsageError, match=message):
        review.corrected(y)
    assert review.corrected([0, 0, 1]).tolist() == [0, 0, 300]
    assert review.corrected(np.array([0.0, 0.0, 1.0])).tolist() == [0, 0, 300]


@pytest.mark.parametrize("path", [None, 5, "a\0b", "a" * 5000])
def test_paths_that_are_none(path: Any) -> None:
    refused(lambda: read_review(path))


def test_a_review_belongs_to_one_xray(tmp_path: Path) -> None:
    record = Record.create(tmp_path / "x", kind="xray")
    Review(record_id(record), ()).check(record)
    with pytest.raises(UsageError, match="the review is of the X-ray nothing"):
        Review("nothing", ()).check(record)


def changed(**entries: Any) -> dict[str, Any]:
    return {**GOOD, **entries}


def row(**entries: Any) -> dict[str, Any]:
    return changed(decisions=[{**ROW, **entries}])


BAD: dict[str, Any] = {
    "empty": "",
    "not JSON": "{",
    "a list": [],
    "another format": changed(format="ntkscope-scores"),
    "another version": changed(version=2),
    "version by a flag": changed(version=True),
    "no record": {key: value for key, value in GOOD.items() if key != "record"},
    "decisions by name": changed(decisions={"4": "accept"}),
    "a decision that is none": row(decision="maybe"),
    "no decision": changed(decisions=[{key: value for key, value in ROW.items() if key != "decision"}]),
    "a negative item": row(original=-1),
    "half an item": row(index=0.5),
    "a label as text": row(label="1"),
    "an id as a number": row(id=3),
    "one item twice": changed(decisions=[ROW, ROW]),
    "NaN": '{"format": NaN}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_review_is_refused(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "r.json", BAD[name])
    message = refused(lambda: read_review(path))
    assert str(path) in message


HEAD = "record,index,original,label,suggested,decision"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "index,decision\n1,accept\n",
        f"{HEAD}\nx,1,1,a,2,accept\n",
        f"{HEAD}\nx,1,1,1,2,accept\ny,2,2,1,2,accept\n",
        f'{HEAD}\n"x,1,1,1,2,accept\n',
        f"{HEAD}\nx,1,1\n",
        f"{HEAD},decision\na,0,0,0,1,reject,accept\n",
        f"record,{HEAD}\na,b,0,0,0,1,accept\n",
        f"{HEAD}\na,0,0,0,1,accept,7\n",
        f"{HEAD}\na,²,0,0,1,accept\n",
    ],
)
def test_what_is_no_csv_of_a_review_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match=r"r\.csv"):
        read_review(written(tmp_path / "r.csv", text))


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_review(tmp_path / "none.json")
    with pytest.raises(DataCorrupt, match="is a folder"):
        read_review(tmp_path)
