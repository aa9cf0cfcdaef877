"""What both kinds of store share: they are begun in an empty folder, found again, and resumed by what began them alone."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.errors import StoreError
from ntkscope.core.files.schema import shown
from ntkscope.core.identity import Answers, disagreement, machine, tolerance
from ntkscope.core.identity.answers import DIFFERENT
from ntkscope.linalg.grams.tiling import TileSource
from ntkscope.storage._files import Folder, folder
from ntkscope.storage._zarr import DTYPES, ChunkedArray, attributes_checksum, attributes_of, put_attributes

SCHEMA = 2


class Store:
    """A store in a folder or behind an fsspec URL; a frozen dataclass with these fields, and those of its kind."""

    kind: ClassVar[str]
    named: ClassVar[str]
    """What people call it."""
    folder: Folder
    dtype: torch.dtype
    labels: Mapping[str, Any]
    fingerprint: Mapping[str, str]
    answers: Answers | None

    @classmethod
    @abstractmethod
    def validated(cls, place: Folder, attributes: Mapping[str, Any]) -> Self:
        """A store from attributes anyone may have written: every entry is checked before it is used."""

    @abstractmethod
    def require(self, source: TileSource | Self) -> None:
        """Raise an error that names every difference, unless this source computes the numbers this store holds."""

    @abstractmethod
    def _shape(self) -> dict[str, Any]:
        """The attributes that say how many numbers there are, and how they are cut."""

    @property
    @abstractmethod
    def _arrays(self) -> list[ChunkedArray]: ...

    def begun(self, ask: Callable[[], Answers | None]) -> Self:
        """This store, new, or the existing one if nothing the numbers depend on differs and the network still gives the answers
        (`ask`) that were kept when it was created."""
        if self.dtype not in DTYPES:
            raise UsageError(f"got numbers in {self.dtype} for a store; expected one of {', '.join(map(str, DTYPES))}")
        found = attributes_of(self.folder, self.kind, SCHEMA)
        if found is not None:
            self.validated(self.folder, found).require(self)  # before the network is run
        now = ask()
        new: Self = replace(self, answers=now)  # type: ignore[type-var]
        self.validated(self.folder, new._attributes())  # never write what could not be read back
        if found is None:
            names = self.folder.names()
            if names and attributes_of(self.folder, self.kind, SCHEMA) is None:  # else another process just created it
                raise StoreError(
                    f"{self.url} is neither a {self.named} nor empty ({', '.join(names[:5])}); expected a new or empty folder,"
                    f" or a {self.named}"
                )
            put_attributes(self.folder, new._attributes())  # of several processes one is first; the others compare
        stored = self.open(self.url)
        stored.require(self)
        stored.compare_answers(now)
        for array in stored._arrays:
            array.put_metadata()
        return stored

    @classmethod
    def open(cls, url: str | os.PathLike[str]) -> Self:
        """The store at `url`; an error if there is none."""
        found = cls.find(url)
        if found is None:
            raise StoreError(
                f"there is no {cls.named} at {folder(url).url}; expected a folder written with store= or --store"
            )
        return found

    @classmethod
    def find(cls, url: str | os.PathLike[str]) -> Self | None:
        """The store at `url`, None if there is nothing; an error if there is something else."""
        place = folder(url)
        attributes = attributes_of(place, cls.kind, SCHEMA)
        return None if attributes is None else cls.validated(place, attributes)

    @property
    def url(self) -> str:
        """The address of the store."""
        return self.folder.url

    def clear_leftovers(self) -> None:
        """Remove the half-written files of processes that were killed."""
        self.folder.clear_leftovers()

    def compare_answers(self, now: Answers | None) -> None:
        """Raise an error unless the network gives the answers that were kept when the store was created."""
        if (self.answers is None) != (now is None):
            raise StoreError(
                f"{self.url} {'has no' if self.answers is None else 'has'} answers of a network; {DIFFERENT}"
            )
        if self.answers is not None and now is not None:
            self.answers.compare(now, self.url, self._coarse)

    def _compare(self, what: str, stored: Tensor, values: Tensor, by: str | None, device: torch.device | str) -> None:
        """Raise an error unless these are the stored values: bit for bit if the same kind of machine computed them on a CPU,
        else up to rounding."""
        here = machine(device)
        exact = here.startswith("cpu") and by == here and not self._coarse
        found = disagreement(stored, values.to(self.dtype).cpu(), 0.0 if exact else tolerance(self.dtype, self._coarse))
        if found:
            raise StoreError(f"{self.url}: {what}, computed again, and the stored one {found}; {DIFFERENT}")

    @property
    def _coarse(self) -> bool:
        """Whether products were computed in fewer digits than the numbers have."""
        return self.fingerprint.get("precision", "exact") != "exact"

    @cached_property
    def _id(self) -> str:
        return attributes_checksum(self._attributes())

    def _attributes(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "schema": SCHEMA,
            **self._shape(),
            "dtype": str(self.dtype).split(".")[1],
            "labels": dict(self.labels),
            "fingerprint": dict(self.fingerprint),
            "answers": None if self.answers is None else self.answers.to_json(),
        }


def checked_entries(attributes: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, str], Answers | None]:
    """Labels, fingerprint and answers of attributes that anyone may have written."""
    labels, fingerprint = (mapping_of(attributes, name, where) for name in ("labels", "fingerprint"))
    mapping_of({"meta": {}, **labels}, "meta", where)
    for name in ("name", "rows"):
        if not isinstance(labels.get(name, ""), str):
            raise StoreError(f"{where}: labels.{name} is {shown(labels[name])}; expected a text")
    wrong = [name for name, value in fingerprint.items() if not isinstance(value, str)]
    if wrong:
        raise StoreError(f"{where}: fingerprint entries {', '.join(wrong[:5])} are not texts; expected texts")
    answers = attributes.get("answers")
    return labels, fingerprint, None if answers is None else Answers.from_json(answers, where)


def mapping_of(attributes: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """An entry of attributes that has to be a mapping from texts."""
    value = attributes.get(name)
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise StoreError(f"{where}: {name} is {shown(value)}; expected a mapping from texts")
    return dict(value)
