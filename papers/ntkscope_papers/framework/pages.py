"""Pages made of records: what stands between the marks of a Markdown page is written anew from the records of a folder:

python -m ntkscope_papers.framework.pages PAGE RESULTS

A mark is a line `<!-- made: KIND WORDS -->`; what follows it, up to `<!-- end -->`, is replaced. Kinds:

- `state NAME ...`: one row per experiment: how many statements have which verdict, where and how long it ran;
- `statements NAME`: all statements of an experiment with what was measured;
- `reproduced NAME ...`, `not-reproduced NAME ...`: those with that verdict, of several experiments;
- `figure NAME/STEM WORDS`: a picture of a record with a caption.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ntkscope.core import Claim, Record, UsageError
from ntkscope.core.files.atomic import write_file
from ntkscope_papers.framework.gather import KEY as GATHERED
from ntkscope_papers.framework.statements import as_cell

MARK = re.compile(
    r"^<!-- made: (?P<kind>[a-z-]+) (?P<words>.*?) -->$(?P<body>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL
)
VERDICTS = ("reproduced", "not reproduced", "stand-in", "not testable here")


@dataclass(frozen=True)
class Results:
    """A folder of records, and the way to it from a page."""

    folder: Path
    link: str

    def record(self, name: str) -> Record | None:
        return Record.open(self.folder / name) if (self.folder / name / "record.json").is_file() else None

    def absent(self, name: str) -> str:
        return f"Not run yet: `ntkscope run {name} --scale paper --out {self.folder.name}/{name}`."


def _row(*cells: object) -> str:
    return "| " + " | ".join(as_cell(cell) for cell in cells) + " |"


def _head(*names: str) -> list[str]:
    return [_row(*names), _row(*["---"] * len(names))]


def state(results: Results, words: str) -> list[str]:
    """One row per experiment."""
    lines = _head("experiment", *VERDICTS, "where", "minutes")
    for name in words.split():
        record = results.record(name)
        if record is None:
            lines.append(_row(f"`{name}`", *[""] * len(VERDICTS), "not run yet", ""))
            continue
        counts = [sum(claim.verdict == verdict for claim in record.claims) for verdict in VERDICTS]
        link = f"[`{name}`]({results.link}/{name}/record.json)"
        lines.append(_row(link, *counts, ", ".join(_devices(record)), f"{_seconds(record) / 60:.1f}"))
    return lines


def _devices(record: Record) -> list[str]:
    """Those that legs were computed on; the record's own if it gathered none."""
    sources = record.metrics.get(GATHERED, ())
    found = [source["environment"].get("device") for source in sources] or [record.environment.get("device")]
    return list(dict.fromkeys(str(device) for device in found if device))


def _seconds(record: Record) -> float:
    """Of all results together, wherever they were computed."""
    results = [value for value in record.metrics.values() if isinstance(value, Mapping)]
    return sum(float(value.get("seconds", 0.0)) for value in results)


def statements(results: Results, words: str) -> list[str]:
    """All statements of one experiment."""
    record = results.record(words)
    if record is None:
        return [results.absent(words)]
    lines = _head("statement", "check", "measured", "verdict", "note")
    return lines + [_row(f"`{c.id}`", c.tolerance, c.measured, c.verdict, c.note) for c in record.claims]


def with_verdict(results: Results, words: str, verdict: str) -> list[str]:
    """The statements of several experiments that have one verdict."""
    found: list[tuple[str, Claim]] = []
    absent = []
    for name in words.split():
        record = results.record(name)
        if record is None:
            absent.append(results.absent(name))
        else:
            found += [(name, claim) for claim in record.claims if claim.verdict == verdict]
    lines = _head("statement", "experiment", "check", "note") if found else []
    lines += [_row(f"`{claim.id}`", f"`{name}`", claim.tolerance, claim.note) for name, claim in found]
    return lines + ([""] if lines and absent else []) + absent


def figure(results: Results, words: str) -> list[str]:
    """A picture of a record, or nothing where it has none."""
    which, _, caption = words.partition(" ")
    name, _, stem = which.partition("/")
    if not (results.folder / name / "figures" / f"{stem}.png").is_file():
        return [results.absent(name)] if results.record(name) is None else [f"`{name}` has no figure `{stem}`."]
    return [f"![{caption}]({results.link}/{name}/figures/{stem}.png)", "", f"*{caption}*"]


KINDS: dict[str, Callable[[Results, str], list[str]]] = {
    "state": state,
    "statements": statements,
    "reproduced": lambda results, words: with_verdict(results, words, "reproduced"),
    "not-reproduced": lambda results, words: with_verdict(results, words, "not reproduced"),
    "figure": figure,
}


def filled(text: str, results: Results) -> str:
    """The page with everything between its marks made of the records.

    >>> page = "<!-- made: statements nothing -->\\nold\\n<!-- end -->\\n"
    >>> print(filled(page, Results(Path("/nowhere/results"), "../results")))
    <!-- made: statements nothing -->
    <BLANKLINE>
    Not run yet: `ntkscope run nothing --scale paper --out results/nothing`.
    <BLANKLINE>
    <!-- end -->
    <BLANKLINE>
    """
    if text.count("<!-- made: ") != sum(1 for _ in _marks(text)):
        raise UsageError("a mark of the page is not closed, or not alone on its line; expected <!-- end --> after each")

    def made(found: re.Match[str]) -> str:
        kind, words = found["kind"], found["words"].strip()
        if kind not in KINDS:
            raise UsageError(f"got a mark of kind {kind!r}; expected one of {', '.join(KINDS)}")
        body = "\n".join(KINDS[kind](results, words))
        return f"<!-- made: {kind} {words} -->\n\n{body}\n\n<!-- end -->"

    return MARK.sub(made, text)


def _marks(text: str) -> Iterator[re.Match[str]]:
    return (found for found in MARK.finditer(text) if "<!-- made: " not in found["body"])


def main(arguments: Sequence[str]) -> int:
    """Write the page anew; exit status 2 when page or folder were not given."""
    if len(arguments) != 2:
        print("usage: python -m ntkscope_papers.framework.pages PAGE RESULTS", file=sys.stderr)
        return 2
    page, folder = Path(arguments[0]), Path(arguments[1])
    link = Path(os.path.relpath(folder.resolve(), page.resolve().parent)).as_posix()
    text = filled(page.read_text(encoding="utf-8"), Results(folder, link))
    write_file(page, text.encode("utf-8"), over=b"<!-- made: ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
