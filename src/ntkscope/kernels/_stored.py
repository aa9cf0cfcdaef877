"""Kernels on disk: the source of tiles for a request, its store found or made, filled, and opened as a Gram."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from ntkscope.core import UsageError
from ntkscope.core.identity import Answers
from ntkscope.core.numerics import numerics
from ntkscope.kernels.registry import Request
from ntkscope.linalg.grams.gram import Gram
from ntkscope.storage.filling import fill
from ntkscope.storage.kernel_store import KernelStore
from ntkscope.storage.tiled import open_kernel
from ntkscope.tangent.certify.fallback import Fallback
from ntkscope.tangent.kernel.plan import FEW_STORED, Cut, check_schedule, cut_for, heads_at_once
from ntkscope.tangent.kernel.products import Maker
from ntkscope.tangent.kernel.store_source import FeatureTiles, NetworkSource, Recipe
from ntkscope.tangent.model.fingerprint import (
    code_identity,
    inputs_fingerprint,
    network_answers,
    network_identity,
)
from ntkscope.tangent.trace.probed import probed


def stored(
    request: Request,
    recipe: Recipe,
    options: Mapping[str, str],
    *,
    meta: Mapping[str, Any],
    scale: float = 1.0,
    normalize: bool = False,
    schedule: str = "blocks",
) -> Gram:
    """The kernel in `request.store`, the tiles that were missing computed; `options`: what else the numbers depend on.

    `normalize`: the values are kept as they are, and opened as cosines. `schedule`: how a new store is cut.
    """
    assert request.store is not None
    check_schedule(schedule)
    maker = recipe.make(probed(request.x1, request.x2), Fallback())
    found = KernelStore.find(request.store)
    outputs = maker.width if maker.full else 1
    if found is None:
        cut = _cut(request, maker, outputs, schedule)
    else:
        cut = Cut.from_json(found.labels.get("cut"), found.url)
    labels = {
        "name": request.name,
        "rows": "samples" if outputs == 1 else f"sample*{outputs} + output",
        "outputs": outputs,
        "normalize": normalize,
        "cut": cut.to_json(),
        "meta": {**meta, "torch": ".".join(torch.__version__.split(".")[:2])},
    }
    source = NetworkTiles(
        recipe,
        request.x1,
        request.x2,
        cut,
        maker,
        memory=request.memory,
        labels=labels,
        fingerprint=_fingerprint(request, options, maker, cut),
        scale=scale,
    )
    store = KernelStore.prepare(request.store, source)
    cut.workers(maker.group_footprint(cut.heads), request.memory, 1)  # an error where its tiles do not fit
    began = time.perf_counter()
    computed = fill(store, source, executor=request.executor, progress=request.progress)
    gram = open_kernel(store.url)
    account = {"tiles": len(store.grid), "computed": computed, "seconds": time.perf_counter() - began}
    here = {} if request.executor is not None else _spent(source, account["seconds"])
    coverage = source.coverage()
    return gram.with_labels(
        meta={**gram.meta, "run": {**account, "spent": here}},
        coverage=coverage if coverage is not None and coverage.methods else None,
    )


def _cut(request: Request, maker: Maker, outputs: int, schedule: str) -> Cut:
    """The cut of a new store; where features of all heads leave room for few samples, heads are taken in groups."""
    threads = torch.get_num_threads() if maker.device.type == "cpu" else 1
    n, m = len(request.x1), None if request.x2 is None else len(request.x2)

    def cut(heads: int) -> Cut:
        return cut_for(n, m, maker.group_footprint(heads), request.memory, threads, outputs, schedule)

    if maker.full or maker.width == 1:
        return cut(0)
    heads = heads_at_once(maker.width, min(max(n, m or n), FEW_STORED), lambda count: cut(count).size)
    return cut(heads) if heads == maker.width else replace(cut(heads), heads=heads)


class KnowsItsNetwork(NetworkSource[Any]):
    """A source that knows whose numbers it computes: where it is unpickled, the code of that process counts."""

    also: ClassVar[tuple[str, ...]] = ()  # numerics it depends on besides those of gradients

    def answers(self) -> Answers:
        """What the network says to a few of the row inputs."""
        return network_answers(self.recipe.model, self.x1, dtype=self.recipe.dtype, device=self.recipe.device)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        own = {
            "code of the model": code_identity(self.recipe.model),
            "ntkscope": numerics("tangent", *self.also, self.labels["name"]),
        }
        self.fingerprint = {**self.fingerprint, **own}


class NetworkTiles(KnowsItsNetwork, FeatureTiles):
    """Tiles of a kernel."""


def refuse_store(request: Request, what: str, remedy: str) -> None:
    """Say that this has no tiles, where a store was asked for."""
    if request.store is not None:
        raise UsageError(f"got store= with {what}; {remedy}")


def _fingerprint(request: Request, options: Mapping[str, str], maker: Maker, cut: Cut) -> dict[str, str]:
    """All that the numbers depend on. PyTorch's version is not among it: it may change last digits, and is a label."""
    chosen = request.numbers
    return {
        "kernel": request.name,
        **network_identity(request.model),
        "row inputs": inputs_fingerprint(request.x1),
        "column inputs": inputs_fingerprint(request.x2),
        "outputs": "all" if chosen is None else ", ".join(map(str, chosen)),
        **options,
        "computed in": str(maker.dtype).removeprefix("torch."),
        "computed on": maker.device.type,
        "cut": str(cut),
        "ntkscope": numerics("tangent", request.name),
    }


def _spent(source: FeatureTiles, seconds: float) -> dict[str, float]:
    """What the seconds of a run in this process went to; those of several threads at once count as what they took.

    A GPU works on while the next step is being asked for, so there a tile's seconds are not divided.
    """
    if source.device.type != "cpu":
        return {"making tiles": source.seconds, "disk": max(0.0, seconds - source.seconds)}
    coverage = source.coverage()
    stages = {} if coverage is None else dict(coverage.stages)
    busy = sum(stages.values())
    spent = {name: own / busy * source.seconds for name, own in stages.items()} if busy else {}
    spent["making tiles"] = spent.pop("writing", 0.0)
    return {**spent, "disk": max(0.0, seconds - source.seconds)}
