"""What a comparison hands back, and how it is written: a json each, with everything, and one page of all in the folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.timing import Spread

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """A promise and what was measured; `holds` is None when there was nothing to measure."""

    what: str
    target: str
    measured: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        return "not measured" if self.holds is None else "holds" if self.holds else "FAILS"


@dataclass(frozen=True)
class Outcome:
    """One comparison: a table for people, details for programs, and the promises it checks."""

    title: str
    rows: Sequence[Row]
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)  # matplotlib figures by name, written beside the json


def as_outcome(name: str, value: object) -> Outcome:
    """`value` as an Outcome: one already, or a mapping whose `rows` (or whose scalars) are the table.

    >>> as_outcome("ensemble", {"ratio": 5.0, "repeats": [1, 2]}).rows
    [{'ratio': 5.0}]
    """
    if isinstance(value, Outcome):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}.run returned {type(value).__name__}; expected an Outcome or a mapping")
    scalars = {key: item for key, item in value.items() if isinstance(item, str | int | float)}
    rows = value.get("rows") or [scalars]
    checks = [c if isinstance(c, Check) else Check(**c) for c in value.get("checks", ())]
    return Outcome(str(value.get("title", name)), rows, checks, value.get("notes", ()), dict(value))


def plain(value: Any) -> Any:
    """`value` with spreads, dataclasses and paths turned into what json knows."""
    if isinstance(value, Spread):
        return value.as_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return plain({key: getattr(value, key) for key in value.__dataclass_fields__})
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def cell(value: Any) -> str:
    """A table cell: three digits for a float, `median (low–high)` for a spread, nothing for None.

    >>> cell(Spread((1.0, 2.0, 4.0)).as_dict())
    '2 (1–4)'
    """
    if value is None:
        return ""
    if isinstance(value, Mapping) and "repeats" in value:
        value = Spread(tuple(value["repeats"]))
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value).replace("|", "\\|")


def table(rows: Sequence[Row]) -> str:
    """A markdown table whose columns are the keys of all rows, in order of appearance.

    >>> print(table([{"who": "a", "s": 1.0}, {"who": "b"}]))
    | who | s |
    | --- | --- |
    | a | 1 |
    | b |  |
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([cell(row.get(c)) for c in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def section(name: str, written: Mapping[str, Any]) -> str:
    """One comparison, as read back from its json."""
    machine = written["machine"]
    parts = [f"## {written['title']}", table(written["rows"])]
    if written["checks"]:
        promises = [
            {"promise": c["what"], "target": c["target"], "measured": c["measured"], "verdict": Check(**c).verdict}
            for c in written["checks"]
        ]
        parts.append(table(promises))
    if written["notes"]:
        parts.append("\n".join(f"- {note}" for note in written["notes"]))
    parts += [f"![{file}]({file})" for file in written.get("figures", ())]
    parts.append(
        f"`{name}` at {machine['commit'][:12]}{'+' if machine['commit'].endswith('+') else ''}, {machine['when']}:"
        f" {machine['processor']}, {machine['threads']} threads on {machine['cores']} cores,"
        f" {machine['memory_gib']} GiB, {machine['device']}; Python {machine['python']}, torch {machine['torch']};"
        f" load {cell(machine['load_before'])} before, {cell(written['wall_seconds'])} s in all."
    )
    return "\n\n".join(parts)


def write(name: str, outcome: Outcome, machine: Mapping[str, Any], wall_seconds: float, out: Path) -> Path:
    """`<name>.json` in `out`, and `bench.md` there made anew from every comparison in the folder."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    files = [f"{name}-{key}.svg" for key in outcome.figures]
    for file, figure in zip(files, outcome.figures.values()):
        figure.savefig(out / file)
    said = plain(replace(outcome, figures={})) | {"figures": files}
    record = {"schema": 1, "name": name, **said, "machine": plain(machine), "wall_seconds": wall_seconds}
    path.write_text(json.dumps(record, indent=1) + "\n")
    sections = [section(file.stem, json.loads(file.read_text())) for file in sorted(out.glob("*.json"))]
    (out / "bench.md").write_text("# Benchmarks\n\n" + "\n\n".join(sections) + "\n")
    return path
