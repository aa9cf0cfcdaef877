"""The tutorials run, and what is stored in them is what they give."""

from __future__ import annotations

import base64
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "notebooks.py"
FAST = ("04", "09")  # seconds; `make guard` runs the others
DATA = ("07",)
HERE = re.compile(r"(?<![\w./-])/(?:tmp|home|root|work|usr|opt|var|mnt|Users)/")
NETWORK = re.compile(r"(?:src|href)=[\"']?(?:https?:)?//")
LINK = re.compile(r"\]\(([^)#:]+)[^)]*\)")


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NOTEBOOKS = sorted(tool().FOLDER.glob("*.ipynb"))


def marks(path: Path) -> list[pytest.MarkDecorator]:
    slow = [] if path.stem.startswith(FAST) else [pytest.mark.guard]
    return [*slow, pytest.mark.data] if path.stem.startswith(DATA) else slow


def doubts(notebook: nbformat.NotebookNode) -> list[str]:
    """What is wrong with stored outputs."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = (
        [] if notebook.metadata.get("executed") == tool().digest(notebook) else ["code changed since it was executed"]
    )
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        found.append("cells were not executed in order")
    for cell in cells:
        for output in cell.outputs:
            text = output.get("text", "") + "".join(
                content for kind, content in output.get("data", {}).items() if not kind.startswith("image/png")
            )
            found += [f"an error: {output.ename}"] if output.output_type == "error" else []
            found += [f"written to stderr: {text}"] if output.get("name") == "stderr" else []
            found += [f"a path of one machine: {text}"] if HERE.search(text) else []
            found += [f"something from the network: {text}"] if NETWORK.search(text) else []
    return found


@pytest.mark.parametrize("path", [pytest.param(p, marks=marks(p)) for p in NOTEBOOKS], ids=lambda path: path.stem)
def test_runs(path: Path) -> None:
    assert doubts(tool().executed(path)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_whole(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert doubts(notebook) == []
    assert path.stat().st_size < 600_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_says_for_whom_it_is_and_has_a_picture(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    title, *_ = notebook.cells
    assert re.match(r"# .+\n\n\*\*For whom:\*\* .+\n\n\*\*What you will have at the end:\*\* ", title.source)
    outputs = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    images = [base64.b64decode(data["image/png"]) for data in outputs if "image/png" in data]
    assert images or any("image/svg+xml" in data for data in outputs)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert [link for link in LINK.findall(text) if not (path.parent / link).exists()] == []


def test_canary_what_is_wrong_is_found() -> None:
    cell = nbformat.v4.new_code_cell("1 / 0", execution_count=1)
    stderr = nbformat.v4.new_output("stream", name="stderr", text="/home/someone/file.py: a warning")
    error = nbformat.v4.new_output("error", ename="ZeroDivisionError", evalue="", traceback=[])
    html = nbformat.v4.new_output("display_data", {"text/html": "<img src='https://example.org/x.png'>"})
    cell.outputs = [stderr, error, html]
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["executed"] = tool().digest(notebook)
    assert [doubt.split(":")[0] for doubt in doubts(notebook)] == [
        "written to stderr",
        "a path of one machine",
        "an error",
        "something from the network",
    ]
    cell.source, cell.execution_count = "1 / 2", 2
    assert doubts(notebook)[:2] == ["code changed since it was executed", "cells were not executed in order"]
