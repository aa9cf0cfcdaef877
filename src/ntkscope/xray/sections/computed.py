"""How this was computed: command, versions, seeds, device, timings, numerical health."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ntkscope.core.progress import duration
from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.sections import kernel


@dataclass(frozen=True)
class Timing(Result):
    """How long one step took."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Health(Result):
    """The effect of rounding."""

    smallest_eigenvalue: float | None
    jitter: float
    precision: str


@dataclass(frozen=True)
class Computed(Result):
    """Everything needed to run an X-ray again."""

    command: str
    versions: Mapping[str, Any]
    commit: str | None
    platform: str
    threads: int
    seeds: Mapping[str, Any]
    device: str
    timings: tuple[Timing, ...]
    expected_seconds: float
    health: Health
    notes: tuple[str, ...]


def run(context: Context) -> Finding[Computed]:
    document = context.record.to_json()
    environment = document["environment"]
    decomposed = context.result(kernel.SECTION)
    fits = context.record.metrics.get("surrogate_fits", {})
    notes = []
    if context.plan.subsampled:
        notes.append(f"Not all items were used: {context.plan.subsampled}.")
    stopped = [name for name, told in fits.items() if not told["converged"]]
    if stopped:
        notes.append(f"The surrogates on {', '.join(stopped)} stopped before their optimum.")
    smallest = None if decomposed is None else decomposed.smallest_eigenvalue
    if smallest is not None and smallest < -1e-4:
        notes.append(f"The kernel's smallest eigenvalue is {smallest:.2g}: the effect of single-precision rounding.")
    if document["earlier"]:
        notes.append(f"The X-ray was interrupted and resumed {len(document['earlier'])} times.")
    expected = context.plan.expected_seconds
    return Finding(
        Computed(
            command=document["command"],
            versions={"python": environment["python"], **environment["packages"]},
            commit=environment["commit"],
            platform=environment["platform"],
            threads=environment["threads"],
            seeds=document["seeds"],
            device=environment["device"],
            timings=tuple(Timing.from_record(entry) for entry in context.timings),
            expected_seconds=expected,
            health=Health(smallest, 0.0, "kernels float32, sums and solves float64"),
            notes=tuple(notes),
        ),
        f"Planned for {duration(expected)} from the start of the command. Run again with the same seeds and data, it gives the"
        " same figures up to rounding.",
    )


SECTION = register(
    Section(
        name="computed",
        place=9,
        title="How this was computed",
        meaning="Everything needed to run this again and to judge its numerical health.",
        formula="Fits and decompositions use float64; the smallest eigenvalue shows what rounding did; no jitter is added.",
        run=run,
        result=Computed,
        after=(kernel.SECTION,),
        every_attempt=True,
    )
)
