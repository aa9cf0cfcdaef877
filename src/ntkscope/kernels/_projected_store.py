"""Projected gradients on disk: filled chunk by chunk, opened as a Gram, and met by new inputs of the same model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from ntkscope.core.errors import StoreError
from ntkscope.core.identity import asked_items
from ntkscope.core.numerics import numerics
from ntkscope.core.sizes import parse_bytes
from ntkscope.kernels._projecting import blocks, check_room, project
from ntkscope.kernels._sketch import Sketch
from ntkscope.kernels._sketching import Room, project_block
from ntkscope.kernels._stored import KnowsItsNetwork
from ntkscope.kernels.registry import Request
from ntkscope.linalg import Gram
from ntkscope.linalg.grams.tiling import TileValues
from ntkscope.storage.chunks import Chunks
from ntkscope.storage.feature_store import FeatureStore
from ntkscope.storage.filling import fill
from ntkscope.storage.stored_features import open_features
from ntkscope.tangent.blocks.heads import Heads, as_heads
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.certify.fallback import Fallback
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.kernel.products import Maker
from ntkscope.tangent.kernel.store_source import TangentRecipe
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.batches import Batch, as_batch
from ntkscope.tangent.model.fingerprint import (
    inputs_fingerprint,
    names_fingerprint,
    network_answers,
    network_identity,
)
from ntkscope.tangent.model.subject import quiet

CHUNK = 1 << 28  # bytes of a chunk at most
STEPS = ("rows", "held", "inner")  # of a room: they decide the rounding, so a store keeps those it was begun with
ASKED = "features/asked"  # the inputs whose answers a store keeps: `extend` asks the network for them again


def recorded_factored(request: Request) -> frozenset[str] | None:
    """Which parameters the request's store has factored, if it exists."""
    found = None if request.store is None else FeatureStore.find(request.store)
    return None if found is None else frozenset(_recipe(found).get("factored", ()))


def stored(
    engine: Engine, request: Request, sketch: Sketch, normalize: bool, groups: int, meta: Mapping[str, Any]
) -> Gram:
    """The projected features of `request.x1` in `request.store`, the chunks that were missing or damaged computed."""
    assert request.store is not None
    width = engine.width * sketch.dim
    asked = _packed(request.x1)
    found = FeatureStore.find(request.store)
    room = blocks(engine, request.memory, sketch, 0)
    rows = max(1, min(room.block, CHUNK // (width * engine.subject.dtype.itemsize))) if found is None else found.rows
    recipe = {
        "kind": sketch.kind,
        "dim": sketch.dim,
        "seed": request.seed,
        "sparsity": sketch.sparsity,
        "factored": sorted(sketch.kronecker),
        "outputs": request.numbers,
        "summed": engine.heads.summed,
        "params": sorted(engine.subject.leaves),
        "precision": engine.precision.name,
        "steps": {name: getattr(room, name) for name in STEPS},
        "memory": request.memory,
    }
    store = FeatureStore.prepare(
        request.store,
        n=len(request.x1),
        width=width,
        rows=rows,
        dtype=engine.subject.dtype,
        labels={
            "name": request.name,
            "normalize": normalize,
            "groups": groups,
            "meta": dict(meta),
            "recipe": recipe,
            "asked": hashlib.sha256(asked).hexdigest(),
        },
        fingerprint=_fingerprint(engine, request, sketch, normalize),
        answers=lambda: network_answers(request.model, request.x1, dtype=request.dtype, device=request.device),
    )
    if store.folder.size(ASKED) is None:
        store.folder.put(ASKED, asked)
    room = room._replace(block=min(rows, len(request.x1)), **_steps(store))
    if request.memory < int(_recipe(store).get("memory", 0)):  # less than it was begun with
        check_room(engine, sketch, room, request.memory)
    tangents = request.recipe(engine.subject, engine.heads, False, engine.precision.name)
    source = ProjectedRows(tangents, request.x1, store, sketch, room, engine.device)
    fill(Chunks(store), source, executor=request.executor, progress=request.progress)
    return open_features(store.url, coverage=source.coverage())


class ProjectedRows(KnowsItsNetwork):
    """The projected gradients of every input of a store, chunk by chunk."""

    also = ("projection",)

    def __init__(
        self, recipe: TangentRecipe, x: Batch, store: FeatureStore, sketch: Sketch, room: Room, device: torch.device
    ) -> None:
        super().__init__(
            recipe,
            x,
            None,
            grid=store.grid,
            dtype=store.dtype,
            device=device,
            labels=store.labels,
            fingerprint=store.fingerprint,
        )
        self.sketch, self.room = sketch, room

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.fingerprint = {**self.fingerprint, "maps": numerics("projection")}

    def _make(self, maker: Maker) -> Engine:
        assert isinstance(maker, Engine)
        return maker

    def _compute(self, made: Engine, i: int, j: int, fallback: Fallback) -> TileValues:
        with made.precision.context():
            backward_pass = made.capture(self.x1[self.grid.rows(i)])
            return TileValues(scaled(made, project_block(made, backward_pass, self.sketch, self.room)))


def scaled(engine: Engine, features: Tensor) -> Tensor:
    """Features (n, heads, dim) as rows; those of a summed output over the root of how many there are."""
    return features.flatten(1) / engine.chosen**0.5 if engine.heads.summed else features.flatten(1)


def _fingerprint(engine: Engine, request: Request, sketch: Sketch, normalize: bool) -> dict[str, str]:
    chosen = request.numbers
    return {
        "kernel": request.name,
        **network_identity(request.model),
        "inputs": inputs_fingerprint(request.x1),
        "outputs": "all" if chosen is None else ", ".join(map(str, chosen)),
        "parameters": names_fingerprint(list(engine.subject.leaves)),
        "projection": f"{sketch.kind}, {sketch.dim} columns, sparsity {sketch.sparsity}, seed {request.seed}",
        "cosines": str(normalize),
        "precision": engine.precision.name,
        "computed in": str(engine.subject.dtype).removeprefix("torch."),
        "computed on": engine.subject.device.type,
        "maps": numerics("projection"),
        "ntkscope": numerics("tangent", "projection", request.name),
    }


def extend(
    url: str | os.PathLike[str],
    model: nn.Module,
    x: Any,
    *,
    device: torch.device | str | None = None,
    memory: str | int | float = "2GiB",
    progress: bool = False,
) -> Gram:
    """The kernel between new inputs (rows) and those whose projected gradients are in the store at `url` (columns).

    Only the new inputs are run and projected, by the projection of the store. Another model than the one the store was made
    with is refused, and so is a version of ntkscope that draws projections in another way.

    Examples:
        >>> K = ns.kernel("proj-trntk", model, x, dim=64, store=folder)
        >>> new = extend(folder, model, x[:3])
        >>> new.shape, bool(torch.allclose(new.dense(), K[:3].dense()))
        ((3, 12), True)
    """
    store = FeatureStore.open(url)
    recipe = _recipe(store)
    own = {**network_identity(model), "maps": numerics("projection")}
    wrong = [name for name, value in own.items() if store.fingerprint.get(name) != value]
    if wrong:
        raise StoreError(
            f"{store.url} was made with another {' and another '.join(wrong)}; expected the model and the version of"
            " ntkscope its features were made with: project the inputs again into a new store"
        )
    guards.check_mode(model)
    request = Request(
        name=str(store.labels.get("name", "")),
        model=model,
        x1=as_batch(x, model),
        x2=None,
        outputs=recipe.get("outputs"),
        params=list(recipe["params"]),
        dtype=store.dtype,
        device=device,
        memory=parse_bytes(memory),
        progress=progress,
        seed=int(recipe["seed"]),
    )
    numbers = None if store.answers is None else store.answers.items
    few = _unpacked(store, request.x1)
    store.compare_answers(network_answers(model, few, dtype=store.dtype, device=device, numbers=numbers))
    request.check_inputs()
    sketch = Sketch(
        recipe["kind"], recipe["dim"], recipe["seed"], recipe["sparsity"], frozenset(recipe.get("factored", ()))
    )
    with quiet(request.place(), request.model):
        left = _projected(
            request, as_heads(request.outputs, summed=bool(recipe["summed"])), sketch, recipe["precision"]
        )
    return open_features(store.url, left.cpu())


def _packed(x: Batch) -> bytes:
    """The inputs that `network_answers` asks the network about."""
    few = x[torch.tensor(asked_items(len(x)))]
    return bytes(safetensors.torch.save({str(k): t.cpu().contiguous() for k, t in enumerate(few.tensors())}))


def _unpacked(store: FeatureStore, like: Batch) -> Batch:
    """Those inputs again, arranged as the inputs of this call are."""
    size = store.folder.size(ASKED)
    data = None if size is None else store.folder.get(ASKED, size)
    if data is None or hashlib.sha256(data).hexdigest() != store.labels.get("asked"):
        raise StoreError(
            f"{store.folder.name(ASKED)} is not what was written, so nobody can tell whether this is the store's network:"
            " fill the store again, or project the inputs into a new one"
        )
    try:
        kept = iter(safetensors.torch.load(bytes(data)).items())
        tensors = [value for _, value in sorted(kept, key=lambda pair: int(pair[0]))]
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise StoreError(
            f"{store.folder.name(ASKED)} holds no inputs ({error}); expected those the store was begun with: project the inputs"
            " into a new store"
        ) from error
    if len(tensors) != len(like.tensors()):
        raise StoreError(
            f"got inputs of {len(like.tensors())} tensors; {store.url} was made with {len(tensors)}: give inputs of its kind"
        )
    place = like.tensors()[0].device
    rest = iter(tensors)
    return like[:1].map(lambda t: next(rest).to(place))


def _projected(request: Request, heads: Heads, sketch: Sketch, precision: str) -> Tensor:
    engines = request.engines()
    rounding = Precision(precision, engines.subject.dtype)
    attempts = engines.attempts(request.x1, heads, full=False, precision=rounding)
    while True:
        with attempts, rounding.context():
            engine = attempts.engine()
            return scaled(engine, project(engine, request, request.x1, sketch))


def _recipe(store: FeatureStore) -> dict[str, Any]:
    """How the features of a store were made, as its labels say."""
    recipe = store.labels.get("recipe")
    kinds = {"kind": str, "dim": int, "seed": int, "sparsity": int, "params": list, "precision": str, "summed": bool}
    if not isinstance(recipe, dict) or not all(isinstance(recipe.get(name), kind) for name, kind in kinds.items()):
        raise StoreError(f"{store.url} does not say how its features were projected; expected one written by ns.kernel")
    return recipe


def _steps(store: FeatureStore) -> dict[str, int]:
    """In what steps the features of a store were projected: others would give other last digits."""
    found = _recipe(store).get("steps")
    if not isinstance(found, dict) or not all(type(found.get(name)) is int and found[name] > 0 for name in STEPS):
        raise StoreError(f"{store.url} does not say in what steps its features were projected; begin a new store")
    return {name: found[name] for name in STEPS}
