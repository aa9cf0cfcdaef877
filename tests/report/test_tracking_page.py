"""The page of a tracked training: what the record holds, whatever it holds, in one small file."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ntkscope.core import Record
from ntkscope.report import Page, write_index, write_page
from ntkscope.report.timeline import quantiles
from ntkscope.report.track import read_track
from ntkscope.report.tracked import PLAYED
from report.fixtures.tracking import write_tracking
from report.fixtures.xray import HOSTILE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tracking(tmp_path_factory.mktemp("tracking") / "run")


def told(page: str) -> dict[str, Any]:
    """What the script reads."""
    found = re.search(r'<script type="application/json" id="data-tracked_training">(.*?)</script>', page)
    assert found
    return dict(json.loads(found[1]))


def test_parts_of_the_page(folder: Path) -> None:
    page = Page(folder).html
    for title in ("What changed", "Spectra over training", "First against last", "Moments", "How this was computed"):
        assert f">{title}</h2>" in page
    assert "1 direction stands out of the noise at the last moment; at the first none did." in page
    assert "conjugate kernel (ck)" in page
    assert page.count('class="stills"') == 3


def test_the_script_gets_the_records_numbers(folder: Path) -> None:
    record, data = Record.open(folder), told(Page(folder).html)
    moments = record.series("moments").columns()
    assert data["moments"]["step"] == moments["step"]
    assert data["moments"]["x"] == sorted(data["moments"]["x"])
    rows = [row for row in record.series("spectra") if row["of"] == "weights:fc1.weight"]
    tests = [row for row in record.series("spikes") if row["of"] == "weights:fc1.weight"]
    (mine,) = [spectrum for spectrum in data["spectra"] if spectrum["name"] == "fc1.weight"]
    assert len(mine["looks"]) == len(rows)
    for look, row, test in zip(mine["looks"], rows, tests, strict=True):
        assert sum(look["counts"]) == len(row["values"])
        assert look["largest"] == pytest.approx(row["values"][0], rel=1e-4)  # five digits in pages
        assert look["spike_values"] == pytest.approx(test["values"], rel=1e-4)
        assert look["label"] == test["label"]
    assert mine["shows"] == list(range(len(rows)))


@pytest.mark.guard
def test_sixty_moments_of_two_thousand_eigenvalues_are_a_small_page(tmp_path: Path) -> None:
    """With as many spectra as have a player, and more that have none."""
    record = Record.create(tmp_path / "run", kind="tracking", name="large")
    random = np.random.default_rng(0)
    for moment in range(60):
        record.series("moments").append({"moment": moment, "step": moment**3, "loss": 1 / (1 + moment), "cost": 0.1})
        for k in range(PLAYED + 4):
            values = np.sort(random.gamma(0.5, 1 + 0.1 * k, 2000))[::-1].round(7).tolist()
            row = {"moment": moment, "step": moment**3, "of": f"weights:layer{k}.weight"}
            record.series("spectra").append(
                {**row, "kind": "singular", "shape": [2000, 2000], "values": values, "left_out": 0}
            )
            test = {"label": "bulk + spikes", "count": 3, "values": values[:3], "edge": 5.0, "alignments": [[0.5]] * 3}
            record.series("spikes").append({**row, **test})
    record.finish()
    out = write_page(tmp_path / "run")
    assert out.stat().st_size < 5_000_000
    page = out.read_text()
    assert page.count('data-of="') == PLAYED
    assert "the other 4 are in the table above alone" in page


def test_hostile_names_are_text(tmp_path: Path) -> None:
    folder = write_tracking(tmp_path / "run", moments=3, shapes=dict.fromkeys(HOSTILE, (30, 20)), name=HOSTILE[1])
    page = Page(folder).html
    shown = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    for raw in ("<script>window", "<img src=x", "<b>bold", "onmouseover=window.pwned=1 x='\""):
        assert raw not in shown
    assert all(text[:12] in unescape(page) for text in HOSTILE)
    assert {spectrum["name"] for spectrum in told(page)["spectra"]} >= set(HOSTILE)


def test_rows_of_another_form_are_left_out(tmp_path: Path) -> None:
    """A record is read as it is: no row takes the page down, and what is sound is shown."""
    folder = write_tracking(tmp_path / "run", moments=4, finish=False)
    record = Record.resume(folder)
    odd: list[dict[str, Any]] = [
        {"moment": "second", "of": "ck"},
        {"moment": 1.5, "step": 3},
        {"moment": True, "step": 3},
        {"of": "ck"},
        {"moment": 9, "step": "ten", "of": "ck", "values": "many", "kind": 3, "shape": "big", "left_out": "few"},
        {"moment": 2, "step": 2, "of": ["ck"], "values": [None, "x", float("nan"), float("inf"), 2.0], "count": -3},
        {"moment": 2, "step": 2, "of": "ck", "values": [], "alignments": 3, "edge": "high", "kta": "much"},
    ]
    for name in ("moments", "spectra", "spikes", "alignment"):
        for row in odd:
            record.series(name).append(row)
    record.finish()
    page = Page(folder).html
    assert "fc1.weight" in page
    assert "undefined" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "nan" not in re.findall(r'd="[^"]*nan', page)


def test_a_moment_measured_again_counts_once(tmp_path: Path) -> None:
    record = Record.create(tmp_path / "run", kind="tracking")
    for top in (2.0, 3.0):  # killed after the first, resumed from before it
        record.series("moments").append({"moment": 0, "step": 5, "loss": top})
        row = {"moment": 0, "step": 5, "of": "weights:w", "kind": "singular", "shape": [2, 2], "values": [top, 1.0]}
        record.series("spectra").append(row)
    track = read_track(record)
    assert [moment.loss for moment in track.moments] == [3.0]
    assert [look.values.tolist() for look in track.spectra[0].looks] == [[3.0, 1.0]]
    page = Page(tmp_path / "run").html
    assert "Measured once: the largest singular value is 3.00." in page
    assert not re.findall(
        r"at the (?:end|last moment)|From the first|5 to 5|3\.00 → 3\.00", page.split("<script", 1)[0]
    )


def test_a_run_that_is_being_written_and_one_without_moments(tmp_path: Path) -> None:
    folder = write_tracking(tmp_path / "run", moments=3, finish=False)
    with (folder / "spectra.jsonl").open("a") as file:
        file.write('{"moment": 3, "step": 9, "of": "ck", "val')  # a torn tail
    assert "This run is not finished" in Page(folder).html
    Record.create(tmp_path / "none", kind="tracking", name="empty")
    assert "No spectrum was measured yet" in Page(tmp_path / "none").html
    assert "2 records in" in write_index(tmp_path).read_text()


def test_a_damaged_series_is_reported_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = write_tracking(tmp_path / "run", moments=3)
    file = folder / "spikes.jsonl"
    file.write_text(file.read_text().replace("1", "2", 1))
    page = Page(folder).html
    assert "the file was changed or cut short" in unescape(page)
    assert "fc1.weight" in page


def test_quantiles_of_spectra_of_different_sizes() -> None:
    random = np.random.default_rng(0)
    first, last = np.sort(random.normal(size=300))[::-1], np.sort(random.normal(size=500))[::-1]
    a, b = quantiles(first, last)
    assert (np.diff(a) <= 0).all()
    assert (np.diff(b) <= 0).all()
    assert (a[0], a[-1], b[0], b[-1]) == (first[0], first[-1], last[0], last[-1])
    one, same = quantiles(first, first)
    assert (one == same).all()
    assert one[:5].tolist() == first[:5].tolist()  # the largest one by one
