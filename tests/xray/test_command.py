"""`ntkscope xray` on a network and data of one's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import ntkscope as ns
from ntkscope.cli import demo, main
from ntkscope.cli._common import stoppable
from ntkscope.cli._factories import data_of, imported, model_of, tokenizer_of
from ntkscope.cli.demo import demo_folder
from ntkscope.cli.xray import xray
from ntkscope.core import UsageError
from ntkscope.core.errors import DataNotFound, UnknownName

MINE = """
import torch
from torch import nn

def network(width=8, remark=0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

def data():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(90, 4, generator=draw)
    y = (x[:, 0] > 0).long()
    return (x[:60], y[:60]), (x[60:], y[60:]), ["no <b>", "yes"]
"""


def test_the_time_counts_from_the_start_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports and the reading of data are part of `--time`."""
    given: list[float | None] = []

    def noted(out: Path, **options: Any) -> None:
        given.append(options["began"])
        raise SystemExit

    monkeypatch.setattr(demo, "demo_xray", noted)
    start = time.perf_counter()
    for words in (["demo"], ["xray", "--demo"]):
        with pytest.raises(SystemExit):
            main(words)
    assert all(began is not None and began >= start for began in given)
    assert len(given) == 2


@pytest.mark.guard
def test_a_network_and_data_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # another test may have had one
    sys.path.insert(0, str(tmp_path))
    try:
        network = __import__("mine").network(width=6)
    finally:
        sys.path.remove(str(tmp_path))
    ns.models.save_weights(network, tmp_path / "w.safetensors")
    command = [sys.executable, "-m", "ntkscope", "xray", "--model", "mine:network", "--model-option", "width=6"]
    command += ["--weights", "w.safetensors", "--initial-weights", "w.safetensors", "--data", "mine:data"]
    command += ["--out", "x", "--time", "5m", "--memory", "1GiB", "--kernels", "ck,em", "--device", "cpu"]
    command += ["--untrained"]

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        own = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "500"}
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=own)

    done = run(command)
    assert done.returncode == 0, done.stderr
    assert "expected: about" in done.stdout
    assert "verdict: not enough evidence" in done.stdout  # the weights before are the weights after
    record = ns.Record.open(tmp_path / "x")
    assert list(record.metrics["data"]["classes"]) == ["no <b>", "yes"]
    kernels = [row["kernel"] for row in record.metrics["section:surrogates"]["data"]["table"]]
    assert list(dict.fromkeys(kernels)) == ["trntk", "trntk0", "ck", "em"]
    page = (tmp_path / "x" / "page.html").read_text()
    assert "no <b>" not in page
    before = (tmp_path / "x" / "record.json").read_bytes()
    other = run([*command, "--model-option", "remark=1"])  # an option the network does not show
    assert other.returncode == 2
    assert "another config (options.model remark: (absent) -> '1')" in " ".join(other.stderr.split())
    assert run(command).returncode == 0  # in another process the same
    assert (tmp_path / "x" / "record.json").read_bytes() == before


def test_what_a_factory_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train, test, classes = data_of("digits", {"test_fraction": 0.5}, None, 0)
    assert len(train) + len(test) == 1797
    assert classes[3] == "3"
    assert model_of("mlp", {"in_features": 3}) is not None
    for wrong, message in (
        ("mine", "package.module:factory"),
        ("nothere:x", "no module 'nothere'"),
        ("json:x", "no 'x'"),
        ("json:JSONdecoder", r"no 'JSONdecoder'; did you mean json:JSONDecoder\?"),
        ("mine.py:Net", "expected its module: --model mine:Net"),
        ("./src/mine.py:Net", "expected its module: --model src.mine:Net"),
    ):
        with pytest.raises(UsageError, match=message):
            imported(wrong, "model")
    with pytest.raises(UsageError, match="expected a Split"):
        data_of("json:JSONDecoder", {}, None, 0)
    with pytest.raises(UsageError, match=r"called with s, failed at .* with TypeError"):
        model_of("json:loads", {"s": 3})
    (tmp_path / "wrong_syntax.py").write_text("def f(:\n")
    with pytest.raises(UsageError, match=r"importing wrong_syntax failed at .* with SyntaxError"):
        imported("wrong_syntax:f", "model")
    with pytest.raises(UsageError, match="save_pretrained"):
        tokenizer_of("nowhere")
    assert tokenizer_of(None) is None


@pytest.mark.parametrize("channels", [1, 3])
def test_data_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, channels: int) -> None:
    monkeypatch.chdir(tmp_path)
    for k in range(20):
        folder = tmp_path / "pictures" / f"class {k % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), k).save(folder / f"{k}.png")
    rows = "".join(f"some text {k},{('no', 'yes')[k % 2]}\n" for k in range(20))
    (tmp_path / "texts.csv").write_text(f"text,label\n{rows}")
    (tmp_path / "notes.md").write_text("text")
    train, test, classes = data_of("pictures", {}, None, 0, nn.Conv2d(channels, 2, 3))
    assert (train.x.shape, len(test), classes) == ((16, channels, 4, 4), 4, ("class 0", "class 1"))
    printed = capsys.readouterr().out
    assert "16 training and 4 test items (CLASS/, of which 20 % were drawn as test items (seed 0))" in printed
    assert "classes (training and test items): 0 = class 0 (10), 1 = class 1 (10)" in printed
    grey, colour = "(grey), pixels in [0, 1]; if", "(RGB), pixels in [0, 1] minus 0.485, 0.456, 0.406, divided by 0.229"
    assert f"images of {channels} x 4 x 4 {grey if channels == 1 else colour}" in printed
    assert data_of("texts.csv", {"test_fraction": 0.5}, None, 0)[2] == ("no", "yes")
    assert "input: 'text'; label: 'label'" in capsys.readouterr().out
    train, *_ = data_of(
        "image-folder", {"root": "pictures"}, None, 0, nn.Conv2d(channels, 2, 3)
    )  # as the error advises
    assert train.x.shape == (16, channels, 4, 4)
    (tmp_path / "digits").symlink_to("pictures")  # a folder with the name of a built-in data set
    assert data_of("digits", {}, None, 0)[0].x.shape[-1] == 8
    assert (
        "--data digits is the built-in data set; for what is in the folder: --data ./digits" in capsys.readouterr().out
    )
    assert data_of("./digits", {}, None, 0)[0].x.shape == (16, 3, 4, 4)
    with pytest.raises(UsageError, match=r"ends in '\.md'; expected a folder of images, a table \(\.csv"):
        data_of("notes.md", {}, None, 0)
    with pytest.raises(UnknownName, match=r"unknown data set 'picture'.*nor is there a folder or file of that name in"):
        data_of("picture", {}, None, 0)
    with pytest.raises(DataNotFound, match="no such file or folder"):
        data_of("nowhere/pictures", {}, None, 0)


def test_ctrl_c_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), stoppable():
        raise KeyboardInterrupt
    assert "run the same command again" in capsys.readouterr().err


def test_limits_reach_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict = {}
    monkeypatch.setattr("ntkscope.cli.demo.demo_xray", lambda folder, **options: given.update(options))
    monkeypatch.setattr("ntkscope.cli._common.show", lambda record: None)
    xray(demo=True, out=tmp_path, time="30s", memory="1GiB")
    assert given["budget"] == {"time": "30s", "memory": "1GiB"}
    given.clear()
    xray(demo=True, out=tmp_path)
    assert "budget" not in given


def test_a_demo_that_was_stopped_is_gone_on_with(tmp_path: Path) -> None:
    new = demo_folder(0, tmp_path)
    assert not new.exists()
    folder = tmp_path / "demo-0-20250101-000000"
    with pytest.raises(KeyboardInterrupt), ns.Record.create(folder, kind="xray"):
        raise KeyboardInterrupt
    assert demo_folder(0, tmp_path) == folder
    assert demo_folder(1, tmp_path) != folder
    ns.Record.resume(folder).finish()
    assert demo_folder(0, tmp_path) != folder


NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)

    def forward(self, x):
        return self.layer(x)

net = Net(2)
"""
GOOD = ["--model", "mine:Net", "--model-option", "width=2", "--weights", "trained.pt", "--data", "table.csv"]


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (
            ["--model", "mine:Net"],
            "no --data; expected --demo alone, or all of a network of your own: ntkscope xray --model",
        ),
        (["--model", "mine", "--data", "table.csv"], "which class makes the network: --model mine:Net"),
        (["--model", "mine.py", "--data", "table.csv"], "which class makes the network: --model mine:Net"),
        (["--model", "mine.py:Net", "--data", "table.csv"], "expected its module: --model mine:Net"),
        (["--model", "mines:Net", "--data", "table.csv"], "did you mean --model mine:Net?"),
        (["--model", "trained.pt", "--data", "table.csv"], "--model mycnn:Net --weights trained.pt"),
        (["--model", "mine:net", "--data", "table.csv"], "is a Net already; expected the class or a function"),
        (["--model", "mine:Net", "--data", "table.csv"], "expected --model-option width=VALUE"),
        ([*GOOD, "--model-option", "depth=2"], "takes no option depth; its options: width"),
        ([*GOOD, "--weights", "traned.pt"], "did you mean trained.pt?"),
        ([*GOOD, "--weights", "photos"], "expected a file ending in .safetensors, .pt, .pth, .th, .ckpt\n"),
        ([*GOOD, "--data", "tables.csv"], "no such file or folder"),
        ([*GOOD, "--data", "photoz"], "did you mean --data photos?"),
        ([*GOOD, "--data", "arrays.npz"], "--data mydata:data, a function in mydata.py"),
        ([*GOOD, "--kernels", "trnt"], "(--kernels trntk,ck)"),
        ([*GOOD, "--time", "10x"], "such as '90s'"),
        (GOOD, "--data-option test_fraction=0.5"),
    ],
)
def test_an_error_says_what_to_call_instead(
    words: list[str], remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(NETS)
    (tmp_path / "photos").mkdir()
    torch.save({"layer.weight": torch.zeros(2, 4), "layer.bias": torch.zeros(2)}, tmp_path / "trained.pt")
    (tmp_path / "table.csv").write_text("a,b,c,d,label\n1,2,3,4,0\n5,6,7,8,1\n")
    np.savez(tmp_path / "arrays.npz", x=np.zeros(3))
    with pytest.raises(SystemExit) as stopped:
        main(["xray", *words])
    assert stopped.value.code == 2
    assert remedy in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "mine", raising=False)
