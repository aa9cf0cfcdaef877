"""`record.json`: what it may say, checked once, on reading, before anything in it is used; and how it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ntkscope.core.errors import NtkscopeError, RecordError
from ntkscope.core.files.safe_files import FILE_NAME, LARGEST_JSON, NAME, parse_json, read_bytes
from ntkscope.core.files.schema import (
    Mismatch,
    anything,
    fields,
    flag,
    list_of,
    mapping,
    number,
    one_of,
    optional,
    text,
    whole,
)
from ntkscope.core.records.claims import Claim
from ntkscope.core.records.series import SUFFIX

SCHEMA_VERSION = 1
FILE = "record.json"
STATUSES = ("running", "done", "failed", "interrupted")
ARRAY = ".npy"
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_SHA256 = re.compile(r"[0-9a-f]{64}")

_seconds = number(0, 1e10, "a number of seconds")
_name = text(NAME, "a plain name: letters, digits, '_', '-' and '.', starting with one of the first")
_file = text(FILE_NAME, "a plain file name beside the record")
_sum = text(_SHA256, "64 hexadecimal digits")


def _dtype(value: Any, where: str) -> None:
    """The name of a type of plain numbers or texts."""
    try:
        known = isinstance(value, str) and len(value) <= 2000 and not np.dtype(value).hasobject
    except (TypeError, ValueError, SyntaxError):
        known = isinstance(value, str) and value.startswith(("[", "{"))  # a structured type is compared with the file's
    if not known:
        raise Mismatch(where, value, "a type of numbers or texts, such as float64")


def _date(value: Any, where: str) -> None:
    try:
        known = isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        known = False
    if not known:
        raise Mismatch(where, value, "a date and time with its zone, such as 2025-01-31T12:00:00+00:00")


def _claim(value: Any, where: str) -> None:
    try:
        Claim.from_json(value)
    except (NtkscopeError, TypeError) as error:
        raise Mismatch(where, value, f"a claim ({error})") from error


_stage = fields({"done": whole(), "total": optional(whole()), "seconds": _seconds, "finished": flag}, closed=True)
_array = fields({"file": _file, "shape": list_of(whole(), 32), "dtype": _dtype, "bytes": whole(), "sha256": _sum})
_series = fields({"file": _file, "rows": whole(), "bytes": whole(), "sha256": _sum})
_earlier = fields({}, {"started": _date, "status": one_of(*STATUSES), "wall_seconds": _seconds})
_record = fields(
    {
        "kind": text(),
        "name": text(),
        "command": text(),
        "started": _date,
        "updated": _date,
        "wall_seconds": _seconds,
        "status": one_of(*STATUSES),
        "claims": list_of(_claim),
        "earlier": list_of(_earlier),
        "config": mapping(),
        "seeds": mapping(),
        "environment": fields({}, {"packages": optional(mapping(anything))}),
        "stages": mapping(_stage),
        "metrics": mapping(),
        "arrays": mapping(_array, _name),
    },
    {"error": optional(text()), "series": mapping(_series, _name)},
)


def read_record(folder: Path) -> dict[str, Any]:
    """The document in `folder`, with every entry that code relies on checked; `RecordError` says which one does not fit."""
    path = folder / FILE
    try:
        document = parse_json(
            read_bytes(path, RecordError, limit=LARGEST_JSON, inside=folder), f"{path} is not a record: it", RecordError
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RecordError(f"no record in {folder}: there is no {FILE}; give the folder a run wrote to") from error
    except RecordError:
        raise
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}; check the permissions") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RecordError(
            f"{path} is not a record: it has schema_version {version!r:.80}; expected 1 to {SCHEMA_VERSION}"
        )
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema_version {version}; this ntkscope reads up to {SCHEMA_VERSION}: install a newer ntkscope"
        )
    try:
        _record(document, "")
        _check_files(document)
    except Mismatch as error:
        raise RecordError(f"{path} is not a complete record: {error}; restore the file or run again") from error
    checked: dict[str, Any] = document
    return checked


def _check_files(document: dict[str, Any]) -> None:
    """Every file belongs to one name, and is named after it, so that a run replaces or removes only its own files."""
    taken: set[str] = set()
    for kind, suffix in (("arrays", ARRAY), ("series", SUFFIX)):
        for name, entry in document.get(kind, {}).items():
            if not belongs(entry["file"], name, suffix):
                raise Mismatch(f"{kind}.{name}.file", entry["file"], f"{name}{suffix} or {name}.1{suffix} and so on")
            if entry["file"] in taken:
                raise Mismatch(f"{kind}.{name}.file", entry["file"], "a file of its own")
            taken.add(entry["file"])


def belongs(file: str, name: str, suffix: str) -> bool:
    """Whether `file` is what a record calls the file of an array or series `name`.

    >>> belongs("loss.2.npy", "loss", ".npy"), belongs("loss.npy", "accuracy", ".npy")
    (True, False)
    """
    middle = file.removeprefix(name).removesuffix(suffix)
    return file == f"{name}{middle}{suffix}" and (
        middle == "" or re.fullmatch(r"\.[1-9][0-9]{0,8}", middle) is not None
    )


def record_text(document: Mapping[str, Any]) -> str:
    r"""JSON in which every entry of the document, and every entry of those, has a line of its own.

    What lies deeper stands on that line: Python's fast encoder does not indent, and the one that does takes twenty times as
    long, at every write of a record.

    >>> print(record_text({"name": "run", "metrics": {"a": 1, "b": [2, {"c": 3}]}, "claims": [{"id": "x"}], "stages": {}}))
    {
     "name": "run",
     "metrics": {
      "a": 1,
      "b": [2, {"c": 3}]
     },
     "claims": [
      {"id": "x"}
     ],
     "stages": {}
    }
    """
    return _lines({key: _entry(value) for key, value in document.items()}, " ", "{}")


def _entry(value: Any) -> str:
    if isinstance(value, dict) and value:
        return _lines({key: _encode(item) for key, item in value.items()}, "  ", "{}")
    if isinstance(value, list | tuple) and value:
        return _lines([_encode(item) for item in value], "  ", "[]")
    return _encode(value)


def _lines(entries: Mapping[str, str] | list[str], indent: str, brackets: str) -> str:
    texts = [f"{_encode(key)}: {text}" for key, text in entries.items()] if isinstance(entries, Mapping) else entries
    body = ",\n".join(indent + text for text in texts)
    return f"{brackets[0]}\n{body}\n{indent[1:]}{brackets[1]}"
