"""Training: how the spectra of this network came about, from the record of a tracker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, Section, Skip, register
from ntkscope.xray.result import Result
from ntkscope.xray.tracked import SERIES, Tracked
from ntkscope.xray.workload import Workload

PREFIX = "training."  # of the series in the X-ray's record
BYTES = 20_000_000  # of spectra that are copied; with more, fewer values of each
DIGITS = 10  # bytes per number, about
SURELY = 50  # largest values of a spectrum that are always copied
SECONDS = 4e-7  # per byte that is read and written


@dataclass(frozen=True)
class Training(Result):
    """The tracker's record: its name, its moments, the steps between them, what it tracked; `ends_here`: whether its last
    moment has the weights of this network, None where that cannot be told. `thinned`: values kept of a spectrum; 0 for
    all."""

    name: str
    status: str
    moments: int
    first_step: float
    last_step: float
    tracked: tuple[str, ...]
    ends_here: bool | None
    thinned: int


def run(context: Context) -> Finding[Training]:
    tracked = context.tracked
    if tracked is None:
        raise Skip("no tracker's record was given: pass tracked=DIR (--tracked DIR), the folder ntkscope.Tracker wrote")
    most = _values_per_row(tracked)
    steps: list[float] = []
    names: dict[str, None] = {}
    for series in SERIES:
        copy = context.record.series(PREFIX + series)
        copy.rewind(0)  # an earlier attempt may have got half way
        for row in tracked.rows(series):
            copy.append(thinned(row, most) if series == "spectra" and most else row)
            if series == "moments" and isinstance(row.get("step"), int | float):
                steps.append(float(row["step"]))
            if series != "moments":
                names[str(row.get("of", ""))] = None
    found = Training(
        name=tracked.record.name,
        status=tracked.record.status,
        moments=tracked.moments,
        first_step=min(steps, default=math.nan),
        last_step=max(steps, default=math.nan),
        tracked=tuple(names),
        ends_here=tracked.ends_here(context.model),
        thinned=most,
    )
    return Finding(found, _confidence(found))


def _values_per_row(tracked: Tracked) -> int:
    """How many values of each spectrum are copied; 0 for all of them."""
    rows = sum(1 for _ in tracked.rows("spectra"))
    return 0 if tracked.bytes <= BYTES else max(2 * SURELY, BYTES // (DIGITS * max(rows, 1)))


def thinned(row: Mapping[str, Any], most: int) -> dict[str, Any]:
    """A row with at most `most` of its values: the largest, and evenly many of the others.

    >>> row = thinned({"values": list(range(1000, 0, -1)), "left_out": 5}, 100)
    >>> len(row["values"]), row["values"][:2], row["values"][-1], row["left_out"]
    (100, [1000, 999], 1, 905)
    """
    values, left_out = row.get("values"), row.get("left_out")
    if not isinstance(values, list) or len(values) <= most:
        return dict(row)
    rest = np.linspace(SURELY, len(values) - 1, most - SURELY).round().astype(int).tolist()
    kept = values[:SURELY] + [values[k] for k in rest]
    more = len(values) - len(kept)
    return {**row, "values": kept, "left_out": more + (left_out if isinstance(left_out, int) else 0)}


def _confidence(found: Training) -> str:
    if found.ends_here is None:
        return "The record has no weights that could be compared with those of this network; its word is taken for it."
    if found.ends_here:
        return "Its shapes are this network's, and its last moment has the weights that were X-rayed."
    return (
        "Its shapes are this network's, but its last moment has other weights than those that were X-rayed: the training went"
        " on after it, another checkpoint was taken, or it is another run."
    )


def cost(work: Workload) -> float:
    return SECONDS * (work.tracked or 0)


SECTION = register(
    Section(
        name="tracked_training",
        place=8,
        title="Training",
        meaning=(
            "How the spectra came about. At each moment of the training that a tracker measured: the singular values of the"
            " weights, the eigenvalues of the kernels, which of them stood out of the noise, and how well they agreed with"
            " the labels."
        ),
        formula=(
            "As under Spectra, at every moment. Alignment of a kernel with the labels: ⟨K, yyᵀ⟩ / (‖K‖ ‖yyᵀ‖); of a spike with"
            " a direction: |cos| of its singular vector with it. Kernel velocity: the distance between the normalised kernels"
            " of two moments, per step."
        ),
        run=run,
        result=Training,
        cost=cost,
        needs="tracked",
    )
)
