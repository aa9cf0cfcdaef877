"""An X-ray from end to end: what the record holds, that it is true, that it resumes after it was stopped."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.cli._common import in_short
from ntkscope.core import Certificate, NtkscopeError, Part, Record, UsageError
from ntkscope.core.errors import RecordError
from ntkscope.core.progress import TimeLimit, duration
from ntkscope.linalg import DenseGram
from ntkscope.machines import KernelPair
from ntkscope.report.certificates import Checks
from ntkscope.xray import registry
from ntkscope.xray.registry import SECTIONS, in_order, on_the_page
from ntkscope.xray.sections import kernel, layers, summary, surrogates
from ntkscope.xray.task import TASKS
from xray.small import SECTIONS_OF_A_CLASSIFIER as NAMES
from xray.small import blobs, network, only, trained, xrayed


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return xrayed(tmp_path_factory.mktemp("xray") / "small")


def data(record: Record, name: str) -> dict:
    entry = record.metrics[f"section:{name}"]
    assert entry["status"] == "done", entry
    return dict(entry["data"])


def test_every_section_is_done_and_says_what_it_means(record: Record) -> None:
    assert record.status == "done"
    assert record.kind == "xray"
    assert list(record.metrics["sections"]) == NAMES
    for name in NAMES:
        entry = record.metrics[f"section:{name}"]
        assert entry["status"] == "done", entry["why"]
        assert all(entry[key] for key in ("title", "meaning", "confidence", "formula")), name


def test_the_table_holds_every_kernel_of_the_plan(record: Record) -> None:
    table = data(record, "surrogates")["table"]
    kernels = ["trntk", "trntk0", "ck", "em", "pntk", "proj-pntk", "proj-trntk"]
    assert [(row["kernel"], row["target"]) for row in table] == [(k, t) for k in kernels for t in ("logits", "labels")]
    trivial = {row["kernel"] for row in table if row["trivial"]}
    assert "ck" in trivial
    assert trivial <= {"ck", "pntk", "trntk0"}  # of a trained network with one hidden layer they are nearly the same
    assert not any(row["trivial"] for row in table if row["target"] == "labels")
    for row in table:
        assert row["agreement_wrong_low"] <= row["agreement_wrong"] <= row["agreement_wrong_high"]
        assert (row["wrong"], row["alpha"] > 0) == (1, True)
        assert row["tau_low"] <= row["tau"] <= row["tau_high"]
        assert row["agreement"] > 0.8  # an easy task: every kernel machine finds most of what the network finds
        assert row["converged"]
    many = len({row["kernel"] for row in table if row["trivial"]}) > 1
    said = record.metrics["section:surrogates"]["confidence"]
    assert ("these kernels compare." if many else "this kernel compares.") in said


def test_an_interval_of_two_equal_ends_is_one_number(record: Record) -> None:
    rated = surrogates.SECTION.read(record.metrics)
    assert rated is not None
    row = rated.table[0]
    assert ": τ about 0.99" in replace(row, tau_low=0.991, tau_high=0.994).said
    assert ": τ between 0.90 and 0.99" in replace(row, tau_low=0.9, tau_high=0.994).said


def test_kernels_are_those_of_ns_kernel(record: Record) -> None:
    train, test = blobs()
    _, model = trained(train)
    expected = ns.kernel("trntk0", model.eval(), test, train).numpy()
    np.testing.assert_allclose(record.arrays["kernels.trntk0.test"], expected, rtol=1e-4, atol=1e-5 * expected.max())
    logits = model(test.x).detach().double().softmax(1).numpy()
    np.testing.assert_allclose(record.arrays["network.test_probabilities"], logits, atol=1e-6)


def test_every_kernel_has_its_certificate(record: Record) -> None:
    kept = record.metrics["certificates"]
    computed = {
        "trntk0",
        "ck",
        "em",
        "pntk",
        "proj-pntk",
        "proj-trntk",
        "initial.trntk0",
        "initial.ck",
        "layers.trntk0",
    }
    assert set(kept) == computed
    for name, parts in kept.items():
        for part in parts.values():
            one = Certificate.from_json(part)
            assert one.checked == one.blocks > 0, name
            assert 0 <= one.worst <= one.tolerance == 1e-3, name  # single precision
            assert one.alone >= one.checked, name
    assert Checks.of(record.metrics, record.arrays).missing == ()


def test_explanations_add_up_to_the_surrogates_logits(record: Record) -> None:
    """Σ over classes of (members × mean attribution) is the logit of every class, the intercept's share included."""
    y = np.asarray(record.arrays["labels.train"])
    found = data(record, "explain")
    items = list(found["items"])
    counts = np.bincount(y, minlength=3)
    sums, chosen = (
        (np.asarray(record.arrays["explain.mean"]) * counts).sum(2),
        np.asarray(record.arrays["explain.chosen"]),
    )
    logits = np.asarray(record.arrays[f"surrogates.logits.{found['main']}.logits"])[items]
    expected = logits - logits.mean(1, keepdims=True)
    for i, place in zip(*np.nonzero(chosen >= 0)):
        assert sums[i, place] == pytest.approx(
            expected[i, chosen[i, place]], abs=1e-8 * max(1.0, np.abs(expected).max())
        )
    np.testing.assert_allclose(record.arrays["explain.surrogate_logit"], expected, atol=1e-12)
    network = np.asarray(record.arrays["network.test_logits"])[items]
    np.testing.assert_allclose(
        record.arrays["explain.network_logit"], network - network.mean(1, keepdims=True), atol=1e-12
    )


def test_explanations_are_of_the_networks_class_first(record: Record) -> None:
    found, arrays = data(record, "explain"), record.arrays
    logits, chosen = np.asarray(arrays["network.test_logits"]), np.asarray(arrays["explain.chosen"])
    items, t = list(found["items"]), len(found["items"])
    assert (chosen[:, 0] == logits.argmax(1)[items]).all()
    assert [[c for c in row if c >= 0] for row in chosen.tolist()] == [list(row) for row in found["chosen"]]
    for n in range(t):
        assert {found["true"][n], found["predicted"][n], found["network_predicted"][n]} <= set(found["chosen"][n])
        assert len(set(found["chosen"][n])) == len(found["chosen"][n])
    machine = np.asarray(arrays[f"surrogates.coef.{found['main']}.logits"])
    top, value = np.asarray(arrays["explain.top_index"]), np.asarray(arrays["explain.top_value"])
    box = np.asarray(arrays["explain.box"])
    assert top.shape == value.shape == (t, 3, found["k"])
    assert box.shape == (t, 3, 3, 5)
    assert (np.diff(box, axis=3) >= 0).all()
    assert np.asarray(arrays["explain.concentration"]).shape == (t, 3, 3)
    assert np.asarray(arrays["explain.outliers_index"]).shape == (t, 3, 10)
    assert (np.diff(value, axis=2) <= 0).all()
    kernel = np.asarray(arrays[f"kernels.{found['main']}.test"], dtype=np.float64)
    kernel = kernel / np.diag(arrays[f"kernels.{found['main']}.train"]).astype(np.float64).mean()
    n, j = 3, 1  # any item, its second class
    weights, bias = (part - part.mean(0) for part in (machine[:, :-1], machine[:, -1]))
    c = chosen[n, j]
    expected = weights[c] * kernel[items[n]] + bias[c] / len(kernel[0])
    np.testing.assert_allclose(value[n, j], np.sort(expected)[::-1][: found["k"]], rtol=1e-5, atol=1e-7)
    assert set(np.unique(arrays["explain.trust"])) <= {0, 1, 2}


def test_the_explained_kernel_is_the_most_faithful_one(record: Record) -> None:
    table = surrogates.SECTION.read(record.metrics)
    assert table is not None
    explained = table.explained
    assert explained is not None
    assert (explained.kernel, explained.target) == (data(record, "explain")["main"], "logits")
    assert not explained.trivial
    rivals = [row for row in table.table if row.target == "logits" and not row.trivial]
    assert explained.tau == max(row.tau for row in rivals if row.agreement_wrong_high >= 1.0)
    summary = data(record, "summary")
    assert (summary["wrong"], summary["agreement_wrong"]) == (explained.wrong, explained.agreement_wrong)
    assert summary["trust"] in ("high", "medium", "do not trust")
    assert summary["trust_why"].endswith(".")


def test_a_kernel_that_is_practically_the_conjugate_one_is_trivial() -> None:
    draw = np.random.default_rng(0)
    features, other = draw.normal(size=(30, 4)), draw.normal(size=(30, 50))

    def pair(*parts: np.ndarray) -> KernelPair:
        x = torch.from_numpy(np.concatenate(parts, axis=1))
        return KernelPair("k", DenseGram(x @ x.T, symmetric=True), DenseGram(x[:3] @ x.T))

    last = pair(features)
    scaled = pair(3 * features, 0.01 * other, np.full((30, 1), 5.0))  # scale and constants do not matter
    assert surrogates.spans(scaled, last)
    assert not surrogates.spans(pair(features, other), last)
    assert not surrogates.spans(pair(np.zeros((30, 1))), last)


def test_layers_share_the_kernel(record: Record) -> None:
    parts = data(record, "layers")["layers"]
    assert [layer["name"] for layer in parts] == ["layer1", "readout"]
    assert sum(layer["share"] for layer in parts) == pytest.approx(1, abs=1e-5)  # float32 products
    assert sum(layer["parameters"] for layer in parts) == 5 * 16 + 16 + 16 * 3 + 3
    assert sum(data(record, "layers")["coverage"]["roads"].values()) == pytest.approx(1)


def test_the_spectrum_is_that_of_the_kernel(record: Record) -> None:
    values = np.asarray(record.arrays["kernel.eigenvalues"])
    assert (np.diff(values) <= 1e-12).all()
    assert values.sum() == pytest.approx(60, rel=1e-6)  # the trace of 60 ones on the diagonal
    found = data(record, "kernel")
    assert 1 <= found["effective_rank"] <= 60
    assert found["initial"]["distance"] >= 0
    labels = np.asarray(record.arrays["kernel.heatmap_labels"])
    assert (np.diff(labels) >= 0).all()


def test_once_done_it_is_not_done_again(record: Record) -> None:
    before = (record.folder / "record.json").stat().st_mtime_ns
    again = xrayed(record.folder)
    assert again.status == "done"
    assert (record.folder / "record.json").stat().st_mtime_ns == before


def test_another_network_in_the_same_folder_is_refused(record: Record) -> None:
    train, test = blobs()
    with pytest.raises(RecordError, match="weights"):
        ns.xray(network(seed=5), train, test, record.folder, progress=False)


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    train, test = blobs()
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    record = ns.xray(model, train, test, tmp_path, kernels=["ck"], untrained=True, progress=False)
    assert [e["status"] for e in map(record.metrics.get, map("section:{}".format, NAMES))] == ["done"] * len(NAMES)
    assert model.training
    assert model[1].training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


def test_without_the_initial_weights_there_is_no_verdict(tmp_path: Path) -> None:
    with only(summary.SECTION, kernel.SECTION):
        record = xrayed(tmp_path, initial=None, kernels=["ck"])
    found = data(record, "summary")
    assert (found["verdict"], found["score"]) == ("not enough evidence", None)
    assert data(record, "kernel")["initial"] is None


def test_a_section_that_fails_does_not_take_the_others_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = SECTIONS["layers"]

    def fail(context: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setitem(SECTIONS._entries, "layers", type(broken)(**{**vars(broken), "run": fail}))
    few = [SECTIONS[name] for name in ("summary", "layers", "weight_spectra", "computed")]
    with only(*few):
        record = xrayed(tmp_path, kernels=["ck"])
    assert record.metrics["section:layers"]["status"] == "failed"
    assert "out of luck" in record.metrics["section:layers"]["why"]
    others = set(record.metrics["sections"]) - {"layers"}
    assert others >= {"summary", "weight_spectra", "computed"}
    assert {record.metrics[f"section:{name}"]["status"] for name in others} == {"done"}
    monkeypatch.undo()
    with only(*few):
        mended = xrayed(tmp_path, kernels=["ck"])  # a record with a failed section is gone on with
    assert mended.metrics["section:layers"]["status"] == "done"


def test_where_the_surrogates_failed_trust_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(context: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setitem(SECTIONS._entries, "surrogates", replace(SECTIONS["surrogates"], run=fail))
    with only(SECTIONS["summary"]):
        record = xrayed(tmp_path, kernels=["ck"])
    found = data(record, "summary")
    assert (found["trust"], found["trust_why"]) == ("not measured", "The surrogates failed.")
    monkeypatch.undo()
    with only(SECTIONS["summary"]):
        found = data(xrayed(tmp_path, kernels=["ck"]), "summary")
    assert found["trust"] != "not measured"


@pytest.mark.guard
def test_more_than_fits_is_sampled_by_class_and_said(tmp_path: Path) -> None:
    record = xrayed(tmp_path, max_train=20, max_test=12, kernels=["ck"])
    used = record.metrics["data"]
    assert (used["train_items"], used["test_items"]) == (20, 12)
    assert "20 of 60 training items" in used["subsampled"]
    assert np.bincount(record.arrays["labels.train"]).tolist() in ([7, 7, 6], [7, 6, 7], [6, 7, 7])
    train, _ = blobs()
    original = np.asarray(record.arrays["originals.train"])
    assert (train.y.numpy()[original] == record.arrays["labels.train"]).all()
    problem = data(record, "problems")["mislabelled"][0]
    assert original[problem["index"]] == problem["original"]


def test_images_have_thumbnails(tmp_path: Path) -> None:
    split = ns.data.load("digits")
    train, test = split.train.take(range(60)), split.test.take(range(20))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    options = {"kernels": ["ck"], "classes": split.classes, "untrained": True}
    with only(kernel.SECTION):
        record = ns.xray(model, train, test, tmp_path, **options, progress=False)
    assert record.metrics["data"]["kind"] == "image"
    assert record.arrays["thumbs.train"].shape == (60, 8, 8, 1)
    expected = (train.x[:, 0] * 255).round().numpy()
    assert (np.asarray(record.arrays["thumbs.train"])[..., 0] == expected).all()


def test_one_output_is_two_classes(tmp_path: Path) -> None:
    train, test = blobs(classes=2)
    model = nn.Linear(5, 1)
    with only(summary.SECTION):
        record = ns.xray(model, train, test, tmp_path, kernels=["ck"], untrained=True, progress=False)
    z = model(test.x)[:, 0].detach().double()
    np.testing.assert_allclose(record.arrays["network.test_probabilities"][:, 1], torch.sigmoid(z), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ["a"]}, "got 1 class names for a network of 3"),
        ({"budget": "soon"}, "expected a duration"),
        ({"kernels": ["tntk"]}, "an X-ray knows"),
        ({"initial": {}}, "do not fit"),
        ({"initial": 3}, "initial is a int"),
        ({"kernels": "ck"}, "one string"),
        ({"device": "gpu0"}, "got device='gpu0', which cannot be used"),
        ({"max_train": 0}, "got max_train=0"),
        ({"max_test": -3}, "got max_test=-3"),
        ({"certify": True}, "got certify=True; expected 'every', 'sampled' or False"),
        ({"certify": "none"}, "got certify='none'; expected"),
    ],
)
def test_refusals(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        xrayed(tmp_path, **change)
    assert not (tmp_path / "record.json").exists()  # the next attempt, put right, finds a free folder


def test_data_that_do_not_fit_the_network_are_refused(tmp_path: Path) -> None:
    train, test = blobs()
    narrow = Part(train.x[:, :3], train.y)
    one = Part(train.x, torch.zeros(len(train), dtype=torch.int64))
    for parts, message in (
        ((narrow, test), r"inputs of train of shape \(2, 3\) float32"),
        ((train, narrow), "inputs of test"),
        ((train, Part(test.x[:1], test.y[:1])), "at least 2"),
        (blobs(classes=4), "labels 0 to 3, and the network has 3"),
        ((one, test), "one class only"),
    ):
        with pytest.raises(UsageError, match=message):
            ns.xray(network(), *parts, tmp_path, progress=False)


@pytest.mark.guard
def test_an_attempt_that_computed_nothing_is_no_obstacle(tmp_path: Path) -> None:
    with pytest.raises(NtkscopeError, match="the smallest budget that works"):
        xrayed(tmp_path, budget=("1m", "1MiB"), kernels=["ck"])
    assert xrayed(tmp_path, budget="1m", kernels=["ck"]).status == "done"


@pytest.mark.guard
def test_items_no_parameter_reacts_to_and_a_network_that_says_nothing(tmp_path: Path) -> None:
    train, test = blobs()
    model = nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    x = train.x.clone()
    x[:4] = 0
    options = {"initial": model, "kernels": ["ck"], "untrained": True, "progress": False}
    record = ns.xray(model, Part(x, train.y), test, tmp_path / "a", **options)
    assert [record.metrics[f"section:{name}"]["why"] for name in NAMES] == [None] * len(NAMES)
    with torch.no_grad():
        model[2].weight.zero_()
    record = ns.xray(model, train, test, tmp_path / "b", **options)
    assert [record.metrics[f"section:{name}"]["why"] for name in NAMES] == [None] * len(NAMES)
    assert data(record, "summary")["verdict"] == "not enough evidence"


@pytest.mark.guard
def test_more_classes_than_a_picture_has_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "SHOWN", 2)
    monkeypatch.setattr(kernel, "DECOMPOSED", 2)
    record = xrayed(tmp_path, kernels=[], initial=None)
    assert data(record, "kernel")["rows"] == 3


def test_order() -> None:
    assert [section.name for section in on_the_page()] == NAMES
    for task in TASKS.values():
        ran = [section.name for section in in_order(task, ["tracked", "training", "texts"])]
        assert sorted(ran) == sorted(section.name for section in SECTIONS.values() if task in section.tasks)
        for section in on_the_page(task, ["tracked", "training", "texts"]):
            needed = [before.name for before in section.after if task in before.tasks]
            assert all(ran.index(before) < ran.index(section.name) for before in needed)
        assert ran[-1] == "computed"


def test_kernels_over_some_parameters(tmp_path: Path) -> None:
    train, test = blobs()
    initial, model = trained(train)
    named = [name for name, _ in model.named_parameters()]
    last = named[-2].rpartition(".")[0]
    said: list[str] = []

    def look(folder: str, params: Any) -> Record:
        options = {"initial": initial, "kernels": ["ck", "pntk"], "progress": False, "say": said.append}
        with only(summary.SECTION, layers.SECTION):
            return ns.xray(model, train, test, tmp_path / folder, params=params, **options)

    record = look("some", [f"{last}.*"])
    x = train.take(record.arrays["originals.train"][:].tolist()).x
    for name in ("trntk0", "pntk"):
        kept = torch.tensor(record.arrays[f"kernels.{name}.train"][:])
        torch.testing.assert_close(kept, ns.kernel(name, model, x, params=f"{last}.*").dense(), rtol=1e-5, atol=1e-5)
    whole = ns.kernel("trntk0", model, x).dense()
    assert not torch.allclose(torch.tensor(record.arrays["kernels.trntk0.train"][:]), whole)
    assert [layer["name"] for layer in record.metrics["section:layers"]["data"]["layers"]] == [last]
    assert {record.metrics[f"section:{name}"]["status"] for name in record.metrics["sections"]} == {"done"}
    count = sum(p.numel() for name, p in model.named_parameters() if name.startswith(f"{last}."))
    assert any(f"gradients by {count} parameters, those that match {last}.*" in line for line in said)
    assert look("some", f"{last}.*").metrics == record.metrics  # resumed, and there is nothing left to do
    with pytest.raises(RecordError, match=r"another config.*params"):
        look("some", None)
    with pytest.raises(UsageError, match="no trainable parameter matches 'nothing'"):
        look("none", ["nothing"])
    with pytest.raises(UsageError, match=r"got params=3; expected names or globs"):
        look("none", 3)


@pytest.mark.parametrize("finished", [False, True])
def test_record_page_and_terminal_show_one_time_from_the_start(finished: bool, tmp_path: Path) -> None:
    train, test = blobs()
    _, model = trained(train)
    with only(summary.SECTION, SECTIONS["computed"]):
        record = ns.xray(
            model, train, test, tmp_path, began=time.perf_counter() - 100.0, kernels=["ck"], progress=False
        )
        if finished:  # the same command again computes nothing and adds nothing
            record = ns.xray(
                model, train, test, tmp_path, began=time.perf_counter() - 900.0, kernels=["ck"], progress=False
            )
    assert 100.0 < record.wall_seconds < 900.0
    shown = duration(record.wall_seconds)
    assert in_short(record)[-1].endswith(f"({shown})")
    page = ns.report.write_page(tmp_path).read_text()
    assert re.findall("<dt>Took</dt><dd>(.*?)</dd>", page) == [shown]
    assert re.findall("([^<>]*) on cpu; command, versions", page) == [shown]


def test_sections_without_time_share_a_line_and_a_command(record: Record, tmp_path: Path) -> None:
    shutil.copytree(record.folder, tmp_path / "x")
    with Record.resume(tmp_path / "x") as late:
        for name in ("shift", "layers"):
            told = {
                **late.metrics[f"section:{name}"],
                "status": "skipped",
                "why": "too late",
                "late": True,
                "data": None,
            }
            late.put(**{f"section:{name}": told})
    lines = in_short(late)
    assert lines.count("left out for want of time: Shift, Where it lives") == 1
    assert not any("too late" in line for line in lines)
    assert any("This adds what was left out" in line for line in lines)


def test_a_section_that_had_no_time_is_not_said_to_have_taken_long(tmp_path: Path) -> None:
    train, test = blobs()
    _, model = trained(train)
    began = time.perf_counter() - 100.0
    with only(summary.SECTION):
        record = ns.xray(model, train, test, tmp_path, budget="60s", began=began, kernels=["ck"], progress=False)
    reasons = [record.metrics[f"section:{name}"]["why"] or "" for name in record.metrics["sections"]]
    assert any("the time was over before it began; start the same X-ray again" in why for why in reasons)
    assert not any("longer than expected" in why for why in reasons)


def test_accuracy_and_trust_are_told_even_when_the_time_is_over(tmp_path: Path) -> None:
    train, test = blobs()
    initial, model = trained(train)
    began, how = time.perf_counter() - 100.0, {"initial": initial, "kernels": ["ck"], "progress": False}
    with only(summary.SECTION):
        hurried = ns.xray(model, train, test, tmp_path, budget="60s", began=began, **how).metrics["section:summary"]
        whole = ns.xray(model, train, test, tmp_path, budget=None, **how).metrics["section:summary"]
    assert (hurried["status"], hurried["late"]) == ("done", True)
    assert hurried["data"]["network_accuracy"] == whole["data"]["network_accuracy"] > 0.5
    assert "The time was over" in hurried["data"]["why"]
    assert "late" not in whole
    assert "The time was over" not in whole["data"]["why"]


def test_an_essential_section_that_was_stopped_has_another_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the other essential ones have had theirs; the summary then knows its result."""
    train, test = blobs()
    initial, model = trained(train)
    turns = list[str]()

    def slow_once(context: Any) -> Any:
        turns.append("surrogates")
        if len(turns) == 1:
            raise TimeLimit
        return surrogates.SECTION.run(context)

    with only(summary.SECTION, layers.SECTION):
        changed = replace(surrogates.SECTION, run=slow_once)
        monkeypatch.setitem(registry.SECTIONS._entries, "surrogates", changed)
        told = list[str]()
        how = {"initial": initial, "kernels": ["ck"], "progress": False, "say": told.append}
        record = ns.xray(model, train, test, tmp_path, budget="60s", **how)
    assert turns == ["surrogates", "surrogates"]
    assert {record.metrics[f"section:{name}"]["status"] for name in record.metrics["sections"]} == {"done"}
    assert record.metrics["section:summary"]["data"]["best_kernel"] is not None
    assert [line.partition(":")[0] for line in told].count("Kernel") == 1  # what does not need it is not done again
    assert record.status == "done"
