"""Tables of texts, images or numbers with labels: .csv, .tsv, .parquet, .arrow, and folders of them, as Hugging Face writes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import Part, Split, UsageError
from ntkscope.core.arguments import path_of
from ntkscope.core.checked import Count, Tolerance
from ntkscope.core.errors import DataCorrupt, DataNotFound
from ntkscope.data._columns import SUFFIXES, Columns, read_columns, tables
from ntkscope.data._files import Root
from ntkscope.data.image_folder import MAX_PIXELS, STANDARD, TEST_NAMES, TRAIN_NAMES, drawn, read_image, stack
from ntkscope.data.image_folder import SUFFIXES as IMAGES
from ntkscope.data.normalise import Normalise, constants, to_float
from ntkscope.data.registry import DATASETS
from ntkscope.data.subsets import spread

TEXTS = ("text", "sentence")
PICTURES = ("image", "img", "path", "image_path", "file", "file_name", "filename")
LABELS = ("label", "labels", "class", "target", "y")
BLANKS = {"na", "n/a", "nan", "null", "none", "?", "-"}  # what stands for a number that is missing

Names: TypeAlias = str | tuple[str, ...] | None


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
    input: Names = None,
    label: str | None = None,
    test_fraction: Tolerance = 0.2,
    image_size: Count | None = None,
    channels: Literal[1, 3] = 3,
    normalise: Normalise = "standard",
) -> Split:
    """A table of texts, images (by path or content) or numbers, with a label each: `root` is a .csv, .tsv, .parquet or .arrow
    file, or a folder of them, such as a Hugging Face data set on disk (the latter two need pyarrow).

    Files with `train` and `test` (or `validation`, `valid`, `val`, `dev`) in their names are those parts, the first that has
    labels; else `test_fraction` of the items, evenly over the labels, are test items, drawn by `seed`. Without a column of a
    usual name, all columns but the label's are the input where they are numbers. Labels are class names (numbered in their
    order), class numbers from 0 on, or, if not whole, the targets of a regression. Paths of images are relative to the table.
    `extras["id"]` says where each item lies; `options`, what was read.
    """
    place = path_of(root, "root").expanduser() if root is not None else None
    files = [] if place is None else tables(place)
    if place is None or not files:
        raise DataNotFound(
            f"no table at root={str(root)!r:.300}; expected a file {', '.join(SUFFIXES)}, or a folder of them"
        )
    training, tests = _parts(files, place)
    read, *others = ([read_columns(file) for file in some] for some in (training, *tests))
    target = read[0].choose(label, LABELS, "label")
    held = next((some for some in others if _labelled(some, label)), [])
    if others and not held:
        raise UsageError(
            f"{others[0][0].path} has no labels; expected some: pass"
            f" {training[0] if len(training) == 1 else training[0].parent} alone, and a part of it becomes test items"
        )
    inputs = _inputs(read[0], input, target)
    train, test = (_rows(some, inputs, target, place) for some in (read, held))
    both = _Rows(*(mine + theirs for mine, theirs in zip(train, test)))
    y, classes = _targets(train, test, read[0].classes.get(target, ()))
    chosen = (
        (torch.arange(len(train.y)), torch.arange(len(train.y), len(y))) if held else spread(y, test_fraction, seed)
    )
    if not all(map(len, chosen)):
        raise DataCorrupt(
            f"{place} has {len(chosen[0])} training and {len(chosen[1])} test items; expected some of both:"
            " more rows of each class, a larger test_fraction (--data-option test_fraction=0.5), or a folder with train.csv and"
            " test.csv"
        )
    if len(kinds := {(type(x).__name__, () if isinstance(x, _Picture) else np.shape(x)) for x in both.x}) > 1:
        raise DataCorrupt(
            f"{place} has inputs of different kinds or lengths: {sorted(kinds)!s:.200}; expected one for all items"
        )
    pictures = isinstance(both.x[0], _Picture)
    mean, std = constants(normalise, channels, STANDARD[channels])

    def picture(each: _Picture) -> Any:
        return read_image(each.path, image_size, "crop", MAX_PIXELS, channels, each.content)

    def part(index: Tensor) -> Part:
        rows = both.take(index)
        x: Any = rows.x
        if pictures:
            x = to_float(stack(rows.x, picture), mean, std)
        elif not isinstance(rows.x[0], str):
            x = torch.from_numpy(np.stack(rows.x).astype(np.float32).reshape(len(rows.x), *(np.shape(x[0]) or (1,))))
        return Part(x, y[index], {"id": rows.ids})

    parts = [_named([columns.path for columns in some], place) for some in (read, held) if some]
    options = {
        "input": inputs if len(inputs) > 1 else inputs[0],
        "label": target,
        "parts": " and ".join(parts) if held else drawn(parts[0], test_fraction, seed),
    }
    extras = {"mean": mean, "std": std} if pictures else {}
    return Split(part(chosen[0]), part(chosen[1]), classes=classes, name="table", options=options, extras=extras)


def _parts(files: Sequence[Path], place: Path) -> tuple[Sequence[Path], list[list[Path]]]:
    """The training files, and those of each other part, by the names of files and of folders below `place`."""

    def named(names: Sequence[str]) -> list[Path]:
        return [file for file in files if _first(file, place) in names]

    training = named(TRAIN_NAMES)
    if len({file.parent for file in training or files}) > 1:
        raise UsageError(
            f"{place} has tables in several folders, such as {_named(training or files, place)}; expected one data set: pass"
            " the folder of the one that is meant"
        )
    tests = [named([name]) for name in TEST_NAMES] if training else []
    return training or files, [some for some in tests if some]


def _first(file: Path, place: Path) -> str:
    """The first name of a part in a file's path."""
    words = re.split("[^a-z]+", (file.relative_to(place) if place.is_dir() else Path(file.name)).as_posix().lower())
    return next((name for name in (*TRAIN_NAMES, *TEST_NAMES) if name in words), "")


def _named(files: Sequence[Path], place: Path) -> str:
    """The first and last of some files, below `place`."""
    names = [file.relative_to(place).as_posix() if place.is_dir() else file.name for file in files]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _labelled(some: Sequence[Columns], label: str | None) -> bool:
    """Whether a part has labels: data sets of competitions leave them out, or write -1."""
    names = [(columns, columns.find([label] if label else LABELS)) for columns in some]
    return any(name is not None and any(y not in (None, "", -1) for y in columns.read(name)) for columns, name in names)


def _inputs(columns: Columns, asked: Names, label: str) -> tuple[str, ...]:
    """The columns asked for; else the first usual one; else all but the label's, if they are numbers."""
    if asked:
        return tuple(columns.choose(name, (), "input") for name in ([asked] if isinstance(asked, str) else asked))
    others = [name for name in columns.names if name != label]
    if columns.find((*TEXTS, *PICTURES)) is None and others:
        full = {name: [value for value in columns.read(name) if not _is_blank(value)] for name in others}
        numbers = tuple(name for name in others if _numbers(full[name]) is not None)
        if len(numbers) == len(others):
            return numbers
        if numbers:
            texts = [name for name in others if name not in numbers]
            raise UsageError(
                f"{columns.path}: column{'s' * (len(texts) > 1)} {', '.join(map(repr, texts))[:500]}"
                f' hold{"s" * (len(texts) == 1)} text; to use the numbers: --data-option "input={numbers!r}";'
                f' to use a text: --data-option "input={texts[0]}"'
            )
    return (columns.choose(None, (*TEXTS, *PICTURES), "input"),)


def _numbers(values: Sequence[Any]) -> Float64[np.ndarray, "n ..."] | None:
    """The values as numbers, one or an array of them each; None if they are not."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _rows(files: Sequence[Columns], inputs: Sequence[str], label: str, place: Path) -> _Rows:
    """The items of some files, one after the other; each must have an input and a label."""
    rows = _Rows([], [], [])
    for columns in files:
        names = [*(columns.choose(name, (), "input") for name in inputs), columns.choose(label, (), "label")]
        read = [columns.read(name) for name in names]
        for name, values in zip(names, read):
            if lacking := [number for number, value in enumerate(values, start=1) if _is_blank(value)]:
                raise DataCorrupt(
                    f"{columns.path}, item {lacking[0]}: nothing in column {name!r}; fill it, or drop the item"
                )
        where = [f"{_named([columns.path], place)}, item {number}" for number in range(1, len(read[0]) + 1)]
        if len(inputs) == 1:
            x, ids = _items(columns.path, inputs[0], read[0], where)
        else:
            found = {name: _numbers(values) for name, values in zip(inputs, read)}
            if texts := [name for name, numbers in found.items() if numbers is None]:
                raise UsageError(
                    f"{columns.path} has no numbers in column {texts[0]!r}; expected some in each of several input columns"
                )
            x, ids = list(np.stack([numbers for numbers in found.values() if numbers is not None], axis=1)), where
        for mine, theirs in zip(rows, (x, read[-1], ids)):
            mine.extend(theirs)
    return rows


def _is_blank(value: Any) -> bool:
    """Whether nothing is in a cell, be it an image without path and content."""
    return (
        value is None or value == "" or (isinstance(value, Mapping) and not (value.get("bytes") or value.get("path")))
    )


def _items(path: Path, name: str, values: list[Any], where: list[str]) -> tuple[list[Any], list[str]]:
    """Inputs of one column: images, texts or numbers; and what to call them."""
    if all(isinstance(value, str) and Path(value).suffix.lower() in IMAGES for value in values):
        return [_Picture(path.parent / value, None) for value in values], values
    if all(isinstance(value, bytes | Mapping) for value in values):
        pairs = [
            (value.get("path"), value.get("bytes")) if isinstance(value, Mapping) else ("", value) for value in values
        ]
        ids = [f"{place} ({file})" if file else place for place, (file, _) in zip(where, pairs)]
        return [_Picture(path.parent / (file or place), content) for place, (file, content) in zip(where, pairs)], ids
    numbers = None if name.lower() in (*TEXTS, *PICTURES) and isinstance(values[0], str) else _numbers(values)
    if numbers is None and name.lower() not in PICTURES and all(isinstance(value, str) for value in values):
        return values, where
    if numbers is None:
        odd = next(value for value in values if not (isinstance(value, str) and Path(value).suffix.lower() in IMAGES))
        raise UsageError(
            f"{path} has {odd!r:.80} in column {name!r}; expected texts, numbers, or images ({', '.join(IMAGES)}): say which"
            " column has them with input= (--data-option input=NAME)"
        )
    return list(numbers), where


def _targets(train: _Rows, test: _Rows, stated: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as numbers, and the names of classes where labels are texts or the table states them."""
    labels = train.y + test.y
    blank = [k for k, label in enumerate(labels) if str(label).strip().lower() in BLANKS]
    numbers = _numbers([label for label in labels if str(label).strip().lower() not in BLANKS])
    if numbers is not None and len(numbers):
        if blank:
            raise DataCorrupt(
                f"{(train.ids + test.ids)[blank[0]]}: the label is {labels[blank[0]]}, and others are numbers; fill it, or drop"
                " the item"
            )
        try:
            whole = torch.tensor([int(label) for label in labels], dtype=torch.int64)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # several to an item, with a point, beyond 64 bits
            whole = None
        if whole is None or whole.tolist() != numbers.tolist():
            return torch.from_numpy(numbers.astype(np.float32)), ()
        return whole, tuple(stated)
    names = sorted(set(map(str, train.y)))
    if unknown := sorted(set(map(str, test.y)) - set(names)):
        raise DataCorrupt(
            f"test label {unknown[0]!r:.100} is not among those of training items: {', '.join(names)[:300]}"
        )
    return torch.tensor([names.index(str(label)) for label in labels]), tuple(names)
