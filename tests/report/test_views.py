"""Views: each keeps the contract, and shows what its section holds."""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.dataset import given
from contracts.view import ViewContract, read
from ntkscope.core import Record
from ntkscope.report import VIEWS
from ntkscope.report.source import Section, Source
from ntkscope.report.views import draw
from ntkscope.report.views.representations import sentence as collapse_sentence
from ntkscope.report.views.shift import sentence as shift_sentence
from ntkscope.report.views.shift import shift as shift_view
from ntkscope.report.views.surrogates import POINTS
from ntkscope.xray.sections.representations import Layer, Representations
from ntkscope.xray.sections.shift import Judged, Memorisation, Seen
from report.browsing import Made
from report.fixtures.examples import example
from report.fixtures.xray import HOSTILE

SAID = (
    "Every one of 24 blocks of gradients agrees with PyTorch's own autograd on your model to 3×10⁻⁷ (allowed: 10⁻³);"
    " 24 samples were also run alone."
)


EXACT = 5e-4  # ten bits of fraction, rounded


def unpacked(packed: Any, *rows: int) -> np.ndarray:
    """A packed array with its shape, read in another way than the page does; `rows`: how many there are."""
    digits = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    codes = np.array([digits.index(digit) for digit in packed["data"]], dtype=np.int64).reshape(-1, packed["size"])
    values = codes @ 64 ** np.arange(packed["size"])[::-1]
    none = values == 64 ** packed["size"] - 1
    if "exponent" not in packed:
        return np.where(none, -1, values).reshape(*rows, *packed["shape"])
    below, size = values >> 10 & 127, 1 + (values & 1023) / 1024
    floats = np.where(values >> 17, -1, 1) * np.where(below < 127, size * 2.0 ** (packed["exponent"] - 1 - below), 0)
    return np.where(none, np.nan, floats).reshape(*rows, *packed["shape"])


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


class TestSurrogates(ViewContract):
    name = "surrogates"

    def test_every_surrogate_has_a_row_and_a_plot_of_all_items(self, source: Source) -> None:
        body = VIEWS["surrogates"](self.section(source), source).body
        rows = self.section(source).data["table"]
        assert len(rows) == 6
        for row in rows:
            assert f'data-value="{row["tau"]}"' in body
        assert body.count("<figure>") == len(rows)
        assert len(re.findall(r'class="mark(?: odd)?"', body)) == len(rows) * 70
        wrong = int((source.array("labels.test") != source.array("network.test_prediction")).sum())
        assert body.count('class="mark odd"') == len(rows) * wrong > 0

    def test_a_trivial_surrogate_is_never_the_best(self, source: Source) -> None:
        rows = [dict(row) for row in self.section(source).data["table"]]
        for row in rows:
            row["tau"] = 0.999 if row["kernel"] == "ck" and row["target"] == "logits" else 0.5
        body = VIEWS["surrogates"](Section("surrogates", data={"table": rows}), source).body
        cells = re.findall(r'<tr><td class="strong".*?</td>', body)
        best = [cell for cell in cells if "pill good" in cell]
        assert len(best) == 1
        assert "trace NTK, normalised" in best[0]
        assert "faithful by construction" in words(body)

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
        assert "of 5,000 items are drawn" in body


class TestExplain(ViewContract):
    name = "explain"
    ONE = given(kernels=[], items=[7], predicted=[0], network_predicted=[0], true=[1], main="trntk", target="logits")

    def test_published_data_are_the_records(self, made: Made) -> None:
        source = Source(Record.open(made(kind="image")))
        section = self.section(source)
        published = VIEWS["explain"](section, source).data
        assert [item["index"] for item in published["items"]] == section.data["items"]
        found = published["evidence"]
        chosen, means = unpacked(found["chosen"], len(published["items"])), source.array("explain.mean")
        nearest, stored = source.array("explain.nearest_index.ck"), unpacked(published["nearest"]["ck"]["index"], -1)
        np.testing.assert_allclose(unpacked(found["means"], -1), means[chosen >= 0], rtol=EXACT)
        used = set(source.items.used("train"))
        for n, item in enumerate(published["items"]):
            assert {item["network"], item["true"]} <= set(chosen[n].tolist())
            assert chosen[n, 0] == item["network"]  # the network's own answer is explained first
            assert stored[n].tolist() == nearest[n].tolist()
            assert set(stored[n].tolist()) <= used
        top = unpacked(found["top"]["index"], -1)
        assert set(top[top >= 0].tolist()) <= used

    def test_every_chosen_class_has_its_own_evidence(self, source: Source) -> None:
        section = self.section(source)
        published = VIEWS["explain"](section, source).data
        found = published["evidence"]
        chosen = unpacked(found["chosen"], len(published["items"]))
        np.testing.assert_array_equal(chosen, source.array("explain.chosen"))
        own = chosen >= 0
        assert own[:, 0].all()
        assert not own[:, 1:].any(1).all()  # some are explained for one class
        for name in ("top", "outliers", "influence"):
            index = unpacked(found[name]["index"], -1)
            np.testing.assert_array_equal(index, source.array(f"explain.{name}_index")[own])
        for name in ("surrogate", "network"):
            values = source.array(f"explain.{name}_logit")
            expected = [values[n, chosen[n, c]] for n, c in zip(*np.nonzero(own))]
            np.testing.assert_allclose(unpacked(found[f"{name}_logit"], -1), expected, rtol=EXACT)
        np.testing.assert_allclose(unpacked(found["box"], -1), source.array("explain.box")[own], rtol=EXACT, atol=1e-30)
        assert [item["trust"] for item in published["items"]] == source.array("explain.trust").tolist()

    def test_padding_is_left_out(self, tmp_path: Path) -> None:
        record = Record.create(tmp_path / "x", kind="xray")
        record.array("explain.chosen", np.array([[0, -1]]))
        for name, index in (("top", [[[3, -1], [5, 5]]]), ("outliers", [[[-1, -1]] * 2]), ("nearest.trntk", [[2, 1]])):
            name, _, kernel = name.partition(".")
            for part, values in (("index", np.array(index)), ("value", np.ones(np.shape(index)))):
                record.array(f"explain.{name}_{part}{'.' if kernel else ''}{kernel}", values)
        source = Source(record)
        published = VIEWS["explain"](Section("explain", data={**self.ONE, "kernels": ["trntk"]}), source).data
        assert source.items.used("train") == [1, 2, 3]
        assert unpacked(published["evidence"]["top"]["index"], 1).tolist() == [[3, -1]]

    def test_many_classes_are_narrowed_to_the_loudest(self, tmp_path: Path) -> None:
        record = Record.create(tmp_path / "x", kind="xray")
        means = np.zeros((1, 1, 100))
        means[0, 0, 40:50] = 1.0
        record.array("explain.mean", means)
        record.array("explain.chosen", np.array([[5]]))
        section = Section("explain", data={**self.ONE, "true": [77]})
        found = VIEWS["explain"](section, Source(record)).data["evidence"]
        assert unpacked(found["shown"], 1)[0].tolist() == [5, *range(40, 50), 77]


class TestConfusion(ViewContract):
    name = "confusion"

    def test_the_matrix_and_its_links(self, source: Source) -> None:
        body = VIEWS["confusion"](self.section(source), source).body
        matrix = source.array("confusion.matrix")
        off = matrix - np.diag(np.diagonal(matrix))
        assert body.count('class="mistake"') == int((off > 0).sum()) > 0
        i, j = (int(k[0]) for k in np.nonzero(off))
        assert f"true:&quot;{i}&quot; predicted:&quot;{j}&quot;" in body

    def test_of_many_classes_the_most_confused_are_shown(self, tmp_path: Path) -> None:
        record = Record.create(tmp_path / "x", kind="xray")
        matrix = 5 * np.eye(60, dtype=np.int64)
        matrix[59, 58] = 7
        record.array("confusion.matrix", matrix)
        body = VIEWS["confusion"](Section("confusion", data={"classes": [], "confused": []}), Source(record)).body
        assert "The 24 of 60 classes with the most mistakes." in words(body)
        assert body.count('class="mistake"') == 1


class TestProblems(ViewContract):
    name = "problems"

    def test_every_row_is_there_with_its_number_in_the_whole_set(self, source: Source) -> None:
        section = self.section(source)
        drawn = VIEWS["problems"](section, source)
        body = drawn.body
        assert f"The {len(section.data['dominating'])} training items with the largest influence" in body
        assert body.count("<tr>") == 3 + sum(len(rows) for rows in section.data.values())
        for row in section.data["mislabelled"]:
            assert f"#{row['original']}<" in body
        near = source.array("problems.neighbour_index")
        assert [item["index"] for item in drawn.data["items"]] == [row["index"] for row in section.data["mislabelled"]]
        assert [[i for i, _ in item["near"]] for item in drawn.data["items"]] == near.tolist()

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

    def test_before_and_after(self, source: Source, made: Made) -> None:
        body = VIEWS["kernel"](self.section(source), source).body
        assert "Rotation, not centred" in body
        assert body.count("series-") == 4  # two curves and their two keys
        without = Source(Record.open(made(initial=False)))
        body = VIEWS["kernel"](self.section(without), without).body
        assert "Rotation, not centred" not in body
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


class TestComputed(ViewContract):
    name = "computed"

    def test_command_versions_and_plan(self, source: Source) -> None:
        said = " ".join(read(VIEWS["computed"](self.section(source), source).body).text)
        for text in ("ntkscope xray --demo --out runs/x", "2.13.0", "3 kernels of 300 × 420 items", "21 s", "3.1×10⁻⁷"):
            assert text in said


@pytest.fixture(scope="module")
def source(made: Made) -> Source:
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


READINGS = [
    {"name": "network", "loss": 0.02, "loss_low": 0.01, "loss_high": 0.03, "accuracy": 0.95, "agreement": 1.0},
    {"name": "readout", "loss": 0.03, "loss_low": 0.02, "loss_high": 0.04, "accuracy": 0.945, "agreement": 0.98},
]


class TestTangent(ViewContract):
    name = "tangent"
    data = given(
        readings=READINGS, items=300, parameters=1234, ridge=1e-4, refused={"tangent": "<b>no forward mode</b>"}
    )

    def test_it_says_which_reading_loses_nothing(self, source: Source) -> None:
        said = words(VIEWS["tangent"](self.section(source), source).body)
        assert "The last layer alone, solved outright, is as accurate as the network (within one point)." in said
        assert "Tangent solved is missing: <b>no forward mode</b>" in said
        assert "95.0 %" in said
        worse = [READINGS[0], {**READINGS[1], "accuracy": 0.8}]
        section = Section("tangent", data={**self.data, "readings": worse})
        assert "15.0 points less accurate" in words(VIEWS["tangent"](section, source).body)


P = {"c2st": 0.002, "mmd": 0.01, "ks": 0.4, "holm": 0.006}
SEEN = example(Seen, embedding="inputs", width=5, p=P, auc=0.8, auc_low=0.7, auc_high=0.9, effective=31.5)
JUDGED = example(Judged, other="test items", train=60, items=60, verdict="shift", p=0.012, seen=[SEEN])
KNOWN = example(Memorisation, train=1.0, test=0.7, gap=0.3, low=0.2, high=0.4, margin_auc=0.9, verdict="memorised")


class TestShiftView(ViewContract):
    name = "shift"
    data = given(
        judged=[
            JUDGED,
            {**JUDGED, "other": HOSTILE[0], "verdict": "too few items", "p": None, "seen": [], "why": [HOSTILE[1]]},
        ],
        memorisation=KNOWN,
        level=0.05,
        permutations=499,
    )


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        (JUDGED, "The test items differ from the training items beyond chance (p = 0.01): of a training item"),
        (
            {**JUDGED, "verdict": "no shift found"},
            "No difference between the test items and the training items beyond chance",
        ),
        ({**JUDGED, "seen": [], "why": ["only 3"]}, "Nothing can be said about the test items: only 3."),
    ],
)
def test_a_shift_has_a_sentence(judged: dict[str, Any], words: str) -> None:
    assert shift_sentence(judged, 0.05).startswith(words)


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (0.012, "At most 0.05 is a sign of a shift: with 0.012 chance hardly explains the difference."),
        (1.0, "At most 0.05 would be a sign of a shift: with 1 chance explains the difference, which does not show"),
    ],
)
def test_a_p_value_is_explained_where_it_stands(p: float, words: str, made: Made) -> None:
    data = {"judged": [{**JUDGED, "p": p, "train": 1000}], "memorisation": None, "level": 0.05, "permutations": 499}
    shown = " ".join(read(shift_view(Section("shift", data=data), Source(Record.open(made(kind="image")))).body).text)
    assert words in shown
    assert "judge by these" in shown
    assert "1,000 : 60" in shown


def test_both_samples_are_drawn(made: Made) -> None:
    source = Source(Record.open(made(kind="image")))
    data = {"judged": [JUDGED], "memorisation": KNOWN, "level": 0.05, "permutations": 499}
    section = Section("shift", data=data)
    assert "<circle" not in shift_view(section, source).body
    source.array = lambda name: np.ones((120, 2)) * np.arange(120)[:, None]  # type: ignore[method-assign]
    body = shift_view(section, source).body
    assert body.count("<circle") == 60
    assert body.count('class="mark odd"') == 60
    assert "memorised" in body
    unclear = {**data, "memorisation": {**KNOWN, "verdict": "cannot be told from the shift"}}
    assert "two possible causes" in shift_view(Section("shift", data=unclear), source).body


MEASURED = {"nc1": 2.5, "cdnv": 3.1, "differs": 0.3, "dimension": 12.3, "dimension_error": 0.4}
PROBED = {"accuracy": {"knn": 0.8, "ncc": 0.7, "svm": 0.85}, "components": {"knn": 20, "ncc": 9, "svm": 50}}
PROBED_LAYER = example(Layer, name="layer1", width=4096, share=0.01, **PROBED, **MEASURED)
LAST = {**PROBED_LAYER, "name": "layer2", "agree": True, "share": 0.98, "averaged": True, "nc1": 0.0}
SILENT = example(Layer, name=HOSTILE[1], reason=HOSTILE[0])
SHARES = {"layer2": 0.97, "": 0.03}
COLLAPSED = example(
    Representations, layers=[PROBED_LAYER, SILENT, LAST], collapse="layer2", lasting=True, distribution=SHARES
)


class TestRepresentations(ViewContract):
    name = "representations"
    data = COLLAPSED


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "From layer2 on three different classifiers"),
        ({}, "In 97 % of resampled test sets it is the same layer."),
        ({"lasting": False}, "At layer2 for the first time three different classifiers"),
        ({"lasting": False}, "no lasting collapse"),
        ({"collapse": "layer1"}, "Already at layer1, the first layer, three different classifiers"),
        ({"collapse": None}, "In 97 % of resampled test sets they do at some layer."),
    ],
)
def test_the_sentence_says_where_and_how_firmly(changes: dict[str, Any], words: str) -> None:
    assert words in collapse_sentence({**COLLAPSED, **changes})
