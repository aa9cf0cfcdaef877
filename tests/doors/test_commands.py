"""Commands with what nobody meant: one message, exit code 2, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ntkscope.cli import main
from ntkscope.core import UsageError
from ntkscope.xray.budget import parse_time

FACTORIES = """
import torch
from torch import nn

def none(): return None
def number(): return 5
def meta(): return nn.Linear(4, 3, device="meta")
def good(): return nn.Linear(4, 3)
def data():
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    return (x, torch.arange(6) % 3), (x, torch.arange(6) % 3)
def five(): return (*data(), 5)
"""
LONG = "a" * 5000


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "hostile_factories.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("hostile_factories", None)


def kernel(*more: str, model: str = "good", data: str = "data", store: str = "store") -> list[str]:
    named = ["--model", f"hostile_factories:{model}", "--data", f"hostile_factories:{data}", "--store", store]
    return ["kernel", "trntk", *named, *more]


COMMANDS = {
    "no module": (kernel(model="none"), "expected a torch.nn.Module"),
    "a number": (kernel(model="number"), "expected a torch.nn.Module"),
    "meta": (kernel(model="meta"), "device meta"),
    "classes": (kernel(data="five"), "names of the classes"),
    "dashes": (kernel("--option", f"x={'-' * 30_000}1"), "has no option x"),
    "brackets": (kernel("--option", f"x={'(' * 30_000}"), "has no option x"),
    "weights": (kernel("--weights", f"{LONG}.pt"), "no weights at"),
    "tokenizer": (kernel("--tokenizer", LONG), "expected a folder"),
    "store": (kernel(store=LONG), "too long"),
    **{
        f"device {name}": (kernel("--device", name), "cannot be used here")
        for name in ("privateuseone", "hpu", "meta", "xyz")
    },
    "run": (["run", "poisoning", "--out", LONG], "cannot create the folder"),
    "run device": (["run", "poisoning", "--out", "r", "--device", "privateuseone"], "cannot be used here"),
    "report": (["report", LONG], "no record"),
    "show": (["show", LONG], "too long"),
    "check": (["check", LONG], "too long"),
    "compare": (["compare", LONG, LONG], "too long"),
    "demo": (["demo", "--out", LONG], "too long"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_message_and_no_traceback(here: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, expected = COMMANDS[name]
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert expected in capsys.readouterr().err
    assert sorted(path.name for path in here.iterdir() if path.name != "__pycache__") == ["hostile_factories.py"]


@pytest.mark.parametrize(
    "text", ["1.5.2s", "1 0s", "5 5 5m", "1h 30", "10m5", "1..5s", "1,5h", "²s", "", "s", "inf", "1e400s"]
)
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="expected a duration"):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), (" 1.5 ", 1.5), ("1h30m", 5400), ("1h 30 min", 5400), (".5h", 1800), ("2.s", 2)]
)
def test_times_as_they_are_written(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds
