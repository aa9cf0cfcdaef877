"""Wang et al. (2023), Figure 21b: five hidden directions, and how many of them the first layer finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ntkscope.core import Record, Snapshot
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Reading, claim, lacking
from ntkscope_papers.framework.experiment import Run
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.wang_2023.linear_width_readings import average, missing
from ntkscope_papers.wang_2023.table8 import EXPECTED, MOST, RATES, Table8, eighth, numbers_of
from ntkscope_papers.wang_2023.teacher import LAYER, Case, Student, train_case
from ntkscope_papers.wang_2023.teacher_spectra import finite_member, outlier_overlap, rounded

NAME = "multiple-index"
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

    name = NAME
    free = ("seeds", "expected", "most", "moments", "test_items")

    cases = tuple(CASES)
    test_items: int = 4000
    directions: int = 5
    top: int = 100
    rates: tuple[float, ...] = numbers_of(RATES, cases)
    expected: tuple[int, ...] = numbers_of(EXPECTED, cases)
    most: tuple[int, ...] = numbers_of(MOST, cases)
    moments: int = 8
    control_items: int = 5000
    control_width: int = 300
    control_dimension: int = 100
    control_rate: float = RATES["case4"]
    control_steps: int = 1600

    smoke = {  # SGD ends somewhat earlier, and the control is smaller
        **eighth(cases),
        **{"most": (300, 2_000, 300), "test_items": 500, "top": 13, "moments": 3},
        **{"control_items": 1000, "control_width": 60, "control_dimension": 20, "control_steps": 200},
    }

    @property
    def student(self) -> Student:
        return Student(
            self.items, self.width, self.dimension, self.test_items, directions=self.directions, noise=self.noise
        )

    def control(self, noise: float) -> Student:
        return Student(
            self.control_items,
            self.control_width,
            self.control_dimension,
            self.test_items,
            directions=self.directions,
            link="quadratic",
            noise=noise,
            activation="normalised-relu",
        )

    def case(self, name: str) -> Case:
        if name in (CONTROL, NOISY):
            steps = self.control_steps
            return Case("adam", self.control_rate, self.adam_batch, halved=True, expected=steps, most=steps)
        return self.table_case(name)

    def measure(self, run: Run) -> None:
        seeds = list(range(run.seed, run.seed + self.seeds))
        made = [Leg(key, partial(followed, self, key, seeds, run.device)) for key in (CONTROL, NOISY, *reversed(CASES))]
        run_legs(run.record, made, self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def followed(config: MultipleIndex, name: str, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """cos² of the angles between the teacher's directions and the first right singular vectors of W, through training."""
    students = {CONTROL: config.control(0.0), NOISY: config.control(config.noise)}
    student, case = students.get(name, config.student), config.case(name)
    top = config.directions if name in students else config.top
    splits = [student.split(seed) for seed in seeds]
    rows: list[dict[str, Any]] = []

    def squares(weights: torch.Tensor) -> list[list[float]]:
        return [
            rounded(outlier_overlap(W, split.extras["directions"], top)) if finite_member(W) else []
            for W, split in zip(weights, splits)
        ]

    def watch(snapshot: Snapshot) -> None:
        rows.append({"step": snapshot.step, "cos2": squares(snapshot.params[LAYER])})

    looks: dict[str, Any] = {"watch": watch, "moments": case.moments(config.moments), "splits": splits}
    together = train_case(student, case, seeds, device=device, threshold=config.threshold, **looks)
    sums = [split.extras["directions"].sum(0, keepdim=True) for split in splits]
    final = together.ensemble.params[LAYER].detach()
    members = []
    for i, told in enumerate(together.scores()):
        if not told["diverged"]:
            told["cos2"] = rounded(outlier_overlap(final[i], splits[i].extras["directions"], top))
            told["cos2 of the sum"] = outlier_overlap(final[i], sums[i], top)[0]
        members.append(told)
    return {
        "members": members,
        "moments": rows,
        "top": top,
        "chance": top / student.dimension,
        "fit_seconds": round(together.seconds, 1),
    }


def alive(record: Record, key: str) -> list[Mapping[str, Any]]:
    return [one for one in record.metrics[key]["members"] if not one["diverged"]]


def mean_squares(record: Record, key: str) -> list[float]:
    """cos² of the angles in their order, largest first, means over seeds."""
    return [sum(each) / len(each) for each in zip(*(one["cos2"] for one in alive(record, key)))]


@claim(
    "spectra-principal-angles",
    "Figure 21b",
    {"k": 5, "top": 100},
    "mean cos² of the five angles above 0.5 with Adam, below 0.3 with GD",
)
def _angles(config: Any, record: Record) -> Reading:
    if lacks := missing(record, *CASES, CONTROL):
        return lacking(*lacks)
    if not all(alive(record, key) for key in (*CASES, CONTROL)):
        return Reading(
            {key: len(alive(record, key)) for key in (*CASES, CONTROL)}, False, "all networks of a case diverged"
        )
    squares = {CASES.get(key, "control"): mean_squares(record, key) for key in (*CASES, CONTROL)}
    averages = {name: sum(values) / len(values) for name, values in squares.items()}
    least = min(min(one["cos2"]) for one in alive(record, CONTROL))
    along = average(one["cos2 of the sum"] for one in alive(record, "case4"))
    noisy = (
        min(min(one["cos2"]) for one in alive(record, NOISY))
        if NOISY in record.metrics and alive(record, NOISY)
        else None
    )
    measured = {
        "cos²": squares,
        "mean cos²": averages,
        "Adam, Σβᵢ": along,
        "control, least cos²": least,
        "with label noise": noisy,
    }
    rest = squares["Adam"][1:]
    note = (
        "an odd network sees of a softplus teacher only its linear part, along Σβᵢ: with Adam one angle closes (cos²"
        f" {squares['Adam'][0]:.2f})"
        f" and the others stay at {min(rest):.2f} to {max(rest):.2f}, chance being {record.metrics['case4']['chance']:.2f}; a"
        " normalised-ReLU"
        f" student of a quadratic teacher finds all {config.directions} (cos² at least {least:.2f} in the first"
        f" {config.directions} vectors)"
    )
    return Reading(measured, averages["Adam"] > 0.5 and averages["GD"] < 0.3, note)


@claim(
    "spectra-adam-generalises-better-multi-index",
    "Section 4.3",
    "Adam generalises better than GD and SGD",
    "R² of Adam above both, means over seeds",
    seeds=3,
)
def _better(config: Any, record: Record) -> Reading:
    if lacks := missing(record, *CASES):
        return lacking(*lacks)
    found = {name: average(one["r2"] for one in alive(record, key)) for key, name in CASES.items()}
    count = min(len(alive(record, key)) for key in CASES)
    return Reading(found, found["Adam"] > max(found["GD"], found["SGD"]), seeds=count)


def draw(record: Record) -> dict[str, Any]:
    """cos² over training, a panel for each case, one line per angle."""
    keys = (*CASES, CONTROL)
    figure, axes = drawing.canvas(1, len(keys), width=3.6)
    for axis, key in zip(axes, keys):
        found = record.metrics.get(key, {})
        rows = [row for row in found.get("moments", ()) if row["cos2"] and row["cos2"][0]]
        if rows:
            last = max(1, rows[-1]["step"])
            for place in range(len(rows[0]["cos2"][0])):
                values = [row["cos2"][0][place] for row in rows]
                axis.plot([row["step"] / last for row in rows], values, "o-", markersize=2.5, linewidth=0.9)
            axis.axhline(found["chance"], color="#999999", linestyle="--", linewidth=0.8)
        axis.set_ylim(-0.02, 1.02)
        drawing.label(
            axis,
            title=CASES.get(key, "control: ReLU, quadratic"),
            x="share of the steps",
            y="cos² of the angles (chance: dashed)",
        )
    return {"angles": figure}
