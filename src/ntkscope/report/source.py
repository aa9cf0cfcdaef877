"""What a view reads: one record, its sections, its arrays, and names for its classes and items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntkscope.core import Record
from ntkscope.report.items import Items
from ntkscope.report.markup import Markup, tag, text

OUTPUT = "output_"  # begins the names of sections that are for regressions alone


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one: a record may hold anything."""
    return value if isinstance(value, Mapping) else {}


def names(value: Any) -> list[str]:
    """The texts of a list, none of anything else."""
    return [str(name) for name in value] if isinstance(value, (list, tuple)) else []


def name_at(named: Sequence[str], place: Any) -> str:
    """The name at a place, or the place itself if it has none."""
    known = isinstance(place, (int, np.integer)) and 0 <= int(place) < len(named)
    return named[int(place)] if known else str(place)


def rows_of(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The rows of a table in a record, none of anything else."""
    found = data.get(key)
    return [mapping(row) for row in found] if isinstance(found, (list, tuple)) else []


@dataclass(frozen=True)
class Section:
    """One section of a record, as `metrics["section:NAME"]` holds it; what is missing is empty."""

    name: str
    title: str = ""
    meaning: str = ""
    confidence: str = ""
    formula: str = ""
    status: str = "done"
    why: str | None = None
    seconds: float = float("nan")
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        """An id for the section, different from every other id on the page.

        >>> Section("a b<").anchor
        's-a-b-'
        """
        return "s-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in self.name)

    @property
    def of_regression(self) -> bool:
        """Whether this is the form of the section that pages of regressions have."""
        return self.name.startswith(OUTPUT)

    @classmethod
    def read(cls, name: str, value: Any) -> Section:
        """The section a record holds under `name`; one that is not there yet has the status `waiting`.

        >>> Section.read("extra", {"title": "More", "data": {"a": 1}}).data["a"]
        1
        >>> Section.read("extra", None).status
        'waiting'
        """
        if not isinstance(value, Mapping):
            return cls(name, title=name.replace("_", " ").capitalize(), status="waiting")
        texts = {key: str(value.get(key) or "") for key in ("title", "meaning", "confidence", "formula")}
        texts["title"] = texts["title"] or name.replace("_", " ").capitalize()
        why, data, seconds = value.get("why"), value.get("data"), value.get("seconds")
        return cls(
            name,
            **texts,
            status=str(value.get("status") or "done"),
            why=None if why is None else str(why),
            seconds=float(seconds) if isinstance(seconds, (int, float)) else float("nan"),
            data=data if isinstance(data, Mapping) else {},
        )


@dataclass(frozen=True)
class Drawing:
    """What a view makes of a section: HTML, and data for its script."""

    body: Markup
    data: Mapping[str, Any] = field(default_factory=dict)


class Source:
    """A record with the names a page needs; it also collects which items the page shows."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.metrics = record.metrics
        self._arrays = record.arrays
        self.data = mapping(self.metrics.get("data"))
        self.classes, self.outputs = (names(self.data.get(key)) for key in ("classes", "outputs"))
        self.items = Items(self.array, mapping(self.metrics.get("texts")), mapping(self.metrics.get("ids")))
        self._kernels = mapping(self.metrics.get("kernel_names"))
        self.files: tuple[str, ...] = ()  # written beside the page

    def sections(self) -> list[Section]:
        """The sections in the order of the record."""
        return [Section.read(name, self.metrics.get(f"section:{name}")) for name in names(self.metrics.get("sections"))]

    def array(self, name: str) -> NDArray[Any] | None:
        """An array of the record, or `None` if it has none of that name."""
        return np.asarray(self._arrays[name]) if name in self._arrays else None

    def section(self, name: str) -> Section:
        """One section by its name, in the form for the record's task; its status is `waiting` if the record has none."""
        if self.regression and f"section:{OUTPUT}{name}" in self.metrics:
            name = f"{OUTPUT}{name}"
        return Section.read(name, self.metrics.get(f"section:{name}"))

    @cached_property
    def label_scores(self) -> NDArray[Any] | None:
        """How strongly the other training items contradict each label; above 0 a label is doubtful."""
        scores = self.array("problems.label_score")
        return None if scores is None or scores.ndim != 1 else np.asarray(scores, dtype=np.float64)

    @cached_property
    def doubtful(self) -> frozenset[int]:
        """The training items with a doubtful label."""
        return frozenset() if self.label_scores is None else frozenset(np.flatnonzero(self.label_scores > 0).tolist())

    def kernel_name(self, kernel: Any) -> str:
        """A kernel in words with its short name, "trace NTK (trntk0)"; the short name alone if there are no words."""
        words = self._kernels.get(str(kernel))
        return f"{words} ({kernel})" if words else str(kernel)

    def kernel_mark(self, kernel: Any) -> Markup:
        """The same as markup, the short name on a line of its own."""
        words = self._kernels.get(str(kernel))
        return tag("span", words, tag("small", kernel, class_="short"), class_="kernel-name") if words else text(kernel)

    def class_name(self, label: Any) -> str:
        """The name of a class, or its number if it has no name."""
        return name_at(self.classes, label)

    def output_name(self, output: Any) -> str:
        """The name of a regression's output, or its number if it has no name."""
        return name_at(self.outputs, output)

    @property
    def regression(self) -> bool:
        """Whether the network predicts real values."""
        return self.data.get("task") == "regression"

    def class_mark(self, label: Any) -> Markup:
        """The name of a class as markup, isolated from the direction of the text around it."""
        return tag("bdi", self.class_name(label), class_="class")
