"""Pages made of records: filled twice they are the same, they show what the records say, and none is out of date."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from ntkscope.core import Claim, Record, UsageError
from ntkscope.experiments import EXPERIMENTS
from ntkscope_papers.framework.cells import as_cell
from ntkscope_papers.framework.intervals import interval, short
from ntkscope_papers.framework.pages import PAPERS, Results, filled, main

ROOT = Path(__file__).parents[3]
MADE = [*sorted(ROOT.glob("docs/**/*.md")), *sorted(PAPERS.glob("*/README.md"))]
PAGES = [page for page in MADE if "<!-- made: " in page.read_text(encoding="utf-8")]

PAGE = """# A page
<!-- made: state made-up absent -->
<!-- end -->
Words between.
<!-- made: statements made-up -->
something old
<!-- end -->
<!-- made: not-reproduced made-up absent -->
<!-- end -->
<!-- made: claims made-up absent -->
<!-- end -->
<!-- made: figure made-up/curve A curve -->
<!-- end -->
<!-- made: totals a b -->
<!-- end -->
<!-- made: every a c -->
<!-- end -->
"""


def results(folder: Path) -> Results:
    with Record.create(folder / "made-up", kind="experiment", name="made-up") as record:
        record.put(leg={"seconds": 90.0, "x": 1})
        record.claim(Claim("a-holds", "Table 1", 1.0, {"|x|": 1.0}, "within 1", "reproduced", ""))
        record.claim(Claim("a-fails", "Table 1", 1.0, 3.0, "within 1", "not reproduced", "why"))
        mean = short(interval([1.0, 1.0, 1.0]))
        found = {"d": [1.0, 0.9, 1.1], "mean": mean, **{f"more {k}": [mean, mean, mean] for k in range(9)}}
        record.claim(Claim("c-long", "Table 2", {"mean": 1, "d": 1}, found, "within 1", "reproduced", ""))
    (folder / "made-up" / "figures").mkdir()
    (folder / "made-up" / "figures" / "curve.png").write_bytes(b"picture")
    (folder.parents[1] / "reasons.toml").write_text('a-fails = "for a reason"\n', encoding="utf-8")
    return Results(folder.parents[1] / "docs", folder.parents[1])


def test_a_page_shows_what_the_records_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ntkscope_papers.framework.pages.EXPERIMENTS", {"made-up": None})
    where = results(tmp_path / "paper" / "results")
    text = filled(PAGE, where)
    assert "| [`made-up`](../paper/results/made-up/record.json) | 2 | 1 | 0 | 0 | 0 | 0 | cpu | 1.5 |" in text
    assert "| `absent` |  |  |  |  |  |  | not run yet |  |" in text
    assert "| `a-holds` | within 1 | ∣x∣: 1 | reproduced |  |" in text
    assert "| `a-fails` | `made-up` | within 1 | why |" in text
    assert "| `a-holds` | 1 | ∣x∣: 1 | reproduced |" in text
    assert "| `a-…` | 2 | 1 | 1 | 0 | 0 | 0 | 0 |" in text
    assert "| `b-…` | 0 | 0 | 0 | 0 | 0 | 0 | 0 |" in text
    assert (
        "| `a-fails` | 1 | 3 | not reproduced | for a reason | [made-up](../paper/results/made-up/record.json) |"
        in text
    )
    assert text.count("a-holds") == 3
    several = "1 (1 to 1, n = 3), 1 (1 to 1, n = 3), 1 (1 to 1, n = 3)"
    shown = f"mean: 1 (1 to 1, n = 3); d: 1, 0.9, 1.1; more 0: {several}; more 1: {several}; and 7 more in the record"
    assert f"| `c-long` | mean: 1; d: 1 | {shown} | reproduced |" in text
    assert f"more 8: {several} | reproduced |" in text
    assert "Not run yet: `ntkscope run absent --scale paper" in text
    assert "![A curve](../paper/results/made-up/figures/curve.png)" in text
    assert "something old" not in text
    assert "Words between." in text
    assert filled(text, where) == text


def test_an_estimate_of_nothing_is_undefined(tmp_path: Path) -> None:
    with Record.create(tmp_path / "run", kind="experiment", name="made-up") as record:
        record.claim(Claim("a-b", "Table 1", 1.0, {"mean": short(interval([]))}, "within 1", "reproduced", ""))
    assert as_cell(Record.open(tmp_path / "run").claims[0].measured) == "mean: undefined"


def test_marks_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    where = Results(tmp_path, tmp_path)
    with pytest.raises(UsageError, match="kind 'poem'; expected one of state"):
        filled("<!-- made: poem x -->\n<!-- end -->\n", where)
    with pytest.raises(UsageError, match="not closed"):
        filled("<!-- made: state x -->\n", where)
    with pytest.raises(UsageError, match="not closed"):
        filled("<!-- made: state x -->\n<!-- made: state y -->\n<!-- end -->\n", where)


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- made: state cntk -->\n<!-- end -->\n", encoding="utf-8")
    assert main([str(page)]) == 0
    assert "ntkscope_papers/im_2021/results/cntk/record.json) |" in page.read_text(encoding="utf-8")


def test_findings_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("findings", ROOT / "docs" / "results" / "findings" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    text, pictures = made.page()
    assert (ROOT / "docs" / "results" / "findings.md").read_text(encoding="utf-8") == text, (
        "run: python docs/results/findings/make.py"
    )
    assert len(pictures) == 10
    assert {path.stem for path in (ROOT / "docs" / "results" / "findings").glob("*.svg")} == set(pictures)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text, Results(page.parent)) == text, (
        f"run: python -m ntkscope_papers.framework.pages {page.relative_to(ROOT)}"
    )


def test_every_paper_has_a_page_of_all_its_claims() -> None:
    for paper in sorted(path.parent for path in PAPERS.glob("*/results")):
        text = (paper / "README.md").read_text(encoding="utf-8")
        shown = {name for words in re.findall(r"<!-- made: claims (.*) -->", text) for name in words.split()}
        own = {name for name in EXPERIMENTS if (paper / "results" / name / "record.json").is_file()}
        assert shown == own, paper.name
