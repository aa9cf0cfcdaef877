"""Activations on disk: one store of features per layer, all of them filled by the same passes over the samples."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.errors import StoreError
from ntkscope.core.identity import Answers, drawn, identity
from ntkscope.core.numerics import numerics
from ntkscope.core.sizes import over_budget
from ntkscope.core.types import fingerprint
from ntkscope.storage.feature_store import FeatureStore
from ntkscope.storage.lacking import DamageWarning
from ntkscope.tangent.certify.features import AuditedFeatures
from ntkscope.tangent.kernel.products import ranges
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.fingerprint import DIGITS, inputs_fingerprint, network_identity

CHUNK = 1 << 27  # bytes of one chunk of all layers together
# samples the network is run on at once: it decides the rounding, so a store keeps what it was begun with
BLOCK = "block"


@dataclass(frozen=True)
class Layer:
    """One layer's rows."""

    name: str
    width: int
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Of one row."""
        return self.width * self.dtype.itemsize


def filled(
    audited: AuditedFeatures,
    batch: Batch,
    layers: Sequence[Layer],
    url: str | os.PathLike[str],
    reduce: Any,
    memory: int,
    passing: int,
    largest: int,
) -> dict[str, FeatureStore]:
    """The layers' stores below `url`, what was missing or damaged computed; of what is there, one chunk is compared."""
    places = {layer.name: _below(url, layer.name) for layer in layers}
    begun = next((store for place in places.values() if (store := FeatureStore.find(place))), None)
    if begun is None:
        block = max(1, min(largest, len(batch), memory // 2 // max(1, passing)))
        room = min(CHUNK, (memory - block * passing) // 2) // sum(layer.bytes for layer in layers)
        rows = max(block, room // block * block)
    else:
        block, rows = _begun_with(begun), begun.rows
    each = sum(layer.bytes for layer in layers)
    if (needed := block * passing + 2 * rows * each) > memory:
        raise over_budget(memory, needed, f"for {rows} rows of {', '.join(places)} at a time")
    stores = {
        layer.name: _prepared(audited, batch, layer, number, places[layer.name], reduce, rows, block)
        for number, layer in enumerate(layers)
    }
    todo = {name: _lacking(store) for name, store in stores.items()}
    count = len(next(iter(stores.values())))
    common = [k for k in range(count) if all(k not in lacking for lacking in todo.values())]
    again = drawn(common) if common else None
    for k in range(count):
        if k != again and not any(k in lacking for lacking in todo.values()):
            continue
        for (name, store), rows_of in zip(stores.items(), _chunk(audited, batch, store_span(stores, k), block)):
            if k in todo[name]:
                store.write(k, rows_of, audited.subject.device)
            else:
                store.compare_chunk(k, rows_of, audited.subject.device)
    return stores


def store_span(stores: dict[str, FeatureStore], k: int) -> slice:
    """The samples of chunk k, the same in every layer."""
    return next(iter(stores.values())).span(k)


def _chunk(audited: AuditedFeatures, batch: Batch, span: slice, block: int) -> list[Tensor]:
    parts = [audited(batch[at.start : at.stop]) for at in ranges(span.start, span.stop, block)]
    return [torch.cat(values).cpu() for values in zip(*parts)]


def _lacking(store: FeatureStore) -> set[int]:
    """The chunks that are missing, and those that are damaged, which go."""
    store.folder.clear_leftovers()
    damaged = store.damaged()
    if damaged:
        warnings.warn(
            f"{store.url}: chunks {', '.join(map(str, damaged[:10]))} are damaged (not the bytes that were written) and are"
            " computed again",
            DamageWarning,
            stacklevel=2,
        )
    for k in damaged:
        store.drop(k)
    return set(store.missing())


def _prepared(
    audited: AuditedFeatures, batch: Batch, layer: Layer, number: int, place: str, reduce: Any, rows: int, block: int
) -> FeatureStore:
    subject = audited.subject

    def ask(items: list[int]) -> Tensor:
        return audited.compute(subject, subject.placed(batch[torch.tensor(items)]))[number]

    return FeatureStore.prepare(
        place,
        n=len(batch),
        width=layer.width,
        rows=rows,
        dtype=layer.dtype,
        labels={"name": f"activations of {layer.name}", "recipe": {BLOCK: block}},
        fingerprint={
            "features": "activations",
            "layer": layer.name,
            **network_identity(subject.original),
            "inputs": inputs_fingerprint(batch),
            "reduce": reduce if isinstance(reduce, str) else identity(reduce),
            "computed on": subject.device.type,
            "ntkscope": numerics("activations"),
        },
        answers=lambda: Answers.of(ask, len(batch), subject.device),
    )


def _begun_with(store: FeatureStore) -> int:
    """In what blocks the network was run for this store."""
    recipe = store.labels.get("recipe")
    block = recipe.get(BLOCK) if isinstance(recipe, dict) else None
    if not isinstance(block, int) or isinstance(block, bool) or not 1 <= block <= store.n:
        raise StoreError(f"{store.url} does not say in what blocks its activations were computed; begin a new store")
    return block


def _below(url: str | os.PathLike[str], name: str) -> str:
    """The address of a layer's store: its name, with a hash where the name is no name of a folder."""
    plain = all(letter.isalnum() or letter in "._-" for letter in name) and not name.startswith(".")
    if not name:
        raise UsageError("got a layer without a name; expected the name of a module")
    folder = name if plain else f"layer-{fingerprint(name)[:DIGITS]}"
    return f"{os.fspath(url).rstrip('/')}/{folder}"
