"""The index: every record below a folder, and the command that makes it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest

from ntkscope.cli import main
from ntkscope.core import Record
from ntkscope.core.errors import RecordError
from ntkscope.report import records, write_index
from report.test_page import experiment


@pytest.fixture
def folder(tmp_path: Path, made: Callable[..., Path]) -> Path:
    """Three records, one of them broken, one in a folder with a difficult name, and one that is hidden."""
    shutil.copytree(made(kind="image"), tmp_path / "xrays" / "demo")
    experiment(tmp_path / 'a b "<i>" #1' / "relu")
    Record.create(tmp_path / "trained", kind="recipe", name="lenet").finish()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "record.json").write_text('{"schema_version": 99}')
    Record.create(tmp_path / ".hidden", kind="recipe").finish()
    return tmp_path


def test_every_record_is_listed_and_linked(folder: Path) -> None:
    assert len(records(folder)) == 4
    page = write_index(folder).read_text(encoding="utf-8")
    links = [link for link in re.findall(r'href="([^"#][^"]*)"', page) if not link.startswith("data:")]
    assert {unquote(link) for link in links} == {
        "xrays/demo/page.html",
        'a b "<i>" #1/relu/page.html',
        "trained/page.html",
    }
    for link in links:
        assert (folder / unquote(link)).is_file()
    for text in ("in between", "trntk", "schema_version 99", "install a newer ntkscope", "lenet", "4 records"):
        assert text in page
    assert "<i>" not in re.sub(r'<i class="', "", page.split("</style>")[1].split("<script")[0])


def test_published_stands_beside_measured_with_the_verdict_in_a_colour(folder: Path) -> None:
    page = write_index(folder).read_text(encoding="utf-8")
    row = re.search(r"<tr>(?:(?!</tr>).)*relu-t1(?:(?!</tr>).)*</tr>", page)
    assert row
    cells = [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row[0])]
    assert cells[1:5] == ["relu-t1Table 1", "0.741", "0.744", "reproducedCheck: 0.01"]
    assert 'class="pill good">reproduced' in row[0]
    assert 'class="pill bad">1 not reproduced' in page


def test_making_it_again_changes_nothing(folder: Path) -> None:
    first = write_index(folder).read_bytes()
    assert write_index(folder).read_bytes() == first


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no record in .* or below"):
        write_index(tmp_path)


def test_the_command_makes_a_page_of_one_record_and_an_index_of_many(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, made in (
        ([str(folder / "trained")], folder / "trained" / "page.html"),
        ([str(folder)], folder / "index.html"),
        ([str(folder / "trained"), "--out", str(tmp_path / "p.html")], tmp_path / "p.html"),
    ):
        with pytest.raises(SystemExit) as left:
            main(["report", *arguments])
        assert left.value.code == 0
        assert capsys.readouterr().out.strip() == str(made)
        assert made.is_file()
    with pytest.raises(SystemExit) as left:
        main(["report", str(tmp_path / "nothing")])
    assert left.value.code == 2
