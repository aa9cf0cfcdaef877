"""The package as it is first met: what `import ntkscope` gives and costs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ntkscope as ns

FRESH = """
import sys
import ntkscope as ns
assert "torch" not in sys.modules, "importing is expensive"
ns.Record
assert "torch" in sys.modules
first = ns.xray
import ntkscope.xray
from ntkscope.xray import Budget, xray
from ntkscope.xray.sections import kernel
from ntkscope import xray as again
assert first is ns.xray is xray is again, "ns.xray is the room"
assert type(first).__name__ == "function"
Budget, kernel
"""


def test_importing_is_cheap_and_rooms_come_when_used_and_xray_stays_a_function() -> None:
    """One process for all of it: each new one imports PyTorch again."""
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ns.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(ns, name) is not None
    assert name in dir(ns)


def test_unknown_names_are_refused_with_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no 'kernal'; it has: EXPERIMENTS, KERNELS"):
        ns.kernal  # noqa: B018


def test_one_version() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert ns.__version__ == project["version"]


def test_every_requirement_is_pinned() -> None:
    """`constraints.txt` names every package that pyproject.toml asks for, with an exact version."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    pins = dict(line.split("==") for line in lines)
    names = [item.split(">")[0].strip().lower().replace("_", "-") for item in wanted]
    assert [name for name in names if name not in pins] == []
    assert pins["torch"] == "2.13.0"
    assert not {"torchvision", "torchaudio"} & set(pins)
