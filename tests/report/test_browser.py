"""Pages in a real browser: from disk, without the network, by mouse and by keys, wide and narrow."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from ntkscope.cli import main
from ntkscope.core import Record
from ntkscope.report import Page, write_index, write_page
from report.browsing import Made, Open, overflow, quiet, saved, state, unfolded
from report.fixtures.xray import HOSTILE, OFFERED, write_xray
from report.test_page import experiment


@pytest.mark.parametrize("kind", ["image", "text", "vector"])
def test_a_page_opens_from_disk_without_a_word_or_a_request(kind: str, visit: Open, written: Made) -> None:
    page = visit(written(kind=kind))
    assert page.title() == "X-ray of mlp on digits – ntkscope"
    assert page.locator("main > section").count() == 8
    assert page.locator("#explorer-said").inner_text()
    assert quiet(page)


@pytest.mark.nightly
def test_the_demos_page(visit: Open, tmp_path: Path) -> None:
    """From one command to the page: all sections drawn, another item chosen, problems saved, all of it quiet."""
    with pytest.raises(SystemExit) as left:
        main(["xray", "--demo", "--out", str(tmp_path / "demo")])
    assert not left.value.code
    out = write_page(tmp_path / "demo")
    assert out.stat().st_size < 3_000_000
    page = visit(out)
    assert page.locator("main > section").count() >= 7
    assert page.locator(".undrawn").count() == 0
    before = state(page)
    page.locator("#explorer-list [role=option]").nth(9).click()
    assert state(page) != before
    _, rows = saved(page, page.locator("button[data-export*=mislabelled]"))
    ranked = Record.open(tmp_path / "demo").metrics["section:problems"]["data"]["mislabelled"]
    contradicted = [item for item in ranked if item["score"] > 0]  # which the page lists
    assert len(rows) == 1 + len(contradicted) > 1
    assert quiet(page)
    assert overflow(visit(out, width=360)) == 0


def test_canary_requests_and_complaints_are_seen(visit: Open, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text('<img src="http://127.0.0.1:9/x.png"><script>console.log("spoke")</script>')
    page = visit(tmp_path / "bad.html")
    assert "http://127.0.0.1:9/x.png" in page.asked
    assert "spoke" in page.complaints


def test_the_policy_stops_scripts_and_requests_from_outside(visit: Open, written: Made) -> None:
    page = visit(written(kind="image"))
    page.evaluate(
        """() => {
        const script = document.createElement("script"); script.textContent = "window.ran = 1"; document.body.append(script);
        const image = document.createElement("img"); image.src = "http://127.0.0.1:9/x.png"; document.body.append(image);
        }"""
    )
    page.wait_for_timeout(100)
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in complaint for complaint in page.complaints)


def test_another_item_by_mouse(visit: Open, written: Made, made: Made) -> None:
    page = visit(written(kind="image"))
    before = state(page)
    page.locator("#explorer-list [role=option]").nth(7).click()
    after = state(page)
    assert all(a != b for a, b in zip(before, after, strict=True))
    data = Record.open(made(kind="image")).metrics["section:explain"]["data"]
    assert f"Test item {data['items'][7]}:" in after[0]
    assert page.locator("#explorer-said").inner_text() == str(data["network_predicted"][7])
    assert page.locator("[role=option][aria-selected=true]").get_attribute("data-n") == "7"
    page.locator("button[aria-label='Next item']").click()
    assert f"Test item {data['items'][8]}:" in state(page)[0]
    assert quiet(page)


@pytest.mark.guard
def test_another_item_by_keys(visit: Open, written: Made) -> None:
    page = visit(written(kind="image"))
    chosen = page.locator("[role=option][aria-selected=true]")
    page.locator("#explorer-list").focus()
    for key, expected in (
        ("ArrowRight", "1"),
        ("ArrowRight", "2"),
        ("ArrowLeft", "1"),
        ("End", str(OFFERED - 1)),
        ("Home", "0"),
    ):
        page.keyboard.press(key)
        assert chosen.get_attribute("data-n") == expected
        assert page.locator("#explorer-list").get_attribute("aria-activedescendant") == f"explorer-option-{expected}"
    page.keyboard.press("ArrowDown")
    assert int(chosen.get_attribute("data-n")) > 5  # a row further
    assert quiet(page)


@pytest.mark.guard
def test_the_bars_are_the_records_numbers(visit: Open, written: Made, made: Made) -> None:
    """The mean contributions to the logit of the network's class, and those to another logit when it is chosen."""
    page = visit(written(kind="image"))
    record = Record.open(made(kind="image"))
    data, means = record.metrics["section:explain"]["data"], record.arrays["explain.mean"]

    def shown() -> np.ndarray:
        texts = page.locator("#explorer-rows .value").all_inner_texts()
        return np.array([float(text.replace("−", "-")) for text in texts])

    network = data["network_predicted"][0]
    np.testing.assert_allclose(shown(), means[0, 0], rtol=0.06)  # two digits are shown
    before = state(page), page.locator("#explorer-influence").inner_text(), page.locator("#explorer-facts").inner_text()
    other = data["chosen"][0][1]
    assert other != network
    page.locator("#explorer-logit").select_option(str(other))
    np.testing.assert_allclose(shown(), means[0, 1], rtol=0.06)
    after = state(page), page.locator("#explorer-influence").inner_text(), page.locator("#explorer-facts").inner_text()
    assert before[0][2] != after[0][2]  # the supporting points follow the class
    assert before[1] != after[1]
    assert before[2] != after[2]
    assert quiet(page)


def test_search_and_only_wrong(visit: Open, written: Made, made: Made) -> None:
    page = visit(written(kind="image"))
    data = Record.open(made(kind="image")).metrics["section:explain"]["data"]
    wrong = [n for n, (p, t) in enumerate(zip(data["network_predicted"], data["true"], strict=True)) if p != t]
    page.locator("#explorer-wrong").check()
    visible = page.locator("[role=option]:visible")
    assert visible.count() == len(wrong)
    assert page.locator("[role=option][aria-selected=true]").get_attribute("data-n") == str(wrong[0])
    page.locator("#explorer-search").fill("no such thing")
    assert visible.count() == 0
    assert page.locator("#explorer-count").inner_text() == "nothing found"
    page.locator("#explorer-wrong").uncheck()
    page.locator("#explorer-search").fill("")
    page.locator("#explorer-differ").check()
    assert visible.count() == sum(a != b for a, b in zip(data["predicted"], data["network_predicted"], strict=True)) > 0
    assert "The surrogate predicts" in page.locator("#explorer-head").inner_text()
    assert quiet(page)


@pytest.mark.guard
def test_sorting_by_a_press_on_a_head(visit: Open, written: Made) -> None:
    page = visit(written(kind="image"))
    table = page.locator("table.problems").first
    number = table.locator("th", has_text="Number")

    def numbers() -> list[int]:
        return [int(text[1:]) for text in table.locator("tbody td:nth-child(3)").all_inner_texts()]

    before = numbers()
    assert before not in (sorted(before), sorted(before, reverse=True))
    number.locator("button").click()
    assert numbers() == sorted(before, reverse=True)
    assert number.get_attribute("aria-sort") == "descending"
    number.locator("button").focus()
    page.keyboard.press("Enter")
    assert numbers() == sorted(before)
    assert number.get_attribute("aria-sort") == "ascending"
    assert table.locator("th", has_text="Rank").get_attribute("aria-sort") == "none"
    table.locator("th", has_text="Rank").locator("button").click()
    table.locator("th", has_text="Rank").locator("button").click()
    assert numbers() == before
    assert quiet(page)


def test_data_problems_as_csv(visit: Open, written: Made, made: Made) -> None:
    page = visit(written(kind="image"))
    name, rows = saved(page, page.locator("button[data-export*=mislabelled]"))
    assert name == "demo-perhaps-mislabelled.csv"
    assert rows[0] == ["Rank", "Number", "Label", "Suggested", "Score", "Decision"]
    expected = Record.open(made(kind="image")).metrics["section:problems"]["data"]["mislabelled"]
    assert len(rows) == 1 + len(expected)
    for n, (row, want) in enumerate(zip(rows[1:], expected, strict=True), 1):
        assert row[:4] == [str(n), str(want["original"]), str(want["label"]), str(want["suggested"])]
        assert float(row[4]) == want["score"]
    assert quiet(page)


def test_injection_shows_up_as_text(visit: Open, written: Made) -> None:
    page = visit(written(kind="text", hostile=True))
    page.locator("#explorer-list").focus()
    for _ in range(OFFERED - 1):  # past every item
        page.keyboard.press("ArrowRight")
    assert page.evaluate("window.pwned") is None
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("script").count() == 4  # data of the explorer, the review and the items, and our own
    assert page.locator("main b", has_text="bold").count() == 0
    body = page.locator("body").inner_text()
    assert "<script>window.pwned=1</script>" in body
    assert "</script><img src=x onerror=window.pwned=1>" in body
    assert quiet(page)


def test_a_class_that_looks_like_a_formula_is_no_formula_in_the_csv(visit: Open, written: Made) -> None:
    page = visit(written(kind="text", hostile=True))
    _, rows = saved(page, page.locator("button[data-export*=mislabelled]"))
    cells = {cell for row in rows for cell in row}
    assert f"'{HOSTILE[3]}" in cells
    assert not any(cell.startswith(("=", "@", "+")) for cell in cells)


BROKEN = """() => [...document.querySelectorAll("#explorer-panels .worth")]
  .filter((worth) => worth.getClientRects().length > 1).map((worth) => worth.textContent)"""


@pytest.mark.parametrize(
    ("kind", "hostile"),
    [
        ("image", False),
        pytest.param("image", True, marks=pytest.mark.guard),
        pytest.param("text", True, marks=pytest.mark.guard),
    ],
)
def test_nothing_hangs_over_on_a_phone(kind: str, hostile: bool, visit: Open, written: Made) -> None:
    page = visit(written(kind=kind, hostile=hostile), width=360)
    assert overflow(page) == 0
    assert page.evaluate(BROKEN) == []
    page.locator("details").evaluate_all("all => all.forEach(d => d.open = true)")
    page.locator("#explorer-list").focus()
    for _ in range(OFFERED):  # whatever item is chosen
        assert overflow(page) == 0
        page.keyboard.press("ArrowRight")
    assert quiet(page)


CARDS = """() => [...document.querySelectorAll("#s-surrogates .carded td:not(.minor)")].slice(1, 8)
  .map((cell) => getComputedStyle(cell, "::before").content.replaceAll('"', ""))"""
SCROLLING = """() => [...document.querySelectorAll("#s-surrogates .scroll, pre.command")]
  .filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.textContent.slice(0, 40))"""


def test_surrogates_and_commands_are_read_on_a_phone_without_scrolling_aside(
    visit: Open, written: Made, tmp_path: Path
) -> None:
    page = unfolded(visit(written(kind="image"), width=390))
    heads = page.evaluate(CARDS)
    assert heads[0] == "Fitted to"
    assert {"Kendall τ", "Agreement", "R² of the logits"} <= set(heads)
    assert page.evaluate(SCROLLING) == []
    table = page.locator("#s-surrogates .exportable").first
    _, rows = saved(page, table.locator("button[data-export]"))
    assert {"Accuracy", "Seconds"} <= set(rows[0])  # what a phone leaves out is in the file
    assert len(rows) == 1 + table.locator("tbody tr").count()
    record = Record.resume(write_xray(tmp_path / "x", skip=("summary",)))
    record.finish()
    page = unfolded(visit(write_page(tmp_path / "x"), width=390))
    assert page.locator("#left-out pre.command").count() >= 1
    assert page.evaluate(SCROLLING) == []
    assert overflow(page) == 0


LIGHT = "getComputedStyle(document.documentElement).backgroundColor.match(/[0-9]+/g).map(Number).reduce((a, b) => a + b) > 384"


@pytest.mark.guard
def test_light_and_dark_by_the_system_and_by_the_switch(visit: Open, written: Made) -> None:
    assert visit(written(kind="image"), color_scheme="light").evaluate(LIGHT)
    page = visit(written(kind="image"), color_scheme="dark")
    assert not page.evaluate(LIGHT)
    button = page.locator("#theme")
    assert button.get_attribute("aria-label") == "Theme: system"
    button.click()  # dark
    button.click()  # light
    assert button.get_attribute("aria-label") == "Theme: light"
    assert page.evaluate(LIGHT)
    page.reload()
    assert page.evaluate(LIGHT)  # remembered
    page.emulate_media(media="print")
    assert page.evaluate(LIGHT)
    assert page.locator(".strip").is_hidden()


CONTRAST = """() => {
  const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const read = (text) => {
    const [r, g, b, a = 1] = text.match(/[0-9.]+/g).map(Number);
    return { colour: text.startsWith("color(srgb") ? [255 * r, 255 * g, 255 * b] : [r, g, b], a };
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const { colour, a } = read(getComputedStyle(e).backgroundColor);
      if (a === 1) return colour;
    }
    return [255, 255, 255];
  };
  const bad = new Set();
  for (const e of document.querySelectorAll("main *, .bar *")) {
    const own = [...e.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest("svg")) continue;
    const [dark, bright] = [read(getComputedStyle(e).color).colour, behind(e)].map(luminance).sort((a, b) => a - b);
    const ratio = (bright + 0.05) / (dark + 0.05);
    if (ratio < 4.5) bad.add(`${e.tagName}.${e.className}: ${ratio.toFixed(2)}`);
  }
  return [...bad];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(scheme: str, visit: Open, written: Made) -> None:
    """Contrast of all text at least 4.5 to 1, as WCAG 2 (AA) asks."""
    assert visit(written(kind="image"), color_scheme=scheme).evaluate(CONTRAST) == []


@pytest.mark.guard
def test_keys_reach_every_control_and_show_where_they_are(visit: Open, written: Made) -> None:
    page = visit(written(kind="image"))
    wanted = {"skip", "theme", "explorer-search", "explorer-wrong", "explorer-list", "explorer-logit"}
    seen: list[str] = []
    while not wanted <= set(seen) and len(seen) < 200:
        page.keyboard.press("Tab")
        where = page.evaluate(
            "() => { const e = document.activeElement; const s = getComputedStyle(e);"
            " return [e.id || e.className || e.tagName, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0]; }"
        )
        seen.append(where[0])
        assert where[1], f"{where[0]} has the focus and does not show it"
    assert wanted <= set(seen)


def test_a_tip_says_what_a_mark_is_and_a_press_leads_to_its_item(visit: Open, written: Made) -> None:
    page = visit(written(kind="image"))
    mark = page.locator(".plot .mark.odd[data-item]").first
    mark.scroll_into_view_if_needed()
    mark.hover()
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert tip.inner_text() == mark.get_attribute("data-tip")
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    mark.click()
    assert f"Test item {mark.get_attribute('data-item')}:" in page.locator("#explorer-head").inner_text()


def test_an_index_opens_and_is_filtered(visit: Open, made: Made, tmp_path: Path) -> None:
    shutil.copytree(made(kind="image"), tmp_path / "demo")
    experiment(tmp_path / "e 1")
    page = visit(write_index(tmp_path))
    rows = page.locator("#claims-table tbody tr:visible")
    assert rows.count() == 3
    page.locator("#claims-filter").fill("not testable")
    assert rows.count() == 1
    assert quiet(page)
    page.locator("#experiments a", has_text="e 1").click()
    page.wait_for_url("**/e%201/page.html")
    assert page.locator("h1").inner_text() == "relu_alignment"
    assert page.complaints == []
    narrow = visit(tmp_path / "index.html", width=360)
    assert overflow(narrow) == 0
    assert overflow(visit(tmp_path / "e 1" / "page.html", width=360)) == 0


@pytest.mark.guard
def test_a_notebooks_frame_runs_the_page(visit: Open, made: Made, tmp_path: Path) -> None:
    (tmp_path / "notebook.html").write_text(
        "<!doctype html><p>cell</p>" + Page(made(kind="image"))._repr_html_(), encoding="utf-8"
    )
    page = visit(tmp_path / "notebook.html")
    frame = page.frame_locator("iframe")
    before = frame.locator("#explorer-head").inner_text()
    frame.locator("#explorer-list [role=option]").nth(4).click()
    assert frame.locator("#explorer-head").inner_text() != before
    assert page.complaints == []


@pytest.mark.parametrize("width", [1440, 768])
def test_contents_are_at_the_side_where_there_is_room_and_open_a_section(
    width: int, visit: Open, written: Made
) -> None:
    page = visit(written(kind="image"), width=width)
    nav, main = (page.locator(name).bounding_box() for name in (".bar nav", "main"))
    assert (nav["x"] + nav["width"] <= main["x"]) == (width == 1440)
    assert overflow(page) == 0
    body = page.locator("#s-kernel figure").first
    assert body.is_hidden()
    page.locator(".bar nav a[href='#s-kernel']").click()
    body.wait_for(state="visible")
    assert quiet(page)
