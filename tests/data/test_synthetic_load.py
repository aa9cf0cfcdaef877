"""`load` and the checks every data set passes: names, options, NaN, labels; and that no file is forgotten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ntkscope.data
from contracts.dataset import DatasetContract, given
from ntkscope.core import Part, Split, UsageError
from ntkscope.core.errors import DataCorrupt
from ntkscope.data import DATASETS, load, options_of
from ntkscope.data._validation import validate


def split_with(x: torch.Tensor | None = None, y: torch.Tensor | None = None, where: str = "train") -> Split:
    good = Part(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    bad = Part(good.x if x is None else x, good.y if y is None else y)
    parts = {"train": good, "test": good, "validation": good} | {where: bad}
    return Split(**parts, classes=("a", "b"))


def test_options_are_recorded_with_their_defaults() -> None:
    options = load("boolean-cube", degree=3, seed=4).options
    assert options["degree"] == 3
    assert options["seed"] == 4
    assert options["dimension"] == options_of("boolean-cube")["dimension"] == 7


@pytest.mark.parametrize("where", ["train", "validation", "test"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_inputs_that_are_not_finite(bad: float, where: str) -> None:
    x = torch.zeros(3, 2)
    x[1, 0] = bad
    with pytest.raises(DataCorrupt, match=rf"{where}\.x holds 1 value that is NaN or infinite \(the first in item 1\)"):
        validate(split_with(x=x, where=where))


@pytest.mark.parametrize(("label", "message"), [(2, "label 2"), (-1, "label -1")])
def test_labels_out_of_range(label: int, message: str) -> None:
    with pytest.raises(DataCorrupt, match=rf"test\.y holds the {message} \(item 2\); expected 0 to 1 for 2 classes"):
        validate(split_with(y=torch.tensor([0, 1, label]), where="test"))


def test_real_labels_for_classes() -> None:
    with pytest.raises(DataCorrupt, match="expected integer class labels"):
        validate(split_with(y=torch.tensor([0.0, 1.0, 1.0])))


def test_real_targets_must_be_finite() -> None:
    part = Part(torch.zeros(2, 1), torch.tensor([0.0, float("nan")]))
    with pytest.raises(DataCorrupt, match=r"train\.y"):
        validate(Split(part, part))


def test_nested_and_text_inputs_are_searched() -> None:
    tokens = {"ids": torch.tensor([[1, 2]]), "weights": torch.tensor([[0.5, float("nan")]])}
    part = Part(tokens, torch.tensor([0]))
    with pytest.raises(DataCorrupt, match=r"train\.x\['weights'\]"):
        validate(Split(part, part, classes=("a",)))
    texts = Part(["one", "two"], torch.tensor([0, 0]))
    assert validate(Split(texts, texts, classes=("a",))).train is texts


def test_load_refuses_what_a_broken_loader_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*, root: str | None = None, seed: int = 0) -> Split:
        return split_with(y=torch.tensor([0, 1, 7]))

    monkeypatch.setitem(DATASETS._entries, "digits", broken)
    with pytest.raises(DataCorrupt, match="label 7"):
        load("digits")


def test_a_place_without_its_name_is_refused() -> None:
    with pytest.raises(UsageError, match="got 'photos/' after the name of the data set; expected root="):
        load("image-folder", "photos/")


def test_the_contract_can_fail() -> None:
    """A data set that breaks a promise is caught by the suite."""

    class Wrong(DatasetContract):
        name = "digits"
        item_shape = (1, 28, 28)
        classes = 9
        random = False
        value_range = (0.0, 0.5)
        balance = 0.0

    wrong = Wrong()
    split = wrong.make()
    for test in (
        wrong.test_sizes_and_shapes,
        wrong.test_targets,
        wrong.test_other_seed_other_bytes_when_random,
        wrong.test_finite_and_in_range,
        wrong.test_class_balance,
    ):
        with pytest.raises((AssertionError, RuntimeError)):
            test(split)


@pytest.mark.guard
def test_no_data_set_file_is_left_out() -> None:
    """Every file that registers a data set is imported with `ntkscope.data`, alone in a process of its own."""
    folder = Path(ntkscope.data.__file__).parent
    registering = {path.stem for path in folder.glob("*.py") if "@DATASETS.register(" in path.read_text("utf-8")}
    show = (
        "import sys, ntkscope.data; print(*(name.split('.')[-1] for name in sys.modules if 'ntkscope.data.' in name))"
    )
    imported = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True, timeout=600)
    assert registering <= {*imported.stdout.split()}
    assert {"digits", "orthant_shells", "boolean_cube"} <= registering


class TestDigits(DatasetContract):
    name = "digits"
    item_shape = (1, 8, 8)
    classes = 10
    sizes = given(train=1438, test=359)
    value_range = (0.0, 1.0)
    balance = 0.01

    def check_defining_property(self, split: Split) -> None:
        index = torch.cat([split.train.extras["index"], split.test.extras["index"]])
        assert torch.equal(index.sort().values, torch.arange(1797))  # every source image once, in one part
        grey = torch.cat([split.train.x, split.test.x]) * 16
        assert torch.equal(grey, grey.round())
        assert float(grey.max()) == 16
        # stratified: a class's share in the two parts differs by less than one item of the test part
        for label in range(10):
            share = [float((part.y == label).float().mean()) for part in (split.train, split.test)]
            assert abs(share[0] - share[1]) < 1.5 / 359
