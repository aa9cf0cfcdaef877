"""Wang et al. (2023), Figure 21a: the alignment of the conjugate kernel with the labels, through training in three cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ntkscope.core import Claim, Record, Snapshot
from ntkscope.kernels import Tangent
from ntkscope.measures.alignment import kernel_target_alignment
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Published, Reading, lacking, verdicts
from ntkscope_papers.framework.experiment import Run
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.framework.results import summary
from ntkscope_papers.wang_2023.linear_width_readings import missing
from ntkscope_papers.wang_2023.table8 import EXPECTED, MOST, RATES, Table8, eighth, numbers_of
from ntkscope_papers.wang_2023.teacher import Student, train_case
from ntkscope_papers.wang_2023.teacher_spectra import rounded

NAME = "alignment-evolution"
CASES = {"case1": "GD", "case3": "SGD, large step", "case4": "Adam"}
ORDER = Published(
    "spectra-kta-order",
    "Figure 21a",
    ["case4", "case3", "case1"],
    "KTA of the CK at the end, mean over seeds: case 4 above case 3 above case 1, each above its start",
    seeds=3,
)


@dataclass(frozen=True)
class AlignmentEvolution(Table8):
    """Spectra of linear-width networks, Figure 21a: the conjugate kernel turns towards the labels, most of all with Adam.

    Cases 1, 3 and 4 of Table 8, as `linear-width` has them.
    """

    name = NAME
    free = ("seeds", "expected", "most", "moments")

    cases = tuple(CASES)
    tau: float = 0.2
    rates: tuple[float, ...] = numbers_of(RATES, cases)
    expected: tuple[int, ...] = numbers_of(EXPECTED, cases)
    most: tuple[int, ...] = numbers_of(MOST, cases)
    moments: int = 20

    smoke = {**eighth(cases), "most": (300, 2_000, 300), "moments": 5}  # SGD ends somewhat earlier

    @property
    def student(self) -> Student:
        return Student(self.items, self.width, self.dimension, 100, tau=self.tau, noise=self.noise)

    def measure(self, run: Run) -> None:
        seeds = list(range(run.seed, run.seed + self.seeds))
        made = [Leg(case, partial(followed, self, case, seeds, run.device)) for case in CASES]
        run_legs(run.record, made, self.legs, progress=run.progress)

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return (ORDER,)

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return verdicts(self.name, {"order": ORDER}, {"order": _order}, self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def followed(config: AlignmentEvolution, name: str, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """KTA of the CK (Eq. 87, not centred) at every moment, all seeds."""
    case, student = config.table_case(name), config.student
    splits = [student.split(seed) for seed in seeds]
    shown = student.network(seeds[0]).to(device).double().eval()
    tangent = Tangent(shown)
    rows: list[dict[str, Any]] = []

    def watch(snapshot: Snapshot) -> None:
        values = []
        for i, split in enumerate(splits):
            with torch.no_grad():
                for parameter_name, parameter in shown.named_parameters():
                    parameter.copy_(snapshot.params[parameter_name][i])
            K = tangent.kernel("ck", split.train.x.to(device).double())
            values.append(kernel_target_alignment(K.dense().cpu(), split.train.y.double()))
        rows.append({"step": snapshot.step, "kta": rounded(values)})

    looks: dict[str, Any] = {"watch": watch, "moments": case.moments(config.moments), "splits": splits}
    together = train_case(student, case, seeds, device=device, threshold=config.threshold, **looks)
    if any(together.diverged):
        return {"diverged": together.diverged, "moments": []}
    return {"moments": rows, "steps": together.ensemble.steps.tolist(), "fit_seconds": round(together.seconds, 1)}


def _order(config: Any, record: Record) -> Reading:
    if lacks := missing(record, *CASES):
        return lacking(*lacks)
    moments = {case: record.metrics[case]["moments"] for case in CASES}
    if not all(moments.values()):
        return Reading({case: bool(rows) for case, rows in moments.items()}, False, "a case diverged")
    starts = {case: summary(rows[0]["kta"])["mean"] for case, rows in moments.items()}
    ends = {case: summary(rows[-1]["kta"])["mean"] for case, rows in moments.items()}
    holds = ends["case4"] > ends["case3"] > ends["case1"] and all(ends[case] > starts[case] for case in CASES)
    return Reading({"start": starts, "end": ends}, holds, seeds=len(moments["case1"][-1]["kta"]))


def draw(record: Record) -> dict[str, Any]:
    """Over the share of the steps that each case took."""
    figure, (axis,) = drawing.canvas(width=5.6)
    for i, (case, name) in enumerate(CASES.items()):
        rows = record.metrics.get(case, {}).get("moments", ())
        if rows:
            last = max(1, rows[-1]["step"])
            found = [summary(row["kta"]) for row in rows]
            at = [row["step"] / last for row in rows]
            drawing.line_with_errors(axis, at, [one["mean"] for one in found], [one["sem"] for one in found], i, name)
    drawing.label(axis, x="share of the steps", y="KTA of the CK")
    if axis.get_legend_handles_labels()[0]:
        axis.legend()
    return {"kta": figure}
