"""A tracked training in a real browser: slider, play, keys, less motion, no script, wide and narrow, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ntkscope.core import Record
from ntkscope.report import write_page
from report.browsing import Made, Open, clipped, overflow, quiet, schemes
from report.fixtures.tracking import write_tracking
from report.fixtures.xray import HOSTILE, write_xray

pytestmark = pytest.mark.guard
MOMENTS = 12
WIDTHS = (1440, 768, 390)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tracking(tmp_path_factory.mktemp("tracking") / "run", moments=MOMENTS)


@pytest.fixture(scope="module")
def page_file(folder: Path) -> Path:
    return write_page(folder)


def bars(page: Any) -> str:
    return str(page.locator(".of-spectrum:not([hidden]) .now .bars-of").get_attribute("d"))


def at(page: Any) -> int:
    return int(page.locator("#player-moment").input_value())


def until(page: Any, holds: Callable[[], bool], seconds: float = 15) -> None:
    """Wait; the page's policy lets no script of a test in, so the test asks again and again."""
    for _ in range(int(20 * seconds)):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not come about in time")


def test_the_slider_shows_any_moment(visit: Open, page_file: Path, folder: Path) -> None:
    page = visit(page_file)
    assert at(page) == MOMENTS - 1
    last = bars(page)
    page.locator("#player-moment").fill("0")
    assert bars(page) != last
    rows = Record.open(folder).series("moments").columns()
    assert f"step {rows['step'][0]:,}" in page.locator("#player-said").inner_text()
    cursors = page.locator(".of-spectrum:not([hidden]) .cursor")
    assert cursors.count() == 3  # loss, largest values, alignment: one axis of steps
    first = [cursors.nth(k).get_attribute("x1") for k in range(3)]
    assert len(set(first)) == 1
    page.locator("#player-moment").fill("7")
    second = [cursors.nth(k).get_attribute("x1") for k in range(3)]
    assert float(second[0]) > float(first[0])
    page.locator("#player-moment").fill(str(MOMENTS - 1))
    assert bars(page) == last
    assert quiet(page)


def test_the_drawn_bars_are_what_python_drew(visit: Open, page_file: Path) -> None:
    """Without a script the last moment is drawn; the script draws the same."""
    without = visit(page_file, java_script_enabled=False)
    still = without.locator(".now .bars-of").first.get_attribute("d")
    numbers = [[float(x) for x in path.replace("z", "").replace("M", " ").replace("V", " ").replace("H", " ").split()]
               for path in (still, bars(visit(page_file)))]  # fmt: skip
    np.testing.assert_allclose(numbers[0], numbers[1], atol=0.11)


def test_keys(visit: Open, page_file: Path) -> None:
    page = visit(page_file)
    page.locator("#player-moment").focus()
    for key, expected in (("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", MOMENTS - 1)):
        page.keyboard.press(key)
        assert at(page) == expected, key
    page.locator(".of-spectrum:not([hidden]) .now").focus()
    page.keyboard.press("ArrowLeft")
    assert at(page) == MOMENTS - 2
    page.keyboard.press("Home")
    page.wait_for_timeout(1000)  # focus scrolls smoothly
    top = page.evaluate("scrollY")
    page.keyboard.press("Space")
    until(page, lambda: at(page) > 1)
    assert page.evaluate("scrollY") == top  # the space bar plays; it does not scroll
    page.keyboard.press("Space")
    stopped = at(page)
    page.wait_for_timeout(900)
    assert at(page) == stopped
    assert quiet(page)


def test_play_runs_to_the_end_and_starts_again(visit: Open, page_file: Path) -> None:
    page = visit(page_file)
    button = page.locator("#player-play")
    assert button.inner_text().endswith("Play")
    button.click()  # at the end: from the start
    assert button.get_attribute("aria-pressed") == "true"
    until(page, lambda: at(page) >= 2)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    until(page, lambda: at(page) == MOMENTS - 1)
    until(page, lambda: button.get_attribute("aria-pressed") == "false")
    assert quiet(page)


def test_with_less_motion_nothing_moves_by_itself(visit: Open, page_file: Path) -> None:
    page = visit(page_file, reduced_motion="reduce")
    button = page.locator("#player-play")
    assert button.inner_text() == "Next moment"
    button.click()
    assert at(page) == 0
    page.wait_for_timeout(1200)
    assert at(page) == 0
    button.click()
    assert at(page) == 1


def test_another_spectrum(visit: Open, page_file: Path) -> None:
    page = visit(page_file)
    assert page.locator(".of-spectrum:not([hidden])").count() == 1
    page.locator("#player-moment").fill("3")
    page.locator("#player-of").select_option(label="conjugate kernel (ck)")
    assert page.locator(".of-spectrum:not([hidden]) h3").inner_text().startswith("conjugate kernel (ck)")
    assert at(page) == 3
    assert "Kernel velocity" in page.locator(".of-spectrum:not([hidden])").inner_text()
    assert quiet(page)


def test_without_a_script_pictures_of_some_moments_stand_there(visit: Open, page_file: Path) -> None:
    page = visit(page_file, java_script_enabled=False)
    assert page.locator("#player-tools").is_hidden()
    assert page.locator(".of-spectrum").count() == 3
    for k in range(3):
        stills = page.locator(".of-spectrum").nth(k).locator(".stills figure")
        assert stills.count() == 6
        assert stills.first.is_visible()
    scripted = visit(page_file)
    assert scripted.locator(".stills").first.is_hidden()


@pytest.mark.parametrize("width", WIDTHS)
def test_everything_can_be_read(width: int, visit: Open, page_file: Path) -> None:
    for script in (True, False):
        page = visit(page_file, width=width, java_script_enabled=script)
        for _ in schemes(page):
            if script:
                assert overflow(page) == 0
                assert clipped(page) == []
                assert page.locator("#player-play").bounding_box()["height"] >= 24
        assert quiet(page)


def test_hostile_names_do_nothing(visit: Open, tmp_path: Path) -> None:
    page = visit(write_page(write_tracking(tmp_path / "run", moments=3, shapes=dict.fromkeys(HOSTILE, (30, 20)))))
    page.locator("#player-of").select_option(index=1)
    page.locator("#player-moment").fill("0")
    assert page.evaluate("window.pwned") is None
    assert page.locator("#player-of option").all_inner_texts()[:2] == [text.strip() for text in HOSTILE[:2]]
    assert quiet(page)


def test_the_training_inside_an_xray(visit: Open, tmp_path: Path, made: Made) -> None:
    """Beside the explorer, whose keys it leaves alone."""
    data = {"status": "done", "ends_here": True, "thinned": 0, "last_step": 5000}
    extra = {"tracked_training": {"title": "Training", "status": "done", "data": data}}
    page = visit(write_page(write_xray(tmp_path / "x", train=60, test=30, extra=extra)), width=390)
    assert page.locator(".undrawn").count() == 0
    page.locator("#player-moment").fill("1")
    page.locator("#explorer-list").focus()
    page.keyboard.press("ArrowRight")
    assert at(page) == 1
    assert overflow(page) == 0
    assert quiet(page)
