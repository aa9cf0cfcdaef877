"""The evidence behind each explained item, class by class, packed for the explorer; reads records of earlier versions too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.report.packing import pack_floats, pack_whole
from ntkscope.report.source import Source

CLASSES = 12  # at most this many training classes are shown for one logit
LOGITS = 3  # most probable classes whose logits can be selected, in addition to the predicted and the true one

Whole = Int64[np.ndarray, "..."]
Floats = Float64[np.ndarray, "..."]


@dataclass(frozen=True)
class Evidence:
    """Arrays with one entry per item and class that can be selected; -1 and NaN stand for none.

    `first` are the items whose arrays hold one class only, that of the surrogate, as records of earlier versions do.
    """

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


def evidence(said: Sequence[tuple[int, int, int]], rows: Sequence[int], source: Source) -> Evidence:
    """The evidence of all items; `said`: the classes of surrogate, network and label of each, `rows`: its test item."""
    stored = source.array("explain.chosen")
    means = source.array("explain.class_mean")
    chosen = _chosen(said, rows, source) if stored is None else np.asarray(stored, dtype=np.int64)
    t, c = chosen.shape
    classes = _count(source, means, chosen)
    every = np.full((t, c, classes), np.nan)
    if means is not None:
        rank, place = np.nonzero((chosen >= 0) & (chosen < means.shape[1]))
        every[rank, place, : means.shape[2]] = np.asarray(means)[rank, chosen[rank, place]]
    shown = _loudest(every, chosen, said)
    own = _own(chosen, said, stored is None)
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
            logits[name] = np.where(chosen >= 0, values, np.nan)
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


def _count(source: Source, means: np.ndarray | None, chosen: np.ndarray) -> int:
    return int(max(len(source.classes), 0 if means is None else means.shape[2], int(chosen.max(initial=0)) + 1))


def _chosen(said: Sequence[tuple[int, int, int]], rows: Sequence[int], source: Source) -> Whole:
    """The classes a reader may select where the record does not say: surrogate's, network's, label, most probable."""
    probabilities = source.array("network.test_probabilities")
    lists = []
    for (predicted, network, true), i in zip(said, rows, strict=True):
        likely: list[int] = []
        if probabilities is not None and i < len(probabilities):
            likely = np.argsort(-np.asarray(probabilities[i]), kind="stable")[:LOGITS].tolist()
        lists.append(list(dict.fromkeys([network, predicted, true, *likely])))
    out = np.full((len(lists), max(map(len, lists), default=1)), -1, dtype=np.int64)
    for n, found in enumerate(lists):
        out[n, : len(found)] = found
    return out


def _own(chosen: Whole, said: Sequence[tuple[int, int, int]], single: bool) -> np.ndarray:
    """Which of the chosen classes the arrays hold: all, or in earlier records the surrogate's alone."""
    if not single:
        return np.asarray(chosen >= 0)
    return np.asarray(chosen == np.array([predicted for predicted, _, _ in said], dtype=np.int64).reshape(-1, 1))


def _spread(values: np.ndarray | None, own: np.ndarray, ending: tuple[int, ...], empty: float = np.nan) -> Floats:
    """An array with an entry for every chosen class; `ending` is the shape of one entry."""
    out = np.full((*own.shape, *ending), empty)
    if values is None:
        return out
    held = np.asarray(values, dtype=np.float64)
    if held.ndim == len(ending) + 1:  # one class per item
        held = np.broadcast_to(held[:, None], (len(held), own.shape[1], *held.shape[1:]))
    room = tuple(slice(0, min(a, b)) for a, b in zip(held.shape, out.shape, strict=True))
    out[room] = held[room]
    out[~own] = empty
    return out


def _loudest(means: Floats, chosen: Whole, said: Sequence[tuple[int, int, int]]) -> Whole:
    """(t, C, S): the training classes to show for each logit, in their order: all, or those with the largest contributions."""
    t, c, classes = means.shape
    if classes <= CLASSES:
        return np.broadcast_to(np.arange(classes), (t, c, classes)).astype(np.int64)
    out = np.full((t, c, CLASSES), -1, dtype=np.int64)
    size = np.where(np.isfinite(means), np.abs(means), -1.0)
    loud = np.argsort(-size, axis=2, kind="stable")[:, :, : CLASSES - 2]
    for n in range(t):
        for k in range(c):
            found = sorted({*loud[n, k].tolist(), max(int(chosen[n, k]), 0), said[n][2]})
            out[n, k, : len(found)] = found
    return out
