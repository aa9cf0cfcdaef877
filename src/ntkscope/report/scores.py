"""Scores: what an X-ray says of every training item, as files a program or a spreadsheet reads."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ntkscope.core.records.record_id import record_id
from ntkscope.report.document import save
from ntkscope.report.source import Source

CSV, JSON, FORMAT = "scores.csv", "scores.json", "ntkscope-scores"
COLUMNS = (
    "index",
    "original",
    "id",
    "label",
    "label_name",
    "suggested",
    "suggested_name",
    "score",
    "doubtful",
    "share",
)
_FORMULA = re.compile(r"[=+\-@\t\r]")


def write_scores(source: Source, folder: Path) -> tuple[str, ...]:
    """Write `scores.csv` and `scores.json` of all training items into `folder`; return their names, none without scores."""
    found = rows(source)
    if not found:
        return ()
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows({key: in_csv(value) for key, value in row.items()} for row in found)
    save("\ufeff" + out.getvalue(), folder / CSV, f"\ufeff{','.join(COLUMNS)}\r\n".encode())
    whole = {"format": FORMAT, "version": 1, "record": record_id(source.record), "items": found}
    save(
        json.dumps(whole, ensure_ascii=False, allow_nan=False) + "\n", folder / JSON, f'{{"format": "{FORMAT}"'.encode()
    )
    return CSV, JSON


def rows(source: Source) -> list[Mapping[str, Any]]:
    """One row per training item, the most doubtful label first.

    `index` is its place in the X-ray, `original` its place in the data, `score` above 0 means that a classifier trained without
    the item contradicts its label and says `suggested`, and `share` is its part in all predictions of the surrogate.
    """
    scores, labels = source.label_scores, source.array("labels.train")
    if scores is None or labels is None or labels.shape != scores.shape:
        return []
    both = (source.array(f"problems.{name}") for name in ("suggested", "share"))
    suggested, shares = (None if each is None or each.shape != scores.shape else each for each in both)
    found: list[Mapping[str, Any]] = []
    for i in np.argsort(-scores, kind="stable").tolist():
        label, other = int(labels[i]), None if suggested is None else int(suggested[i])
        found.append(
            {
                "index": i,
                "original": source.items.number("train", i),
                "id": source.items.identifier("train", i),
                "label": label,
                "label_name": source.class_name(label),
                "suggested": other,
                "suggested_name": None if other is None else source.class_name(other),
                "score": _finite(scores[i]),
                "doubtful": bool(scores[i] > 0),
                "share": None if shares is None else _finite(shares[i]),
            }
        )
    return found


def in_csv(value: Any) -> Any:
    """A value as a CSV file holds it; a text that a spreadsheet would evaluate gets an apostrophe in front.

    >>> in_csv("=1+1"), in_csv(None), in_csv(-2.5), in_csv(True)
    ("'=1+1", '', -2.5, 'true')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
