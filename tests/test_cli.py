"""The command line, as a person uses it."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ntkscope as ns
from ntkscope import experiments
from ntkscope.cli import VERBS, app, main, verb
from ntkscope.xray.registry import SECTIONS

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process; exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return call


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"{ns.__version__}\n", "")


def test_help_names_every_verb(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # lines are not broken inside a word
    run("list", "--help")  # a verb that ran before keeps its line
    code, out, _ = run("--help")
    assert code == 0
    assert all(verb in out for verb in VERBS)
    assert all(" ".join(line.split()) in " ".join(out.split()) for _, line in VERBS.values())  # not cut off


def test_a_verb_that_runs_again_is_not_registered_again(run: Run) -> None:
    before = len(app.registered_commands)
    assert [run("list", "--help")[0] for _ in range(2)] == [0, 0]
    assert len(app.registered_commands) == before == len({command.name for command in app.registered_commands})


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["xray", "--help"]], ids=" ".join)
def test_the_version_and_help_need_no_room(words: list[str]) -> None:
    code = f"""
import sys
from ntkscope.cli import main
try:
    main({words!r})
except SystemExit:
    print(*sorted(sys.modules), sep="\\n", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    modules = done.stderr.splitlines()
    assert done.stdout.strip()
    assert "ntkscope.cli" in modules
    assert not {"torch", "sklearn", "numpy", "scipy", "ntkscope.core"} & set(modules)
    assert "rich" not in modules or len(words) > 1  # the help of a verb has boxes
    assert len(modules) < 800  # about 0.2 s; PyTorch alone brings more than a thousand


def test_what_help_says_of_a_verb_is_what_the_verb_says() -> None:
    for name, (_, line) in VERBS.items():
        assert (verb(name).__doc__ or "").splitlines()[0] == line


def test_a_verb_is_found_behind_two_dashes(run: Run, tmp_path: Path) -> None:
    assert run("--", "show", str(tmp_path))[0] == 2
    assert "No such command" in run("shwo", str(tmp_path))[2]


def test_list_names_everything_there_is(run: Run) -> None:
    code, out, _ = run("list")
    assert code == 0
    for name in [
        *ns.data.DATASETS,
        *ns.models.MODELS,
        *ns.KERNELS,
        *ns.EXPERIMENTS,
        *ns.surrogates.SURROGATES,
        *ns.surrogates.INPUT_SURROGATES,
        *ns.measures.MEASURES,
        *SECTIONS,
    ]:
        assert f"  {name} " in out, f"{name} is not listed, or without a description"


def test_list_one_part(run: Run) -> None:
    code, out, _ = run("list", "models")
    assert code == 0
    assert "small_cnn" in out
    assert "digits" not in out.split()


def test_without_the_papers_it_says_how_to_install_them(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "entry_points", lambda group: ())
    monkeypatch.setattr(experiments, "EXPERIMENTS", experiments.Experiments())
    code, _, err = run("run", "poisoning", "--out", str(tmp_path))
    assert code == 2
    assert "from a copy of the repository: pip install ./papers" in err


def test_an_unknown_part_is_a_message_not_a_traceback(run: Run) -> None:
    code, out, err = run("list", "modles")
    assert (code, out) == (2, "")
    assert (
        err == "ntkscope: unknown part 'modles'; did you mean 'models'? known: datasets, experiments, kernels,"
        " measures, models, sections, surrogates\n"
    )


@pytest.mark.guard
def test_demo_writes_a_record_and_its_page(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    small = ("--max-train", "100", "--max-test", "40", "--kernels", "ck", "--out", str(folder))
    code, out, err = run("xray", "--demo", *small)
    assert code == 0, err
    record = ns.Record.open(folder)
    assert (record.kind, record.status) == ("xray", "done")
    assert "verdict: " in out
    assert "kernels: checked. Every one of" in out
    assert out.rstrip().endswith(f"page: {(folder / 'page.html').resolve()}")
    assert "<html" in (folder / "page.html").read_text()[:200].lower()
    summary = record.metrics["section:summary"]["data"]
    assert summary["network_accuracy"] > 0.85  # chance is 0.1; 40 items
    model = ns.models.build("small_cnn", image_size=8, classes=10)
    ns.models.load_weights(model, folder / "weights.safetensors")
    split = ns.data.load("digits")
    assert ns.training.evaluate(model, split.test)["accuracy"] > 0.95
    code, again, _ = run("xray", "--demo", *small)  # what is done is not done again
    assert code == 0
    assert "already holds this X-ray" in again
    assert "training small_cnn" not in again


@pytest.mark.nightly
def test_demo_as_it_is(run: Run, tmp_path: Path) -> None:
    code, _, err = run("demo", "--replay", "--out", str(tmp_path / "demo"))
    assert code == 0, err
    record = ns.Record.open(tmp_path / "demo")
    assert record.metrics["data"]["subsampled"] is None
    table = record.metrics["section:surrogates"]["data"]["table"]
    assert list(dict.fromkeys(row["kernel"] for row in table))[:3] == ["trntk", "trntk0", "ck"]
    tangent = [row for row in table if row["kernel"].startswith("trntk") and row["target"] == "logits"]
    assert max(row["agreement_wrong"] for row in tangent) >= 0.9
    assert max(row["tau"] for row in tangent) >= 0.9
    assert record.metrics["section:summary"]["data"]["verdict"] == "rich"
    assert record.metrics["section:replay"]["data"]["kernel"]["mean"] > 0
    assert (tmp_path / "demo" / "page.html").stat().st_size < 12e6


def test_replay_goes_with_the_demo(run: Run) -> None:
    code, _, err = run("xray", "--replay", "--model", "mlp", "--data", "digits")
    assert code == 2
    assert "--training package.module:function" in err


def test_demo_never_replaces_a_record(run: Run, tmp_path: Path) -> None:
    ns.Record.create(tmp_path, kind="mine").put(kept=1)
    code, _, err = run("demo", "--out", str(tmp_path))
    assert code == 2
    assert "already holds a record" in err
    assert ns.Record.open(tmp_path).metrics == {"kept": 1}


def test_the_module_is_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ntkscope", "show", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("ntkscope", run_name="__main__", alter_sys=True)  # as `python -m ntkscope` does
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("ntkscope: no record in")


COMMAND = "kernel trntk --model small_cnn --model-option image_size=8 --data digits --limit 30"
STORED = COMMAND.split()


def test_kernel_writes_a_store_and_goes_on(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "kernel"
    code, out, err = run(*STORED, "--store", str(folder), "--device", "cpu")
    assert code == 0, err
    assert "trntk: 30 × 30 float32" in out
    assert "tiles: 1 computed, 0 found" in out
    assert re.search(
        r"certificate: 1 of 1 blocks agree with autograd to \d\.\de-\d\d \(allowed: 1e-03\), 1 samples", out
    )
    assert "memory: at most" in out
    model, x = ns.models.build("small_cnn", image_size=8), ns.data.load("digits").train.x[:30]
    expected = ns.kernel("trntk", model.eval(), x).dense()
    assert float((ns.open_kernel(folder).dense() - expected).abs().max()) < 1e-5  # single precision
    code, out, _ = run(*STORED, "--store", str(folder), "--device", "cpu")
    assert code == 0
    assert "tiles: 0 computed, 1 found" in out


def test_kernel_between_two_parts(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "kernel"
    more = ("--part", "test", "--against", "train", "--against-limit", "20", "--dtype", "float64", "--outputs", "0,1")
    code, out, err = run(*STORED, *more, "--store", str(folder), "--params", "*.bias")
    assert code == 0, err
    assert "trntk: 30 × 20 float64" in out
    code, out, err = run(*STORED, "--store", str(tmp_path / "unchecked"), "--certify", "none")
    assert code == 0, err
    assert "certificate: not certified: none of" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--limit", "29"), "rows is 29 now and 30 in the store"),
        (("--outputs", "0"), "outputs is '0' now and 'all' in the store"),
        (("--part", "tests"), "expected one of train, test"),
        (("--dtype", "float16"), "expected one of float32, float64"),
        (("--outputs", "first"), "expected numbers with commas"),
        (("--certify", "all"), "got --certify 'all'; expected one of every, sampled, none"),
        (("--memory", "10kB"), "the smallest budget that works is"),
    ],
)
def test_kernel_with_something_wrong_is_a_message(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    folder = tmp_path / "kernel"
    if "in the store" in words:
        assert run(*STORED, "--store", str(folder))[0] == 0
    code, _, err = run(*STORED, "--store", str(folder), *arguments)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
