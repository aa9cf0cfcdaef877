"""Legs of one experiment that were run into several records, on several machines or side by side, gathered into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ntkscope.core import Record, UsageError
from ntkscope.core.errors import RecordError
from ntkscope.core.files.schema import Mismatch, fields, list_of, mapping, number, text

KEY = "gathered"
_seconds = number(0, 1e10, "a number of seconds")
_known = fields({"seconds": _seconds})
_listed = list_of(fields({"legs": list_of(text()), "environment": mapping(), "seconds": _seconds}))
BUDGET = "memory"  # a setting that changes how fast results come, not what they are


def gather(record: Record, folders: Iterable[str | Path]) -> None:
    """Copy the results (what `once` stored) that `record` lacks, and arrays, from the records in `folders`.

    Each must be of the same experiment, with the same configuration (but for the memory it was given) and seeds. Where every
    result came from, and the environment it was computed in, is listed under the metric "gathered". A record that was kept
    without its arrays gives its results alone; the names of those arrays are listed there too. An array that is there but
    damaged is refused.
    """
    for folder in folders:
        other = Record.open(folder)
        _check_same(record, other, folder)
        # A record that gathered from others lists their environments; nothing of theirs is lost by gathering again.
        passed_on = _sources(other)
        from_others = {key for source in passed_on for key in source["legs"]}
        lacking = [key for key, value in other.metrics.items() if _is_result(value) and key not in record.metrics]
        own = [key for key in lacking if key not in from_others]
        without = []
        for name in other.arrays:
            if name in record.arrays:
                continue
            if other.arrays.kept(name):
                record.array(name, other.arrays[name])
            else:
                without.append(name)
        sources = [{**source, "legs": [key for key in source["legs"] if key in lacking]} for source in passed_on]
        here = {"legs": own, "environment": dict(other.environment), "seconds": other.wall_seconds}
        if other.config.get(BUDGET) != record.config.get(BUDGET):
            here[BUDGET] = other.config.get(BUDGET)
        sources.append({**here, "arrays not kept": without} if without else here)
        sources = [source for source in sources if source["legs"]]
        if sources:
            record.put(**{key: other.metrics[key] for key in lacking}, **{KEY: [*_sources(record), *sources]})


def _sources(record: Record) -> list[Mapping[str, Any]]:
    """Whom a record gathered from, as `gather` writes it; what others wrote there is refused."""
    sources: list[Mapping[str, Any]] = record.metrics.get(KEY, [])
    try:
        _listed(sources, KEY)
        mapping(_known)({key: value for key, value in record.metrics.items() if _is_result(value)}, "metrics")
    except Mismatch as error:
        raise RecordError(f"{record.folder} was not written by a run: {error}; restore it or run again") from error
    return sources


def _check_same(record: Record, other: Record, folder: str | Path) -> None:
    for what in ("kind", "name", "config", "seeds"):
        here, there = _settings(record, what), _settings(other, what)
        if here != there:
            raise UsageError(
                f"{folder} cannot be gathered into {record.folder}: its {what} is {_short(there)}, expected {_short(here)};"
                " run its legs with the same settings, or choose another folder"
            )
    for key in (key for key in record.metrics if key.startswith("training/")):
        first, second = (_mark(each.metrics.get(key)) for each in (record, other))
        if first and second and first != second:
            raise UsageError(
                f"{folder} cannot be gathered into {record.folder}: its network {key.removeprefix('training/')} is another one"
                f" (weights {second}, expected {first}), so results of two networks would pass for those of one; gather what"
                " was made of one of them alone, or run the legs again in the folder that has its weights"
            )


def _settings(record: Record, what: str) -> Any:
    value = getattr(record, what)
    return {key: v for key, v in value.items() if key != BUDGET} if what == "config" else value


def _mark(trained: Any) -> Any:
    """Of the weights of a network, where the record knows it."""
    return trained.get("weights") if isinstance(trained, Mapping) else None


def _is_result(value: Any) -> bool:
    return isinstance(value, Mapping) and "seconds" in value


def _short(value: Any, limit: int = 300) -> str:
    text = str(dict(value) if isinstance(value, Mapping) else value)
    return text if len(text) <= limit else text[:limit] + "…"
