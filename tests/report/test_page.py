"""Pages: one file each that needs nothing else, whatever the record holds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from ntkscope.core import Claim, Record
from ntkscope.core.errors import RecordError
from ntkscope.report import Page, write_index, write_page
from ntkscope.report.result import LARGEST
from ntkscope.report.source import Source
from report.fixtures.xray import HOSTILE, write_xray

Made = Callable[..., Path]


def policy(page: str) -> str:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert found
    return found[1]


def scripts(page: str) -> list[tuple[str, str]]:
    """Attributes and bodies of the script elements."""
    return re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)


@pytest.mark.parametrize("kind", ["image", "text", "vector"])
def test_a_page_draws_all_sections_and_is_small(kind: str, made: Made, tmp_path: Path) -> None:
    out = write_page(made(kind=kind), tmp_path / "out.html")
    assert out == tmp_path / "out.html"
    page = out.read_text(encoding="utf-8")
    assert "undrawn" not in page
    for title in ("Summary", "Surrogates", "Explain a prediction", "Data problems", "Where it lives"):
        assert f"</span>{title}</h2>" in page
    assert out.stat().st_size < 1_000_000


def test_nothing_comes_from_outside_and_only_our_script_runs(made: Made) -> None:
    page = Page(made(kind="text", hostile=True)).html
    addresses = re.findall(r'(?:href|src|action|data|poster|srcset)="([^"]*)"', page)
    assert addresses
    assert all(address.startswith(("#", "data:image/")) for address in addresses)
    assert "default-src 'none'" in policy(page)
    assert "@import" not in page
    assert not re.search(r"url\((?!data:image/png;base64,)", page)
    running = [body for attributes, body in scripts(page) if "application/json" not in attributes]
    assert len(running) == 1
    digest = base64.b64encode(hashlib.sha256(running[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy(page)
    assert "innerHTML" not in running[0]
    assert "fetch(" not in running[0]


def test_hostile_strings_are_text_everywhere(made: Made) -> None:
    page = Page(made(kind="text", hostile=True)).html
    shown = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    for raw in ("<script>window", "<img src=x", "<b>bold", "onmouseover=window.pwned=1 x='\""):
        assert raw not in shown
    assert all(text[:12] in unescape(page) for text in HOSTILE)
    (data,) = [json.loads(body) for attributes, body in scripts(page) if "data-items" in attributes]
    assert data["classes"][: len(HOSTILE)] == list(HOSTILE)


def test_only_thumbnails_that_are_shown_come_in(made: Made, tmp_path: Path) -> None:
    """Twice the training images, none of them shown: the page stays as large as it was."""
    folder = write_xray(tmp_path / "x", train=60, test=30)
    before = len(Page(folder).html)
    record = Record.resume(folder)
    thumbs = np.asarray(record.arrays["thumbs.train"])
    noise = np.random.default_rng(0).integers(0, 255, (5000, 8, 8, 1), dtype=np.uint8)
    record.array("thumbs.train", np.concatenate([thumbs, noise]))
    record.finish()
    assert abs(len(Page(folder).html) - before) < 200  # the time it took is on the page too


def test_large_pictures_are_made_small(tmp_path: Path) -> None:
    folder = write_xray(tmp_path / "x", train=60, test=30)
    record = Record.resume(folder)
    noise = np.random.default_rng(0).integers(0, 255, (60, 300, 200, 3), dtype=np.uint8)
    record.array("thumbs.train", noise)
    record.finish()
    assert len(Page(folder).html) < 2_000_000  # as they are, 60 pictures of noise would need 14 MB


def test_skipped_failed_and_waiting_sections_say_why(tmp_path: Path) -> None:
    folder = write_xray(tmp_path / "x", skip=["kernel"], finish=False, train=60, test=30)
    record = Record.resume(folder)
    record.put(
        **{"section:layers": {"title": "Where it lives", "status": "failed", "why": "<no> memory", "data": {}}},
        sections=[*record.metrics["sections"], "alien_section"],
    )
    page = Page(folder).html
    assert "<b>Left out</b>: the time budget was spent" in page
    assert "<b>This part failed</b>: &lt;no&gt; memory" in page
    assert "<b>Not computed yet</b>." in page
    assert "Alien section" in page
    assert "This run is not finished: its state is “running”" in page


def test_a_section_of_tomorrow_is_shown_by_its_numbers(tmp_path: Path) -> None:
    extra = {"drift": {"title": "Drift <1>", "data": {"speed": 0.25, "rows": [{"step": 1, "value": 2.5}]}}}
    page = Page(write_xray(tmp_path / "x", extra=extra, train=60, test=30)).html
    assert "Drift &lt;1&gt;</h2>" in page
    assert "0.25" in page
    assert "2.5</td>" in page


def test_a_bare_xray_has_a_page(tmp_path: Path) -> None:
    Record.create(tmp_path / "x", kind="xray", name="just begun").put(xray_schema=1)
    assert "X-ray: just begun" in Page(tmp_path / "x").html
    Record.resume(tmp_path / "x").put(model={"name": "Sequential"}, data={"name": ""})
    assert "<h1>X-ray of Sequential</h1>" in Page(tmp_path / "x").html


def test_a_changed_array_is_said_and_not_shown(tmp_path: Path) -> None:
    folder = write_xray(tmp_path / "x", train=60, test=30)
    file = folder / "kernel.heatmap.npy"
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")
    page = Page(folder).html
    assert "could not be drawn as planned (RecordError: array" in unescape(page)


def test_no_record_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no record in"):
        write_page(tmp_path)


def test_an_experiment_page_has_claims_figures_and_numbers(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "e")
    page = Page(folder).html
    assert "Figure: loss curve" in page
    held = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert held
    assert base64.b64decode(held[1]) == SVG
    assert "too large to be shown" in page
    for text in ("relu-t1", "not reproduced", "0.741", "0.744", "test accuracy", "depth"):
        assert text in page
    assert "<script>alert" not in page


def test_in_a_notebook_the_page_sits_in_a_frame(made: Made) -> None:
    page = Page(made(kind="image"))
    shown = page._repr_html_()
    held = re.search(r'<iframe srcdoc="([^"]*)" sandbox="([^"]*)"', shown)
    assert held
    assert unescape(held[1]) == page.html
    assert "allow-same-origin" not in held[2]
    assert repr(page).startswith("Page(Record(")


def test_the_short_summary_of_an_xray_stays_short(made: Made) -> None:
    """In a notebook and on a terminal; a page has the rest."""
    record = Record.open(made(kind="text"))
    assert len(str(record)) < 30_000
    assert "characters)" in record._repr_html_()


@pytest.mark.parametrize("wrong", ["text", [1], {"a": 1}])
def test_a_record_may_hold_anything(wrong: object, tmp_path: Path) -> None:
    folder = write_xray(tmp_path / "x", train=60, test=30)
    record = Record.resume(folder)
    keys = ("model", "data", "texts", "plan", "section:summary", "section:surrogates", "section:layers")
    record.put(**dict.fromkeys(keys, wrong))
    record.finish()
    assert "Data problems" in Page(folder).html
    assert "Data problems" in (write_index(tmp_path).parent / "x" / "page.html").read_text(encoding="utf-8")
    record = Record.resume(folder)
    record.put(sections=wrong)
    assert "<h1>" in Page(folder).html


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><script>alert(1)</script><circle r="9"/></svg>'


def experiment(folder: Path, name: str = "relu_alignment") -> Path:
    """A record of an experiment with claims and figures."""
    with Record.create(folder, kind="experiment", name=name, config={"scale": "smoke", "depth": 3}) as record:
        record.put(test_accuracy=0.744, table=[{"depth": 1, "accuracy": 0.5}, {"depth": 2, "accuracy": 0.75}])
        record.claim(Claim("relu-t1", "Table 1", 0.741, 0.744, 0.01, "reproduced"))
        record.claim(Claim("relu-t2", "Table 2", 0.9, 0.7, 0.01, "not reproduced", "seen <here>"))
        record.claim(Claim("relu-t3", "Table 3", 0.9, None, 0.01, "not testable here", "needs other data"))
    (folder / "figures").mkdir()
    (folder / "figures" / "loss_curve.svg").write_bytes(SVG)
    (folder / "figures" / "huge.png").write_bytes(b"\0" * (LARGEST + 1))
    (folder / "figures" / "notes.txt").write_text("not a figure")
    return folder


def test_the_first_screen_says_what_is_missing_and_how_to_add_it(tmp_path: Path) -> None:
    """Also where the summary was skipped: an accuracy, why nothing is said of trust, and the command."""
    page = Page(write_xray(tmp_path / "x", skip=("summary", "surrogates"))).html
    header = unescape(re.sub(r"<[^>]+>", "", page[page.index("<header") : page.index("</header>")]))
    wrong = int(re.search(r"(\d+) wrong predictions", header)[1])
    assert f"of 70 test items (accuracy {100 * (1 - wrong / 70):.1f} %)" in header
    assert "Trust in the explanations: not measured" in header
    assert "The summary is not part of this X-ray (the time budget was spent)." in header
    assert "Left out: Summary, Surrogates." in header
    assert f"is not computed again:ntkscope xray --demo --time 2m --out {tmp_path / 'x'}" in header  # 2 × 46 s
    assert "To clean labels: Data problems" in header


def test_nothing_missing_is_not_spoken_of(tmp_path: Path) -> None:
    record = Record.resume(write_xray(tmp_path / "x"))
    record.put(data={**record.metrics["data"], "subsampled": None})
    record.finish()
    assert 'id="left-out"' not in Page(record).html


def test_a_long_section_is_a_sentence_until_it_is_opened(made: Made) -> None:
    page = Page(made(kind="image")).html
    sentences = dict(
        re.findall(r'<section id="s-(\w+)".*?<details class="whole-section"><summary>(.*?)</summary>', page)
    )
    assert sentences["kernel"].endswith("alignment with the labels 0.410, 0.300 before training; effective rank 61.2.")
    assert sentences["layers"] == "features.1.weight has 51 % of the kernel, more than any other layer."
    assert not {"summary", "explain", "problems"} & set(sentences)


def test_times_are_of_sections_by_their_titles(made: Made, tmp_path: Path) -> None:
    source = Source(Record.open(made(kind="image")))
    page = Page(made(kind="image")).html
    part = page[page.index("Time by section") : page.index("Time by step")]
    timed = [entry["what"] for entry in source.section("computed").data["timings"] if "section " in entry["what"]]
    assert timed
    for name in timed:
        assert source.section(name.removeprefix("section ")).title in part
    folder = write_xray(tmp_path / "x", skip=("layers",))  # what was left out took no time
    page = Page(folder).html
    assert "Time by section" not in page
