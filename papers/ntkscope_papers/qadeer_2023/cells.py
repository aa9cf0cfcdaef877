"""What the regressions of the conjugate-kernel paper share: a task on its grids, running its cells, judging them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from ntkscope import data
from ntkscope.core import Claim, Part, Record, Split
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.qadeer_2023.networks import Cell, Job, cells, computing, measured_cells, needed

Rows: TypeAlias = dict[str, list[Any]]
Say: TypeAlias = Callable[..., Claim]
Check: TypeAlias = tuple[str, Sequence[str], Callable[[dict[str, Rows], Say], Claim]]  # claim, architectures, check


@dataclass(frozen=True, eq=False)
class GridTask:
    """One task in float64: test nodes, of which some are training nodes. `source`: its data set, and the option of its name."""

    config: Any
    name: str
    source: ClassVar[tuple[str, str]]

    def load(self, dtype: str) -> Split:
        """Its grids in `dtype`."""
        options = {self.source[1]: self.name, "intervals": self.config.intervals, "refinement": self.config.refinement}
        return data.load(self.source[0], **options, dtype=dtype)

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


def run_cells(
    record: Record,
    chosen: Sequence[Cell],
    workers: int,
    *,
    jobs: Callable[[Cell], list[Job]],
    train: Callable[[Cell, int], Any],
    progress: bool,
) -> None:
    """Of every cell the jobs whose results the record lacks, after training as many networks as they need."""
    with (
        computing(record, workers) as compute,
        record.stage("networks", total=len(chosen), progress="auto" if progress else False) as stage,
    ):
        for cell in chosen:
            work = jobs(cell)
            if count := needed(record, work):
                train(cell, count)
                compute(work)
            stage.advance(stage.done < len(chosen))


def sayer(published: Mapping[str, Published], difference: str) -> Say:
    """`say(name, measured, holds, note, seeds)`: the verdict on a claim."""

    def say(name: str, measured: Any, holds: bool | None, note: str = "", seeds: int | None = None) -> Claim:
        return published[name].judged(measured, holds, difference=difference, note=note, seeds=seeds)

    return say


def judge_cells(record: Record, key: str, tasks: Sequence[str], checks: Sequence[Check], say: Say) -> Iterator[Claim]:
    """Every check on the cells that were measured (`KEY/task/network`); a claim about others says which are missing."""
    for name, networks, check in checks:
        wanted = cells(tasks, networks)
        rows = dict(measured_cells(record, key, wanted))
        missing = [str(cell) for cell in wanted if cell not in rows]
        if missing:
            yield say(name, None, None, f"not run: {', '.join(missing)}; run it with --set 'only={missing}'")
        else:
            yield check({str(cell): one for cell, one in rows.items()}, say)
