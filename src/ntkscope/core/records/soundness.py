"""Whether the files of a record are still what was written, so that a resumed run recomputes those that are not."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ntkscope.core.errors import RecordError
from ntkscope.core.files.arrays import read_array
from ntkscope.core.records.series import Known, Series


class DamageWarning(RuntimeWarning):
    """Arrays or series of a record are lost or were changed, and are recomputed where the run needs them."""


def unsound(folder: Path, document: Mapping[str, Any]) -> tuple[str, ...]:
    """The arrays and series whose files are lost or differ from what was written; reads them all."""
    lost = []
    for kind, entries in (("arrays", document["arrays"]), ("series", document.get("series", {}))):
        for name, entry in entries.items():
            try:
                if kind == "arrays":
                    read_array(folder, name, entry)
                else:
                    Series(folder, name, Known.from_json(entry), tail=True)
            except RecordError:
                lost.append(name)
    return tuple(lost)


def without(folder: Path, document: Mapping[str, Any], lost: tuple[str, ...]) -> dict[str, Any]:
    """The index of arrays and series without those that are `lost`, with a warning that names them."""
    if lost:
        warnings.warn(
            f"{folder}: the files of {', '.join(lost[:10])}{', …' if len(lost) > 10 else ''} are lost or were changed; they"
            " are dropped from the record, and what needs them computes them again; files that were changed stay",
            DamageWarning,
            stacklevel=4,
        )
    index = {kind: document.get(kind, {}) for kind in ("arrays", "series")}
    return {kind: {name: e for name, e in entries.items() if name not in lost} for kind, entries in index.items()}
