"""Two X-rays compared: nothing changed against itself; another network and other data are told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ntkscope as ns
from ntkscope.cli import main
from ntkscope.core import Record, UsageError
from ntkscope.report import Page
from ntkscope.xray.comparison import Comparison, compare, comparison
from ntkscope.xray.sections import explain, problems, summary
from xray.small import blobs, copied, network, only, trained

COMPARED = (summary.SECTION, explain.SECTION, problems.SECTION)  # what a comparison reads


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return copied(tmp_path_factory.mktemp("compared") / "a", tmp_path_factory)


def test_against_itself_nothing_changed(first: Record) -> None:
    found = comparison(first, first)
    assert found.predictions is not None
    assert (found.predictions.only_a, found.predictions.only_b, found.predictions.p) == (0, 0, 1.0)
    assert found.predictions.changed == ()
    assert [each.cka for each in found.kernels] == pytest.approx([1.0] * len(found.kernels))
    assert "trntk0" in {each.name for each in found.kernels}
    assert all(each.shared == each.k and each.same_class for each in found.overlaps)
    assert len(found.overlaps) > 0
    assert found.doubtful_new == found.doubtful_gone == ()
    assert all(each.a == each.b for each in found.surrogates)


def test_another_network_on_the_same_data(first: Record, tmp_path: Path) -> None:
    train, test = blobs()
    _, model = trained(train, seed=5)
    with only(*COMPARED):
        second = ns.xray(model, train, test, tmp_path / "b", kernels=["ck"], untrained=True, progress=False)
    record = compare(first, second, tmp_path / "both")
    found = Comparison.from_record(record.metrics["comparison"])
    assert found == comparison(first, second)
    said = [np.asarray(each.arrays["network.test_prediction"]) for each in (first, second)]
    true = np.asarray(first.arrays["labels.test"])
    assert found.predictions is not None
    assert found.predictions.only_a == int(((said[0] == true) & (said[1] != true)).sum())
    assert {each.original for each in found.predictions.changed} == set(np.flatnonzero(said[0] != said[1]).tolist())
    assert all(0 <= each.cka < 0.99999 for each in found.kernels if each.name == "trntk0")
    scores = [np.asarray(each.arrays["problems.label_score"]) > 0 for each in (first, second)]
    assert {each.original for each in found.doubtful_new} == set(np.flatnonzero(scores[1] & ~scores[0]).tolist())
    assert found.doubtful_kept == int((scores[0] & scores[1]).sum())
    page = Page(record).html
    assert "What changed from one X-ray to another" in page
    assert "Shared points" in page


def test_of_different_item_counts_what_is_common_is_compared(
    first: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, test = blobs()
    _, model = trained(train, seed=5)
    few = {"max_train": 40, "max_test": 30, "kernels": ["ck"], "untrained": True, "progress": False}
    with only(*COMPARED):
        second = ns.xray(model, train, test, tmp_path / "b", **few)
    found = comparison(first, second)
    both = np.asarray(second.arrays["originals.test"])
    right = np.asarray(first.arrays["network.test_prediction"]) == np.asarray(first.arrays["labels.test"])
    assert found.predictions is not None
    assert (found.predictions.items, {each.items for each in found.kernels}) == (30, {40})
    assert found.a.accuracy == pytest.approx(right[both].mean())
    assert found.a.doubtful == found.doubtful_kept + len(found.doubtful_gone)
    assert found.b.doubtful == found.doubtful_kept + len(found.doubtful_new)
    with pytest.raises(SystemExit) as left:
        main(["compare", str(first.folder), str(second.folder), "--out", str(tmp_path / "c")])
    assert not left.value.code
    printed, page = capsys.readouterr().out, Page(tmp_path / "c").html
    for said in ("A used 60 training items and B 40;", "A used 60 test items and B 30;", "over the 30 that both used"):
        assert said in printed
        assert said in page


def test_other_data_are_compared_by_figures_alone(
    first: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, test = blobs(seed=3)
    with only(*COMPARED):
        second = ns.xray(network(), train, test, tmp_path / "b", kernels=["ck"], untrained=True, progress=False)
    found = comparison(first, second)
    assert found.predictions is None
    assert [*found.kernels, *found.overlaps, *found.doubtful_new, *found.doubtful_gone] == []
    assert len(found.notes) == 2
    assert found.surrogates
    with pytest.raises(SystemExit):
        main(["compare", str(first.folder), str(tmp_path / "b"), "--out", str(tmp_path / "c")])
    assert "doubtful labels: not compared (different training data)\n" in capsys.readouterr().out
    page = Page(tmp_path / "c").html
    assert "Not compared (different training data)." in page
    assert "0 labels are doubtful" not in page


def test_the_command(first: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["compare", str(first.folder), str(first.folder), "--out", str(tmp_path / "c")])
    assert not left.value.code
    assert "doubtful labels: 0 new, 0 gone" in capsys.readouterr().out
    assert (tmp_path / "c" / "page.html").exists()


def test_what_is_no_xray_is_refused(first: Record, tmp_path: Path) -> None:
    other = Record.create(tmp_path / "o", kind="experiment")
    other.finish()
    with pytest.raises(UsageError, match="kind 'experiment'; expected an X-ray"):
        compare(first, other, tmp_path / "c")
