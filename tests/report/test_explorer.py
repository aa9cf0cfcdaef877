"""What a reader does on a page, in a real browser: find an item, read its explanation, follow a link, review labels."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ntkscope.core import Record
from ntkscope.report import write_page
from ntkscope.xray import read_review
from report.browsing import Made, Open, overflow, quiet
from report.fixtures.xray import OFFERED, write_xray
from report.test_page import experiment


def test_a_wrong_items_explanation_names_the_networks_class(visit: Open, written: Made, made: Made) -> None:
    page = visit(written(kind="image"))
    record = Record.open(made(kind="image"))
    data = record.metrics["section:explain"]["data"]
    page.locator(".findings a", has_text="wrong prediction").click()
    wrong = [n for n, (p, t) in enumerate(zip(data["network_predicted"], data["true"], strict=True)) if p != t]
    first = wrong[0]
    said = str(data["network_predicted"][first])
    page.locator("#explorer-head", has_text=f"Test item {data['items'][first]}:").wait_for()
    assert page.locator("#explorer-count").inner_text() == f"{len(wrong)} of {OFFERED}"
    assert page.locator("#explorer-logit option:checked").inner_text().startswith(f"{said} (predicted")
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
    assert page.locator("#explorer-head .pager span").inner_text() == ""  # not the place of the item found before
    assert found(f"{items[4]}") == [k for k in n if items[4] in (items[k], said[k], true[k])]
    assert found(f"id:digits/test/{items[5]:04}.png") == [5]
    assert quiet(page)


def test_links_open_one_item(visit: Open, written: Made, made: Made) -> None:
    path = written(kind="image")
    record = Record.open(made(kind="image"))
    items = record.metrics["section:explain"]["data"]["items"]
    page = visit(path)
    page.goto(f"{path.as_uri()}#item-{items[9]}")
    page.locator("#explorer-head", has_text=f"Test item {items[9]}:").wait_for()
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
    listed = [row for row in rows if row["score"] > 0]
    body = page.locator("#review-body")
    assert f"Training item {listed[0]['original']}" in body.inner_text()
    body.locator("[data-choice=accept]").click()
    assert f"Training item {listed[1]['original']}" in body.inner_text()
    body.focus()
    page.keyboard.press("k")
    assert page.locator("#review-progress").inner_text() == f"2 of {len(listed)} decided, 1 accepted"
    assert page.locator(f"[data-decision='{listed[0]['index']}']").inner_text() == "accepted"
    for _ in range(5):  # decisions stay; the browser hands them to another process, which a quick reload may overtake
        page.wait_for_timeout(100)
        page.reload()
        if not page.locator("#review-progress").inner_text().startswith("0 of"):
            break
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
    page.locator("#review-progress", has_text=re.compile("^2 of")).wait_for()
    files["json"].write_text(files["json"].read_text().replace(review.record, "0" * 16))
    page.locator("#review-load").set_input_files(files["json"])
    page.locator("#review-note", has_text="another X-ray").wait_for()
    assert quiet(page)


@pytest.mark.guard
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


def test_the_search_is_explained_on_request(visit: Open, written: Made) -> None:
    page = visit(written(kind="image"), width=390)
    how = page.locator("details.search-help")
    assert not how.locator("dl").is_visible()
    how.locator("summary").click()
    assert how.locator("dl").is_visible()
    for said in ("class:3", "true:3", "#123", "trust:high"):  # each is understood, none taken for a word of a text
        assert said in how.inner_text()
    page.locator("#explorer-search").fill("true:3")
    assert page.locator("#explorer-count").inner_text() != "nothing found"
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
        "() => { const box = document.getElementById('explorer-search'); box.value = 'class:3 wrong';"
        " const start = performance.now();"
        " box.dispatchEvent(new Event('input')); return performance.now() - start; }"
    )
    assert took < 1000  # about 10 ms
    page.evaluate(
        "() => { const box = document.getElementById('explorer-search'); box.value = 'right';"
        " box.dispatchEvent(new Event('input')); }"
    )
    count = page.locator("#explorer-count").inner_text()
    assert re.fullmatch(r"\d,\d{3} of 5,000", count), count
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


def test_keys_find_and_change_the_item(visit: Open, written: Made, made: Made) -> None:
    page = visit(written(kind="image"))
    items = Record.open(made(kind="image")).metrics["section:explain"]["data"]["items"]
    assert f"{OFFERED} of the 70 test items are here" in page.locator("#explorer").inner_text()
    page.keyboard.press("j")
    assert f"Test item {items[1]}:" in page.locator("#explorer-head").inner_text()
    page.keyboard.press("/")
    page.keyboard.type(f"{items[3]:04}.png")  # a part of an id
    page.keyboard.press("Enter")
    assert f"Test item {items[3]}:" in page.locator("#explorer-head").inner_text()
    assert page.evaluate("document.activeElement.id") == "explorer-list"
    assert quiet(page)
