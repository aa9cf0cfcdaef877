"""Views: each keeps the contract, and shows what its section holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from contracts.view import ViewContract, read
from ntkscope.core import Record
from ntkscope.report import VIEWS, Section, Source
from ntkscope.report.views import draw
from ntkscope.report.views.surrogates import POINTS

SAID = (
    "Every one of 24 blocks of gradients agrees with PyTorch's own autograd on your model to 3×10⁻⁷ (allowed: 10⁻³);"
    " 24 samples were also run alone."
)


def words(body: str) -> str:
    """The text of a body as a reader sees it."""
    return "".join(read(body).text)


class TestSummary(ViewContract):
    name = "summary"

    def test_verdict_and_accuracies(self, source: Source) -> None:
        body = VIEWS["summary"](self.section(source), source).body
        said = " ".join(read(body).text)
        assert "in between" in said
        assert "0.44 on a scale from 0" in body
        data = self.section(source).data
        for accuracy in (data["network_accuracy"], *data["surrogate_accuracy"].values()):
            assert f"{100 * accuracy:.1f} %" in said

    def test_it_says_how_the_kernels_were_checked(self, source: Source) -> None:
        said = words(VIEWS["summary"](self.section(source), source).body)
        assert SAID in said
        assert (
            "Every one of 2 blocks of features agrees with the same samples run alone to 5×10⁻⁸ (allowed: 10⁻³)" in said
        )
        assert "computed by a slower exact method: bn.running_mean." in said
        assert "During a forward pass the model itself changes bn.running_mean. Every pass started" in said

    def test_no_score_no_pointer(self, source: Source) -> None:
        section = Section("summary", data={"verdict": "not enough evidence", "score": None})
        body = VIEWS["summary"](section, source).body
        assert "pointer" not in body
        assert "undecided" in body


class TestSurrogates(ViewContract):
    name = "surrogates"

    def test_every_kernel_has_a_row_and_a_plot_of_all_items(self, source: Source) -> None:
        body = VIEWS["surrogates"](self.section(source), source).body
        for row in self.section(source).data["table"]:
            assert f'data-value="{row["tau"]}"' in body
        assert body.count("<figure>") == 3
        assert len(re.findall(r'class="mark(?: odd)?"', body)) == 3 * 70
        wrong = int((source.array("labels.test") != source.array("network.test_prediction")).sum())
        assert body.count('class="mark odd"') == 3 * wrong > 0

    def test_many_items_are_thinned_and_the_most_unlike_stay(self, tmp_path: Path) -> None:
        record = Record.create(tmp_path / "x", kind="xray")
        network = np.full(5000, 0.9)
        other = np.full(5000, 0.9)
        other[4321] = 0.01
        record.array("surrogates.network_probability", network)
        record.array("surrogates.probability.trntk", other)
        section = Section("surrogates", data={"table": [{"kernel": "trntk", "tau": 0.5}]})
        body = VIEWS["surrogates"](section, Source(record)).body
        assert len(re.findall('class="mark"', body)) <= POINTS
        assert "test item 4321: network 0.900, surrogate 0.010" in body
        assert "of 5000 items are drawn" in body


class TestExplain(ViewContract):
    name = "explain"

    def test_published_data_are_the_records(self, source: Source) -> None:
        section = self.section(source)
        published = VIEWS["explain"](section, source).data
        assert [item["index"] for item in published["items"]] == section.data["items"]
        means, nearest = source.array("explain.class_mean"), source.array("explain.nearest_index.ck")
        labels = source.array("labels.train")
        for n, item in enumerate(published["items"]):
            for logit, values in item["means"].items():
                np.testing.assert_array_equal(values, means[n, int(logit)])
            assert {str(item["predicted"]), str(item["true"])} <= set(item["means"])
            assert [index for index, _ in item["nearest"]["ck"]] == nearest[n].tolist()
            for index, _ in [*item["top"], *item["outliers"]]:
                assert published["train"][index]["label"] == labels[index]

    def test_padding_is_left_out(self, tmp_path: Path) -> None:
        record = Record.create(tmp_path / "x", kind="xray")
        for name, index in (("top", [[3, -1]]), ("outliers", [[-1, -1]]), ("nearest", [[2, 1]])):
            ending = ".trntk" if name == "nearest" else ""
            record.array(f"explain.{name}_index{ending}", np.array(index))
            record.array(f"explain.{name}_value{ending}", np.array([[1.0, 0.5]]))
        section = Section("explain", data={"kernels": ["trntk"], "items": [7], "predicted": [0], "true": [1]})
        (item,) = VIEWS["explain"](section, Source(record)).data["items"]
        assert item["top"] == [(3, 1.0)]
        assert item["outliers"] == []
        assert item["nearest"] == {"trntk": [(2, 1.0), (1, 0.5)]}

    def test_many_classes_are_narrowed_to_the_loudest(self, tmp_path: Path) -> None:
        record = Record.create(tmp_path / "x", kind="xray")
        means = np.zeros((1, 100, 100))
        means[0, 5, 40:50] = 1.0
        record.array("explain.class_mean", means)
        section = Section("explain", data={"kernels": [], "items": [0], "predicted": [5], "true": [77]})
        (item,) = VIEWS["explain"](section, Source(record)).data["items"]
        assert item["classes"] == [5, *range(40, 50), 77]


class TestProblems(ViewContract):
    name = "problems"

    def test_every_row_is_there_with_its_number_in_the_whole_set(self, source: Source) -> None:
        section = self.section(source)
        body = VIEWS["problems"](section, source).body
        assert body.count("<tr>") == 3 + sum(len(rows) for rows in section.data.values())
        for row in section.data["mislabelled"]:
            assert f"#{row['original']}<" in body

    def test_labels_nobody_contradicts_are_not_listed(self, source: Source) -> None:
        row = {"index": 0, "original": 7, "score": 0.2, "label": 1, "suggested": 2}
        section = Section(
            "problems", data={"mislabelled": [row, {**row, "original": 8, "score": -0.2, "suggested": 1}]}
        )
        body = VIEWS["problems"](section, source).body
        assert "#7<" in body
        assert "#8<" not in body

    def test_nothing_found_is_said(self, source: Source) -> None:
        section = Section("problems", data={"mislabelled": [], "duplicates": [], "dominating": []})
        assert VIEWS["problems"](section, source).body.count("None were found.") == 3


class TestKernel(ViewContract):
    name = "kernel"

    def test_before_and_after(self, source: Source, made: Callable[..., Path]) -> None:
        body = VIEWS["kernel"](self.section(source), source).body
        assert "Rotation of the kernel" in body
        assert body.count("series-") == 4  # two curves and their two keys
        without = Source(Record.open(made(initial=False)))
        body = VIEWS["kernel"](self.section(without), without).body
        assert "Rotation of the kernel" not in body
        assert "Give the initial weights" in body

    def test_before_and_after_are_compared_on_the_same_items(self, source: Source) -> None:
        """A kernel of more items has a larger effective rank: 5.5 of 1,438 items beside 2.5 of 400 would mislead."""
        initial = {"items": 400, "effective_rank": 2.5, "now_effective_rank": 4.1, "distance": 0.2}
        section = Section("kernel", data={"effective_rank": 5.5, "initial": initial})
        body = str(VIEWS["kernel"](section, source).body)
        assert "2.50 before, 4.10 after, on the same 400 items" in body
        assert "before training" not in body.split("<figure")[0].replace("kernels before and after training", "")


class TestLayers(ViewContract):
    name = "layers"

    def test_shares_and_roads(self, source: Source) -> None:
        said = " ".join(read(VIEWS["layers"](self.section(source), source).body).text)
        assert "51.0 %" in said
        assert "kronecker 85.0 %" in said

    def test_every_kernel_has_a_row_of_its_checks(self, source: Source) -> None:
        body = VIEWS["layers"](self.section(source), source).body
        assert SAID in words(body)
        for text in ("trntk0, initial network", "20 of 20", "4 of 4", "3×10⁻⁷", "single samples"):
            assert text in body

    def test_a_record_without_certificates_says_so(self, made: Callable[..., Path]) -> None:
        old = Source(Record.open(made(kind="image", certified=False)))
        assert "does not say whether its kernels were checked" in VIEWS["layers"](self.section(old), old).body
        summary = next(section for section in old.sections() if section.name == "summary")
        assert "checks" not in VIEWS["summary"](summary, old).body


class TestComputed(ViewContract):
    name = "computed"

    def test_command_versions_and_plan(self, source: Source) -> None:
        said = " ".join(read(VIEWS["computed"](self.section(source), source).body).text)
        for text in ("ntkscope xray --demo --out runs/x", "2.13.0", "3 kernels of 300 × 420 items", "21 s", "3.1×10⁻⁷"):
            assert text in said


@pytest.fixture(scope="module")
def source(made: Callable[..., Path]) -> Source:
    return Source(Record.open(made(kind="image")))


def test_a_section_without_a_view_shows_its_numbers_tables_and_arrays(source: Source) -> None:
    data = {
        "gain": 0.125,
        "rows": [{"a": 1, "b": "<i>"}, {"a": 2.5}],
        "inner": {"deep": [1, 2, 3]},
        "empty": [],
        "none": None,
    }
    found = read(draw(Section("later", title="Later", data=data), source).body)
    said = " ".join(found.text)
    assert "i" not in found.names
    for text in ("0.125", "<i>", "2.5", "1, 2, 3"):
        assert text in said


def test_a_view_that_cannot_read_its_section_says_so_and_shows_the_numbers(source: Source) -> None:
    body = draw(Section("surrogates", data={"speed": 12}), source).body
    assert "could not be drawn as planned (KeyError: 'table')" in read(body).text[0]
    assert "speed" in body
