"""Networks of the conjugate-kernel paper: one ensemble for each task and architecture, and their kernels in float64."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope import models, training
from ntkscope.core import Params, Part, Record, Snapshot, Split
from ntkscope.kernels import Tangent
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.results import once, under
from ntkscope_papers.shared.networks import weights_file

Rows: TypeAlias = dict[str, list[Any]]  # a list over networks for every name
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


def cells(tasks: Sequence[str], networks: Sequence[str]) -> list[Cell]:
    """Every task with every architecture."""
    return [Cell(task, network) for task in tasks for network in networks]


@dataclass(frozen=True, eq=False)
class GridTask:
    """One task in float64: test nodes, of which some are training nodes. `source`: its data set, and the option of its name."""

    config: Any
    name: str
    source: ClassVar[tuple[Callable[..., Split], str]]

    def load(self, dtype: str) -> Split:
        """Its grids in `dtype`."""
        make, option = self.source
        options = {option: self.name, "intervals": self.config.intervals, "refinement": self.config.refinement}
        return make(**options, dtype=dtype)

    @cached_property
    def split(self) -> Split:
        return self.load("float64")

    @property
    def single(self) -> Part:
        """What networks are trained on, in float32."""
        return self.load("float32").train

    @property
    def inputs(self) -> Tensor:
        x: Tensor = self.split.test.x
        return x


@dataclass(frozen=True, eq=False)
class Trained:
    """The stacked parameters of an ensemble at its end, of its first members at some steps, and each member's updates."""

    final: Params
    steps: Tensor
    path: Mapping[int, Params]


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
) -> Trained:
    """`build(seed)` for every seed in one `fit_ensemble`; the first `watched` members are kept at the steps `moments` too.

    The weights are written to `networks/KEY.safetensors` and read from there, so that a resumed run sees the same numbers.
    """
    path = weights_file(record, key)
    if path.exists() and len((found := read_trained(path)).steps) >= len(seeds):
        return found
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
    return read_trained(path)


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


def blocks(count: int) -> list[str]:
    """The networks 0 … count - 1 as a leg measures them.

    >>> blocks(25), list(members("20-24"))
    (['0-9', '10-19', '20-24'], [20, 21, 22, 23, 24])
    """
    return [f"{first}-{min(first + BLOCK, count) - 1}" for first in range(0, count, BLOCK)]


def members(block: str) -> range:
    """The networks of one of `blocks`."""
    first, last = block.split("-")
    return range(int(first), int(last) + 1)


def columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> Rows:
    """Rows as one list for each name.

    >>> columns([{"a": 1, "b": 2}, {"a": 3, "b": 4}], ["a"])
    {'a': [1, 3]}
    """
    return {name: [row[name] for row in rows] for name in (rows[0] if names is None else names)}


def joined(record: Record, key: str) -> Rows:
    """The blocks `KEY/0-9`, `KEY/10-19`, … as one list for each name; empty where nothing was measured."""
    found = sorted(under(record, f"{key}/").items(), key=lambda item: members(item[0])[0])
    names = [name for name in found[0][1] if name != "seconds"] if found else []
    return {name: [value for _, block in found for value in block[name]] for name in names}


def block_legs(key: str, every: Sequence[Cell], count: int) -> list[str]:
    """The legs that measure `count` networks of each cell."""
    return [f"{key}/{cell}/{block}" for cell in every for block in blocks(count)]


def joined_cells(record: Record, key: str, every: Sequence[Cell]) -> dict[str, Rows]:
    """What those legs measured, by the cell's name."""
    return {str(cell): joined(record, f"{key}/{cell}") for cell in every}


def evolution(
    record: Record, cell: Cell, steps: Sequence[int], mean: Callable[[Any], Any] = np.mean
) -> dict[str, np.ndarray]:
    """Means over the watched networks at every step of training; empty where they were not measured."""
    keys = [f"evolution/{cell}/{step}" for step in steps]
    if not all(key in record.metrics for key in keys):
        return {}
    found = [record.metrics[key] for key in keys]
    return {name: np.asarray([mean(one[name]) for one in found]) for name in found[0] if name != "seconds"}


def flat(rows: Mapping[str, Rows], name: str) -> list[Any]:
    """One list over all cells."""
    return [value for one in rows.values() for value in one[name]]


def geometric_mean(values: Any) -> Any:
    return np.exp(np.mean(np.log(values)))


def median(values: Any) -> float:
    return float(np.median(np.asarray(values, dtype=np.float64)))


def training_seconds(record: Record, kept: Sequence[str]) -> dict[str, float]:
    """Seconds of training, and of everything else under the keys `kept`."""
    spent = sum(float(one["seconds"]) for one in under(record, "training/").values())
    others = sum(float(one["seconds"]) for prefix in kept for one in under(record, f"{prefix}/").values())
    return {"training": round(spent, 1), "everything else": round(others, 1)}


def finish(axis: Any, title: str, x: str, y: str, *, drawn: bool, log: bool = True) -> None:
    """Labels and legend of a panel, or the words that nothing was measured."""
    drawing.label(axis, title=title, x=x, y=y, log="y" if drawn and log else "")
    if drawn:
        axis.legend(framealpha=0.85, edgecolor="none")
    else:
        axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", color="#6b7280")
