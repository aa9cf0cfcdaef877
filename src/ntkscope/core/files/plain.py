"""Values as strict JSON: what a record accepts, how it is written and how it is read back."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ntkscope.core.errors import UsageError
from ntkscope.core.files.safe_files import DEEPEST, LARGEST_NUMBER

# JSON has no such numbers; these strings stand for them, and `float(text)` or JavaScript's `Number(text)` reads them.
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_plain(value: Any, where: str = "value", room: int = DEEPEST - 4) -> Any:
    """`value` as nested dicts, lists, strings and finite numbers; NaN and infinities become strings.

    >>> to_plain({"loss": float("nan"), "widths": (3, 4), "accuracy": torch.tensor(0.5)})
    {'loss': 'NaN', 'widths': [3, 4], 'accuracy': 0.5}
    """
    if isinstance(value, int) and not -LARGEST_NUMBER < value < LARGEST_NUMBER:
        raise UsageError(f"{where} is an integer of more than 300 digits; keep it as a string")
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if room < 0:
        raise UsageError(f"{where:.200} is nested more than {DEEPEST - 4} levels deep; keep it flatter, or as arrays")
    if isinstance(value, Mapping):
        return {_key(key, where): to_plain(item, f"{where}[{key!r}]", room - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item, f"{where}[{i}]", room - 1) for i, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return sorted((to_plain(item, where, room - 1) for item in value), key=repr)
    if isinstance(value, (np.generic, np.ndarray, Tensor)) and np.prod(value.shape) == 1 and len(value.shape) == 0:
        return to_plain(value.item(), where, room)
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(asdict(value), where, room)
    if isinstance(value, (os.PathLike, torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, (np.ndarray, Tensor)):
        raise UsageError(f"{where} is an array of shape {tuple(value.shape)}; keep it with record.array(name, value)")
    raise UsageError(
        f"{where} is a {type(value).__name__}; expected numbers, texts, None, or lists and mappings of them"
    )


def from_plain(value: Any) -> Any:
    """What `to_plain` wrote, with NaN and infinities as numbers again.

    >>> from_plain({"loss": "-Infinity", "name": "mlp"})
    {'loss': -inf, 'name': 'mlp'}
    """
    if isinstance(value, dict):
        return {key: from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


class Lookup(Mapping):  # not Mapping[str, …]: a checker that samples items would read what is not asked for
    """A mapping over an index of entries; a subclass says what an entry gives when it is asked for."""

    def __init__(self, index: Mapping[str, Any]) -> None:
        self._index = index

    def __contains__(self, key: object) -> bool:
        return key in self._index

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)


class ReadBack(Lookup):
    """What `to_plain` wrote of a mapping; a value is read back when it is asked for, so that one does not cost as much as all.

    >>> values = ReadBack({"loss": "NaN", "name": "mlp"})
    >>> "loss" in values, values["loss"], dict(values)
    (True, nan, {'loss': nan, 'name': 'mlp'})
    """

    def __getitem__(self, key: str) -> Any:
        return from_plain(self._index[key])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Where two plain values differ, one string per difference.

    >>> differences({"lr": 0.1, "widths": [3]}, {"lr": 0.2, "widths": [3], "seed": 1})
    ['lr: 0.1 -> 0.2', 'seed: (absent) -> 1']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in [*old, *(key for key in new if key not in old)]:
            path = f"{where}.{key}" if where else str(key)
            if key in old and key in new:
                found += differences(old[key], new[key], path)
            else:
                found.append(f"{path}: {_shown(old, key)} -> {_shown(new, key)}")
        return found
    return [] if old == new and isinstance(old, bool) == isinstance(new, bool) else [f"{where}: {old!r} -> {new!r}"]


def _shown(mapping: dict[str, Any], key: str) -> str:
    return repr(mapping[key]) if key in mapping else "(absent)"


def _key(key: Any, where: str) -> str:
    if isinstance(key, (str, int)):
        return str(key)
    raise UsageError(f"{where} has the key {key!r}; expected texts or whole numbers as keys")
