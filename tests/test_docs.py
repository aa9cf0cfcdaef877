"""The documents: no dead links, no code that is not run, no command that is not there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import typer
from tools.site import kernels

from ntkscope.cli import VERBS, verb
from ntkscope.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]
PLACES = ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "papers/ntkscope_papers/**/*.md")
PAGES = sorted(page for place in PLACES for page in ROOT.glob(place))
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of a page: of its headings, as GitHub makes them, and those it names.

    >>> anchors("# One, two: `three`")
    {'one-two-three'}
    """
    prose = FENCE.sub("", text)
    headings = re.findall(r"^#+ +(.+)$", prose, re.MULTILINE)
    named = set(re.findall(r'<a id="([^"]+)"></a>', prose))
    return named | {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def dead_links(page: Path, text: str) -> list[str]:
    """The links of a page to files or headings that are not there; links to other sites are not followed."""
    dead = []
    for link in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            dead.append(link)
        elif anchor and target.suffix == ".md":
            content = text if target == page else target.read_text(encoding="utf-8")
            if anchor not in anchors(content):
                dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page, page.read_text(encoding="utf-8")) == []


def test_canary_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "# A head\n[a](b.md) [self](page.md) [head](#a-head) [no](#nothing) [web](https://example.org/x)\n"
    page.write_text(text)
    assert dead_links(page, text) == ["b.md", "#nothing"]


PYTHON = re.compile(r"(?:<!-- not run: (.+?) -->\n)?^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```(?:bash|sh)?\n(.*?)^```$|^((?: {4}.*\n)+)", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`((?:ntkscope|python|make) [^`\n]+)`")
RUN_ELSEWHERE = ("docs/howto", "docs/start.md")  # tests/test_howto.py, and below


def sessions_or_reasons(text: str) -> list[str]:
    """The first line of each Python block that is neither typed at a prompt nor says why it is not run."""
    return [body.splitlines()[0] for reason, body in PYTHON.findall(text) if not reason and ">>> " not in body]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_is_run_by_the_doctests_or_says_why_not(page: Path) -> None:
    if not page.relative_to(ROOT).as_posix().startswith(RUN_ELSEWHERE):
        assert sessions_or_reasons(page.read_text(encoding="utf-8")) == []


def commands(text: str) -> list[str]:
    """The commands of ntkscope, Python and make in a page, without their comments."""
    code = "\n".join(a or b for a, b in SHELL.findall(text)).replace("\\\n", " ")
    lines = [line.split("  #")[0].strip() for line in code.splitlines()] + SPAN.findall(text)
    return [line for line in lines if re.match(r"(ntkscope|python|\.venv/bin/python|make) [\w.-]", line)]


@cache
def options(name: str) -> set[str]:
    """The options of a verb."""
    single = typer.Typer()
    single.command()(verb(name))
    return {option for each in typer.main.get_command(single).params for option in (*each.opts, *each.secondary_opts)}


def mistake(command: str) -> str | None:
    """What is wrong with a command, as far as can be told without running it."""
    program, first, *rest = command.split()
    if program == "make":
        known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        return None if first in known or "=" in first else f"no such target: {first}"
    if program == "ntkscope":
        unknown = (
            [word for word in rest if word.startswith("--") and word.split("=")[0] not in options(first)]
            if first in VERBS
            else [first]
        )
        if first == "run" and rest and re.fullmatch("[a-z][a-z0-9-]+", rest[0]) and rest[0] not in EXPERIMENTS:
            unknown.append(rest[0])
        unknown = [word for word in unknown if word != "--help" and word != "--version"]
        return f"unknown: {unknown}" if unknown else None
    if first == "-m":
        return None if importlib.util.find_spec(rest[0]) else f"no such module: {rest[0]}"
    return None if not first.endswith(".py") or (ROOT / first).is_file() else f"no such file: {first}"


# Names that the pages have the reader make.
OWN = {"python mycnn.py", "ntkscope run one-hidden-layer --scale paper --out DIR --set"}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_commands_are_there(page: Path) -> None:
    found = {command: mistake(command) for command in commands(page.read_text(encoding="utf-8")) if command not in OWN}
    assert {command: why for command, why in found.items() if why} == {}


def test_canary_commands_that_are_not_there_are_found() -> None:
    text = (
        "```\nntkscope xray --demoo   # a --x\nntkscope run no-such\n```\n`make nothing`, `python -m no_such_module`\n"
    )
    assert len(list(filter(None, map(mistake, commands(text))))) == 4
    assert commands("    python tools/verdicts.py --write   # judge\n") == ["python tools/verdicts.py --write"]
    assert sessions_or_reasons("```python\nx = 1\n```\n<!-- not run: slow -->\n```python\ny = 2\n```\n") == ["x = 1"]


def test_the_tables_of_kernels_are_what_the_records_say() -> None:
    text = kernels.PAGE.read_text(encoding="utf-8")
    assert kernels.filled(text) == text, "run: python -m tools.site.kernels"
    assert text.count("| `trntk` |") == 3


@pytest.mark.guard
def test_the_first_five_minutes(tmp_path: Path) -> None:
    """What docs/start.md has the reader write and run, as it stands there."""
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    script = next(body for _, body in PYTHON.findall(text) if body.startswith("# mycnn.py"))
    (tmp_path / "mycnn.py").write_text(script, encoding="utf-8")
    lines = re.findall(r"^(?:python|ntkscope) .+$", text, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        program, *arguments = line.split()
        started = [sys.executable, *(["-m", "ntkscope"] if program == "ntkscope" else []), *arguments]
        done = subprocess.run(started, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs" / "mine" / "page.html").stat().st_size > 10_000
    assert "page.html" in done.stdout
