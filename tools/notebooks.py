"""Execute the tutorials and keep their outputs. Run: python tools/notebooks.py [NAME …]; needs nbclient and ipykernel"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
LONGEST = 600  # seconds of one cell


def digest(notebook: nbformat.NotebookNode) -> str:
    """A sha256 over the code: what the outputs were made of."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs, run in an empty folder; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        where = str(Path(folder).resolve())
        client = NotebookClient(notebook, timeout=LONGEST, kernel_name="python3", record_timing=False)
        quiet = {"PYTHONWARNINGS": "ignore:IProgress"}  # there are no widgets to show progress in
        client.execute(cwd=where, env={**os.environ, **quiet})
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "executed": digest(notebook),
    }
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        for output in cell.get("outputs", ()):
            if "text" in output:
                output.text = output.text.replace(f"{where}/", "")  # a folder of this run, gone by now
    return notebook


def main(*names: str) -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and not any(path.stem.startswith(name) for name in names):
            continue
        began = time.perf_counter()
        nbformat.write(executed(path), path)
        print(f"{path.stem}  {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
