"""Folders of a run as a kill would have left them.

A kill loses the results from some moment on, in the order in which they are written, and leaves behind what was written to
other files before that moment: weights, arrays, series, checkpoints of a training. So the folder is copied while the run goes,
before each of its results is written; taking results out of a finished record would leave the files of later ones.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ntkscope.core import Record

REPLACED = (".json", ".npy", ".safetensors")  # never written in place: a link keeps what the file was


class Killed:
    """`len(killed)` results were written; `killed.folder(n, path)` puts there what the folder was with n of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def folder(self, number: int, path: Path) -> Path:
        return shutil.copytree(self.root / str(number), path, copy_function=_linked_or_copied)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Copies the folder of the record that is written inside."""

        def copy(record: Record, values: Mapping[str, Any]) -> None:
            if any(isinstance(value, Mapping) and key not in record.metrics for key, value in values.items()):
                shutil.copytree(record.folder, self.root / str(self._count), copy_function=_linked_or_copied)
                self._count += 1

        with _before_put(copy):
            yield


@contextmanager
def writing() -> Iterator[list[str]]:
    """The keys of the metrics that are written inside, in their order."""
    keys: list[str] = []
    with _before_put(lambda record, values: keys.extend(values)):
        yield keys


@contextmanager
def _before_put(watch: Callable[[Record, Mapping[str, Any]], None]) -> Iterator[None]:
    put = Record.put

    def watched(record: Record, **values: Any) -> None:
        watch(record, values)
        put(record, **values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Record, "put", watched)
        yield


def _linked_or_copied(source: str, target: str) -> None:
    if source.endswith(REPLACED):
        os.link(source, target)
    else:
        shutil.copy2(source, target)
