"""Wang et al. (2023), Figure 21c and d: weights that are heavy-tailed from the start, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from ntkscope.core import Record
from ntkscope_papers.framework import Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.wang_2023.teacher import Case, Student, TeacherStudent, members, train_case
from ntkscope_papers.wang_2023.teacher_spectra import (
    alignments,
    class_of,
    hill,
    outlier_overlap,
    quantiles,
    rounded,
    spectra_of,
)

LAWS = ("normal", "cauchy")
SMALL = "cauchy, small"
OUTLIERS = 10
FIGURE_21D = {"test_loss": 1.47504, "r2": -0.48, "implied_variance": 0.9966}
TRAINED = ("trained/normal", "trained/cauchy")


@dataclass(frozen=True)
class HeavyTailedStart(TeacherStudent):
    """Spectra of linear-width networks, Figure 21c and d: heavy tails that were drawn, not learned, do not help.

    `small`: a scale of the Cauchy law at which tanh is not saturated, measured beside the standard one. `rate`: of SGD from
    Cauchy weights, on the mean of r² with batches of `batch`; `most`: its steps at the latest. Pre-activations of Cauchy
    weights are of order √d, where tanh is flat: mostly the readout learns, and the published step of case 3 is too large.
    """

    name = "heavy-tailed-start"
    free = ("seeds", "most", "adam_most", "test_items")

    test_items: int = 4000
    tau: float = 0.2
    small: float = 0.01
    rate: float = 5.0
    most: int = 12_600
    adam_rate: float = 0.092
    adam_batch: int = 256
    adam_most: int = 8_000

    smoke = {
        **TeacherStudent.smoke,
        **{"test_items": 500, "rate": 0.6, "most": 2_000, "adam_batch": 32, "adam_most": 300},
    }

    def student(self, law: str) -> Student:
        sizes = self.items, self.width, self.dimension, self.test_items
        return Student(*sizes, tau=self.tau, noise=self.noise, law=law)

    def case(self, law: str) -> Case:
        """SGD from Cauchy weights, Adam as in case 4 of Table 8 from Gaussian ones."""
        if law == "cauchy":
            return Case("sgd", self.rate, self.batch, self.most, self.most, self.threshold)
        return Case("adam", self.adam_rate, self.adam_batch, 190, self.adam_most, self.threshold)

    @leg()
    def start(self, run: Run) -> dict[str, Any]:
        """Fresh networks of both laws: spectra of W and CK."""
        students = {law: self.student(law) for law in LAWS}
        students[SMALL] = replace(students["cauchy"], scale=self.small)
        found: dict[str, Any] = {law: [] for law in students}
        for seed in self.seeds_of(run):
            gaussian = None
            for law, student in students.items():
                spectra = spectra_of(student.network(seed), student.split(seed), run.device, ("weights", "ck"))
                gaussian = gaussian or spectra["ck"]
                row: dict[str, Any] = {
                    kind: {
                        "top": rounded(one.values[:5].tolist()),
                        "share": float(one.values[0] / one.values.sum()),
                        "hill": hill(one.values),
                    }
                    for kind, one in spectra.items()
                }
                if seed == run.seed:
                    row["quantiles"] = {kind: quantiles(one.values) for kind, one in spectra.items()}
                row["class"] = class_of("ck", gaussian, spectra["ck"], seed)
                found[law].append(row)
        return found

    @leg("trained/{}", over=lambda self: LAWS)
    def trained(self, run: Run, law: str) -> dict[str, Any]:
        """Scores, spectra of W, and what its outliers align with."""
        student, seeds = self.student(law), self.seeds_of(run)
        together = train_case(student, self.case(law), seeds, run.device)
        scores = together.scores()
        for i, (seed, split, told) in enumerate(zip(seeds, together.splits, scores)):
            if told["diverged"]:
                continue
            before = spectra_of(student.network(seed), split, run.device, ("weights",))["weights"]
            after = spectra_of(together.member(i), split, run.device, ("weights", "ck"))
            W = after["weights"]
            gaussian = replace(student, law="normal").network(seed)
            null = spectra_of(gaussian, split, run.device, ("weights",))["weights"]
            told |= {
                "top": rounded(W.values[:5].tolist()),
                "hill": {"before": hill(before.values), "after": hill(W.values)},
                "hill_gaussian": hill(null.values),
                "alignment": alignments(after, split),
                "outliers": outlier_overlap(W.matrix, split.extras["directions"], OUTLIERS)[0],
                "class": class_of("weights", null, W, seed),
            }
            if i == 0:
                told["quantiles"] = {"before": quantiles(before.values), "after": quantiles(W.values)}
        return {"members": scores, "fit_seconds": round(together.seconds, 1)}

    @claim(
        "spectra-cauchy-init",
        "Figure 21c",
        "Cauchy weights give a heavy-tailed CK before any training",
        needs=["start"],
    )
    def cauchy(self, record: Record) -> Reading:
        """in every seed: Hill's exponent of the CK below half the Gaussian one's or its largest eigenvalue's share
        twice as large; λ₁ of WᵀW/d above 100 edges"""
        found = record.metrics["start"]
        pairs = list(zip(found["normal"], found["cauchy"]))
        measured: dict[str, Any] = {
            "Hill of the CK, Gaussian and Cauchy": [[a["ck"]["hill"], b["ck"]["hill"]] for a, b in pairs],
            "share of λ₁ of the CK": [[a["ck"]["share"], b["ck"]["share"]] for a, b in pairs],
            "λ₁ of WᵀW/d over the edge": [b["weights"]["top"][0] / self.edge for _, b in pairs],
            "classes of the CK": [b["class"]["label"] for _, b in pairs],
            "Hill of the CK, small scale": [one["ck"]["hill"] for one in found[SMALL]],
            "classes of the CK, small scale": [one["class"]["label"] for one in found[SMALL]],
        }
        heavy = all(b["ck"]["hill"] < a["ck"]["hill"] / 2 or b["ck"]["share"] > 2 * a["ck"]["share"] for a, b in pairs)
        told = ", ".join(sorted(set(measured["classes of the CK, small scale"])))
        note = (
            "pre-activations of standard Cauchy weights are of order √d, where tanh is ±1: features are bounded, and the CK"
            f" is wider but not heavier; at {self.small:g} of the scale its class is: {told}"
        )
        holds = heavy and min(measured["λ₁ of WᵀW/d over the edge"]) > 100
        return Reading(measured, holds, "" if holds else note)

    @claim("spectra-heavy-tail-bad-generalisation", "Figure 21d", FIGURE_21D, needs=["trained/cauchy"])
    def generalises_badly(self, record: Record) -> Reading:
        """R² below 0.2 with heavy-tailed W; the two published numbers agree at unit variance"""
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
        holds = max(measured["R²"]) < 0.2 and all(map(heavier, found)) and abs(implied - 1) < 0.01
        other = "initialisation and step of Figure 21d are not stated; Cauchy weights and SGD are taken"
        return Reading(measured, holds, other=other)

    @claim(
        "spectra-heavy-tail-not-sufficient",
        "Section 4.3",
        "heavy tails help only if they are aligned with the teacher",
        needs=("trained/cauchy", "trained/normal"),
    )
    def helps_if_aligned(self, record: Record) -> Reading:
        """Hill's exponent of W below the Gaussian start's in both; Adam: R² above 0.5 and cos² of β with the ten first
        vectors above 0.5; Cauchy start: R² below 0.2 and cos² below 0.2"""
        good, bad = (members(record, key) for key in TRAINED)
        if not good or not bad:
            return Reading({"Adam": len(good), "Cauchy": len(bad)}, False, "every network of one kind diverged")
        measured = {
            name: {
                "R²": [one["r2"] for one in found],
                "cos² of β and ten first vectors": [one["outliers"] for one in found],
                "Hill of W": [one["hill"]["after"] for one in found],
                "Hill of a Gaussian W": [one["hill_gaussian"] for one in found],
            }
            for name, found in (("Adam", good), ("Cauchy start", bad))
        }
        helped = min(one["r2"] for one in good) > 0.5 and min(one["outliers"] for one in good) > 0.5
        lost = max(one["r2"] for one in bad) < 0.2 and max(one["outliers"] for one in bad) < 0.2
        note = "law and step of the Cauchy start are not stated in the paper; its tail is the one that is drawn"
        return Reading(measured, all(map(heavier, (*good, *bad))) and helped and lost, note)

    @figure
    def spectra(self, record: Record) -> Figure:
        """The CK's spectrum at both starts, and W's before and after training."""
        drawn, axes = drawing.canvas(1, 2, width=5.2)
        words = {"normal": "Gaussian W", "cauchy": "Cauchy W", SMALL: "Cauchy W, small scale"}
        for i, (law, word) in enumerate(words.items()):
            for row in record.metrics.get("start", {}).get(law, ())[:1]:
                draw_tail(axes[0], row["quantiles"]["ck"], i, word)
        found = record.metrics.get("trained/cauchy", {}).get("members", ())
        for row in [one for one in found if "quantiles" in one][:1]:
            for i, when in enumerate(("before", "after")):
                draw_tail(axes[1], row["quantiles"][when], i, f"{when} SGD")
        for axis, x in zip(axes, ("eigenvalue of the CK at the start", "eigenvalue of WᵀW/d, Cauchy start")):
            drawing.label(axis, x=x, y="share of larger ones", log="x", legend=True)
        return drawn


def heavier(network: Mapping[str, Any]) -> bool:
    """Whether the tail of W, by Hill's exponent, is heavier than that of a Gaussian W."""
    return bool(network["hill"]["after"] < network["hill_gaussian"])


def draw_tail(axis: Any, values: Sequence[float], colour: int, label: str) -> None:
    """The share of eigenvalues above each, from quantiles."""
    shares = [1 - i / (len(values) - 1) for i in range(len(values))]
    pairs = [(value, share) for value, share in zip(values, shares) if value > 1e-6]
    axis.plot(*zip(*pairs), "-", linewidth=1.2, color=drawing.COLOURS[colour], label=label)
