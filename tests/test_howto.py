"""The how-to pages keep their promise: one file, one line, one inherited test, taken from the page, work in a copy.

A block of a page that begins with `# path/to/file.py` is that file; if the project has the file, the block is appended to it.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {page.stem.removeprefix("add-"): page for page in sorted(ROOT.glob("docs/howto/*.md"))}
BLOCK = re.compile(r"^( *)```(?:python|toml)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"# ((?:src|tests|papers)/[\w/]+\.(?:py|toml))\n")
SPARED = shutil.ignore_patterns("__pycache__", "*.egg-info", ".hypothesis")

# What a page adds, as `ntkscope list` and a program find it.
LISTED = {"a-dataset": "moons", "a-kernel": "mine", "a-surrogate": "centroid", "a-measure": "logit-gap"}
LISTED |= {"a-experiment": "one-hidden-layer"}
XRAY = """
import sys
from pathlib import Path
from ntkscope.report import write_page
from xray.small import xrayed
record = xrayed(Path(sys.argv[1]), kernels=["mine"])
assert "mine" in record.metrics["plan"]["kernels"], record.metrics["plan"]
assert "mine" in [row["kernel"] for row in record.metrics["section:surrogates"]["data"]["table"]]
section = record.metrics["section:mine"]
assert section["status"] == "done", section
assert section["data"]["gain"] > 0
page = write_page(record.folder).read_text()
assert "The best surrogate ranks the test items as the network does" in page
assert "Logit gap" in page
"""


@dataclass(frozen=True)
class Block:
    """One fenced block of Python, or of pyproject.toml: where it belongs (None: nowhere, it is an example) and its text."""

    place: str | None
    text: str

    @property
    def session(self) -> bool:
        """Whether it is typed at a prompt; the doctests run it."""
        return self.text.lstrip().startswith(">>>")


def blocks(text: str) -> list[Block]:
    """The blocks of a page.

    >>> [block.place for block in blocks("```python\\n# src/a.py\\nx = 1\\n```\\n")]
    ['src/a.py']
    """
    found = []
    for indent, body in BLOCK.findall(text):
        code = re.sub(f"^{indent}", "", body, flags=re.MULTILINE)
        place = PLACE.match(code)
        found.append(Block(place[1] if place else None, code))
    return found


def files(page: str) -> list[Block]:
    """The blocks of a page that are files."""
    return [block for block in blocks(PAGES[page].read_text(encoding="utf-8")) if not block.session]


def missing_names(code: str, own: Sequence[str] = ()) -> list[str]:
    """What a block imports that is not there; `own` are modules that the page itself makes or adds to."""
    missing = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            imported: list[tuple[str, str | None]] = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [(str(node.module), alias.name) for alias in node.names]
        else:
            continue
        for module, name in imported:
            if module in own or f"{module}.{name}" in own:
                continue
            try:
                found = importlib.import_module(module)
                if name is not None and not hasattr(found, name):
                    importlib.import_module(f"{module}.{name}")
            except ImportError:
                missing.append(f"{module}.{name}" if name else module)
    return missing


def module_of(place: str) -> str:
    """`src/ntkscope/data/__init__.py` -> `ntkscope.data`"""
    return (
        place.removeprefix("src/")
        .removeprefix("papers/")
        .removeprefix("tests/")
        .removesuffix(".py")
        .removesuffix("/__init__")
        .replace("/", ".")
    )


def write(copy: Path, pages: Sequence[str]) -> list[str]:
    """The project with what the pages add, in `copy`; the test files among it."""
    for folder in ("src", "papers", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=SPARED)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for page in pages:
        for block in files(page):
            assert block.place is not None, f"{PAGES[page].name}: a block without the file it belongs into"
            path = copy / block.place
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            path.write_text(before + ("\n\n" if before else "") + block.text, encoding="utf-8")
    declare(copy / "papers")
    tests = [block.place for page in pages for block in files(page) if "tests/" in (block.place or "")]
    return sorted({place for place in tests if place is not None})


def declare(papers: Path) -> None:
    """The entry points of the copy, as installing it would write them."""
    project = tomllib.loads((papers / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (papers / "ntkscope_papers.egg-info").mkdir()
    lines = [
        f"[{group}]\n" + "\n".join(map(" = ".join, points.items())) for group, points in project["entry-points"].items()
    ]
    (papers / "ntkscope_papers.egg-info/entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    (papers / "ntkscope_papers.egg-info/PKG-INFO").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
    )


def call(copy: Path, *arguments: str) -> str:
    """What Python says in the copy; it must succeed."""
    path = os.pathsep.join(str(copy / part) for part in ("src", "papers", "tests"))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_its_file_parses_and_imports_what_exists(page: str) -> None:
    found = files(page)
    assert found, "no file to add"
    assert [block.text for block in found if block.place is None] == []
    own = [module_of(block.place) for block in found if block.place]
    new = {name for block in found for name in re.findall(r"import (\w+) as \1$", block.text, re.MULTILINE)}
    for block in found:
        if not (block.place or "").endswith(".py"):
            continue
        assert missing_names(block.text, [*own, *(f"{module}.{name}" for module in own for name in new)]) == []
    assert any((block.place or "").startswith(("src/", "papers/")) for block in found)
    assert any("tests/" in (block.place or "") for block in found), "no test to inherit"


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_asked_for_but_new_files_and_lines_of_import(page: str) -> None:
    """One file, one line: to a file that exists a page adds imports alone."""
    for block in files(page):
        if block.place == "papers/pyproject.toml":
            assert len(block.text.splitlines()) == 2, "expected one line below the name of the file"
        elif block.place and (ROOT / block.place).exists():
            body = ast.parse(block.text).body
            assert len(body) == 1, f"{block.place}: expected one line"
            assert isinstance(body[0], ast.ImportFrom), f"{block.place}: expected an import"


def test_canary_what_is_missing_is_found() -> None:
    code = "import no_such_module\nfrom ntkscope.core import Split, Splot\nfrom ntkscope.data import digits, moons\n"
    assert missing_names(code, ["ntkscope.data.moons"]) == ["no_such_module", "ntkscope.core.Splot"]


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with everything that the pages add."""
    copy = tmp_path_factory.mktemp("extended") / "project"
    write(copy, list(PAGES))
    return copy


@pytest.mark.guard
def test_everything_that_was_added_is_listed(extended: Path) -> None:
    listed = call(extended, "-m", "ntkscope", "list").split("\n")
    names = {line.split()[0] for line in listed if line.startswith("  ")}
    assert set(LISTED.values()) <= names


@pytest.mark.guard
def test_an_xray_computes_and_shows_what_was_added(extended: Path, tmp_path: Path) -> None:
    """The kernel is in its plan and its table, the measure in the table, the section in the record, its view on the page."""
    call(extended, "-c", XRAY, str(tmp_path / "xray"))


def passes(copy: Path, *tests: str) -> None:
    said = call(copy, "-m", "pytest", "-q", "-x", *tests)
    assert re.search(r"\d+ passed", said), said
    assert "failed" not in said


@pytest.mark.guard
def test_all_inherited_tests_pass_and_the_registries_are_whole(extended: Path) -> None:
    """No orphan, and a contract class for everything, what the pages added included."""
    added = sorted({block.place for page in PAGES for block in files(page) if block.place and "tests/" in block.place})
    passes(extended, *added, "tests/test_orphans.py", "tests/test_contracts.py", "papers/tests/test_complete.py")


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES)
def test_the_inherited_tests_pass_in_a_copy(page: str, tmp_path: Path) -> None:
    """Each page alone, too."""
    passes(tmp_path / "project", *write(tmp_path / "project", [page]))
