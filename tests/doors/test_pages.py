"""Records from elsewhere on pages, in the index and on a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from doors.bounds import bounded, ends
from ntkscope.core import Claim, Record
from ntkscope.core.files.printable import printable
from ntkscope.report import write_page

THOUSAND = """
    import json, os, sys, time
    from pathlib import Path
    from ntkscope.core import Record
    from ntkscope.report import write_index
    home = Path(sys.argv[1])
    Record.create(home / "r000", kind="example").finish()
    good = (home / "r000" / "record.json").read_text()
    for number in range(1, 1000):
        (home / f"r{number:03}").mkdir()
        (home / f"r{number:03}" / "record.json").write_text(good)
    (home / "r500" / "record.json").unlink()
    os.mkfifo(home / "r500" / "record.json")
    start = time.process_time()
    write_index(home)
    print(time.process_time() - start)
"""


@pytest.mark.guard
def test_one_bad_record_among_a_thousand_leaves_the_index_whole(tmp_path: Path) -> None:
    """In a process of its own: here every call is checked for its types."""
    command = [sys.executable, "-c", textwrap.dedent(THOUSAND), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 20  # 2 s
    page = (tmp_path / "index.html").read_text()
    assert "1,000 records in" in page
    assert page.count('/page.html"') == 999
    assert "Could not be read" in page
    assert "is a pipe; expected a regular file" in page
    assert page.rstrip().endswith("</html>")


def test_figures_that_lead_out_of_the_folder_are_not_embedded(tmp_path: Path) -> None:
    record = Record.create(tmp_path / "run", kind="example")
    record.finish()
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"\x89PNG secret")
    figures = tmp_path / "run" / "figures"
    figures.mkdir()
    (figures / "own.png").write_bytes(b"\x89PNG own")
    (figures / "linked.png").symlink_to(secret)
    os.mkfifo(figures / "pipe.png")
    with bounded():
        page = write_page(tmp_path / "run").read_text()
    assert page.count("data:image/png") == 1
    assert "linked.png is a link that points outside" in page
    (figures / "linked.png").unlink()
    (tmp_path / "elsewhere").mkdir()
    figures.rename(tmp_path / "elsewhere" / "figures")
    figures.symlink_to(tmp_path / "elsewhere" / "figures")  # the folder itself is a link
    with bounded():
        assert "data:image/png" not in write_page(tmp_path / "run").read_text()


ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt\u2066\r\x08"


@pytest.mark.parametrize("verb", ["show", "check"])
def test_terminal_escapes_are_shown_and_not_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    def failing() -> None:
        with Record.create(tmp_path, kind="a" + ESCAPES, name=ESCAPES) as record:
            record.put(**{ESCAPES: ESCAPES, "list": [ESCAPES], "map": {ESCAPES: 1}})
            record.claim(Claim("id" + ESCAPES, ESCAPES, ESCAPES, ESCAPES, ESCAPES, "not reproduced", ESCAPES))
            with record.stage(ESCAPES):
                pass
            raise ValueError(ESCAPES)

    with pytest.raises(ValueError, match="owned"):
        failing()
    ends(verb, str(tmp_path))
    captured = capsys.readouterr()
    for text in (captured.out, captured.err, str(Record.open(tmp_path))):
        assert not set(text) & set(ESCAPES) - set("txt]0;owned[2J31m"), text
    assert "x1b]0;owned" in captured.out


def test_an_error_shows_escapes_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("show", str(tmp_path / ESCAPES)) == 2
    assert not set(capsys.readouterr().err) & set(ESCAPES) - set("txt]0;owned[2J31m")


def test_what_people_write_stays() -> None:
    for text in ("τ = 0.7, naïve, 北京, 😀", "a\tb\nc", "é"):
        assert printable(text) == text
