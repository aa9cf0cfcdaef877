"""Running experiments: settings, refusals, verdicts, the command line, figures from a record."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import ntkscope as ns
from ntkscope.cli import main
from ntkscope.core import Claim, Record, UsageError
from ntkscope.core.errors import RecordError, UnknownName
from ntkscope.core.records.claims import SMALL
from ntkscope.report import Page
from ntkscope_papers.engel_2023.similarity import border_correlation, shared, top, within_class_spread
from ntkscope_papers.framework import Reading, claim, figures
from ntkscope_papers.shared.images import chosen_points, load_images

TINY = ["train_items=60", "test_items=20", "epochs=1", "batch=20", "points=20", "networks=('resnet18',)"]


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    settings = [word for text in TINY for word in ("--set", text)]
    assert command("run", "surrogate-resnet", "--out", str(out), "--device", "cpu", *settings) == 0
    return out


def test_the_command_line_runs_and_checks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("check", str(folder)) == 0
    printed = capsys.readouterr().out
    assert "surrogate-table1-resnet18-cifar10" in printed
    assert "stand-in" in printed
    assert printed.count("    published  ") == len(Record.open(folder).claims)
    assert "    measured   " in printed
    assert "stand-in, too small to judge" in printed
    assert "are too small to judge here: run again with --scale paper" in printed
    assert "not reproduced" not in printed
    page = Page(folder).html
    assert re.search(r"\d+ of the stand-ins too small to judge", page)
    assert "not reproduced on a stand-in" not in page


def test_a_leg_is_computed_again_and_a_difference_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("conjugate-theory", "--out", str(tmp_path), "--device", "cpu")
    assert command("run", *words) == 0
    key = next(key for key, value in Record.open(tmp_path).metrics.items() if isinstance(value, dict))
    assert command("run", *words, "--again", key) == 0
    assert "0 differences" in capsys.readouterr().out
    with Record.resume(tmp_path) as record:
        record.put(**{key: {**record.metrics[key], "another": 1.0}})
    assert command("run", *words, "--again", key) == 1
    assert f"{key} another: 1.0 in the record, None now" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("scale", "verdict", "note", "code"),
    [
        ("smoke", "stand-in", "the check does not hold; another data set", 0),
        ("paper", "stand-in", "the check does not hold; another data set", 1),
        ("paper", "stand-in", "the check holds; another data set", 0),
        ("paper", "stand-in", "no threshold is published; reported only", 0),
        ("smoke", "not reproduced", "", 1),
    ],
)
def test_check_exits_with_1_when_a_claim_failed(scale: str, verdict: str, note: str, code: int, tmp_path: Path) -> None:
    with Record.create(tmp_path, kind="experiment", config={"scale": scale}) as record:
        record.claim(Claim("a", "Table 1", 1, 2, "at most 1", verdict, note))
    assert command("check", str(tmp_path)) == code


def test_check_exits_with_1_when_the_run_is_not_done(folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / "record.json").read_text())
    (tmp_path / "record.json").write_text(json.dumps({**document, "status": "running"}))
    assert command("check", str(tmp_path)) == 1


def test_another_setting_in_the_same_folder_is_refused(folder: Path) -> None:
    with pytest.raises(RecordError, match="another config"):
        ns.run("surrogate-resnet", out=folder, device="cpu", points=21)


def test_figures_come_from_the_record_alone(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in (folder / "figures").glob("*.svg")}
    for path in (folder / "figures").iterdir():
        path.unlink()
    assert figures.main([str(folder)]) == 0
    assert set(before) == {path.name for path in (folder / "figures").glob("*.svg")}
    assert figures.main([]) == 2


@pytest.mark.parametrize("text", ["points", "=3"])
def test_a_setting_without_key_or_value_is_refused(text: str, tmp_path: Path) -> None:
    assert command("run", "poisoning", "--out", str(tmp_path / "x"), "--set", text) == 2


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'poisoning'"):
        ns.run("poisonin", out=tmp_path / "x")
    with pytest.raises(UsageError, match="has no setting pionts; its settings: legs, dataset"):
        ns.run("poisoning", out=tmp_path / "x", pionts=3)
    with pytest.raises(UsageError, match="got scale 'big'; expected one of smoke, paper"):
        ns.run("poisoning", "big", out=tmp_path / "x")
    with pytest.raises(UsageError, match="got points='many', a str; expected a int"):
        ns.run("poisoning", out=tmp_path / "x", points="many")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"points": None}, "got points=None, a NoneType; expected int"),
        ({"alpha": None}, "got alpha=None, a NoneType; expected float"),
        ({"train_items": "many"}, "got train_items='many', a str; expected int or None"),
        ({"seeds": 0}, "got seeds=0; expected at least one network"),
    ],
)
def test_settings_that_a_run_would_die_of_are_refused(setting: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ns.EXPERIMENTS["poisoning"].at("paper", setting)
    assert ns.EXPERIMENTS["poisoning"].at("smoke", {"train_items": None}).train_items is None


@pytest.mark.parametrize(
    ("name", "setting", "words"),
    [
        ("surrogate-small", {"rows": ("cnn-svhn",)}, "got rows cnn-svhn; expected some of mlp-mnist2"),
        ("attribution-quality", {"tasks": ("mlp-svhn",)}, "got tasks mlp-svhn; expected some of mlp-mnist"),
        ("attribution-quality", {"methods": ("shapley",)}, "got methods shapley; expected some of loo-trntk"),
    ],
)
def test_parts_that_an_experiment_does_not_have_are_refused(
    name: str, setting: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        ns.run(name, out=tmp_path / "run", device="cpu", **setting)


def test_settings_take_the_type_of_their_default() -> None:
    config = ns.EXPERIMENTS["poisoning"].at("paper", {"lr": 1, "kernels": "ck", "triggers": ["none"]})
    assert (config.lr, config.kernels, config.triggers) == (1.0, ("ck",), ("none",))
    assert isinstance(config.lr, float)


def test_a_difference_from_the_paper_scale_is_named_unless_it_is_free() -> None:
    experiment = ns.EXPERIMENTS["poisoning"]
    paper = experiment()
    assert experiment.difference(dataclasses.replace(paper, seeds=9)) == ""
    assert experiment.difference(dataclasses.replace(paper, points=9)) == "points=9 instead of 5000"


@pytest.mark.parametrize(
    ("measured", "holds", "difference", "verdict"),
    [
        (0.65, True, "", "reproduced"),
        (0.5, False, "", "not reproduced"),
        (0.5, None, "", "stand-in"),
        (None, None, "", "not testable here"),
        (0.5, False, "seeds=1 instead of 5", "stand-in"),
    ],
)
def test_verdicts(measured: float | None, holds: bool | None, difference: str, verdict: str) -> None:
    statement = claim("surrogate-x", "Table 9", 0.7, "at least 0.6")(lambda config, record: Reading(None))
    found = statement.verdict("x", Reading(measured, holds), difference)
    assert found.verdict == verdict
    assert found.holds is holds


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("holds", [True, False, None])
def test_only_arithmetic_is_judged_at_the_smoke_scale(holds: bool | None, exact: bool) -> None:
    statement = claim("surrogate-x", "Table 9", 0.7, "at least 0.6", stand_in="another data set")(
        lambda c, r: Reading(None)
    )
    found = statement.verdict("x", Reading(0.5, holds, exact=exact), f"{SMALL}: smoke scale, see config")
    assert (found.verdict, found.holds) == ("stand-in", holds if exact else None)
    assert found.too_small is (holds is not None and not exact)


def test_points_are_nested_and_images_grow() -> None:
    y = torch.cat([torch.zeros(400), torch.ones(90), torch.full((10,), 2.0)]).long()
    for few, more in ((3, 4), (20, 300), (299, 300)):
        assert set(chosen_points(y, few, 1)) < set(chosen_points(y, more, 1))
    assert set(chosen_points(y, 20, 1)) != set(chosen_points(y, 20, 2))
    assert np.bincount(y[chosen_points(y, 250, 1)]).tolist() == pytest.approx([200, 45, 5], abs=1)
    split = load_images("digits", root=None, train=100, test=50, enlarge=2)
    plain = load_images("digits", root=None, train=100, test=50)
    assert len(split.train) == 100
    assert torch.equal(split.train.x[:, :, ::2, 1::2], plain.train.x)


def test_neighbours_and_spread() -> None:
    K = torch.tensor([[3.0, 1.0, 2.0], [0.0, -1.0, 5.0]])
    assert top(K, 2).tolist() == [[0, 2], [2, 0]]
    assert shared(top(K, 2), top(-K, 2)) == 1.0
    classes = np.array([0, 0, 1, 1])
    collapsed = torch.tensor([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
    assert within_class_spread(collapsed, classes) == 0.0
    x = torch.zeros(3, 1, 6, 6)
    x[1], x[2] = 1.0, 3.0
    x[:, :, 2:4, 2:4] = torch.randn(3, 1, 2, 2, generator=torch.Generator().manual_seed(0))  # not the border
    by_border = -(torch.tensor([[0.0], [1.0], [3.0]]) - torch.tensor([[0.0, 1.0, 3.0]])).abs()
    assert border_correlation(by_border, x, x, border=2) == pytest.approx(1, abs=1e-12)
