"""Resuming a run: whether the network, the data and every function of the settings still do what they did."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import NumericalError, Snapshot
from ntkscope.core.errors import RecordError, StoreError
from ntkscope.core.identity import Answers, drawn, identity, machine, network_identity, tolerance
from ntkscope.core.identity.answers import MOST
from ntkscope.core.identity.pieces import tensor_bytes
from ntkscope.core.model.calling import call
from ntkscope.core.numerics import numerics
from ntkscope.training.evaluation import evaluating
from ntkscope.training.run import Run
from ntkscope.training.snapshots import restore
from ntkscope.training.store import SnapshotStore

METRICS = 1e-5  # of a loss: the same items in the same batches, summed in another order by another number of threads
SOURCES = ("training", "core/model/tree.py", "core/model/calling.py")  # the files that decide the numbers
REMEDY = "train with the same network and functions to resume it, or choose another folder"


def describe(run: Run, data: str, start: Snapshot | None) -> dict[str, Any]:
    """Everything the numbers of a run depend on; `start`: the snapshot it begins from, unless from the network's own."""
    network = network_identity(run.model)
    if start is not None:
        network["model"] = identity(start.step, start.params, start.buffers, start.optimizer, start.random)
    return {**run.settings.describe(), **network, "data": data, "ntkscope": numerics("training")}


def answers(run: Run) -> Answers:
    """The network's outputs before training on a few of the training items, in evaluation mode."""

    def ask(items: list[int]) -> Tensor:
        few = run.part.take(items).to(run.device)
        with evaluating(run.model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # for a network that draws even then
            return call(run.model, few.x)

    return Answers.of(ask, len(run.part), run.device)


def first_update(run: Run) -> dict[str, Any]:
    """What a run's first update did: gradients to be compared up to rounding, and a hash of the parameters after it."""
    gradients = [_dense(p.grad.detach()) for p in run.model.parameters() if p.grad is not None]
    step = max(1, -(-sum(map(len, gradients)) // MOST))
    some: list[float] = []
    before = 0
    for gradient in gradients:
        some += gradient[-before % step :: step].double().tolist()
        before += len(gradient)
    return update_told(some, (*run.model.named_parameters(), *run.model.named_buffers()), run.device)


def update_told(
    some: list[float], tensors: Iterable[tuple[str, Tensor]], device: torch.device, more: str = ""
) -> dict[str, Any]:
    """What is kept of a first update: `some` numbers, a hash of all tensors after it, and what decides their bits: the machine
    and how many threads share a sum."""
    hasher = hashlib.sha256()
    for name, value in tensors:
        hasher.update(name.encode() + tensor_bytes(value))
    kept = Answers((), tuple(some), "float32", "rounding")
    where = f"{machine(device)}-{torch.get_num_threads()}{more}"
    return {**kept.to_json(), "parameters": hasher.hexdigest(), "machine": where}


def compare_first(store: SnapshotStore, kept: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """An error if two first updates differ: on one CPU in any bit, else beyond rounding."""
    if kept.get("machine") == now["machine"] and now["machine"].startswith("cpu"):
        if kept.get("parameters") != now["parameters"]:
            raise different(store, "its first update, repeated, gives other parameters")
        return
    try:
        first, again = (Answers.from_json({**each, "machine": ""}, str(store.folder)) for each in (kept, now))
        first.compare(again, str(store.folder))
    except StoreError as error:
        raise different(store, f"its first update, repeated, gives other numbers ({error})") from error


def verify(run: Run, store: SnapshotStore) -> None:
    """Repeat the first update, and the metrics of one snapshot, chosen at random each time; an error if they differ.

    The network must be where the run starts, and is changed afterwards: the caller loads a snapshot.
    """
    kept = store.first
    if kept is not None and run.total > run.step:
        try:
            run.rehearse()
        except NumericalError as error:
            raise different(store, f"its first update, repeated, fails ({error})") from error
        compare_first(store, kept, first_update(run))
    steps = [step for step in store if step <= run.total]
    if not steps or not run.settings.measure:
        return
    snapshot = store[drawn(steps)]
    if snapshot.metrics:
        restore(run.model, snapshot)
        _compare_metrics(store, snapshot, run.metrics(run.part))


def _dense(gradient: Tensor) -> Tensor:
    return (gradient if gradient.layout is torch.strided else gradient.to_dense()).reshape(-1)


def _compare_metrics(store: SnapshotStore, snapshot: Snapshot, now: Mapping[str, float]) -> None:
    for name, value in snapshot.metrics.items():
        allowed = METRICS * max(1.0, abs(value)) if name == "loss" else tolerance(torch.float32)
        if name not in now or abs(now[name] - value) > allowed:
            said = f"{name} of step {snapshot.step}, computed again, is {now.get(name)} and was {value}"
            raise different(store, said)


def different(store: SnapshotStore, what: str) -> RecordError:
    """The refusal of a store that belongs to another run."""
    return RecordError(
        f"{store.folder} holds the snapshots of another run: {what}, so the network, the loss or another function answers"
        f" differently from the one the store was created with; {REMEDY}"
    )
