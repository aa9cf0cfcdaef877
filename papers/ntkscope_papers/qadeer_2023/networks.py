"""What both regressions of the conjugate-kernel paper share: ensembles, their kernels in float64, claims about their runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope import models, training
from ntkscope.core import Params, Part, Record, Snapshot, Split
from ntkscope.kernels import Tangent
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, leg
from ntkscope_papers.framework.claims import Read, Statement
from ntkscope_papers.framework.results import once, under
from ntkscope_papers.shared.networks import weights_file

Rows: TypeAlias = dict[str, list[Any]]  # a list over networks for every name
BLOCK = 10  # networks measured between two writes of the record
SMOOTH, KINKED = "tanh-128", "relu-128"
LABELS = {"network": "network", "ntk": "NTK", "ck": "CK", "ckj": "CKJ"}
STYLES = {name: {"color": colour, "label": LABELS[name]} for name, colour in zip(LABELS, drawing.COLOURS)}


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


@dataclass(frozen=True, eq=False)
class GridTask:
    """One task in float64: test nodes, of which some are training nodes. `source`: its data set."""

    config: Any
    name: str
    source: ClassVar[Callable[..., Split]]

    def load(self, dtype: str) -> Split:
        """Its grids in `dtype`."""
        return type(self).source(
            self.name, intervals=self.config.intervals, refinement=self.config.refinement, dtype=dtype
        )

    @cached_property
    def split(self) -> Split:
        return self.load("float64")

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


def columns(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Rows as one list for each name.

    >>> columns([{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    {'a': [1, 3], 'b': [2, 4]}
    """
    return {name: [row[name] for row in rows] for name in rows[0]}


def joined(record: Record, key: str) -> Rows:
    """The blocks `KEY/0-9`, `KEY/10-19`, … as one list for each name; empty where nothing was measured."""
    found = sorted(under(record, f"{key}/").items(), key=lambda item: members(item[0])[0])
    names = [name for name in found[0][1] if name != "seconds"] if found else []
    return {name: [value for _, block in found for value in block[name]] for name in names}


def flat(rows: Mapping[str, Rows], name: str) -> list[Any]:
    """One list over all cells."""
    return [value for one in rows.values() for value in one[name]]


def median(values: Any) -> float:
    return float(np.median(np.asarray(values, dtype=np.float64)))


def known(values: Iterable[Any]) -> list[bool]:
    """What a theorem says where it says something."""
    return [bool(value) for value in values if value is not None]


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
class GridExperiment(Experiment):
    """Networks of every task and architecture, measured in blocks; some, `watched`, through training and in more ways.

    `tasks` names the setting that lists the tasks, `task` is what one of them is, `key` the leg that measures trained networks,
    `shape` the ends of a network, `trained(run, cell)` an ensemble, `moments` the updates at which watched ones are measured;
    kernels are those of `scalar(network)`, and `mean` is taken over the watched networks.
    """

    architectures: tuple[str, ...] = ()
    evolving: tuple[str, ...] = ()
    networks: int = 100
    watched: int = 10
    depth: int = 1
    lr: float = 1e-3
    instances: int = 0

    tasks: ClassVar[str]
    task: ClassVar[type[Any]]
    key: ClassVar[str]
    shape: ClassVar[Mapping[str, int]]
    trained: ClassVar[Callable[..., Trained]]
    moments: ClassVar[Any]

    def cells(self, *networks: str) -> list[Cell]:
        """Every task with these architectures, or with all."""
        return [Cell(task, name) for task in getattr(self, self.tasks) for name in networks or self.architectures]

    @property
    def evolving_cells(self) -> list[Cell]:
        return [cell for cell in self.cells() if cell.network in self.evolving]

    @property
    def watched_blocks(self) -> list[str]:
        return blocks(min(self.watched, self.networks))

    def network(self, cell: Cell, seed: int) -> nn.Module:
        """PyTorch's default initialisation."""
        options = {**self.shape, "widths": cell.width, "depth": self.depth, "activation": cell.activation}
        return models.build("mlp", seed=seed, **options)

    def ensemble(self, run: Run, cell: Cell, key: str, count: int, **how: Any) -> Trained:
        """`count` networks of one cell in one ensemble, full batch."""
        part = self.task(self, cell.task).load("float32").train
        how |= {"optimizer": "adam", "lr": self.lr, "device": run.device, "progress": run.progress}
        return trained(
            run.record, key, partial(self.network, cell), part, seeds=range(run.seed, run.seed + count), **how
        )

    @leg("training/{}", over=lambda self: self.cells())
    def training(self, run: Run, cell: Cell) -> dict[str, Any]:
        self.trained(run, cell)
        return dict(run.record.metrics[f"training/{cell}"])

    def scalar(self, model: nn.Module) -> nn.Module:
        return model

    def mean(self, values: Any) -> Any:
        return np.mean(values)

    def machines(self, task: Any, cell: Cell) -> Machines:
        return Machines(self.network(cell, 0), task.inputs, task.nodes, self.scalar)

    def each(
        self, cell: Cell, params: Params, numbers: Iterable[int], measure: Callable[[Any, Machines], Any]
    ) -> list[Any]:
        """`measure(task, machines)` of some members of stacked parameters."""
        task = self.task(self, cell.task)
        machines, found = self.machines(task, cell), []
        for member in numbers:
            machines.wear(params, member)
            found.append(measure(task, machines))
        return found

    def at_moment(self, cell: Cell, params: Params, measure: Callable[[Any, Machines], Any]) -> list[Any]:
        """`measure` of the networks that were kept at a moment of training."""
        return self.each(cell, params, range(len(next(iter(params.values())))), measure)

    def evolution(self, record: Record, cell: Cell) -> dict[str, np.ndarray]:
        """Means over the watched networks at every moment of training; empty where they were not measured."""
        keys = self.evolution_legs(cell)
        if not all(key in record.metrics for key in keys):
            return {}
        found = [record.metrics[key] for key in keys]
        return {name: np.asarray([self.mean(one[name]) for one in found]) for name in found[0] if name != "seconds"}

    def evolution_legs(self, *cells: Cell) -> list[str]:
        return [f"evolution/{cell}/{step}" for cell in cells for step in self.moments]


Judged = Callable[[Any, Record, dict[str, Rows]], Reading]


def on_runs(
    id: str, source: str, published: Any, *networks: str, check: str = "", legs: Sequence[str] = (), seeds: int = 5
) -> Callable[[Judged], Statement]:
    """Decorator: a claim about the trained networks of some architectures, or of all; it reads what was measured of each cell.

    `legs`: others it needs, filled with every cell.
    """

    def needs(config: Any) -> list[str]:
        every = [
            f"{config.key}/{cell}/{block}" for cell in config.cells(*networks) for block in blocks(config.networks)
        ]
        return list(dict.fromkeys([*every, *(leg.format(cell) for leg in legs for cell in config.cells(*networks))]))

    def read(judged: Judged, config: Any, record: Record) -> Reading:
        rows = {str(cell): joined(record, f"{config.key}/{cell}") for cell in config.cells(*networks)}
        return replace(judged(config, record, rows), seeds=config.networks)

    return claim(id, source, published, check, needs=needs, seeds=seeds, through=read)


def on_evolution(id: str, source: str, published: Any, network: str) -> Callable[[Read], Statement]:
    """Decorator: a claim about an architecture in training."""

    def needs(config: Any) -> list[str]:
        legs: list[str] = config.evolution_legs(*config.cells(network))
        return legs

    def read(judged: Read, config: Any, record: Record) -> Reading:
        return replace(judged(config, record), seeds=min(config.watched, config.networks))

    return claim(id, source, published, needs=needs, seeds=5, through=read)


on_theorem = partial(on_runs, legs=("instances",), seeds=1)
VACUOUS = "no network of the paper's meets the condition, so the theorem says nothing of them; "


def of_theorem(rows: Mapping[str, Rows], theorem: str, condition: str) -> tuple[dict[str, int], bool]:
    """On how many runs that satisfy the condition a theorem holds, and whether on all."""
    every = flat(rows, theorem)
    said = known(every)
    return {"runs": len(every), f"runs with {condition}": len(said), "of them it holds on": sum(said)}, all(said)


def of_inequalities(rows: Mapping[str, Rows], theorem: str, condition: str) -> tuple[dict[str, int], bool]:
    """The same for a theorem ("4.2") whose two inequalities are checked on every run, and that is checked as printed too."""
    stated, name = flat(rows, f"inequalities of {theorem}"), f"theorem_{theorem.replace('.', '_')}"
    found, holds = of_theorem(rows, name, condition)
    printed = {"of them as printed": sum(known(flat(rows, f"{name}_printed")))}
    runs = {"runs": found.pop("runs"), "both inequalities hold": sum(stated)}
    return {**runs, **found, **printed}, holds and all(stated)
