"""Wang et al. (2023), Figure 21b: five hidden directions, and how many of them the first layer finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure

from ntkscope.core import Record, Snapshot
from ntkscope_papers.framework import Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.wang_2023.teacher import LAYER, Case, Student, Table8, average, members, train_case
from ntkscope_papers.wang_2023.teacher_spectra import outlier_overlap, rounded

CASES = {"case1": "GD", "case3": "SGD", "case4": "Adam"}
CONTROL, NOISY = "control", "control-noisy"


@dataclass(frozen=True)
class MultipleIndex(Table8):
    """Spectra of linear-width networks, Figure 21b: which of five directions GD, SGD and Adam find.

    The published sizes with a softplus link; and, as a control, a student that is not odd on a teacher whose every direction
    shows.

    An odd network learns only the odd part of `(1/k) Σ σ*(βᵢ·x)`, which for softplus is linear: the one direction Σ βᵢ.
    `control_*`: the sizes of the control, a normalised-ReLU student with a quadratic link, trained by Adam at the step
    of case 4, without label noise and with it.
    """

    name = "multiple-index"
    free = ("seeds", "expected", "most", "moments", "test_items")

    test_items: int = 4000
    directions: int = 5
    top: int = 100
    moments: int = 8
    control_items: int = 5000
    control_width: int = 300
    control_dimension: int = 100
    control_rate: float = 0.092
    control_steps: int = 1600

    smoke = {
        **Table8.smoke,
        **{"test_items": 500, "top": 13, "moments": 3},
        **{"control_items": 1000, "control_width": 60, "control_dimension": 20, "control_steps": 200},
    }

    def problem(self, name: str) -> tuple[Student, Case, int]:
        """The network and its training, and how many singular vectors of W are compared."""
        if name not in (CONTROL, NOISY):
            sizes = self.items, self.width, self.dimension, self.test_items
            return Student(*sizes, directions=self.directions, noise=self.noise), self.case(name), self.top
        sizes = self.control_items, self.control_width, self.control_dimension, self.test_items
        noise = self.noise if name == NOISY else 0.0
        shape: dict[str, Any] = {"link": "quadratic", "activation": "normalised-relu", "noise": noise}
        case = Case("adam", self.control_rate, self.adam_batch, self.control_steps, self.control_steps, self.threshold)
        return Student(*sizes, directions=self.directions, **shape), case, self.directions

    @leg("{}", over=lambda self: (CONTROL, NOISY, *reversed(CASES)))
    def followed(self, run: Run, name: str) -> dict[str, Any]:
        """cos² of the angles between the teacher's directions and the first right singular vectors of W, through training."""
        (student, case, top), seeds = self.problem(name), self.seeds_of(run)
        splits = [student.split(seed) for seed in seeds]
        rows: list[dict[str, Any]] = []

        def watch(snapshot: Snapshot) -> None:
            squares = [
                rounded(outlier_overlap(W, split.extras["directions"], top)) if torch.isfinite(W).all() else []
                for W, split in zip(snapshot.params[LAYER], splits)
            ]
            rows.append({"step": snapshot.step, "cos2": squares})

        moments = case.moments(self.moments)
        together = train_case(student, case, seeds, run.device, watch=watch, moments=moments, splits=splits)
        scores = together.scores()
        for told, W, split in zip(scores, together.ensemble.params[LAYER].detach(), splits):
            if not told["diverged"]:
                directions = split.extras["directions"]
                told["cos2"] = rounded(outlier_overlap(W, directions, top))
                told["cos2 of the sum"] = outlier_overlap(W, directions.sum(0, keepdim=True), top)[0]
        return {
            "members": scores,
            "moments": rows,
            "top": top,
            "chance": top / student.dimension,
            "fit_seconds": round(together.seconds, 1),
        }

    @claim("spectra-principal-angles", "Figure 21b", {"k": 5, "top": 100}, needs=(*CASES, CONTROL))
    def directions_found(self, record: Record) -> Reading:
        """mean cos² of the five angles above 0.5 with Adam, below 0.3 with GD"""
        networks = {key: members(record, key) for key in (*CASES, CONTROL)}
        if not all(networks.values()):
            counts = {key: len(found) for key, found in networks.items()}
            return Reading(counts, False, "all networks of a case diverged")
        squares = {  # in their order, largest first, means over seeds
            CASES.get(key, CONTROL): [sum(each) / len(each) for each in zip(*(one["cos2"] for one in found))]
            for key, found in networks.items()
        }
        averages = {name: sum(values) / len(values) for name, values in squares.items()}
        least = min(min(one["cos2"]) for one in networks[CONTROL])
        noisy = members(record, NOISY) if NOISY in record.metrics else []
        measured = {
            "cos²": squares,
            "mean cos²": averages,
            "Adam, Σβᵢ": average(one["cos2 of the sum"] for one in networks["case4"]),
            "control, least cos²": least,
            "with label noise": min((min(one["cos2"]) for one in noisy), default=None),
        }
        rest = squares["Adam"][1:]
        note = (
            "an odd network sees of a softplus teacher only its linear part, along Σβᵢ: with Adam one angle closes (cos²"
            f" {squares['Adam'][0]:.2f}) and the others stay at {min(rest):.2f} to {max(rest):.2f}, chance being"
            f" {record.metrics['case4']['chance']:.2f}; a normalised-ReLU student of a quadratic teacher finds all"
            f" {self.directions} (cos² at least {least:.2f} in the first {self.directions} vectors)"
        )
        return Reading(measured, averages["Adam"] > 0.5 and averages["GD"] < 0.3, note)

    @claim(
        "spectra-adam-generalises-better-multi-index",
        "Section 4.3",
        "Adam generalises better than GD and SGD",
        needs=CASES,
        seeds=3,
    )
    def better(self, record: Record) -> Reading:
        """R² of Adam above both, means over seeds"""
        found = {name: average(one["r2"] for one in members(record, key)) for key, name in CASES.items()}
        count = min(len(members(record, key)) for key in CASES)
        return Reading(found, found["Adam"] > max(found["GD"], found["SGD"]), seeds=count)

    @figure
    def angles(self, record: Record) -> Figure:
        """cos² over training, a panel for each case, one line per angle."""
        keys = (*CASES, CONTROL)
        drawn, axes = drawing.canvas(1, len(keys), width=3.6)
        for axis, key in zip(axes, keys):
            found = record.metrics.get(key, {})
            rows = [row for row in found.get("moments", ()) if row["cos2"] and row["cos2"][0]]
            if rows:
                at = [row["step"] / max(1, rows[-1]["step"]) for row in rows]
                for values in zip(*(row["cos2"][0] for row in rows)):
                    axis.plot(at, values, "o-", markersize=2.5, linewidth=0.9)
                axis.axhline(found["chance"], color="#999999", linestyle="--", linewidth=0.8)
            axis.set_ylim(-0.02, 1.02)
            title = CASES.get(key, "control: ReLU, quadratic")
            drawing.label(axis, title=title, x="share of the steps", y="cos² of the angles (chance: dashed)")
        return drawn
