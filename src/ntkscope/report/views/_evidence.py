"""The evidence behind each explained item, class by class, packed for the explorer."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from ntkscope.report.source import Source

CLASSES = 12  # at most this many training classes are shown for one logit
LARGEST = 3e38  # of a float32, almost

Whole = Int64[np.ndarray, "..."]
Floats = Float64[np.ndarray, "..."]


@dataclass(frozen=True)
class Evidence:
    """Arrays with one entry per item and class that can be selected; -1 and NaN stand for none."""

    chosen: Whole  # (t, C)
    shown: Whole  # (t, C, S): training classes
    means: Floats  # (t, C, S)
    box: Floats  # (t, C, S, 5)
    pairs: dict[str, tuple[Whole, Floats]]  # outliers, top, influence: (t, C, k)
    concentration: Floats  # (t, C, 3)
    logits: dict[str, Floats]  # surrogate, network: (t, C)

    def packed(self) -> dict[str, Any]:
        """Text for the explorer's script."""
        trivial = bool((self.shown == np.arange(self.shown.shape[2])).all())
        found: dict[str, Any] = {
            "chosen": _numbers(self.chosen),
            "shown": None if trivial else _numbers(self.shown),
            "means": _numbers(self.means),
            "box": _numbers(self.box),
            "concentration": _numbers(self.concentration),
        }
        for name, (index, value) in self.pairs.items():
            found[name] = {"index": _numbers(index), "value": _numbers(value)}
        return {**found, **{f"{name}_logit": _numbers(values) for name, values in self.logits.items()}}

    def training_items(self) -> set[int]:
        """Every training item that some item's evidence names."""
        named = [index[index >= 0] for index, _ in self.pairs.values()]
        return set(np.concatenate(named).tolist()) if named else set()


def _numbers(values: np.ndarray) -> dict[str, Any]:
    """Packed numbers with the shape of one item."""
    text = pack_floats(values) if values.dtype.kind == "f" else pack_whole(values)
    return {"shape": list(values.shape[1:]), "kind": "float" if values.dtype.kind == "f" else "whole", "data": text}


def evidence(true: Sequence[int], source: Source) -> Evidence:
    """The evidence of all items; `true`: the label of each."""
    chosen = np.asarray(source.array("explain.chosen"), dtype=np.int64)
    own, every = chosen >= 0, _means(chosen, source)
    classes = every.shape[2]
    shown = _loudest(every, chosen, true)
    box = _spread(source.array("explain.box"), own, (classes, 5))
    pairs = {}
    for name in ("outliers", "top", "influence"):
        index, value = source.array(f"explain.{name}_index"), source.array(f"explain.{name}_value")
        if index is not None and value is not None:
            wide = _spread(index.astype(np.float64), own, index.shape[-1:], -1.0).astype(np.int64)
            pairs[name] = (wide, _spread(value, own, value.shape[-1:]))
    logits = {}
    for name in ("surrogate", "network"):
        held = source.array(f"explain.{name}_logit")
        if held is not None:
            values = np.take_along_axis(np.asarray(held, dtype=np.float64), np.maximum(chosen, 0), axis=1)
            logits[name] = np.where(own, values, np.nan)
    safe = np.maximum(shown, 0)
    hidden = shown < 0
    return Evidence(
        chosen=chosen,
        shown=shown,
        means=np.where(hidden, np.nan, np.take_along_axis(every, safe, axis=2)),
        box=np.where(hidden[..., None], np.nan, np.take_along_axis(box, safe[..., None], axis=2)),
        pairs=pairs,
        concentration=_spread(source.array("explain.concentration"), own, (3,)),
        logits=logits,
    )


def _means(chosen: Whole, source: Source) -> Floats:
    """(t, C, classes): what the training items of each class add, on average, to the logit of every chosen class."""
    means = source.array("explain.class_mean")
    held = 0 if means is None else means.shape[2]
    every = np.full((*chosen.shape, max(len(source.classes), held, int(chosen.max(initial=0)) + 1)), np.nan)
    if means is not None:
        rank, place = np.nonzero((chosen >= 0) & (chosen < means.shape[1]))
        every[rank, place, :held] = np.asarray(means)[rank, chosen[rank, place]]
    return every


def _spread(values: np.ndarray | None, own: np.ndarray, ending: tuple[int, ...], empty: float = np.nan) -> Floats:
    """An array with an entry for every chosen class; `ending` is the shape of one entry."""
    out = np.full((*own.shape, *ending), empty)
    if values is not None:
        room = tuple(slice(0, min(a, b)) for a, b in zip(values.shape, out.shape, strict=True))
        out[room] = values[room]
        out[~own] = empty
    return out


def _loudest(means: Floats, chosen: Whole, true: Sequence[int]) -> Whole:
    """(t, C, S): the training classes to show for each logit, in their order: all, or those with the largest contributions."""
    t, c, classes = means.shape
    if classes <= CLASSES:
        return np.broadcast_to(np.arange(classes), (t, c, classes)).astype(np.int64)
    out = np.full((t, c, CLASSES), -1, dtype=np.int64)
    size = np.where(np.isfinite(means), np.abs(means), -1.0)
    loud = np.argsort(-size, axis=2, kind="stable")[:, :, : CLASSES - 2]
    for n in range(t):
        for k in range(c):
            found = sorted({*loud[n, k].tolist(), max(int(chosen[n, k]), 0), true[n]})
            out[n, k, : len(found)] = found
    return out


def pack_floats(values: NDArray[np.floating]) -> str:
    """Floats to five significant digits: the upper three bytes of each float32, in base64; NaN stays NaN.

    Four characters each, so that a script can read any of them without reading the rest.

    >>> pack_floats(np.array([1.0, -2.5]))
    'P4AAwCAA'
    >>> len(pack_floats(np.zeros((3, 5))))
    60
    """
    bounded = np.clip(np.asarray(values, dtype=np.float64), -LARGEST, LARGEST)
    bits = np.ascontiguousarray(bounded, dtype=np.float32).reshape(-1).view(np.uint32).astype(np.int64)
    return _packed(np.where(np.isnan(bounded).reshape(-1), bits, bits + 0x80) >> 8)


def pack_whole(values: NDArray[np.integer]) -> str:
    """Whole numbers from -1 to 16,777,214, in base64; -1 stands for none.

    >>> pack_whole(np.array([0, 65, -1]))
    'AAAAAABB////'
    """
    return _packed(np.ascontiguousarray(values, dtype=np.int64).reshape(-1) & 0xFFFFFF)


def _packed(numbers: NDArray[np.integer]) -> str:
    parts = np.stack([numbers >> 16, numbers >> 8, numbers], axis=-1) & 0xFF
    return base64.b64encode(parts.astype(np.uint8).tobytes()).decode()
