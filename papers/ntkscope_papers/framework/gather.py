"""Legs of one experiment that were run into several records, on several machines or side by side, gathered into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ntkscope.core import Record, UsageError
from ntkscope_papers.framework.provenance import KEY, is_result, sources

BUDGET = "memory"  # a setting that changes how fast results come, not what they are


def gather(record: Record, folders: Iterable[str | Path]) -> None:
    """Copy the results (what `once` stored) that `record` lacks, and arrays, from the records in `folders`.

    Each must be of the same experiment, with the same configuration (but for the memory it was given) and seeds. Where every
    result was made is listed under the metric "provenance", as its own record has it. A record that was kept without its
    arrays gives its results alone; the names of those arrays are listed there too. A damaged array is refused.
    """
    for folder in folders:
        other = Record.open(folder)
        _check_same(record, other, folder)
        passed_on = sources(other)
        from_others = {key for source in passed_on for key in source["legs"]}
        lacking = [key for key, value in other.metrics.items() if is_result(value) and key not in record.metrics]
        own = [key for key in lacking if key not in from_others]
        without = []
        for name in other.arrays:
            if name in record.arrays:
                continue
            if other.arrays.kept(name):
                record.array(name, other.arrays[name])
            else:
                without.append(name)
        listed = [{**source, "legs": [key for key in source["legs"] if key in lacking]} for source in passed_on]
        whole = {"command": other.command, "environment": dict(other.environment), "seconds": other.wall_seconds}
        listed.append({"legs": own, **whole})
        more: dict[str, Any] = {"arrays not kept": without} if without else {}
        if other.config.get(BUDGET) != record.config.get(BUDGET):
            more[BUDGET] = other.config.get(BUDGET)
        listed = [{**more, **source} for source in listed if source["legs"]]
        if listed:
            before = record.metrics.get(KEY, [])
            record.put(**{key: other.metrics[key] for key in lacking}, **{KEY: [*before, *listed]})


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


def _short(value: Any, limit: int = 300) -> str:
    text = str(dict(value) if isinstance(value, Mapping) else value)
    return text if len(text) <= limit else text[:limit] + "…"
