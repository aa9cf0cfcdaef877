"""Pages made of records: what stands between the marks of a Markdown page is written anew:

python -m ntkscope_papers.framework.pages [PAGE ...]

Without names, the READMEs of the papers. A mark is a line `<!-- made: KIND WORDS -->`; what follows it, up to
`<!-- end -->`, is replaced. Kinds:

- `state NAME ...`: one row per experiment: how many statements have which verdict, where and how long it ran;
- `claims NAME ...`: what was published, what was measured and the verdict, statement by statement;
- `statements NAME`: all statements of an experiment with their checks and notes;
- `reproduced NAME ...`, `not-reproduced NAME ...`: those with that verdict, of several experiments;
- `verdicts NAME ...`: the verdicts alone;
- `totals PREFIX ...`: how many statements whose ids begin so have which verdict;
- `every PREFIX ...`: all those statements: published, measured, verdict, why it was not reproduced, record;
- `figure NAME/STEM WORDS`: a picture of a record with a caption.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ntkscope.core import Claim, Record, UsageError
from ntkscope.core.files.atomic import write_file
from ntkscope.core.records.claims import FAILS, HOLDS, OUTCOMES
from ntkscope.experiments import EXPERIMENTS
from ntkscope_papers.framework.cells import FEW, as_cell, ordered, shortened
from ntkscope_papers.framework.provenance import sources

MARK = re.compile(
    r"^<!-- made: (?P<kind>[a-z-]+) (?P<words>.*?) -->$(?P<body>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL
)
PAPERS = Path(__file__).parents[1]
SHORT, LONG = 190, 220  # characters of a value, and of a reason, in the table of all statements


@dataclass(frozen=True)
class Results:
    """The records in the folders `results` of the papers below `root`, as a page in the folder `page` links to them."""

    page: Path
    root: Path = PAPERS

    @cached_property
    def folders(self) -> dict[str, Path]:
        """By name."""
        return {path.parent.name: path.parent for path in sorted(self.root.glob("*/results/*/record.json"))}

    def record(self, name: str) -> Record | None:
        return Record.open(self.folders[name]) if name in self.folders else None

    def link(self, name: str) -> str:
        return Path(os.path.relpath(self.folders[name].resolve(), self.page.resolve())).as_posix()

    def absent(self, name: str) -> str:
        return f"Not run yet: `ntkscope run {name} --scale paper --out DIR`."


def _row(*cells: object) -> str:
    return "| " + " | ".join(as_cell(cell) for cell in cells) + " |"


def _head(*names: str) -> list[str]:
    return [_row(*names), _row(*["---"] * len(names))]


def state(results: Results, words: str) -> list[str]:
    """One row per experiment."""
    lines = _head("experiment", *OUTCOMES, "where", "minutes")
    for name in words.split():
        record = results.record(name)
        if record is None:
            lines.append(_row(f"`{name}`", *[""] * len(OUTCOMES), "not run yet", ""))
            continue
        counts = [sum(claim.outcome == outcome for claim in record.claims) for outcome in OUTCOMES]
        link = f"[`{name}`]({results.link(name)}/record.json)"
        lines.append(_row(link, *counts, ", ".join(_devices(record)), f"{_seconds(record) / 60:.1f}"))
    return lines


def _devices(record: Record) -> list[str]:
    """Those that legs were computed on; the record's own where it does not say."""
    found = [source["environment"].get("device") for source in sources(record)] or [record.environment.get("device")]
    return list(dict.fromkeys(str(device) for device in found if device))


def _seconds(record: Record) -> float:
    """Of all results together, wherever they were computed."""
    results = [value for value in record.metrics.values() if isinstance(value, Mapping)]
    return sum(float(value.get("seconds", 0.0)) for value in results)


def claims(results: Results, words: str) -> list[str]:
    """What was published and what was measured, experiment by experiment, with links to records and figures."""
    lines: list[str] = []
    for name in words.split():
        record = results.record(name)
        if record is None:
            lines += [results.absent(name), ""]
            continue
        link = results.link(name)
        figures = sorted(Path(found).stem for found in record.metrics.get("figures", ()) if found.endswith(".png"))
        pictures = " ".join(f"[{stem}]({link}/figures/{stem}.png)" for stem in figures)
        lines += [f"**{name}** · [record]({link}/record.json)" + (f" · figures: {pictures}" if pictures else ""), ""]
        lines += _head("statement", "published", "measured", "verdict")
        lines += [
            _row(f"`{c.id}`", c.published, ordered(c.measured, c.published), c.outcome) for c in record.claims
        ] + [""]
    return lines[:-1]


def statements(results: Results, words: str) -> list[str]:
    """All statements of one experiment."""
    record = results.record(words)
    if record is None:
        return [results.absent(words)]
    lines = _head("statement", "check", "measured", "verdict", "note")
    return lines + [_row(f"`{c.id}`", c.tolerance, c.measured, c.outcome, c.note) for c in record.claims]


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


def verdicts(results: Results, words: str) -> list[str]:
    """The verdict on each statement of several experiments."""
    lines = _head("statement", "experiment", "verdict")
    for name in words.split():
        record = results.record(name)
        judged = {claim.id: claim for claim in record.claims} if record else {}
        for statement in EXPERIMENTS[name].published():
            claim = judged.get(statement.id)
            verdict = "not run" if claim is None or claim.measured is None else claim.outcome
            lines.append(_row(f"`{statement.id}`", name, verdict))
    return lines


def _judged(results: Results, prefix: str) -> list[tuple[str, Claim]]:
    """The statements whose ids begin so, with the names of their experiments, in the order of the ids."""
    found = [
        (name, claim)
        for name in results.folders
        for claim in (Record.open(results.folders[name]).claims if name in EXPERIMENTS else ())
        if claim.id.startswith(f"{prefix}-")
    ]
    return sorted(found, key=lambda pair: pair[1].id)


def totals(results: Results, words: str) -> list[str]:
    """One row per prefix, and their sum."""
    counted = {prefix: Counter(claim.outcome for _, claim in _judged(results, prefix)) for prefix in words.split()}
    counted["all"] = sum(counted.values(), Counter())
    lines = _head("ids", "statements", *OUTCOMES)
    return lines + [
        _row(prefix if prefix == "all" else f"`{prefix}-…`", of.total(), *(of[outcome] for outcome in OUTCOMES))
        for prefix, of in counted.items()
    ]


def every(results: Results, words: str) -> list[str]:
    """A table per prefix; long values are cut, the record has them whole."""
    why = tomllib.loads((results.root / "reasons.toml").read_text(encoding="utf-8"))
    lines: list[str] = []
    for prefix in words.split():
        lines += [f"## {prefix}", "", *_head("statement", "published", "measured", "verdict", "why", "record")]
        for name, claim in _judged(results, prefix):
            values = [as_cell(v, SHORT) for v in (claim.published, ordered(claim.measured, claim.published, FEW))]
            reason = why.get(claim.id) or shortened(
                claim.note.removeprefix(f"{HOLDS}; ").removeprefix(f"{FAILS}; "), LONG
            )
            link = f"[{name}]({results.link(name)}/record.json)"
            lines.append(_row(f"`{claim.id}`", *values, claim.outcome, reason, link))
        lines.append("")
    return lines[:-1]


def figure(results: Results, words: str) -> list[str]:
    """A picture of a record, or nothing where it has none."""
    which, _, caption = words.partition(" ")
    name, _, stem = which.partition("/")
    if name not in results.folders:
        return [results.absent(name)]
    if not (results.folders[name] / "figures" / f"{stem}.png").is_file():
        return [f"`{name}` has no figure `{stem}`."]
    return [f"![{caption}]({results.link(name)}/figures/{stem}.png)", "", f"*{caption}*"]


KINDS: dict[str, Callable[[Results, str], list[str]]] = {
    "state": state,
    "claims": claims,
    "statements": statements,
    "reproduced": lambda results, words: with_verdict(results, words, "reproduced"),
    "not-reproduced": lambda results, words: with_verdict(results, words, "not reproduced"),
    "verdicts": verdicts,
    "totals": totals,
    "every": every,
    "figure": figure,
}


def filled(text: str, results: Results) -> str:
    """The page with everything between its marks made of the records.

    >>> page = "<!-- made: statements nothing -->\\nold\\n<!-- end -->\\n"
    >>> print(filled(page, Results(Path("/nowhere"))))
    <!-- made: statements nothing -->
    <BLANKLINE>
    Not run yet: `ntkscope run nothing --scale paper --out DIR`.
    <BLANKLINE>
    <!-- end -->
    <BLANKLINE>
    """
    closed = [found for found in MARK.finditer(text) if "<!-- made: " not in found["body"]]
    if text.count("<!-- made: ") != len(closed):
        raise UsageError("a mark of the page is not closed, or not alone on its line; expected <!-- end --> after each")

    def made(found: re.Match[str]) -> str:
        kind, words = found["kind"], found["words"].strip()
        if kind not in KINDS:
            raise UsageError(f"got a mark of kind {kind!r}; expected one of {', '.join(KINDS)}")
        body = "\n".join(KINDS[kind](results, words))
        return f"<!-- made: {kind} {words} -->\n\n{body}\n\n<!-- end -->"

    return MARK.sub(made, text)


def main(pages: Sequence[str]) -> int:
    """Write these pages anew, or the READMEs of the papers."""
    for page in map(Path, pages or sorted(map(str, PAPERS.glob("*/README.md")))):
        text = filled(page.read_text(encoding="utf-8"), Results(page.parent))
        write_file(page, text.encode("utf-8"), over=b"<!-- made: ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
