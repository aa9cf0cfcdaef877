"""Wang et al. (2023), Figure 21c and d: weights that are heavy-tailed from the start, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ntkscope.core import Record
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Reading, claim, lacking
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.wang_2023.linear_width_readings import members, missing
from ntkscope_papers.wang_2023.teacher import Case, Student, table_case, train_case
from ntkscope_papers.wang_2023.teacher_spectra import (
    alignments,
    class_of,
    hill,
    outlier_overlap,
    quantiles,
    rounded,
    spectra_of,
)

NAME = "heavy-tailed-start"
LAWS = ("normal", "cauchy")
SMALL = "cauchy, small"
OUTLIERS = 10
FIGURE_21D = {"test_loss": 1.47504, "r2": -0.48, "implied_variance": 0.9966}


@dataclass(frozen=True)
class HeavyTailedStart(Experiment):
    """Spectra of linear-width networks, Figure 21c and d: heavy tails that were drawn, not learned, do not help.

    `small`: a scale of the Cauchy law at which tanh is not saturated, measured beside the standard one. `rate`: of SGD from
    Cauchy weights, on the mean of r² with batches of `batch`; `most`: its steps at the latest. Pre-activations of Cauchy
    weights are of order √d, where tanh is flat: mostly the readout learns, and the published step of case 3 is too large.
    """

    name = NAME
    free = ("seeds", "most", "adam_most", "test_items")

    items: int = 2000
    width: int = 1500
    dimension: int = 1000
    test_items: int = 4000
    tau: float = 0.2
    noise: float = 0.3
    seeds: int = 3
    small: float = 0.01
    rate: float = 5.0
    batch: int = 32
    most: int = 12_600
    adam_rate: float = 0.092
    adam_batch: int = 256
    adam_most: int = 8_000
    threshold: float = 1e-5

    smoke = {
        **{"items": 250, "width": 188, "dimension": 125, "test_items": 500, "seeds": 2},
        **{"rate": 0.6, "batch": 4, "most": 2_000, "adam_batch": 32, "adam_most": 300},
    }

    def student(self, law: str) -> Student:
        sizes = self.items, self.width, self.dimension, self.test_items
        return Student(*sizes, tau=self.tau, noise=self.noise, law=law)

    def measure(self, run: Run) -> None:
        seeds = list(range(run.seed, run.seed + self.seeds))
        made = [
            Leg("start", partial(starts, self, seeds, run.device)),
            *(Leg(f"trained/{law}", partial(trained, self, law, seeds, run.device)) for law in LAWS),
        ]
        run_legs(run.record, made, self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def starts(config: HeavyTailedStart, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """Fresh networks of both laws: spectra of W and CK."""
    students = {law: config.student(law) for law in LAWS}
    students[SMALL] = replace(students["cauchy"], scale=config.small)
    found: dict[str, Any] = {law: [] for law in students}
    for seed in seeds:
        gaussian = None
        for law, student in students.items():
            spectra = spectra_of(student.network(seed), student.split(seed), device, ("weights", "ck"))
            gaussian = gaussian or spectra["ck"]
            row: dict[str, Any] = {
                kind: {
                    "top": rounded(one.values[:5].tolist()),
                    "share": float(one.values[0] / one.values.sum()),
                    "hill": hill(one.values),
                }
                for kind, one in spectra.items()
            }
            if seed == seeds[0]:
                row["quantiles"] = {kind: quantiles(one.values) for kind, one in spectra.items()}
            row["class"] = class_of("ck", gaussian, spectra["ck"], seed)
            found[law].append(row)
    return found


def trained(config: HeavyTailedStart, law: str, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """SGD from Cauchy weights, or Adam from Gaussian ones: scores, spectra of W, and what its outliers align with."""
    student = config.student(law)
    if law == "cauchy":
        case = Case("sgd", config.rate, config.batch, halved=False, expected=config.most, most=config.most)
    else:
        numbers = config.adam_rate, 190, config.adam_most
        case = table_case("case4", *numbers, batch=config.batch, adaptive_batch=config.adam_batch)
    together = train_case(student, case, seeds, device=device, threshold=config.threshold)
    rows = []
    for i, told in enumerate(together.scores()):
        if not told["diverged"]:
            split = together.splits[i]
            before = spectra_of(student.network(seeds[i]), split, device, ("weights", "ck"))
            after = spectra_of(together.member(i), split, device, ("weights", "ck"))
            gaussian = replace(student, law="normal").network(seeds[i])
            null = spectra_of(gaussian, split, device, ("weights",))["weights"]
            told |= {
                "top": rounded(after["weights"].values[:5].tolist()),
                "hill": {"before": hill(before["weights"].values), "after": hill(after["weights"].values)},
                "hill_gaussian": hill(null.values),
                "alignment": alignments(after, split),
                "outliers": outlier_overlap(after["weights"].matrix, split.extras["directions"], OUTLIERS)[0],
                "class": class_of("weights", null, after["weights"], seeds[i]),
            }
            if i == 0:
                told["quantiles"] = {
                    "before": quantiles(before["weights"].values),
                    "after": quantiles(after["weights"].values),
                }
        rows.append(told)
    return {"members": rows, "fit_seconds": round(together.seconds, 1)}


@claim(
    "spectra-cauchy-init",
    "Figure 21c",
    "Cauchy weights give a heavy-tailed CK before any training",
    "in every seed: Hill's exponent of the CK below half the Gaussian one's or its largest eigenvalue's share twice as"
    " large; λ₁ of"
    " WᵀW/d above 100 edges",
)
def _cauchy(config: Any, record: Record) -> Reading:
    if lacks := missing(record, "start"):
        return lacking(*lacks)
    pairs = list(zip(record.metrics["start"]["normal"], record.metrics["start"]["cauchy"]))
    small = record.metrics["start"][SMALL]
    edge = (1 + (config.width / config.dimension) ** 0.5) ** 2
    measured: dict[str, Any] = {
        "Hill of the CK, Gaussian and Cauchy": [[a["ck"]["hill"], b["ck"]["hill"]] for a, b in pairs],
        "share of λ₁ of the CK": [[a["ck"]["share"], b["ck"]["share"]] for a, b in pairs],
        "λ₁ of WᵀW/d over the edge": [b["weights"]["top"][0] / edge for _, b in pairs],
        "classes of the CK": [b["class"]["label"] for _, b in pairs],
        "Hill of the CK, small scale": [one["ck"]["hill"] for one in small],
        "classes of the CK, small scale": [one["class"]["label"] for one in small],
    }
    heavy = all(b["ck"]["hill"] < a["ck"]["hill"] / 2 or b["ck"]["share"] > 2 * a["ck"]["share"] for a, b in pairs)
    told = ", ".join(sorted(set(measured["classes of the CK, small scale"])))
    note = (
        "pre-activations of standard Cauchy weights are of order √d, where tanh is ±1: features are bounded, and the CK is"
        " wider but"
        f" not heavier; at {config.small:g} of the scale its class is: {told}"
    )
    holds = heavy and min(measured["λ₁ of WᵀW/d over the edge"]) > 100
    return Reading(measured, holds, "" if holds else note)


@claim(
    "spectra-heavy-tail-bad-generalisation",
    "Figure 21d",
    FIGURE_21D,
    "R² below 0.2 with heavy-tailed W; the two published numbers agree at unit variance",
)
def _bad(config: Any, record: Record) -> Reading:
    if lacks := missing(record, "trained/cauchy"):
        return lacking(*lacks)
    found = members(record, "trained/cauchy")
    if not found:
        return Reading({"networks": 0}, False, "every network diverged")
    implied = FIGURE_21D["test_loss"] / (1 - FIGURE_21D["r2"])
    measured: dict[str, Any] = {
        "R²": [one["r2"] for one in found],
        "test error": [one["test_error"] for one in found],
        "training error": [one["train_mse"] for one in found],
        "Hill of W": [one["hill"]["after"] for one in found],
        "Hill of a Gaussian W": [one["hill_gaussian"] for one in found],
        "classes of W": [one["class"]["label"] for one in found],
        "implied variance": implied,
    }
    heavy = all(one["hill"]["after"] < one["hill_gaussian"] for one in found)
    holds = max(measured["R²"]) < 0.2 and heavy and abs(implied - 1) < 0.01
    return Reading(
        measured, holds, "the initialisation behind Figure 21d is not stated; Cauchy weights and SGD are taken"
    )


@claim(
    "spectra-heavy-tail-not-sufficient",
    "Section 4.3",
    "heavy tails help only if they are aligned with the teacher",
    "Hill's exponent of W below the Gaussian start's in both; Adam: R² above 0.5 and cos² of β with the ten first vectors"
    " above 0.5;"
    " Cauchy start: R² below 0.2 and cos² below 0.2",
)
def _aligned(config: Any, record: Record) -> Reading:
    if lacks := missing(record, "trained/cauchy", "trained/normal"):
        return lacking(*lacks)
    good, bad = members(record, "trained/normal"), members(record, "trained/cauchy")
    if not good or not bad:
        return Reading({"Adam": len(good), "Cauchy": len(bad)}, False, "every network of one kind diverged")
    measured = {
        name: {
            "R²": [one["r2"] for one in found],
            "cos² of β and ten first vectors": [one["outliers"] for one in found],
            "Hill of W": [one["hill"]["after"] for one in found],
        }
        for name, found in (("Adam", good), ("Cauchy start", bad))
    }
    heavy = all(one["hill"]["after"] < one["hill_gaussian"] for one in (*good, *bad))
    helped = min(one["r2"] for one in good) > 0.5 and min(one["outliers"] for one in good) > 0.5
    lost = max(one["r2"] for one in bad) < 0.2 and max(one["outliers"] for one in bad) < 0.2
    return Reading(measured, heavy and helped and lost)


def draw(record: Record) -> dict[str, Any]:
    """The CK's spectrum at both starts, and W's before and after training."""
    figure, axes = drawing.canvas(1, 2, width=5.2)
    words = {"normal": "Gaussian W", "cauchy": "Cauchy W", SMALL: "Cauchy W, small scale"}
    for i, (law, word) in enumerate(words.items()):
        for row in record.metrics.get("start", {}).get(law, ())[:1]:
            _tail(axes[0], row["quantiles"]["ck"], i, word)
    axes[0].set_xlabel("eigenvalue of the CK at the start")
    found = record.metrics.get("trained/cauchy", {}).get("members", ())
    for row in [one for one in found if "quantiles" in one][:1]:
        for i, when in enumerate(("before", "after")):
            _tail(axes[1], row["quantiles"][when], i, f"{when} SGD")
    axes[1].set_xlabel("eigenvalue of WᵀW/d, Cauchy start")
    for axis in axes:
        axis.set_ylabel("share of larger ones")
        if axis.get_legend_handles_labels()[0]:
            drawing.label(axis, log="x", legend=True)
    return {"spectra": figure}


def _tail(axis: Any, values: list[float], colour: int, label: str) -> None:
    """The share of eigenvalues above each, from quantiles."""
    shares = [1 - i / (len(values) - 1) for i in range(len(values))]
    pairs = [(value, share) for value, share in zip(values, shares) if value > 1e-6]
    axis.plot(*zip(*pairs), "-", linewidth=1.2, color=drawing.COLOURS[colour], label=label)
