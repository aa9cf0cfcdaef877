"""Networks of the conjugate-kernel paper: one ensemble for each task and architecture, and their kernels in float64."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope import models, training
from ntkscope.core import Params, Part, Record, Snapshot, UsageError
from ntkscope.kernels import Tangent
from ntkscope_papers.framework.results import digits as digits  # to go once no other paper imports it from here
from ntkscope_papers.framework.results import once, under
from ntkscope_papers.shared.networks import weights_file

BLOCK = 10  # networks measured between two writes of the record


@dataclass(frozen=True)
class Cell:
    """One ensemble: a task ("f1") and an architecture ("tanh-128": activation and width of every hidden layer)."""

    task: str
    network: str

    def __str__(self) -> str:
        return f"{self.task}/{self.network}"

    @property
    def activation(self) -> str:
        return self.network.partition("-")[0]

    @property
    def width(self) -> int:
        return int(self.network.partition("-")[2])


def cells(tasks: Sequence[str], networks: Sequence[str], only: Sequence[str] = ()) -> list[Cell]:
    """Every task with every architecture; `only` keeps those whose task, architecture or name ("f1/tanh-128") it lists.

    >>> [str(cell) for cell in cells(["f1", "f2"], ["tanh-128", "relu-128"], ["f1", "f2/relu-128"])]
    ['f1/tanh-128', 'f1/relu-128', 'f2/relu-128']
    """
    every = [Cell(task, network) for task in tasks for network in networks]
    known = {*tasks, *networks, *map(str, every)}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise UsageError(f"got only={', '.join(unknown)}; expected some of {', '.join(sorted(known))}")
    return [cell for cell in every if not only or {cell.task, cell.network, str(cell)} & set(only)]


@dataclass(frozen=True, eq=False)
class Trained:
    """The stacked parameters of an ensemble at its end, of its first members at some steps, and each member's updates."""

    final: Params
    steps: Tensor
    path: Mapping[int, Params]

    def __len__(self) -> int:
        return len(self.steps)


def trained(
    record: Record,
    key: str,
    build: Callable[[int], nn.Module],
    part: Part,
    *,
    seeds: Sequence[int],
    watched: int = 0,
    moments: Sequence[int] = (),
    **how: Any,
) -> None:
    """`build(seed)` for every seed in one `fit_ensemble`; the first `watched` members are kept at the steps `moments` too.

    The weights are written to `networks/KEY.safetensors`, where `read_trained` finds them, so that a resumed run sees the
    same numbers.
    """
    path = weights_file(record, key)
    if path.exists() and len(read_trained(path)) >= len(seeds):
        return
    kept: dict[str, Tensor] = {}

    def keep(snapshot: Snapshot) -> None:
        if watched and snapshot.step in moments:
            some = {name: value[:watched].cpu() for name, value in snapshot.params.items()}
            kept.update({f"{snapshot.step}:{name}": value.clone() for name, value in some.items()})

    began = time.perf_counter()
    ensemble = training.fit_ensemble(
        build, part, seeds=list(seeds), snapshots=tuple(moments) or "final", on_snapshot=keep, **how
    )
    final = {f"final:{name}": value.cpu() for name, value in ensemble.params.items()}
    seconds = round(time.perf_counter() - began, 2)
    notes = {"networks": len(ensemble), "seconds": seconds, "notes": list(ensemble.notes)}
    # Before the weights: a run killed between the two trains again, and no record is left without this result.
    once(record, f"training/{key}", lambda: notes)
    path.parent.mkdir(exist_ok=True)
    models.save_tensors({**final, **kept, "steps": ensemble.steps.cpu()}, path)


def read_trained(path: Path) -> Trained:
    """What `trained` wrote."""
    tensors = models.read_weights(path)
    stages: dict[str, Params] = {}
    for key, value in tensors.items():
        stage, _, name = key.partition(":")
        if name:
            stages.setdefault(stage, {})[name] = value
    final = stages.pop("final")
    return Trained(final, tensors["steps"], {int(step): params for step, params in stages.items()})


class Machines:
    """A network in float64 on the CPU that takes the weights of one member after the other; its engine is kept between them.

    `scalar(model)` is the model of one output whose kernels are taken, `inputs` the test nodes, of which `nodes` are the
    training nodes.
    """

    def __init__(
        self, template: nn.Module, inputs: Tensor, nodes: Tensor, scalar: Callable[[nn.Module], nn.Module] = lambda m: m
    ) -> None:
        self.model = template.double().cpu().eval()
        self.inputs, self.nodes = inputs.double().cpu(), nodes
        self._scalar = scalar(self.model).eval()
        self._tangent = Tangent(self._scalar, dtype=torch.float64)

    def wear(self, params: Params, member: int) -> None:
        """Take the weights of one member."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(params[name][member])

    def outputs(self) -> Float64[Tensor, " m"]:
        """Of the model of one output, at the test nodes."""
        with torch.no_grad():
            return self._scalar(self.inputs)[:, 0]

    def ntk(self) -> Float64[Tensor, "m n"]:
        """Between test and training nodes."""
        return self._tangent.kernel("trntk0", self.inputs, self.inputs[self.nodes]).dense()

    def ck_features(self) -> Float64[Tensor, "m p"]:
        """The last hidden layer and a one, at the test nodes."""
        gram: Any = self._tangent.kernel("ck", self.inputs, self.inputs[self.nodes])
        features: Tensor = gram.left
        return features


@dataclass(frozen=True)
class Job:
    """One result of the record: `compute(*arguments)`, which another process can do, on the first `networks` of a cell."""

    key: str
    compute: Callable[..., Mapping[str, Any]]
    arguments: tuple[Any, ...]
    networks: int = 1


def in_blocks(key: str, compute: Callable[..., Mapping[str, Any]], count: int, *arguments: Any) -> list[Job]:
    """`compute(*arguments, members)` for the members 0 … count - 1 in blocks: results `KEY/0-9`, `KEY/10-19`, …"""
    blocks = [range(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK)]
    return [Job(f"{key}/{one[0]}-{one[-1]}", compute, (*arguments, one), one.stop) for one in blocks]


@contextmanager
def computing(record: Record, workers: int) -> Iterator[Callable[[Sequence[Job]], None]]:
    """A function that computes the jobs whose results the record lacks, and stores each as soon as it is there.

    With more than one worker in as many processes, of one thread each.
    """
    if workers < 1:
        raise UsageError(f"got workers={workers}; expected at least 1")
    if workers == 1:

        def here(jobs: Sequence[Job]) -> None:
            for job in jobs:
                once(record, job.key, partial(job.compute, *job.arguments))

        yield here
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:

        def there(jobs: Sequence[Job]) -> None:
            running = {pool.submit(_timed, job): job for job in jobs if job.key not in record.metrics}
            for future in as_completed(running):
                once(record, running[future].key, future.result)

        yield there


def _timed(job: Job) -> dict[str, Any]:
    began = time.perf_counter()
    value = dict(job.compute(*job.arguments))
    return {"seconds": round(time.perf_counter() - began, 3), **value}


def needed(record: Record, jobs: Sequence[Job]) -> int:
    """How many networks the results need that the record lacks; 0 where it has them all."""
    return max((job.networks for job in jobs if job.key not in record.metrics), default=0)


def columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """Rows as one list for each name.

    >>> columns([{"a": 1, "b": 2}, {"a": 3, "b": 4}], ["a"])
    {'a': [1, 3]}
    """
    return {name: [row[name] for row in rows] for name in (rows[0] if names is None else names)}


def joined(record: Record, key: str) -> dict[str, list[Any]]:
    """What `in_blocks` kept, joined; empty where nothing was measured."""
    blocks = sorted(under(record, f"{key}/").items(), key=lambda item: int(item[0].partition("-")[0]))
    names = [name for name in blocks[0][1] if name != "seconds"] if blocks else []
    return {name: [value for _, block in blocks for value in block[name]] for name in names}


def measured_cells(record: Record, key: str, every: Sequence[Cell]) -> Iterator[tuple[Cell, dict[str, list[Any]]]]:
    """The cells that were measured, with their lists."""
    for cell in every:
        rows = joined(record, f"{key}/{cell}")
        if rows:
            yield cell, rows


def median(values: Any) -> float:
    return float(np.median(np.asarray(values, dtype=np.float64)))


def training_seconds(record: Record, kept: Sequence[str]) -> dict[str, float]:
    """Seconds of training, and of everything else under the keys `kept`."""
    spent = sum(float(one["seconds"]) for one in under(record, "training/").values())
    others = sum(float(one["seconds"]) for prefix in kept for one in under(record, f"{prefix}/").values())
    return {"training": round(spent, 1), "everything else": round(others, 1)}
