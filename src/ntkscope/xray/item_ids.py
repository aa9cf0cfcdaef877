"""Ids of items: the names a user's own data have for them, file paths above all, so that a page can say which file to open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler, Subset

from ntkscope.core import Part

EXTRAS = ("id", "ids", "path", "paths", "file", "files")
ATTRIBUTES = ("paths", "samples", "imgs", "ids")  # `samples` and `imgs` are torchvision's lists of (path, label)
LONGEST = 500  # characters of one id; an id is for people


def ids_of(data: Any, count: int) -> tuple[str, ...] | None:
    """The id of each of `count` items in their order, from a Part's extras or a Dataset's list of files; None without any.

    What is not one text or number per item is not an id: it is ignored, never an error.

    >>> import torch
    >>> ids_of(Part(torch.zeros(2, 1), torch.zeros(2), {"path": ["a.png", "b.png"]}), 2)
    ('a.png', 'b.png')
    >>> ids_of((torch.zeros(2, 1), torch.zeros(2)), 2) is None
    True
    """
    if isinstance(data, Part):
        return next((found for key in EXTRAS if (found := _texts(data.extras.get(key), count)) is not None), None)
    if isinstance(data, DataLoader):
        plain = isinstance(getattr(data.batch_sampler, "sampler", data.sampler), SequentialSampler)
        return ids_of(data.dataset, count) if plain else None
    if isinstance(data, Subset):
        whole = ids_of(data.dataset, len(data.dataset)) if hasattr(data.dataset, "__len__") else None
        return None if whole is None or len(data.indices) != count else tuple(whole[i] for i in data.indices)
    return next((found for key in ATTRIBUTES if (found := _texts(_attribute(data, key), count)) is not None), None)


def _attribute(data: Any, name: str) -> Any:
    try:
        return getattr(data, name, None)
    except Exception:  # a property of somebody else's data set
        return None


def _texts(values: Any, count: int) -> tuple[str, ...] | None:
    if isinstance(values, Tensor):
        values = values.tolist() if values.ndim == 1 else None
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or len(values) != count:
        return None
    firsts = [value[0] if isinstance(value, tuple | list) and value else value for value in values]
    if not all(isinstance(value, str | int) or hasattr(value, "__fspath__") for value in firsts):
        return None
    return tuple(_printable(str(value)) for value in firsts)


def _printable(text: str) -> str:
    """A text that can be written as UTF-8 (a path need not be), of bounded length, its end kept: there the name is."""
    whole = text.encode("utf-8", "replace").decode()
    return whole if len(whole) <= LONGEST else "…" + whole[-LONGEST:]
