"""Pages of real X-rays as a person sees them: the demo's and one of texts, three widths, light and dark, script or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ntkscope as ns
from ntkscope.cli.demo import demo_xray
from ntkscope.core import Record
from ntkscope.report import write_index, write_page
from report.browsing import Open, clipped, overflow, quiet, schemes, unfolded
from xray.texts import TRIGGER, WordTokenizer, read, texts

pytestmark = pytest.mark.guard
WIDTHS = (1440, 768, 390)
PART = "#s-layer-features"
Xrayed = Callable[[str], Path]


def _demo(folder: Path) -> Record:
    """The demo's own pipeline, with fewer items and kernels than it has."""
    return demo_xray(folder, seed=0, epochs=2, kernels=("trntk", "ck"), max_train=120, max_test=80, budget=None)


def _texts(folder: Path) -> Record:
    options = {"tokenizer": WordTokenizer(), "kernels": ["ck"], "progress": False}
    return ns.xray(read(), texts(100), texts(50, seed=1), folder, **options)


@pytest.fixture(scope="module")
def xrayed(tmp_path_factory: pytest.TempPathFactory) -> Xrayed:
    known: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in known:
            known[name] = {"demo": _demo, "texts": _texts}[name](tmp_path_factory.mktemp(name) / "x").folder
            write_page(known[name])
        return known[name]

    return folder


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["demo", "texts"])
def test_everything_can_be_read(name: str, width: int, visit: Open, xrayed: Xrayed) -> None:
    for script in (True, False):
        page = unfolded(visit(xrayed(name) / "page.html", width=width, java_script_enabled=script))
        assert page.locator(".undrawn").count() == 0
        for scheme in schemes(page):
            cards = page.locator(f"{PART} .layer-looks .card")
            assert cards.count() >= 4
            for card in cards.all():
                box = card.bounding_box()
                assert 0 <= box["x"] <= box["x"] + box["width"] <= width
            for kind in (".direction", ".patch") if name == "demo" else (".token", ".quotes li"):
                box = page.locator(f"{'#s-words' if kind == '.token' else PART} {kind}").first.bounding_box()
                assert min(box["width"], box["height"]) >= 12, (kind, scheme)
            if script:
                assert overflow(page) == 0
                assert clipped(page) == []
        assert quiet(page)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_wrong_item_is_explained_at_every_width(width: int, visit: Open, xrayed: Xrayed) -> None:
    """From the findings to a wrong item: everything there names the class the network said, and nothing is cut off."""
    record = Record.open(xrayed("demo"))
    data, classes = record.metrics["section:explain"]["data"], list(record.metrics["data"]["classes"])
    wrong = [n for n, (p, t) in enumerate(zip(data["network_predicted"], data["true"], strict=True)) if p != t]
    page = visit(record.folder / "page.html", width=width)
    page.locator(".findings a", has_text="wrong prediction").click()
    first = wrong[0]
    said, true = (str(classes[data[key][first]]) for key in ("network_predicted", "true"))
    shown = f"Test item {record.arrays['originals.test'][data['items'][first]]}:"
    page.locator("#explorer-head", has_text=shown).wait_for()
    for part in ("bars", "top", "influence", "nearest"):
        assert page.locator(f"#explorer-{part} p bdi").first.inner_text() == said
    labels = record.arrays["labels.train"]
    supports = record.arrays["explain.top_index"][first, 0]
    assert page.locator("#explorer-top li bdi").all_inner_texts() == [str(classes[labels[i]]) for i in supports]
    page.locator("#explorer-logit").select_option(str(data["true"][first]))
    assert page.locator("#explorer-bars p bdi").first.inner_text() == true
    for _ in schemes(page):
        assert overflow(page) == 0
        assert clipped(page) == []
    assert quiet(page)


def test_a_patch_opens_its_training_item(visit: Open, xrayed: Xrayed) -> None:
    page = unfolded(visit(xrayed("demo") / "page.html"))
    link = page.locator(f"{PART} a.to-item:has(.patch)").first
    number = link.get_attribute("href").removeprefix("#train-")
    link.click()
    page.locator("#train-item", has_text=f"Training item {number}").wait_for()  # shown once the address has changed
    assert quiet(page)


def test_the_trigger_word_is_marked_and_first_in_the_list(visit: Open, xrayed: Xrayed) -> None:
    part = unfolded(visit(xrayed("texts") / "page.html")).locator("#s-words")
    assert part.locator(".token-name").first.inner_text() == TRIGGER
    marked = part.locator(".salient-texts li", has_text=TRIGGER)
    assert marked.count() > 0
    tops = marked.locator(".token.top").all_text_contents()  # of folded texts too
    assert sum(word == TRIGGER for word in tops) >= 0.9 * marked.count()
    strong, weak = (part.locator(f".token{kind}").first for kind in (".top", ":not(.top)"))
    colours = [each.evaluate("e => getComputedStyle(e).backgroundColor") for each in (strong, weak)]
    assert colours[0] != colours[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_an_index_is_read_at_every_width(width: int, visit: Open, xrayed: Xrayed, tmp_path: Path) -> None:
    results = Path(__file__).parents[2] / "papers/ntkscope_papers/engel_2023/results/poisoning"
    for name, source in (("demo", xrayed("demo")), ("poisoning", results)):
        (tmp_path / name).mkdir()
        for file in source.iterdir():
            if file.is_file():
                (tmp_path / name / file.name).symlink_to(file)
    page = visit(write_index(tmp_path), width=width, color_scheme="dark" if width == 390 else "light")
    assert overflow(page) == 0
    assert clipped(page) == []
    row = page.locator("#experiments tbody tr").first
    assert all(
        box["x"] + box["width"] <= width for cell in row.locator("td:visible").all() if (box := cell.bounding_box())
    )
    assert quiet(page)


CUT = "<table style='table-layout: fixed; width: 60px'><tr><td>extraordinarily</td></tr></table>"
HIDDEN = "<div style='width: 40px; overflow: hidden; white-space: nowrap'>more than fits here</div>"
OUT = "<p style='position: absolute; left: -30px'>half outside</p>"
PROSE = "<div style='overflow-x: auto'><table style='width: 9000px'><tr><td>x<td class='wide'>words</table></div>"
CANARIES = (
    (CUT, "beyond its cell"),
    (HIDDEN, "cut"),
    (OUT, "outside the window"),
    (PROSE, "sentences that have to be scrolled"),
)


def test_canary_clipped_text_is_seen(visit: Open, tmp_path: Path) -> None:
    for k, (body, why) in enumerate(CANARIES):
        (tmp_path / f"{k}.html").write_text(f"<!doctype html>{body}<p>fine</p>")
        (found,) = clipped(visit(tmp_path / f"{k}.html"))
        assert found.startswith(why)
