"""Where results come from: of each process its source, command and environment, and how busy others kept the machine."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import ntkscope
import ntkscope_papers
from ntkscope.core import Record
from ntkscope.core.errors import RecordError
from ntkscope.core.files.schema import Mismatch, fields, list_of, mapping, number, text
from ntkscope.core.numerics import NUMERICS

KEY, OLD = "provenance", "gathered"  # metrics; the second is that of records before commands and sources were kept
_seconds = number(0, 1e10, "a number of seconds")
_known = fields({"seconds": _seconds})
_listed = list_of(fields({"legs": list_of(text()), "environment": mapping(), "seconds": _seconds}))


def sources(record: Record) -> list[Mapping[str, Any]]:
    """Where each result was made, one entry for each process; what no run wrote there is refused.

    Results of records before this was kept are in no entry.
    """
    found: list[Mapping[str, Any]] = []
    try:
        for key in (OLD, KEY):
            _listed(record.metrics.get(key, []), key)
            found += record.metrics.get(key, [])
        mapping(_known)({key: value for key, value in record.metrics.items() if is_result(value)}, "metrics")
    except Mismatch as error:
        raise RecordError(f"{record.folder} was not written by a run: {error}; restore it or run again") from error
    return found


def is_result(value: Any) -> bool:
    return isinstance(value, Mapping) and "seconds" in value


def noted(record: Record, key: str, seconds: float, others: float | None) -> dict[str, Any]:
    """The metric that says where results come from, with one more, made by this process beside `others` busy cores."""
    listed = list(record.metrics.get(KEY, []))
    here: dict[str, Any] = {
        "command": record.command,
        "source": source(),
        "numerics": dict(NUMERICS),
        "environment": dict(record.environment),
    }
    if not (listed and all(listed[-1].get(name) == value for name, value in here.items())):
        listed.append({"legs": [], "beside": {}, "seconds": 0.0, **here})
    last = listed[-1]
    legs = [leg for leg in last["legs"] if leg != key]  # a leg may have stored its result itself
    entry = {**last, "legs": [*legs, key], "beside": {**last["beside"], key: others}}
    entry["seconds"] = round(last["seconds"] + (seconds if len(legs) == len(last["legs"]) else 0.0), 3)
    return {KEY: [*listed[:-1], entry]}


@cache
def source() -> str:
    """A digest of every Python file of the two packages: the same for the same code, with a history or without one."""
    digest = hashlib.sha256()
    for package in (ntkscope, ntkscope_papers):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(
                f"{package.__name__}/{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0"
            )
    return digest.hexdigest()[:16]


@contextmanager
def watching() -> Iterator[dict[str, float | None]]:
    """Fills a mapping with the `seconds` inside, and how many cores all other processes of the machine kept busy (`others`).

    `others` is None where the system does not say (no /proc/stat).
    """
    found: dict[str, float | None] = {"others": None}
    began, before = time.perf_counter(), _busy()
    yield found
    found["seconds"] = time.perf_counter() - began
    after = _busy()
    if before is not None and after is not None and found["seconds"]:
        found["others"] = round(max(0.0, after - before) / found["seconds"], 2)


def _busy() -> float | None:
    """Seconds that cores of this machine have worked for others than this process and its ended children."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq, *_ = (int(word) for word in file.readline().split()[1:])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])
