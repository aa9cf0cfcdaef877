"""Pages of real X-rays as a person sees them: the demo's and one of an own checkpoint, three widths, light and dark."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from ntkscope.cli import main
from ntkscope.cli.demo import demo_xray
from ntkscope.core import Record
from ntkscope.report import write_index, write_page
from ntkscope.xray import read_review
from report.browsing import Open, clipped, overflow, quiet, schemes

WIDTHS = (1440, 768, 390)
MINE = """
import torch
from torch import nn
from sklearn.datasets import load_digits

def network():
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 10))

def data():
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(y)
    wrong = torch.arange(0, 240, 20)
    y[wrong] = (y[wrong] + 3) % 10
    return (x[:240], y[:240]), (x[240:360], y[240:360]), [f"digit {k}" for k in range(10)]
"""


def _own(folder: Path) -> Path:
    """`ntkscope xray` of a checkpoint that a plain training loop saved, twelve of its labels wrong."""
    code = folder.parent / "code"
    code.mkdir()
    (code / "looked_at_mine.py").write_text(MINE)
    sys.path.insert(0, str(code))
    try:
        import looked_at_mine as mine  # type: ignore[import-not-found]

        torch.manual_seed(0)
        model: nn.Module = mine.network()
        torch.save(model.state_dict(), code / "before.pt")
        (x, y), *_ = mine.data()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.save(model.state_dict(), code / "after.pt")
        command = ["xray", "--model", "looked_at_mine:network", "--weights", str(code / "after.pt")]
        command += ["--initial-weights", str(code / "before.pt"), "--data", "looked_at_mine:data"]
        with pytest.raises(SystemExit) as left:
            main([*command, "--kernels", "trntk,ck", "--time", "none", "--out", str(folder)])
        assert not left.value.code
    finally:
        sys.path.remove(str(code))
    return folder


def _demo(folder: Path) -> Path:
    """The demo's own pipeline, with fewer items and kernels than it has."""
    demo_xray(folder, seed=0, epochs=2, kernels=("trntk", "ck"), max_train=120, max_test=80, budget=None)
    return folder


@pytest.fixture(scope="module")
def xrayed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    known: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in known:
            known[name] = {"demo": _demo, "own": _own}[name](tmp_path_factory.mktemp(name) / "x")
            write_page(known[name])
        return known[name]

    return folder


@pytest.mark.guard
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["demo", "own"])
def test_a_wrong_item_is_explained_at_every_width(
    name: str, width: int, visit: Open, xrayed: Callable[[str], Path]
) -> None:
    """From the findings to a wrong item: everything there names the class the network said, and nothing is cut off."""
    folder = xrayed(name)
    record = Record.open(folder)
    data, classes = record.metrics["section:explain"]["data"], list(record.metrics["data"]["classes"])
    wrong = [n for n, (p, t) in enumerate(zip(data["network_predicted"], data["true"], strict=True)) if p != t]
    assert wrong
    page = visit(folder / "page.html", width=width)
    assert page.locator(".undrawn").count() == 0
    for _ in schemes(page):
        assert overflow(page) == 0
        assert clipped(page) == []
    page.locator(".findings a", has_text="wrong prediction").click()
    first = wrong[0]
    said, true = (str(classes[data[key][first]]) for key in ("network_predicted", "true"))
    shown = f"Test item {record.arrays['originals.test'][data['items'][first]]}:"
    page.locator("#explorer-head", has_text=shown).wait_for()
    head = page.locator("#explorer-head").inner_text()
    assert said in head
    assert true in head
    assert page.locator("#explorer-logit option:checked").inner_text().startswith(f"{said} (the network's answer")
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


@pytest.mark.guard
def test_planted_labels_are_reviewed_and_corrected(visit: Open, xrayed: Callable[[str], Path], tmp_path: Path) -> None:
    """Review on the page, save, read back, and get the labels with the accepted suggestions in place."""
    folder = xrayed("own")
    record = Record.open(folder)
    page = visit(folder / "page.html")
    listed = record.metrics["section:problems"]["data"]["mislabelled"]
    offered = [row for row in listed if row["label"] != row["suggested"]]
    planted = set(range(0, 240, 20))
    body = page.locator("#review-body")
    expected = {}
    for row in offered:
        assert f"Training item {row['original']}," in body.inner_text()
        decision = "accept" if row["original"] in planted else "reject"
        body.locator(f"[data-choice={decision}]").click()
        expected[row["original"]] = decision
    assert sorted(set(expected.values())) == ["accept", "reject"]
    reviews = []
    for ending in ("json", "csv"):
        with page.expect_download() as download:
            page.locator(f"#review-{ending}").click()
        download.value.save_as(tmp_path / download.value.suggested_filename)
        reviews.append(read_review(tmp_path / download.value.suggested_filename))
    assert reviews[0] == reviews[1]
    review = reviews[0]
    review.check(record)
    assert {each.original: each.decision for each in review.decisions} == expected
    clean = load_digits().target[:240]
    y = np.where(np.isin(np.arange(240), list(planted)), (clean + 3) % 10, clean)
    corrected = review.corrected(y)
    changed = np.flatnonzero(corrected != y)
    assert set(changed.tolist()) == {n for n, decision in expected.items() if decision == "accept"} <= planted
    assert np.mean(corrected[changed] == clean[changed]) > 0.5
    assert quiet(page)


@pytest.mark.guard
@pytest.mark.parametrize("width", WIDTHS)
def test_an_index_is_read_at_every_width(
    width: int, visit: Open, xrayed: Callable[[str], Path], tmp_path: Path
) -> None:
    results = Path(__file__).parents[2] / "papers/ntkscope_papers/engel_2023/results/poisoning"
    for name, source in (("own", xrayed("own")), ("poisoning", results)):
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


@pytest.mark.guard
def test_canary_clipped_text_is_seen(visit: Open, tmp_path: Path) -> None:
    for k, (body, why) in enumerate(CANARIES):
        (tmp_path / f"{k}.html").write_text(f"<!doctype html>{body}<p>fine</p>")
        (found,) = clipped(visit(tmp_path / f"{k}.html"))
        assert found.startswith(why)
