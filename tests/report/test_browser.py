"""Pages in a real browser: from disk, without the network, by mouse and by keys, wide and narrow."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ntkscope.cli import main
from ntkscope.core import Record
from ntkscope.report import Page, write_index, write_page
from ntkscope.xray import read_review
from report.fixtures.xray import HOSTILE, OFFERED, write_xray
from report.test_page import experiment

Made = Callable[..., Path]
Open = Callable[..., Any]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed (Debian: apt install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path)
        yield running
        running.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Open a file; whatever the page asks for or complains of is collected in `.asked` and `.complaints`."""
    contexts = []

    def go(path: Path, width: int = 1280, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, accept_downloads=True, **options)
        contexts.append(context)
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.asked, page.complaints = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (page.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.goto(path.as_uri())
        return page

    yield go
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def written(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("pages")

    def write(**options: object) -> Path:
        out = folder / ("-".join(map(str, options.values())) + ".html")
        return out if out.exists() else write_page(made(**options), out)

    return write


def quiet(page: Any) -> bool:
    outside = [url for url in page.asked if not url.startswith(("data:", "blob:")) and url != page.url.split("#")[0]]
    assert outside == []
    assert page.complaints == []
    return True


def overflow(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


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
    assert len(rows) == 1 + len(Record.open(tmp_path / "demo").metrics["section:problems"]["data"]["mislabelled"])
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


def state(page: Any) -> tuple[str, str, str, str]:
    """What the explorer shows: the item, the bars, the supporting training points, the neighbours."""
    return tuple(page.locator(f"#explorer-{part}").inner_text() for part in ("head", "bars", "top", "nearest"))


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


def test_the_bars_are_the_records_numbers(visit: Open, written: Made, made: Made) -> None:
    """The mean contributions to the logit of the network's class, and those to another logit when it is chosen."""
    page = visit(written(kind="image"))
    record = Record.open(made(kind="image"))
    data, means = record.metrics["section:explain"]["data"], record.arrays["explain.class_mean"]

    def shown() -> np.ndarray:
        texts = page.locator("#explorer-rows .value").all_inner_texts()
        return np.array([float(text.replace("−", "-")) for text in texts])

    network = data["network_predicted"][0]
    np.testing.assert_allclose(shown(), means[0, network], rtol=0.06)  # two digits are shown
    before = state(page), page.locator("#explorer-influence").inner_text(), page.locator("#explorer-facts").inner_text()
    other = data["chosen"][0][1]
    assert other != network
    page.locator("#explorer-logit").select_option(str(other))
    np.testing.assert_allclose(shown(), means[0, other], rtol=0.06)
    after = state(page), page.locator("#explorer-influence").inner_text(), page.locator("#explorer-facts").inner_text()
    assert before[0][2] != after[0][2]  # the supporting points follow the class
    assert before[1] != after[1]
    assert before[2] != after[2]
    assert quiet(page)


def test_a_wrong_items_explanation_names_the_networks_class(visit: Open, written: Made, made: Made) -> None:
    page = visit(written(kind="image"))
    record = Record.open(made(kind="image"))
    data = record.metrics["section:explain"]["data"]
    page.locator(".findings a", has_text="wrong prediction").click()
    wrong = [n for n, (p, t) in enumerate(zip(data["network_predicted"], data["true"], strict=True)) if p != t]
    assert page.locator("#explorer-count").inner_text() == f"{len(wrong)} of {OFFERED}"
    first = wrong[0]
    said = str(data["network_predicted"][first])
    assert f"Test item {data['items'][first]}:" in page.locator("#explorer-head").inner_text()
    assert page.locator("#explorer-logit option:checked").inner_text().startswith(f"{said} (the network's answer")
    for part in ("bars", "top", "influence", "nearest"):
        assert said in page.locator(f"#explorer-{part} p bdi").first.inner_text()
    top = record.arrays["explain.top_index"][first, 0]
    labels = record.arrays["labels.train"]
    assert page.locator("#explorer-top li bdi").all_inner_texts() == [str(labels[i]) for i in top]
    marks = ["do not trust", "medium", "high"]
    assert marks[record.arrays["explain.trust"][first]] in page.locator("#explorer-trust").inner_text()
    assert quiet(page)


def test_search_is_exact_by_class_and_by_number(visit: Open, written: Made, made: Made) -> None:
    page = visit(written(kind="image"))
    data = Record.open(made(kind="image")).metrics["section:explain"]["data"]
    said, true, items = data["network_predicted"], data["true"], data["items"]

    def found(text: str) -> list[int]:
        page.locator("#explorer-search").fill(text)
        return [int(n) for n in page.locator("[role=option]").evaluate_all("all => all.map(o => o.dataset.n)")]

    n = range(len(items))
    assert found("class:3") == [k for k in n if 3 in (said[k], true[k])]
    assert found("true:3 wrong") == [k for k in n if true[k] == 3 != said[k]]
    assert found(f"predicted:{said[4]}") == [k for k in n if said[k] == said[4]]
    assert found(f"#{items[2]}") == [2]
    assert found("class:33") == []
    assert found('id:"digits/test/%04d.png"' % items[5]) == [5]
    assert quiet(page)


def test_links_open_one_item(visit: Open, written: Made, made: Made) -> None:
    path = written(kind="image")
    record = Record.open(made(kind="image"))
    items = record.metrics["section:explain"]["data"]["items"]
    page = visit(path)
    page.goto(f"{path.as_uri()}#item-{items[9]}")
    page.wait_for_function(f"document.getElementById('explorer-head').textContent.includes('Test item {items[9]}:')")
    doubtful = record.metrics["section:problems"]["data"]["mislabelled"][0]
    page.goto(f"{path.as_uri()}#train-{doubtful['original']}")
    panel = page.locator("#train-item")
    panel.wait_for(state="visible")
    assert f"Training item {doubtful['original']}" in panel.inner_text()
    assert f"digits/train/{doubtful['index']:04}.png" in panel.inner_text()
    panel.locator("button").click()
    panel.wait_for(state="hidden")
    page.goto(f"{path.as_uri()}#train-999999")
    panel.wait_for(state="visible")
    assert "does not show this item" in panel.inner_text()
    assert quiet(page)


def test_labels_are_reviewed_saved_and_loaded(visit: Open, written: Made, made: Made, tmp_path: Path) -> None:
    page = visit(written(kind="image"))
    record = Record.open(made(kind="image"))
    rows = record.metrics["section:problems"]["data"]["mislabelled"]
    listed = [row for row in rows if row["label"] != row["suggested"]]
    body = page.locator("#review-body")
    assert f"Training item {listed[0]['original']}" in body.inner_text()
    body.locator("[data-choice=accept]").click()
    assert f"Training item {listed[1]['original']}" in body.inner_text()
    body.focus()
    page.keyboard.press("r")
    assert page.locator("#review-progress").inner_text() == f"2 of {len(listed)} decided, 1 accepted"
    assert page.locator(f"[data-decision='{listed[0]['index']}']").inner_text() == "accepted"
    page.reload()  # decisions stay
    assert page.locator("#review-progress").inner_text() == f"2 of {len(listed)} decided, 1 accepted"
    files = {}
    for ending in ("json", "csv"):
        with page.expect_download() as download:
            page.locator(f"#review-{ending}").click()
        files[ending] = tmp_path / f"review.{ending}"
        download.value.save_as(files[ending])
    review = read_review(files["json"])
    assert review == read_review(files["csv"])
    review.check(record)
    assert [each.original for each in review.accepted] == [listed[0]["original"]]
    assert [each.original for each in review.rejected] == [listed[1]["original"]]
    assert len(review.decisions) == len(listed)
    page.evaluate("localStorage.clear()")
    page.reload()
    assert page.locator("#review-progress").inner_text().startswith("0 of")
    page.locator("#review-load").set_input_files(files["json"])
    page.wait_for_function("document.getElementById('review-progress').textContent.startsWith('2 of')")
    files["json"].write_text(files["json"].read_text().replace(review.record, "0" * 16))
    page.locator("#review-load").set_input_files(files["json"])
    page.wait_for_function("document.getElementById('review-note').textContent.includes('another X-ray')")
    assert quiet(page)


def test_a_doubtful_neighbour_is_flagged(visit: Open, written: Made, made: Made) -> None:
    page = visit(written(kind="image"))
    record = Record.open(made(kind="image"))
    scores, near = record.arrays["problems.label_score"], record.arrays["problems.neighbour_index"]
    place = next(k for k, row in enumerate(near) if (scores[row] > 0).any())
    for _ in range(place):
        page.locator("#review-next").click()
    assert page.locator("#review-body li .flag").count() == int((scores[near[place]] > 0).sum()) > 0


def test_a_tau_says_what_it_means(visit: Open, written: Made, made: Made) -> None:
    page = visit(written(kind="image"))
    table = Record.open(made(kind="image")).metrics["section:surrogates"]["data"]["table"]
    page.locator("#s-surrogates button.help").first.click()
    popover = page.locator("#help-tau")
    assert popover.is_visible()
    assert f"order about {50 * (1 + table[0]['tau']):.0f} % the same way" in popover.inner_text()
    page.keyboard.press("Escape")
    assert popover.is_hidden()
    assert quiet(page)


@pytest.mark.guard
def test_thousands_of_items_are_quick(visit: Open, tmp_path: Path) -> None:
    """Five thousand items: a few rows are elements, the last item is one key away, and a search takes moments."""
    folder = write_xray(tmp_path / "x", train=60, test=30)
    record = Record.resume(folder)
    section = dict(record.metrics["section:explain"])
    data, times = dict(section["data"]), 5000 // 20
    for key in ("items", "predicted", "network_predicted", "true", "chosen"):
        data[key] = list(data[key]) * times
    for name, values in list(record.arrays.items()):
        if name.startswith("explain."):
            record.array(name, np.concatenate([np.asarray(values)] * times))
    record.put(**{"section:explain": {**section, "data": data}})
    record.finish()
    page = visit(write_page(folder))
    assert page.locator("[role=option]").count() < 400
    page.locator("#explorer-list").focus()
    page.keyboard.press("End")
    assert page.locator("[role=option][aria-selected=true]").get_attribute("data-n") == "4999"
    took = page.evaluate(
        "() => { const box = document.getElementById('explorer-search'); box.value = 'class:3 wrong'; const start = performance.now();"
        " box.dispatchEvent(new Event('input')); return performance.now() - start; }"
    )
    assert took < 1000  # about 10 ms
    assert quiet(page)


@pytest.mark.parametrize("width", [1440, 768, 390])
def test_published_measured_and_verdict_are_in_view_together(width: int, visit: Open, tmp_path: Path) -> None:
    page = visit(write_page(experiment(tmp_path / "e")), width=width)
    assert overflow(page) == 0
    row = page.locator("table.claims tbody tr").nth(1)
    row.scroll_into_view_if_needed()
    boxes = [row.locator(f"td.{name}").bounding_box() for name in ("published", "measured", "claim-verdict")]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
    top, bottom = min(box["y"] for box in boxes), max(box["y"] + box["height"] for box in boxes)
    assert bottom - top < 400
    assert page.evaluate("document.documentElement.scrollHeight") < 6000


@pytest.mark.parametrize("width", [1440, 768, 390])
@pytest.mark.parametrize("earlier", [False, True])
def test_three_widths(width: int, earlier: bool, visit: Open, written: Made) -> None:
    page = visit(written(kind="image", earlier=earlier), width=width)
    assert overflow(page) == 0
    assert page.locator(".undrawn").count() == 0
    top = page.locator(".findings").bounding_box()["y"]
    assert top < 500  # findings are on the first screen
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
    page.locator("#explorer-differ").uncheck()
    page.locator("#explorer-search").fill(str(data["items"][3]))
    assert "3" in visible.evaluate_all("all => all.map(o => o.dataset.n)")
    assert quiet(page)


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


def saved(page: Any, button: Any) -> tuple[str, list[list[str]]]:
    with page.expect_download() as download:
        button.click()
    content = Path(download.value.path()).read_bytes().decode("utf-8-sig")
    return download.value.suggested_filename, list(csv.reader(io.StringIO(content)))


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


@pytest.mark.parametrize(("kind", "hostile"), [("image", False), ("image", True), ("text", True)])
def test_nothing_hangs_over_on_a_phone(kind: str, hostile: bool, visit: Open, written: Made) -> None:
    page = visit(written(kind=kind, hostile=hostile), width=360)
    assert overflow(page) == 0
    page.locator("details").evaluate_all("all => all.forEach(d => d.open = true)")
    page.locator("#explorer-list").focus()
    for _ in range(OFFERED):  # whatever item is chosen
        assert overflow(page) == 0
        page.keyboard.press("ArrowRight")
    assert quiet(page)


LIGHT = "getComputedStyle(document.documentElement).backgroundColor.match(/[0-9]+/g).map(Number).reduce((a, b) => a + b) > 384"


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


def test_a_tip_says_what_a_mark_is(visit: Open, written: Made) -> None:
    page = visit(written(kind="image"))
    mark = page.locator(".plot .mark.odd").first
    mark.scroll_into_view_if_needed()
    mark.hover()
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert tip.inner_text() == mark.get_attribute("data-tip")
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_a_mark_leads_to_its_item(visit: Open, written: Made) -> None:
    page = visit(written(kind="image"))
    mark = page.locator(".plot .mark.odd[data-item]").first
    item = mark.get_attribute("data-item")
    mark.click()
    assert f"Test item {item}:" in page.locator("#explorer-head").inner_text()


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
