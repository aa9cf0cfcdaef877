"""What a release says of itself: one version everywhere, every deprecation listed, every extra named where it is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.cli._factories import tokenizer_of
from ntkscope.core import NtkscopeError, Part
from ntkscope.tracking.callbacks import hugging_face_callback, lightning_callback

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_version() -> None:
    version = PROJECT["version"]
    papers = tomllib.loads((ROOT / "papers" / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    logged = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert cited is not None
    assert logged is not None
    assert papers["version"] == cited[1] == logged[1] == version
    assert papers["requires-python"] == PROJECT["requires-python"]


def test_every_deprecated_keyword_is_in_the_changelog() -> None:
    section = (ROOT / "CHANGELOG.md").read_text().partition("### Deprecated")[2].partition("\n### ")[0]
    sources = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    uses = re.findall(r"^(?!\s*>>>).*\brenamed\(((?:\w+=\"\w+\"(?:, )?)+)\)", sources, re.M)
    words = {pair for use in uses for pair in re.findall(r'(\w+)="(\w+)"', use)}
    assert len(words) >= 4
    assert [(old, new) for old, new in sorted(words) if f"`{old}=` is `{new}=`" not in section] == []


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()


def parquet(folder: Path) -> None:
    (folder / "items.parquet").write_bytes(b"PAR1")
    ns.data.load("table", root=folder / "items.parquet")


def encoder(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    ns.models.build("text", encoder=folder)


def adapters(folder: Path) -> None:
    ns.training.adapt(network(), Part(torch.ones(4, 3), torch.tensor([0, 1, 0, 1])), method="lora", classes=2)


MISSING: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "text": ("text", "transformers", encoder),
    "a tokenizer": ("text", "transformers", lambda folder: tokenizer_of(str(folder))),
    "arrow": ("arrow", "pyarrow", parquet),
    "distributed": ("distributed", "distributed",
        lambda folder: ns.kernel("trntk", network(), torch.ones(4, 3), store=folder / "k", executor="tcp://127.0.0.1:9")),
    "store": ("store", "zarr", lambda folder: ns.kernel("trntk", network(), torch.ones(4, 3), store=folder / "k")),
    "checksums": ("store", "google_crc32c",
        lambda folder: ns.kernel("trntk", network(), torch.ones(4, 3), store=folder / "k")),
    "addresses": ("store", "fsspec",
        lambda folder: ns.kernel("trntk", network(), torch.ones(4, 3), store="memory://k")),
    "lightning": ("lightning", "lightning", lambda folder: lightning_callback(None)),
    "trainer": ("trainer", "transformers", lambda folder: hugging_face_callback(None)),
    "lora": ("lora", "peft", adapters),
}  # fmt: skip


@pytest.mark.parametrize("case", MISSING)
def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    extra, package, use = MISSING[case]
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(NtkscopeError) as error:
        use(tmp_path)
    assert f'pip install "ntkscope[{extra}]"' in str(error.value)


def test_every_extra_for_users_is_tried() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {"test", "bench", "docs"}
    assert {extra for extra, _, _ in MISSING.values()} == extras


@pytest.mark.guard
def test_types_reach_a_project_that_uses_them(tmp_path: Path) -> None:
    """`py.typed` is packed, and strict mypy sees the types of what is public in a project of somebody else."""
    assert (ROOT / "src" / "ntkscope" / "py.typed").is_file()
    client = (ROOT / "tests" / "downstream" / "client.py").read_text()
    (tmp_path / "client.py").write_text(client)
    (tmp_path / "wrong.py").write_text(client.replace('kernel("trntk"', "kernel(3.5"))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "client.py"]
    where = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    options: dict[str, Any] = {"cwd": tmp_path, "env": where, "capture_output": True, "text": True, "check": False}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'incompatible type "float"' in subprocess.run([*command[:-1], "wrong.py"], **options).stdout
