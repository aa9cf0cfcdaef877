"""The files of scores beside a page: every training item, safe for a spreadsheet."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from ntkscope.core import Record
from ntkscope.core.records.record_id import record_id
from ntkscope.report import write_page
from report.fixtures.xray import write_xray


def test_every_training_item_is_in_both_files(tmp_path: Path) -> None:
    folder = write_xray(tmp_path / "x", train=60, test=30)
    page = write_page(folder).read_text(encoding="utf-8")
    assert 'href="scores.csv"' in page
    record = Record.open(folder)
    whole = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    rows = list(csv.DictReader((folder / "scores.csv").read_text(encoding="utf-8-sig").splitlines()))
    assert whole["record"] == record_id(record)
    scores = np.asarray(record.arrays["problems.label_score"])
    assert sorted(item["index"] for item in whole["items"]) == list(range(60))
    assert [item["score"] for item in whole["items"]] == sorted(scores.tolist(), reverse=True)
    for row, item in zip(rows, whole["items"], strict=True):
        assert int(row["original"]) == item["original"] == item["index"] + 1000
        assert float(row["score"]) == item["score"] == scores[item["index"]]
        assert row["id"] == item["id"] == f"digits/train/{item['index']:04}.png"
        assert row["doubtful"] == str(scores[item["index"]] > 0).lower()


def test_names_that_look_like_formulas_are_no_formulas(tmp_path: Path) -> None:
    folder = write_xray(tmp_path / "x", kind="text", hostile=True, train=60, test=30)
    write_page(folder)
    text = (folder / "scores.csv").read_text(encoding="utf-8-sig")
    cells = {cell for row in csv.reader(text.splitlines()) for cell in row}
    assert any("HYPERLINK" in cell for cell in cells)
    assert not any(cell.startswith(("=", "@", "+")) for cell in cells)


def test_a_page_elsewhere_leaves_no_files_there(tmp_path: Path) -> None:
    folder = write_xray(tmp_path / "x", train=60, test=30)
    out = tmp_path / "elsewhere" / "page.html"
    out.parent.mkdir()
    assert "scores.csv" not in write_page(folder, out).read_text(encoding="utf-8").replace("more are in scores.csv", "")
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
