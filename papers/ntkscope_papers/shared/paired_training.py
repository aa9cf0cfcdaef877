"""A network and its linearisation trained alike: the same initial weights and the same batches, proved by fingerprints."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope import training
from ntkscope.core import Params, Part, Snapshot
from ntkscope.core.model.tree import move
from ntkscope.core.types import fingerprint
from ntkscope.surrogates import linearize
from ntkscope.training import LearningRateSteps
from ntkscope.training.augment import ItemAugmentation
from ntkscope.training.batches import BatchOrder
from ntkscope.training.ensembles.stacked import each_member, outputs_of
from ntkscope.training.evaluation import evaluating
from ntkscope_papers.framework.legs import showing

KINDS = ("network", "linear")
MOST = 2048  # items whose outputs are computed at a time


@dataclass(frozen=True)
class Recipe:
    """How both are trained: SGD with momentum on the mean over outputs of the squared error, unless `loss` says otherwise.

    `drop`: the rate is divided by ten every so many epochs; 0 for never. `tf32`: CUDA may round products to it.
    """

    epochs: int
    lr: float = 0.1
    weight_decay: float = 5e-5
    momentum: float = 0.9
    batch: int = 32
    drop: int = 0
    loss: str = "mse"
    double: bool = False
    tf32: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.double else torch.float32

    def options(self) -> dict[str, Any]:
        """The settings of `fit_ensemble`."""
        steps = range(self.drop, self.epochs, self.drop) if self.drop else ()
        return {
            "optimizer": "sgd",
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "momentum": self.momentum,
            "batch_size": self.batch,
            "epochs": self.epochs,
            "loss": self.loss,
            "schedule": LearningRateSteps(tuple((epoch, 0.1) for epoch in steps)),
            "dtype": self.dtype,
        }


@dataclass(frozen=True, eq=False)
class Trained:
    """Members trained together: their outputs on some parts, at some epochs, and what shows that pairs are pairs."""

    template: nn.Module
    params: Params
    buffers: Params
    vectorised: bool
    diverged: list[bool]
    weights: list[str]
    """Of the network at w₀, one per member."""
    batches: list[str]
    seconds: float
    notes: tuple[str, ...]

    def outputs(self, x: Tensor) -> Float[Tensor, "k n c"]:
        """Of every member, on the CPU in float64."""
        return stacked_outputs(self.template, self.params, self.buffers, x, self.vectorised)


def stacked_outputs(
    template: nn.Module, params: Params, buffers: Params, x: Tensor, vectorised: bool
) -> Float[Tensor, "k n c"]:
    """The outputs of stacked networks, some items at a time, in float64 on the CPU."""
    some = next(iter(params.values()))
    forward = each_member(partial(outputs_of, template), (0, 0, None), vectorised)
    size = max(64, MOST // len(some))
    with evaluating(template), torch.no_grad():
        found = [forward(params, buffers, part.to(some)).double().cpu() for part in x.split(size)]
    return torch.cat(found, dim=1)


def train_members(
    kind: str,
    build: Callable[[int], nn.Module],
    part: Part | Sequence[Part],
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    augment: ItemAugmentation | None = None,
    rates: Mapping[str, Sequence[float]] | None = None,
    watch: Callable[[Snapshot, nn.Module, bool], None] | None = None,
    moments: Sequence[int] = (),
    device: torch.device,
    store: Path | None = None,
) -> Trained:
    """`build(seed)`, or its linearisation (`kind`), for every seed, as one ensemble; `rates` has lr and decay of each member.

    `watch` is called at the epochs `moments` with the stacked weights. With a folder to `store` them in, a killed training
    continues where it was. Single precision is single precision: no TF32, unless
    the recipe says so.
    """
    first = part if isinstance(part, Part) else part[0]
    per_epoch = BatchOrder(len(first), min(recipe.batch, len(first)), 0).per_epoch
    shown = copy.deepcopy(_member(kind, build, seeds[0])).to(device, recipe.dtype)

    def look(snapshot: Snapshot) -> None:
        here = {
            "params": move(snapshot.params, device),
            "buffers": move(snapshot.buffers, device),
        }  # a store has it elsewhere
        if watch is not None:
            watch(replace(snapshot, **here), shown, True)

    began = time.perf_counter()
    with products(recipe.tf32):
        ensemble = training.fit_ensemble(
            partial(_member, kind, build),
            part,
            seeds=list(seeds),
            augment=augment,
            device=device,
            diverged="nan",
            snapshots=[epoch * per_epoch for epoch in moments],
            on_snapshot=look,
            store=store,
            progress=showing(),
            **{**recipe.options(), "batch_size": min(recipe.batch, len(first)), **(rates or {})},
        )
    lost = ensemble.diverged
    return Trained(
        ensemble.template,
        ensemble.params,
        ensemble.buffers,
        ensemble.vectorised,
        [False] * len(seeds) if lost is None else lost.tolist(),
        [weights_fingerprint(build(seed)) for seed in seeds],
        [batches_fingerprint(len(first), recipe, seed, augment) for seed in seeds],
        time.perf_counter() - began,
        ensemble.notes,
    )


@contextmanager
def products(tf32: bool) -> Iterator[None]:
    """Products and convolutions on a GPU with TF32 or without."""
    before = torch.backends.cuda.matmul.allow_tf32
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=tf32):
        try:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


def _member(kind: str, build: Callable[[int], nn.Module], seed: int) -> nn.Module:
    model = build(seed).eval()
    return linearize(model) if kind == "linear" else model


def weights_fingerprint(model: nn.Module) -> str:
    """Of w₀."""
    return fingerprint({name: value.detach() for name, value in model.state_dict().items()})[:16]


def batches_fingerprint(items: int, recipe: Recipe, seed: int, augment: ItemAugmentation | None) -> str:
    """Of the items of every batch of the first and the last epoch, in order, and of the draws of their augmentation."""
    order = BatchOrder(items, min(recipe.batch, items), seed)
    epochs = sorted({0, max(0, recipe.epochs - 1)})
    keys = [] if augment is None else [list(augment.keys(seed, epoch)) for epoch in epochs]
    return fingerprint([order.permutation(epoch) for epoch in epochs], keys)[:16]


def one_hot(part: Part, classes: int) -> Part:
    """Class numbers as rows of zeros with a one."""
    return replace(part, y=torch.nn.functional.one_hot(part.y, classes).to(torch.float32))
