"""What each layer looks for, in a real browser: images and texts, three widths, light and dark, with and without a script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.report import write_page
from report.browsing import Open, clipped, overflow, quiet, schemes
from xray.texts import TRIGGER, WordTokenizer, read, texts

pytestmark = pytest.mark.guard
WIDTHS = (1440, 768, 390)
PART = "#s-layer-features"


def _images(folder: Path) -> Path:
    split = ns.data.load("digits")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10)
        )
    ns.training.fit(model, split.train, lr=1e-2, optimizer="adam", steps=60, batch_size=64, measure=False).final()
    ns.xray(
        model.eval(), split.train, split.test, folder, kernels=["ck"], max_train=120, max_test=60, progress=False
    )  # fmt: skip
    return folder


def _texts(folder: Path) -> Path:
    ns.xray(
        read(), texts(100), texts(50, seed=1), folder, tokenizer=WordTokenizer(), kernels=["ck"], progress=False
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    known: dict[str, Path] = {}

    def page(kind: str) -> Path:
        if kind not in known:
            known[kind] = write_page({"images": _images, "texts": _texts}[kind](tmp_path_factory.mktemp(kind) / "x"))
        return known[kind]

    return page


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["images", "texts"])
def test_everything_can_be_read(
    kind: str, width: int, script: bool, visit: Open, page_of: Callable[[str], Path]
) -> None:
    page = visit(page_of(kind), width=width, java_script_enabled=script)
    part = page.locator(PART)
    for scheme in schemes(page):
        assert part.locator(".undrawn").count() == 0
        cards = part.locator(".layer-looks .card")
        assert cards.count() >= 4
        for k in range(cards.count()):
            box = cards.nth(k).bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        for name in (".direction", ".patch") if kind == "images" else (".token", ".quotes li"):
            shown = part.locator(name)
            assert shown.count() > 0
            box = shown.first.bounding_box()
            assert min(box["width"], box["height"]) >= 12, (name, scheme)
        if script:
            assert overflow(page) == 0
            assert clipped(page) == []
    assert quiet(page)


def test_a_patch_opens_its_training_item(visit: Open, page_of: Callable[[str], Path]) -> None:
    page = visit(page_of("images"))
    link = page.locator(f"{PART} a.to-item:has(.patch)").first
    number = link.get_attribute("href").removeprefix("#train-")
    link.click()
    page.locator("#train-item", has_text=f"Training item {number}").wait_for()  # shown once the address has changed
    assert quiet(page)


def test_the_trigger_word_is_marked_and_first_in_the_list(visit: Open, page_of: Callable[[str], Path]) -> None:
    page = visit(page_of("texts"))
    part = page.locator(PART)
    assert part.locator(".token-name").first.inner_text() == TRIGGER
    marked = part.locator(".salient-texts li", has_text=TRIGGER)
    assert marked.count() > 0
    tops = marked.locator(".token.top").all_inner_texts()
    assert sum(word == TRIGGER for word in tops) >= 0.9 * marked.count()
    strong, weak = (part.locator(f".token{kind}").first for kind in (".top", ":not(.top)"))
    colours = [each.evaluate("e => getComputedStyle(e).backgroundColor") for each in (strong, weak)]
    assert colours[0] != colours[1]
    assert quiet(page)
