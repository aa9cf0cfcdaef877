"""Wang et al. (2023), Figure 21a: the alignment of the conjugate kernel with the labels, through training in three cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from ntkscope.core import Record, Snapshot
from ntkscope.kernels import Tangent
from ntkscope.measures.alignment import kernel_target_alignment
from ntkscope_papers.framework import Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.results import summary
from ntkscope_papers.wang_2023.teacher import Student, Table8, load_member, train_case
from ntkscope_papers.wang_2023.teacher_spectra import rounded

CASES = {"case1": "GD", "case3": "SGD, large step", "case4": "Adam"}


@dataclass(frozen=True)
class AlignmentEvolution(Table8):
    """Spectra of linear-width networks, Figure 21a: the conjugate kernel turns towards the labels, most of all with Adam.

    Cases 1, 3 and 4 of Table 8, as `linear-width` has them.
    """

    name = "alignment-evolution"
    free = ("seeds", "expected", "most", "moments")

    tau: float = 0.2
    moments: int = 20

    smoke = {**Table8.smoke, "moments": 5}

    @leg("{}", over=lambda self: CASES)
    def followed(self, run: Run, name: str) -> dict[str, Any]:
        """KTA of the CK (Eq. 87, not centred) at every moment, all seeds."""
        case, seeds = self.case(name), self.seeds_of(run)
        student = Student(self.items, self.width, self.dimension, 100, tau=self.tau, noise=self.noise)
        splits = [student.split(seed) for seed in seeds]
        shown = student.network(seeds[0]).to(run.device).double().eval()
        tangent = Tangent(shown)
        rows: list[dict[str, Any]] = []

        def watch(snapshot: Snapshot) -> None:
            values = []
            for i, split in enumerate(splits):
                load_member(shown, snapshot, i)
                K = tangent.kernel("ck", split.train.x.to(run.device).double())
                values.append(kernel_target_alignment(K.dense().cpu(), split.train.y.double()))
            rows.append({"step": snapshot.step, "kta": rounded(values)})

        moments = case.moments(self.moments)
        together = train_case(student, case, seeds, run.device, watch=watch, moments=moments, splits=splits)
        if any(together.diverged):
            return {"diverged": together.diverged, "moments": []}
        return {"moments": rows, "steps": together.ensemble.steps.tolist(), "fit_seconds": round(together.seconds, 1)}

    @claim("spectra-kta-order", "Figure 21a", ["case4", "case3", "case1"], needs=CASES, seeds=3)
    def order(self, record: Record) -> Reading:
        """KTA of the CK at the end, mean over seeds: case 4 above case 3 above case 1, each above its start"""
        moments = {case: record.metrics[case]["moments"] for case in CASES}
        if not all(moments.values()):
            return Reading({case: bool(rows) for case, rows in moments.items()}, False, "a case diverged")
        starts = {case: summary(rows[0]["kta"])["mean"] for case, rows in moments.items()}
        ends = {case: summary(rows[-1]["kta"])["mean"] for case, rows in moments.items()}
        holds = ends["case4"] > ends["case3"] > ends["case1"] and all(ends[case] > starts[case] for case in CASES)
        return Reading({"start": starts, "end": ends}, holds, seeds=len(moments["case1"][-1]["kta"]))

    @figure
    def kta(self, record: Record) -> Figure:
        """Over the share of the steps that each case took."""
        drawn, (axis,) = drawing.canvas(width=5.6)
        for i, (case, name) in enumerate(CASES.items()):
            rows = record.metrics.get(case, {}).get("moments", ())
            if rows:
                at = [row["step"] / max(1, rows[-1]["step"]) for row in rows]
                drawing.summaries(axis, at, (summary(row["kta"]) for row in rows), i, name)
        drawing.label(axis, x="share of the steps", y="KTA of the CK", legend=True)
        return drawn
