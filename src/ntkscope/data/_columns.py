"""Columns of tables on disk: .csv, .tsv, .parquet, .arrow, and the folders of them that Hugging Face writes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ntkscope.core import UsageError
from ntkscope.core.errors import DataCorrupt
from ntkscope.data._files import LIMIT, read_text

DELIMITERS = {".csv": ",;\t|", ".tsv": "\t"}  # the one that is most frequent in the header
SUFFIXES = (*DELIMITERS, ".parquet", ".arrow")
SAFE = (14, 0, 1)  # earlier versions of pyarrow run code that a file brings


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of one file by name, read when they are asked for; `classes`: the class names that the file itself states."""

    path: Path
    names: Sequence[str]
    read: Callable[[str], list[Any]]
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def find(self, usual: Sequence[str]) -> str | None:
        """The first column of one of these names, or of one that differs in capitals."""
        for matches in (str, str.lower):
            for name in usual:
                same = [own for own in self.names if matches(own) == matches(name)]
                if len(same) > 1:
                    raise DataCorrupt(f"{self.path} has {len(same)} columns {name!r}, expected one; rename the others")
                if same:
                    return same[0]
        return None

    def choose(self, asked: str | None, usual: Sequence[str], what: str) -> str:
        """The column that was asked for, else the first usual one there is."""
        found = self.find([asked] if asked else usual)
        if found is None:
            expected = repr(asked) if asked else f"one of {', '.join(usual)}, or {what}= with another name"
            raise UsageError(
                f"{self.path} has the columns {', '.join(map(repr, self.names))[:500]}; expected {expected} for the {what}"
                f" (--data-option {what}=NAME on the command line)"
            )
        return found


def tables(path: Path) -> list[Path]:
    """The tables at or below `path`, in the order of their names, without hidden ones and caches; of a data set that
    `save_to_disk` wrote, those it lists, and not what an earlier one left in the folder."""
    if not os.path.isdir(path):
        return [path] if os.path.isfile(path) and path.suffix.lower() in SUFFIXES else []
    files = (file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    found = sorted(
        file
        for file in files
        if not file.name.startswith("cache-") and not any(p.startswith(".") for p in file.relative_to(path).parts)
    )
    listed = {folder: _listed(folder) for folder in {file.parent for file in found}}
    return [file for file in found if file.name in (listed[file.parent] or (file.name,))]


def _listed(folder: Path) -> list[str]:
    """The files that make up a data set by the list of `save_to_disk`; none where there is no list."""
    state = folder / "state.json"
    if not state.is_file():
        return []
    try:
        names = [str(each["filename"]) for each in json.loads(read_text(state, None))["_data_files"]]
    except (ValueError, LookupError, TypeError) as error:
        raise DataCorrupt(f"{state} is not what save_to_disk writes ({error!r:.200}); copy it again") from error
    if lost := [name for name in names if not (folder / name).is_file()]:
        raise DataCorrupt(f"{state} lists {lost[0]:.200}, which is not there; copy the data set again")
    return names


def read_columns(path: Path) -> Columns:
    """The columns of a file; nothing in it is run."""
    delimiters = DELIMITERS.get(path.suffix.lower())
    if delimiters is None:
        return _arrow_columns(path)
    if (size := path.stat().st_size) > LIMIT:
        raise UsageError(
            f"{path} has {size:,} bytes, expected at most {LIMIT:,}; write it as .parquet, of which only the columns in use are"
            " read"
        )
    text = read_text(path, None).removeprefix("\ufeff")
    header = (text.splitlines() or [""])[0]
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=max(delimiters, key=header.count)))
    except csv.Error as error:
        raise DataCorrupt(
            f"{path} is not a table of columns ({error}); write it again as UTF-8 with a header"
        ) from error
    rows = [row for row in rows if row]
    if len(rows) < 2:
        raise DataCorrupt(f"{path} has {len(rows)} rows; expected a header with the names of the columns, and items")
    names = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(names):
            raise DataCorrupt(f"{path}, item {number}: got {len(row)} columns, expected {len(names)} as in the header")
    return Columns(path, names, lambda name: [row[names.index(name)] for row in rows[1:]])


def _arrow_columns(path: Path) -> Columns:
    try:
        pyarrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise UsageError(
            f'{path} needs the package pyarrow; run: pip install "ntkscope[arrow]", or write it as .csv'
        ) from error
    if tuple(map(int, re.findall(r"\d+", pyarrow.__version__)[:3])) < SAFE:
        raise UsageError(
            f"pyarrow {pyarrow.__version__} may run code of a file; expected {'.'.join(map(str, SAFE))} or later"
        )
    of_parquet = path.suffix.lower() == ".parquet"

    def opened(get: Callable[[Any], Any]) -> Any:
        try:
            if of_parquet:
                with parquet.ParquetFile(str(path)) as file:
                    return get(file)
            with pyarrow.memory_map(str(path)) as file:  # the stream that Hugging Face writes, or a file of Arrow's own
                kind = pyarrow.ipc.open_file if file.read(6) == b"ARROW1" else pyarrow.ipc.open_stream
                file.seek(0)
                return get(kind(file))
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise DataCorrupt(f"{path} is not a complete table ({error!s:.200}); write or fetch it again") from error

    def read(name: str) -> list[Any]:
        def values(file: Any) -> list[Any]:
            column = (file.read(columns=[name]) if of_parquet else file.read_all())[name]
            column.validate(full=True)  # a damaged offset would lead out of its memory
            return list(column.to_pylist())

        return list(opened(values))

    schema = opened(lambda file: file.schema_arrow if of_parquet else file.schema)
    return Columns(path, schema.names, read, _stated(schema.metadata or {}))


def _stated(metadata: Mapping[bytes, bytes]) -> dict[str, Sequence[str]]:
    """The class names in what Hugging Face writes beside the columns."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        return {name: tuple(map(str, each["names"])) for name, each in features.items() if each.get("names")}
    except (ValueError, AttributeError, TypeError):
        return {}
