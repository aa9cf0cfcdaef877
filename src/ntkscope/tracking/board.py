"""TensorBoard: the numbers of each moment, beside the record."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ntkscope.core import UsageError

NUMBERS = ("kta", "centred_kta", "velocity", "correlation", "centred")


class Board:
    """Writes scalars to anything with `add_scalar(name, value, step)`."""

    def __init__(self, writer: Any, own: bool) -> None:
        self.writer, self._own = writer, own

    def write(self, step: int, moment: Mapping[str, Any], rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """The largest value of each spectrum, alignments, counts of spikes, and what the moment cost."""
        numbers: dict[str, Any] = {"cost_seconds": moment["cost"], "probe_items": moment["probe_items"]}
        for row in rows.get("spectra", ()):
            if row["values"]:
                numbers[f"{row['of']}/largest"] = row["values"][0]
        for row in rows.get("spikes", ()):
            numbers[f"{row['of']}/spikes"] = row["count"]
        for row in rows.get("alignment", ()):
            numbers |= {f"{row['of']}/{name}": row[name] for name in NUMBERS if name in row}
        for name, value in numbers.items():
            self.writer.add_scalar(f"ntkscope/{name}", value, step)

    def close(self) -> None:
        """Close the writer, if it was made here."""
        if self._own:
            self.writer.close()


def as_board(tensorboard: Any) -> Board | None:
    """None, a folder, or a writer with `add_scalar`."""
    if tensorboard is None:
        return None
    if hasattr(tensorboard, "add_scalar"):
        return Board(tensorboard, own=False)
    if not isinstance(tensorboard, str | os.PathLike):
        raise UsageError(
            f"got tensorboard of type {type(tensorboard).__name__}; expected a folder, or a writer with add_scalar"
        )
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            f"got tensorboard={os.fspath(tensorboard)!r}, but the package tensorboard is not installed; install it (pip"
            " install tensorboard), or pass a writer with add_scalar"
        ) from error
    return Board(SummaryWriter(os.fspath(tensorboard)), own=True)
