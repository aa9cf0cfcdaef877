"""A table of the statements in a record, with what was measured and the verdicts, in Markdown:

python -m ntkscope_papers.framework.statements DIR ...
python -m ntkscope_papers.framework.statements --brief surrogate- results

The second has one line per statement whose name begins so, from all experiments; those without a record are "not run".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ntkscope.core import Record
from ntkscope.experiments import EXPERIMENTS

PREFIXES = ("conjugate-", "ntkreview-", "surrogate-", "linearized-")


def main(folders: Sequence[str]) -> int:
    """Print the table of every folder; exit status 2 when none was given."""
    if len(folders) == 3 and folders[0] == "--brief":
        print(brief(folders[1], Path(folders[2])))
        return 0
    if not folders:
        print("usage: python -m ntkscope_papers.framework.statements DIR ...", file=sys.stderr)
        return 2
    print("\n\n".join(table(Record.open(folder)) for folder in folders))
    return 0


def table(record: Record) -> str:
    """One row per claim: its name, the check, what was measured, the verdict and the note."""
    figures = sorted(name for name in record.metrics.get("figures", ()) if name.endswith(".png"))
    links = " ".join(f"[{Path(name).stem}]({record.name}/{name})" for name in figures)
    lines = [
        f"## {record.name}",
        "",
        f"[record]({record.name}/record.json)" + (f" · figures: {links}" if links else ""),
        "",
        "| claim | check | measured | verdict | note |",
        "| --- | --- | --- | --- | --- |",
    ]
    for claim in record.claims:
        name = next((claim.id.removeprefix(start) for start in PREFIXES if claim.id.startswith(start)), claim.id)
        cells = (name, claim.tolerance, claim.measured, claim.verdict, claim.note)
        lines.append("| " + " | ".join(as_cell(value) for value in cells) + " |")
    return "\n".join(lines)


def brief(prefix: str, results: Path) -> str:
    """Every registered statement whose id begins with `prefix`: experiment, verdict, and whether its check held."""
    lines = ["| statement | experiment | verdict | check |", "| --- | --- | --- | --- |"]
    for name, entry in EXPERIMENTS.items():
        ids = [claim.id for claim in entry.published() if claim.id.startswith(prefix)]
        if not ids:
            continue
        claims = {claim.id: claim for claim in Record.open(results / name).claims} if (results / name).is_dir() else {}
        for key in ids:
            claim = claims.get(key)
            verdict = "not run" if claim is None or claim.measured is None else claim.verdict
            held = {True: "holds", False: "does not hold", None: ""}[None if claim is None else claim.holds]
            lines.append(f"| {key.removeprefix(prefix)} | {name} | {verdict} | {held} |")
    return "\n".join(lines)


def as_cell(value: Any) -> str:
    """As the text of one cell: a bar would end it.

    >>> as_cell({"|a|": [1.23456, 2], "b": {"c": True}})
    '∣a∣: [1.235, 2]; b: (c: True)'
    """
    return _words(value, outer=True).replace("|", "∣").replace("\n", " ")


def _words(value: Any, *, outer: bool = False) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        inner = "; ".join(f"{key}: {_words(item)}" for key, item in value.items())
        return inner if outer else f"({inner})"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_words(item) for item in value) + "]"
    return str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
