"""A Gram kept in tiles that counts what is read of it and cannot be formed: for everything that says it needs products only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor

from ntkscope.linalg import DenseGram, Gram
from ntkscope.linalg.grams.gram import Tile, slices
from ntkscope.linalg.grams.labels import Labels
from ntkscope.linalg.grams.view import View


class Formed(AssertionError):
    """Somebody asked for the whole matrix."""


@final
class CountedGram(Gram):
    """`values` in tiles of `size` rows; every product or walk over the tiles is a pass, every selection reads its own tiles.

    `log` is shared with what is made from it: `passes` (products and walks), `columns` (of each product), `entries` read.
    """

    def __init__(self, values: Tensor, size: int = 32, log: dict[str, Any] | None = None, **labels: Any) -> None:
        labels.setdefault("symmetric", values.shape[0] == values.shape[1] and torch.equal(values, values.T))
        self._out_of_core = True
        self._values, self._size = values, size
        self.log = {"passes": 0, "columns": [], "entries": 0} if log is None else log
        super().__init__((values.shape[0], values.shape[1]), values.dtype, values.device, Labels(**labels))

    def _form(self) -> Tensor:
        if self._values.numel() > self._size * max(self.shape):  # more than a row of tiles
            raise Formed(f"{self!r} was formed")
        self.log["entries"] += self._values.numel()
        return self._values

    def _matmul(self, v: Tensor) -> Tensor:
        self.log["passes"] += 1
        self.log["columns"].append(v.shape[1])
        wide = torch.promote_types(self.dtype, v.dtype)
        parts = [self._read(rows).to(wide) @ v.to(wide) for rows in slices(self.shape[0], self._size)]
        return torch.cat([v.new_zeros(0, v.shape[1], dtype=wide), *parts])

    def _read(self, rows: slice, columns: slice = slice(None)) -> Tensor:
        part = self._values[rows, columns]
        self.log["entries"] += part.numel()
        return part

    def _diagonal(self) -> Tensor:
        return self._values.diagonal()

    def _tiles(self, size: int | None) -> Iterator[Tile]:
        self.log["passes"] += 1
        for rows in slices(self.shape[0], size or self._size):
            for columns in slices(self.shape[1], size or self._size):
                yield rows, columns, self._read(rows, columns)

    def _seen(self, view: View, labels: Labels) -> Gram:
        values = DenseGram(self._values, symmetric=self.symmetric)._seen(view, labels).dense()
        return CountedGram(values, self._size, self.log, **vars(labels))

    def _eigenvalues(self) -> Tensor:
        raise Formed(f"all eigenvalues of {self!r} were asked of LAPACK")

    def _moved(self, dtype: torch.dtype, device: torch.device) -> Gram:
        return CountedGram(
            self._values.to(device, dtype), self._size, self.log, **vars(self.labels.moved(dtype, device))
        )
