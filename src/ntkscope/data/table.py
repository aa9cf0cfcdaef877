"""Tables of texts or images with labels: .csv, .tsv, .parquet, .arrow, or folders of them, as Hugging Face writes data."""

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
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ntkscope.core import Part, Split, UsageError
from ntkscope.core.arguments import path_of
from ntkscope.core.checked import Count, Tolerance
from ntkscope.core.errors import DataCorrupt, DataNotFound
from ntkscope.data._files import Root, read_text
from ntkscope.data.digits import stratified
from ntkscope.data.image_folder import MAX_PIXELS, STANDARD, read_image, stack
from ntkscope.data.image_folder import SUFFIXES as IMAGES
from ntkscope.data.normalise import Normalise, constants, to_float
from ntkscope.data.registry import DATASETS

DELIMITERS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*DELIMITERS, ".parquet", ".arrow")
INPUTS = ("text", "sentence", "image", "img", "path", "image_path", "file", "file_name", "filename")
LABELS = ("label", "labels", "class", "target", "y")
TESTS = ("test", "validation", "val", "dev")
SAFE = (14, 0, 1)  # earlier versions of pyarrow run code that a file brings


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of one file by name, read when they are asked for; `classes`: the class names that the file itself states."""

    path: Path
    names: Sequence[str]
    read: Callable[[str], list[Any]]
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def choose(self, asked: str | None, usual: Sequence[str], what: str) -> str:
        """The column that was asked for, else the first usual one there is."""
        found = next((name for name in ((asked,) if asked else usual) if name in self.names), None)
        if found is None:
            expected = repr(asked) if asked else f"one of {', '.join(usual)}, or {what}= with another name"
            raise UsageError(
                f"{self.path} has the columns {', '.join(map(str, self.names))[:500]}; expected {expected} for the {what}"
                f" (--data-option {what}=NAME on the command line)"
            )
        return found


def tables(path: Path) -> list[Path]:
    """The tables at or below `path`, in the order of their names; hidden ones and caches are left out."""
    if not os.path.isdir(path):
        return [path] if os.path.isfile(path) and path.suffix.lower() in SUFFIXES else []
    files = (file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    return sorted(
        file
        for file in files
        if not file.name.startswith("cache-") and not any(p.startswith(".") for p in file.relative_to(path).parts)
    )


def read_columns(path: Path) -> Columns:
    """The columns of a file; nothing in it is run."""
    delimiter = DELIMITERS.get(path.suffix.lower())
    if delimiter is None:
        return _arrow_columns(path)
    try:
        rows = list(
            csv.reader(io.StringIO(read_text(path, None).removeprefix("\ufeff"), newline=""), delimiter=delimiter)
        )
    except csv.Error as error:
        raise DataCorrupt(
            f"{path} is not a table of columns ({error}); write it again as UTF-8 with a header"
        ) from error
    rows = [row for row in rows if row]
    if len(rows) < 2:
        raise DataCorrupt(f"{path} has {len(rows)} rows; expected a header with the names of the columns, and items")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(rows[0]):
            raise DataCorrupt(
                f"{path}, item {number}: got {len(row)} columns, expected {len(rows[0])} as in the header"
            )
    return Columns(path, rows[0], lambda name: [row[rows[0].index(name)] for row in rows[1:]])


def _arrow_columns(path: Path) -> Columns:
    try:
        pyarrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise UsageError(f"{path} needs the package pyarrow; run: pip install pyarrow, or write it as .csv") from error
    if tuple(map(int, re.findall(r"\d+", pyarrow.__version__)[:3])) < SAFE:
        raise UsageError(
            f"pyarrow {pyarrow.__version__} may run code of a file; expected {'.'.join(map(str, SAFE))} or later"
        )
    try:
        if path.suffix.lower() == ".parquet":
            found = parquet.read_table(str(path), partitioning=None)
        else:
            with path.open("rb") as file:  # the stream that Hugging Face writes, or a file of Arrow's own
                kind = pyarrow.ipc.open_file if file.read(6) == b"ARROW1" else pyarrow.ipc.open_stream
                file.seek(0)
                found = kind(file).read_all()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataCorrupt(f"{path} is not a complete table ({error!s:.200}); write or fetch it again") from error
    return Columns(path, found.column_names, lambda name: found[name].to_pylist(), _stated(found.schema.metadata or {}))


def _stated(metadata: Mapping[bytes, bytes]) -> dict[str, Sequence[str]]:
    """The class names in what Hugging Face writes beside the columns."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        return {name: tuple(map(str, each["names"])) for name, each in features.items() if each.get("names")}
    except (ValueError, AttributeError, TypeError):
        return {}


class _Picture(NamedTuple):
    """An image file, or the content of one that lies in the table."""

    path: Path
    content: bytes | None

    def __str__(self) -> str:
        return str(self.path)


class _Rows(NamedTuple):
    """Items of one part: inputs, labels, and where each lies."""

    x: list[Any]
    y: list[Any]
    ids: list[str]

    def take(self, index: Tensor) -> _Rows:
        return _Rows(*([values[i] for i in index.tolist()] for values in self))


@DATASETS.register("table")
def table(
    *,
    root: Root = None,
    seed: int = 0,
    input: str | None = None,
    label: str | None = None,
    test_fraction: Tolerance = 0.2,
    image_size: Count | None = None,
    channels: Literal[1, 3] = 3,
    normalise: Normalise = "standard",
) -> Split:
    """A table of texts, or of images by their paths, with a label each: `root` is a .csv, .tsv, .parquet or .arrow file, or a
    folder of them, such as a Hugging Face data set on disk (the latter two need pyarrow).

    Files with `train` and `test` (or `validation`, `val`, `dev`) in their names are those parts; else `test_fraction` of each
    class are test items, drawn by `seed`. Labels are class names (numbered in their order), class numbers from 0 on, or, if not
    whole, the targets of a regression. Paths of images are relative to the table. `extras["id"]` says where each item lies.
    """
    place = path_of(root, "root").expanduser() if root is not None else None
    files = [] if place is None else tables(place)
    if place is None or not files:
        raise DataNotFound(
            f"no table at root={str(root)!r:.300}; expected a file {', '.join(SUFFIXES)}, or a folder of them"
        )
    parts = {name: [file for file in files if _part(file, place) == name] for name in ("train", *TESTS)}
    held = next((parts[name] for name in TESTS if parts[name]), []) if parts["train"] else []
    read, other = ([read_columns(file) for file in some] for some in (parts["train"] or files, held))
    train, test = (_rows(some, input, label, place) for some in (read, other))
    stated = read[0].classes.get(read[0].choose(label, LABELS, "label"), ())
    y, classes = _targets(train.y, test.y, stated)
    if other:
        chosen = torch.arange(len(train.y)), torch.arange(len(train.y), len(y))
    else:
        chosen = stratified(torch.zeros_like(y, dtype=torch.int64) if y.is_floating_point() else y, test_fraction, seed)
    both = _Rows(*(mine + theirs for mine, theirs in zip(train, test)))
    if not all(map(len, chosen)):
        raise DataCorrupt(
            f"{place} has {len(chosen[0])} training and {len(chosen[1])} test items; expected some of both"
        )
    pictures = all(isinstance(x, _Picture) for x in both.x)
    mean, std = constants(normalise, channels, STANDARD[channels])

    def picture(each: _Picture) -> Any:
        return read_image(each.path, image_size, "crop", MAX_PIXELS, channels, each.content)

    def part(index: Tensor) -> Part:
        rows = both.take(index)
        x = to_float(stack(rows.x, picture), mean, std) if pictures else [str(x) for x in rows.x]
        return Part(x, y[index], {"id": rows.ids})

    extras = {"mean": mean, "std": std} if pictures else {}
    return Split(part(chosen[0]), part(chosen[1]), classes=classes, name="table", extras=extras)


def _part(file: Path, place: Path) -> str:
    """The part a file is named after; its own name counts, and those of folders below `place`."""
    words = re.split("[^a-z]+", (file.relative_to(place) if place.is_dir() else Path(file.name)).as_posix().lower())
    return next((name for name in ("train", *TESTS) if name in words), "")


def _rows(files: Sequence[Columns], inputs: str | None, labels: str | None, place: Path) -> _Rows:
    """The items of some files, one after the other; each must have an input and a label."""
    rows = _Rows([], [], [])
    for columns in files:
        names = columns.choose(inputs, INPUTS, "input"), columns.choose(labels, LABELS, "label")
        for number, (x, y) in enumerate(zip(*map(columns.read, names)), start=1):
            for name, value in zip(names, (x, y)):
                if value is None or value == "":
                    raise DataCorrupt(
                        f"{columns.path}, item {number}: nothing in column {name!r}; fill it, or drop the item"
                    )
            inside = isinstance(x, Mapping) and x.get("bytes") is not None
            path = str(x.get("path") or f"item {number}") if isinstance(x, Mapping) else str(x)
            if inside or Path(path).suffix.lower() in IMAGES:
                x = _Picture(columns.path.parent / path, x["bytes"] if inside else None)
            elif not isinstance(x, str):
                raise UsageError(
                    f"{columns.path} has {type(x).__name__} in column {names[0]!r}; expected texts, or paths of images: say"
                    " which column has them with input="
                )
            rows.x.append(x)
            rows.y.append(y)
            rows.ids.append(path if isinstance(x, _Picture) else f"{columns.path.name}, item {number}")
    return rows


def _targets(train: list[Any], test: list[Any], stated: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as numbers, and the names of classes where labels are texts or the table states them."""
    for kind, dtype in ((int, torch.int64), (float, torch.float32)):
        try:
            numbers = [kind(label) for label in train + test]
            y = torch.tensor(numbers, dtype=dtype)
        except (ValueError, TypeError, OverflowError, RuntimeError):  # the last of numbers beyond 64 bits
            continue
        if kind is float or all(number == float(label) for number, label in zip(numbers, train + test)):
            return y, tuple(stated) if kind is int else ()
    names = sorted(set(map(str, train)))
    if unknown := sorted(set(map(str, test)) - set(names)):
        raise DataCorrupt(
            f"test label {unknown[0]!r:.100} is not among those of training items: {', '.join(names)[:300]}"
        )
    return torch.tensor([names.index(str(label)) for label in train + test]), tuple(names)
