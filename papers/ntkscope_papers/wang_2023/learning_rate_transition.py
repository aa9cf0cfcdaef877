"""Wang et al. (2023), Figure 20: the step at which a spike leaves the bulk, in trained networks and after a single step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from matplotlib.figure import Figure

from ntkscope import training
from ntkscope.core import Part, Record, Split
from ntkscope.models._layers import activation
from ntkscope_papers.framework import Run, claims_of, drawing, figure, leg
from ntkscope_papers.wang_2023 import transition_claims as claims
from ntkscope_papers.wang_2023.lazy import slope_moments
from ntkscope_papers.wang_2023.one_step import OneStepSetting, one_step_spike, one_step_threshold
from ntkscope_papers.wang_2023.teacher import LAYER, Case, Student, TeacherStudent, label_moments, train_case
from ntkscope_papers.wang_2023.teacher_spectra import Spectrum, alignments, rounded, spectra_of, weight_spectrum

NAMES = {"weights": "|β·u₁|, W", "ck": "|y·v₁|/‖y‖, CK", "ntk": "|y·v₁|/‖y‖, NTK"}


@dataclass(frozen=True)
class LearningRateTransition(TeacherStudent):
    """Spectra of linear-width networks, Figure 20: SGD's step and the spike, with the theory of one step beside it.

    `rates`: of SGD on the mean of r² (no ½) with batches of `batch`, each from the same start on the same data; none is more
    than 15 % above the one before from where a spike may appear. `multiples`: steps of the one-step runs, in units
    of the theory's threshold.
    """

    name = "learning-rate-transition"
    statements = claims_of(claims)
    free = ("seeds", "expected", "most", "test_items", "multiples")

    test_items: int = 2000
    tau: float = 0.2
    rates: tuple[float, ...] = (
        1.0, 4.0, 8.0, 11.0, 13.0, 14.0, 15.0, 15.75, 16.5, 17.25, 18.0, 18.75, 19.5, 21.0, 22.0, 24.0,
    )  # fmt: skip
    expected: int = 16_000
    most: int = 40_000
    multiples: tuple[float, ...] = (0.5, 0.8, 1.0, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0)

    smoke = {
        **TeacherStudent.smoke,
        "test_items": 250,
        "rates": (0.375, 1.0, 1.375, 1.75, 2.125, 2.75),
        "expected": 2_000,
        "most": 3_000,
        "multiples": (0.5, 2.0, 3.0),
    }

    @property
    def student(self) -> Student:
        return Student(self.items, self.width, self.dimension, self.test_items, tau=self.tau, noise=self.noise)

    @leg()
    def start(self, run: Run) -> dict[str, Any]:
        """The same networks before training: where the bulks end, and alignments by chance."""
        rows: list[dict[str, Any]] = []
        for seed in self.seeds_of(run):
            split = self.student.split(seed)
            found = spectra_of(self.student.network(seed), split, run.device)
            rows.append({"seed": seed, "top": tops(found), "alignment": alignments(found, split)})
        return {"runs": rows}

    @leg("one-step/{}", over=lambda self: ("without", "with"))
    def one_step(self, run: Run, start: str) -> dict[str, Any]:
        """One full-batch step on Eq. 74's loss at several sizes, with f₀ or without it, beside the theory.

        Without f₀ the targets are y + f₀(X), so that the residual is y while W stays as it was drawn.
        """
        student, kept = self.student, start == "with"
        slope = slope_moments(activation(student.activation)).coefficients[0]
        rows: list[dict[str, Any]] = []
        limits: list[float] = []
        for seed in self.seeds_of(run):
            split, model = student.split(seed), student.network(seed).eval()
            setting = sample_setting(student, split, model, slope)
            limit = one_step_threshold(setting)  # of f₀ = 0, for both: the same steps are made
            if kept:
                setting = replace(setting, start=float(outputs_of(model, split).square().mean()))
            limits.append(one_step_threshold(setting))
            rates = [multiple * limit for multiple in self.multiples]
            weights = stepped(student, seed, targets_of(model, split, kept), rates, run.device)
            beta = split.extras["directions"][0].double()
            for multiple, rate, W in zip(self.multiples, rates, weights):
                spectrum = weight_spectrum(W)
                theory, naive = one_step_spike(rate, setting), one_step_spike(rate, setting, naive=True)
                rows.append(
                    {
                        "seed": seed,
                        "multiple": multiple,
                        "rate": rate,
                        "value": float(spectrum.values[0]),
                        "second": float(spectrum.values[1]),
                        "alignment": float((beta @ spectrum.first.cpu()).abs()),
                        "theory": {"value": theory.value, "alignment": theory.alignment, "strength": theory.strength},
                        "naive": {"value": naive.value, "alignment": naive.alignment, "strength": naive.strength},
                        "row": row_length(W, model),
                    }
                )
        sizes, moments = (student.items, student.width, student.dimension), label_moments(student)
        population = OneStepSetting(*sizes, slope, moments["linear"], moments["second"], start=float(kept))
        return {
            "runs": rows,
            "thresholds": limits,
            "population threshold": one_step_threshold(population),
            "naive threshold": one_step_threshold(population, naive=True),
        }

    @leg("rates")
    def swept(self, run: Run) -> dict[str, Any]:
        """Every rate and seed as one ensemble; spectra and alignments of each network at the end."""
        rates, seeds = zip(*((rate, seed) for rate in self.rates for seed in self.seeds_of(run)))
        case = Case("sgd", self.rates[0], self.batch, self.expected, self.most, self.threshold)
        together = train_case(self.student, case, seeds, run.device, rates=rates)
        rows: list[dict[str, Any]] = []
        for i, told in enumerate(together.scores()):
            row: dict[str, Any] = {"rate": rates[i], "seed": seeds[i], **told}
            if not told["diverged"]:
                found = spectra_of(together.member(i), together.splits[i], run.device)
                row |= {"top": tops(found), "alignment": alignments(found, together.splits[i])}
            rows.append(row)
        return {"runs": rows, "notes": list(together.ensemble.notes), "fit_seconds": round(together.seconds, 1)}

    @figure
    def transition(self, record: Record) -> Figure:
        """Figure 20 b to d."""
        drawn, axes = drawing.canvas(1, 3, width=4.4)
        runs = claims.runs_of(record) if "rates" in record.metrics else []
        rates = [one["rate"] for one in runs]

        def points(axis: Any, values: list[float], i: int, label: str | None = None) -> None:
            axis.plot(rates, values, "o", markersize=3, color=drawing.COLOURS[i], label=label)

        points(axes[0], [one["top"]["weights"][0] for one in runs], 0)
        axes[0].axhline(self.edge, color="black", linewidth=0.8)
        points(axes[1], [one["top"]["ck"][0] for one in runs], 1)
        for one in record.metrics.get("start", {}).get("runs", ()):
            axes[1].axhline(one["top"]["ck"][0], color="black", linewidth=0.8)
        for i, (kind, name) in enumerate(NAMES.items()):
            points(axes[2], [one["alignment"][kind] for one in runs], i, name)
        axes[2].legend()
        for axis, y in zip(axes, ("λ₁ of WᵀW/d; Marchenko–Pastur edge", "λ₁ of the CK; at the start", "alignment")):
            drawing.label(axis, x="step of SGD, squared error without ½", y=y)
        return drawn

    @figure
    def steps(self, record: Record) -> dict[str, Figure]:
        """One step beside its theory."""
        drawn, axes = drawing.canvas(1, 2, width=5.6)
        for i, (key, word) in enumerate((("one-step/without", "f₀ = 0"), ("one-step/with", "f₀ kept"))):
            found = sorted(record.metrics.get(key, {}).get("runs", ()), key=lambda one: one["rate"])
            rates, colour = [one["rate"] for one in found], drawing.COLOURS[i]
            for axis, name in zip(axes, ("value", "alignment")):
                theory, naive = ([one[which][name] for one in found] for which in ("theory", "naive"))
                axis.plot(
                    rates, [one[name] for one in found], "o", markersize=4, color=colour, label=f"{word}, measured"
                )
                axis.plot(rates, theory, "-", linewidth=1, color=colour, label=f"{word}, theory")
                if key == "one-step/with":
                    axis.plot(rates, naive, "--", linewidth=1, color=colour, label="f₀ as if independent of W")
        for axis, label in zip(axes, ("λ₁ of W₁ᵀW₁/d", "|β·u₁|")):
            drawing.label(axis, x="size of the step, Eq. 74's loss", y=label, legend=True)
        return {"one-step": drawn}


def tops(spectra: dict[str, Spectrum]) -> dict[str, list[float]]:
    """The four largest eigenvalues of each."""
    return {kind: rounded(spectrum.values[:4].tolist()) for kind, spectrum in spectra.items()}


def sample_setting(student: Student, split: Split, model: torch.nn.Module, slope: float) -> OneStepSetting:
    """With the moments of these training labels and of this readout, which differ by a few percent from the population's."""
    y, beta = split.train.y.double(), split.extras["directions"][0].double()
    linear, second = float((y * (split.train.x.double() @ beta)).mean()), float(y.square().mean())
    readout = float(model.get_parameter("readout.weight").detach().double().square().mean())
    return OneStepSetting(student.items, student.width, student.dimension, slope, linear, second, readout)


def outputs_of(model: torch.nn.Module, split: Split) -> torch.Tensor:
    """f₀ on the training inputs."""
    with torch.no_grad():
        outputs: torch.Tensor = model(split.train.x)[:, 0]
    return outputs


def targets_of(model: torch.nn.Module, split: Split, kept: bool) -> Part:
    """The training labels; with the network's own outputs added where the residual is to be y."""
    if kept:
        return split.train
    return Part(split.train.x, split.train.y + outputs_of(model, split))


def stepped(student: Student, seed: int, part: Part, rates: list[float], device: torch.device) -> list[torch.Tensor]:
    """W after one step of each size from the same start; half the size, since the loss is the mean of r²."""
    ensemble = training.fit_ensemble(
        student.network,
        part,
        seeds=[seed] * len(rates),
        lr=[rate / 2 for rate in rates],
        optimizer="gd",
        loss="mse",
        steps=1,
        device=device,
    )
    return list(ensemble.params[LAYER].detach())


def row_length(W: torch.Tensor, model: torch.nn.Module) -> float:
    """‖W₁ᵀv̂‖²/d: of the only row that the step moves, 1 before it."""
    v = model.get_parameter("readout.weight").detach()[0].double().to(W.device)
    return float((v / v.norm() @ W.detach().double()).square().sum()) / W.shape[1]
