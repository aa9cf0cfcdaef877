"""Results that hold arrays, shown by a few facts: on one line in a terminal, as a table in a notebook."""

from __future__ import annotations

import reprlib
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ntkscope.core.html import table


class Shown:
    """Base of dataclasses (made with `repr=False`) that show arrays by their shapes and cut what is long.

    `_shown` names the attributes that are shown; all fields, where it is empty.

    >>> from dataclasses import dataclass
    >>> @dataclass(repr=False)
    ... class Found(Shown):
    ...     values: np.ndarray
    ...     ranks: tuple[int, ...]
    >>> Found(np.zeros((200, 3)), tuple(range(900)))
    Found(values=float64 (200, 3), ranks=(0, 1, 2, ...))
    """

    _shown: ClassVar[tuple[str, ...]] = ()

    def _facts(self) -> dict[str, str]:
        names = self._shown or tuple(field.name for field in fields(self))  # type: ignore[arg-type]
        return {name: _BRIEF.repr(getattr(self, name)) for name in names}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return table(type(self).__name__, self._facts())


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxdict = self.maxlist = self.maxtuple = 3
        self.maxlevel, self.maxstring, self.maxother = 2, 30, 60

    def repr_float(self, x: float, level: int) -> str:
        return f"{x:.4g}"

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, Tensor | np.ndarray):
            return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
        return repr(x) if isinstance(x, Shown) else super().repr_instance(x, level)


_BRIEF = _Brief()
