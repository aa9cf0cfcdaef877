"""A readable summary of a record: a few tables on a terminal, the same as HTML in a notebook."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ntkscope.core.files.printable import printable
from ntkscope.core.html import table
from ntkscope.core.progress import duration

Section = tuple[str, list[tuple[str, ...]]]
LONGEST = 600  # characters of one value; `record.json` has it whole


def sections(folder: Path, document: Mapping[str, Any]) -> list[Section]:
    """The tables of a summary: a title and its rows; empty ones are left out."""
    where = document["environment"]
    packages = ", ".join(f"{name} {version}" for name, version in (where.get("packages") or {}).items())
    head: list[tuple[str, ...]] = [
        ("status", _status(document)),
        ("folder", str(folder)),
        ("command", str(document["command"])),
        ("started", str(document["started"])),
        ("wall time", duration(float(document["wall_seconds"]))),
        ("on", f"{where.get('device')}, {where.get('cpu_count')} CPU cores, {where.get('platform')}"),
        ("with", f"python {where.get('python')}, {packages}"),
        ("commit", str(where.get("commit") or "(none)")),
    ]
    tables: list[Section] = [
        (f"{document['kind']}: {document['name']}", head),
        ("config", [(key, _value(value)) for key, value in document["config"].items()]),
        ("seeds", [(key, _value(value)) for key, value in document["seeds"].items()]),
        ("stages", [(name, *_stage(stage)) for name, stage in document["stages"].items()]),
        ("metrics", [(key, _value(value)) for key, value in document["metrics"].items()]),
        ("arrays", [(name, _array(entry)) for name, entry in document["arrays"].items()]),
        ("series", [(name, f"{e['rows']:,} rows, {e['file']}") for name, e in document.get("series", {}).items()]),
        ("claims", [_claim(claim) for claim in document["claims"]]),
    ]
    return [(title, rows) for title, rows in tables if rows]


def text_summary(folder: Path, document: Mapping[str, Any]) -> str:
    """The summary as plain text; control characters are written as escapes."""
    out = io.StringIO()
    console = Console(file=out, width=120, color_system=None, highlight=False)
    for title, rows in sections(folder, document):
        table = Table(title=Text(printable(title)), title_justify="left", box=None, show_header=False, padding=(0, 1))
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def html_summary(folder: Path, document: Mapping[str, Any]) -> str:
    """The summary as HTML; every text of the record is escaped."""
    return "<div>" + "".join(table(title, rows) for title, rows in sections(folder, document)) + "</div>"


def _status(document: Mapping[str, Any]) -> str:
    if document.get("error"):
        return f"{document['status']} ({document['error']})"
    return f"running (last heard of {document['updated']})" if document["status"] == "running" else document["status"]


def _stage(stage: Mapping[str, Any]) -> tuple[str, str]:
    total = "" if stage["total"] is None else f" of {stage['total']}"
    return f"{stage['done']}{total}{'' if stage['finished'] else ', not finished'}", duration(stage["seconds"])


def _array(entry: Mapping[str, Any]) -> str:
    return f"{entry['dtype']} {' × '.join(map(str, entry['shape'])) or 'scalar'}, {entry['file']}"


def _claim(claim: Mapping[str, Any]) -> tuple[str, ...]:
    compared = f"published {_value(claim['published'])}, measured {_value(claim['measured'])}"
    return (claim["id"], claim["verdict"], f"{compared}, tolerance {_value(claim['tolerance'])}", claim.get("note", ""))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    whole = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}… ({len(whole):,} characters)"
