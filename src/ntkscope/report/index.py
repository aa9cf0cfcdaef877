"""The index: all records below a folder on one page, published numbers next to measured ones, each record with its own page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ntkscope.core import Claim, NtkscopeError, Record
from ntkscope.core.arguments import path_of
from ntkscope.core.checked import checked
from ntkscope.core.errors import RecordError
from ntkscope.report.claims import claims_table, outcomes, tally
from ntkscope.report.document import page_of_parts, save
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import as_float, duration, number, percent
from ntkscope.report.page import FILE, is_xray, write_page
from ntkscope.report.source import Source, mapping, rows_of
from ntkscope.report.tables import Cell, table

INDEX = "index.html"


@dataclass(frozen=True)
class Entry:
    """A record below the folder: its path as a link, its row in the index, and the reason if it cannot be
    read."""

    where: str
    record: Record | None
    trouble: str = ""
    kind: str = ""
    row: tuple[Cell, ...] = ()
    claims: tuple[Claim, ...] = ()

    def link(self, name: str | None = None) -> Markup:
        """A link to the record's page; plain text when it has none."""
        shown = name or self.where
        if self.record is None or self.trouble:
            return tag("span", shown)
        path = FILE if self.where == "." else f"{self.where}/{FILE}"
        return tag("a", shown, href=quote(path))


def write_index(folder: str | Path) -> Path:
    """Write a page for every record in `folder` and below, and an `index.html` of them; return the path of the index.

    A record that cannot be read is listed with the reason. Hidden folders and links to folders are skipped.

    Examples:
        >>> _ = ns.Record.create(folder + "/run", kind="example")
        >>> write_index(folder).name, (Path(folder) / "run/page.html").exists()
        ('index.html', True)
    """
    folder = path_of(folder, "folder")
    entries = [_entry(folder, found) for found in records(folder)]
    if not entries:
        raise RecordError(f"no record in {folder} or below; give a folder that contains records")
    return save(_page(folder, entries), folder / INDEX)


@checked
def records(folder: str | Path) -> list[Path]:
    """The folders at or below `folder` that hold a `record.json`, in the order of their names.

    Examples:
        >>> for name in ("first", "second"):
        ...     _ = ns.Record.create(f"{folder}/{name}", kind="example")
        >>> [found.name for found in records(folder)]
        ['first', 'second']
    """
    found = []
    for place, inner, files in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        if "record.json" in files:
            found.append(Path(place))
    return found


def _entry(folder: Path, found: Path) -> Entry:
    """A record with everything the index shows of it; one that cannot be read does not affect the others."""
    where = found.relative_to(folder).as_posix()
    try:
        record = Record.open(found)
        write_page(found)
        kind = "xray" if is_xray(record) else "experiment" if record.claims else "other"
        entry = Entry(where, record, kind=kind, claims=record.claims)
        return replace(entry, row=tuple(_ROWS[kind](entry, record)))
    except NtkscopeError as error:
        trouble = str(error)
    except Exception as error:  # a record may hold anything where its schema says nothing
        trouble = f"{type(error).__name__}: {error}"
    return Entry(where, None, trouble.replace(str(found), where))


def _page(folder: Path, entries: Sequence[Entry]) -> Markup:
    def of(kind: str) -> list[Entry]:
        return [entry for entry in entries if entry.record is not None and entry.kind == kind]

    claimed = [entry for entry in entries if entry.claims]
    broken = [entry for entry in entries if entry.record is None]
    parts = {
        "xrays": ("X-rays", _rows("xray", of("xray"))),
        "experiments": ("Experiments", _rows("experiment", of("experiment"))),
        "claims": ("Published and measured", _claims(claimed)),
        "others": ("Other records", _rows("other", of("other"))),
        "broken": ("Could not be read", _broken(broken)),
    }
    every = [claim for entry in claimed for claim in entry.claims]
    head = tag(
        "header",
        tag("p", "ntkscope", class_="eyebrow"),
        tag("h1", f"{len(entries):,} record{'' if len(entries) == 1 else 's'} in {folder.resolve().name}"),
        tally(every) if every else None,
    )
    return page_of_parts(f"Records in {folder.resolve().name}", [head], parts, made_from="records")


def _xray(entry: Entry, record: Record) -> list[Cell]:
    model, data = mapping(record.metrics.get("model")), mapping(record.metrics.get("data"))
    source = Source(record)
    real, about, found = source.regression, source.section("summary").data, source.section("surrogates").data
    rated, right = rows_of(found, "table"), about.get("r2" if real else "network_accuracy")
    proper = [row for row in rated if not row.get("trivial")] or rated
    best: Mapping[str, Any] = max(proper, key=lambda row: as_float(row.get("tau")), default={})
    return [
        Cell(entry.link(), entry.where, kind="strong"),
        Cell.of(model.get("name")),
        Cell.of(data.get("name")),
        Cell.of(about.get("verdict")),
        Cell(f"R² {number(right)}" if real else percent(right), _simple(right), True),
        Cell.of(best.get("kernel")),
        Cell(number(best.get("tau")), _simple(best.get("tau")), True),
        Cell(duration(record.wall_seconds), record.wall_seconds, True),
        Cell.of(record.status),
    ]


def _experiment(entry: Entry, record: Record) -> list[Cell]:
    reproduced = sum(claim.outcome == "reproduced" for claim in entry.claims)
    return [
        Cell(entry.link(), entry.where, kind="strong"),
        Cell(record.name, record.name),
        Cell.of(record.config.get("scale")),
        Cell(join(outcomes(entry.claims)), reproduced, kind="pills"),
        Cell(duration(record.wall_seconds), record.wall_seconds, True),
        Cell.of(record.status),
    ]


def _other(entry: Entry, record: Record) -> list[Cell]:
    took = Cell(duration(record.wall_seconds), record.wall_seconds, True)
    where = Cell(entry.link(), entry.where, kind="strong")
    return [where, Cell.of(record.kind), Cell.of(record.name), took, Cell.of(record.status)]


_ROWS = {"xray": _xray, "experiment": _experiment, "other": _other}
_HEADS = {
    "xray": ("X-rays", ["Record", "Model", "Data", "Verdict", "Accuracy", "Best kernel", "τ", "Time", "State"]),
    "experiment": ("Experiments", ["Record", "Name", "Scale", "Claims", "Time", "State"]),
    "other": ("Other records", ["Record", "Kind", "Name", "Time", "State"]),
}


def _rows(kind: str, entries: Sequence[Entry]) -> Markup | None:
    name, heads = _HEADS[kind]
    return table(heads, [entry.row for entry in entries], name=name, kind=f"records {kind}s") if entries else None


def _simple(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else None


def _claims(entries: Sequence[Entry]) -> Markup | None:
    pairs = [(entry, claim) for entry in entries for claim in entry.claims]
    if not pairs:
        return None
    before = [[Cell(entry.link(), entry.where)] for entry, _ in pairs]
    choose = tag(
        "p",
        tag("label", "Find a claim ", for_="claims-filter"),
        tag(
            "input",
            type="search",
            id="claims-filter",
            placeholder="Name, source or verdict",
            data_filter="claims-table",
        ),
        class_="filter",
    )
    return join([choose, claims_table([claim for _, claim in pairs], before=before, id_="claims-table")])


def _broken(entries: Sequence[Entry]) -> Markup | None:
    rows = [[Cell(entry.where, entry.where, kind="strong"), Cell(entry.trouble, kind="wide")] for entry in entries]
    return table(["Folder", "Why"], rows, name="Records that could not be read") if rows else None
