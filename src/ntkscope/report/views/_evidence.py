"""The evidence behind each explained item, class by class, packed for the explorer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from ntkscope.report.source import Source

CLASSES = 12  # at most this many training classes are shown for one logit
DIGITS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8)
NONE = (1 << 18) - 1  # the largest number in three digits: no number

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
        """Text for the explorer's script; of all but `chosen`, one row per item and class it can be explained for."""
        own = self.chosen >= 0
        trivial = bool((self.shown == np.arange(self.shown.shape[2])).all())
        found: dict[str, Any] = {
            "chosen": pack(self.chosen),
            "shown": None if trivial else pack(self.shown[own]),
            "means": pack(self.means[own]),
            "box": pack(self.box[own]),
            "concentration": pack(self.concentration[own]),
        }
        for name, (index, value) in self.pairs.items():
            found[name] = {"index": pack(index[own]), "value": pack(value[own])}
        return {**found, **{f"{name}_logit": pack(values[own]) for name, values in self.logits.items()}}

    def training_items(self) -> set[int]:
        """Every training item that some item's evidence shows."""
        named = [index[index >= 0] for name, (index, _) in self.pairs.items() if name != "outliers"]
        return set(np.concatenate(named).tolist()) if named else set()


def evidence(true: Sequence[int], source: Source) -> Evidence:
    """The evidence of all items; `true`: the label of each."""
    chosen = np.asarray(source.array("explain.chosen"), dtype=np.int64)
    own, means = chosen >= 0, source.array("explain.mean")
    held = 0 if means is None else means.shape[2]
    classes = max(len(source.classes), held, int(chosen.max(initial=0)) + 1)
    every = _spread(means, own, (classes,))
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


def pack(values: np.ndarray) -> dict[str, Any]:
    """Numbers as text of the same length each, so that a script can read any of them without reading the rest.

    Whole numbers from -1, which stands for none, are written with the digits of base64. Floats have three digits: a sign,
    7 bits of exponent and 10 of fraction, in units of the largest one's power of two; that is right to one part in 2,000.

    >>> pack(np.array([[0, 65, -1]]))
    {'shape': [3], 'size': 3, 'data': 'AAAABB///'}
    >>> pack(np.array([1.0, -0.75, np.nan]))
    {'shape': [], 'size': 3, 'exponent': 1, 'data': 'AAAgYA///'}
    """
    flat, shape = values.reshape(-1), list(values.shape[1:])
    if values.dtype.kind != "f":
        size = 3 if flat.max(initial=0) < NONE else 5
        return {"shape": shape, "size": size, "data": _digits(np.where(flat < 0, 64**size - 1, flat), size)}
    finite = np.isfinite(flat)
    fraction, exponent = np.frexp(np.where(finite, flat, 0.0))
    fraction = np.rint(np.abs(fraction) * 2048).astype(np.int64)  # 1024 … 2048
    exponent, fraction = np.where(fraction == 2048, exponent + 1, exponent), np.where(fraction == 2048, 1024, fraction)
    top = int(exponent[fraction > 0].max(initial=-2000)) if fraction.any() else 0
    below = np.where(fraction > 0, top - exponent, 127)  # powers of two below the largest; 127: zero
    code = (
        (flat < 0).astype(np.int64) << 17
        | np.minimum(below, 127).astype(np.int64) << 10
        | (fraction - 1024) * (below < 127)
    )
    return {"shape": shape, "size": 3, "exponent": top, "data": _digits(np.where(finite, code, NONE), 3)}


def _digits(numbers: NDArray[np.integer], size: int) -> str:
    places = [(numbers >> 6 * place) & 63 for place in reversed(range(size))]
    return DIGITS[np.stack(places, axis=-1)].tobytes().decode()
