"""Wang et al. (2023), Figure 20: the step at which a spike leaves the bulk, in trained networks and after a single step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ntkscope import training
from ntkscope.core import Part, Record, Split
from ntkscope.measures.lazy import slope_moments
from ntkscope.measures.one_step import OneStepSetting, one_step_spike, one_step_threshold
from ntkscope.models._activations import activation
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.wang_2023 import transition_claims as claims
from ntkscope_papers.wang_2023.teacher import LAYER, Case, Student, label_moments, train_case
from ntkscope_papers.wang_2023.teacher_spectra import alignments, rounded, spectra_of, weight_spectrum
from ntkscope_papers.wang_2023.transition_figures import draw


@dataclass(frozen=True)
class LearningRateTransition(Experiment):
    """Spectra of linear-width networks, Figure 20: SGD's step and the spike, with the theory of one step beside it.

    `rates`: of SGD on the mean of r² (no ½) with batches of `batch`, each from the same start on the same data; none is more
    than 15 % above the one before from where a spike may appear. `multiples`: steps of the one-step runs, in units
    of the theory's threshold.
    """

    name = "learning-rate-transition"
    statements = claims_of(claims)
    free = ("seeds", "expected", "most", "test_items", "multiples")

    items: int = 2000
    width: int = 1500
    dimension: int = 1000
    test_items: int = 2000
    tau: float = 0.2
    noise: float = 0.3
    seeds: int = 3
    rates: tuple[float, ...] = (
        1.0, 4.0, 8.0, 11.0, 13.0, 14.0, 15.0, 15.75, 16.5, 17.25, 18.0, 18.75, 19.5, 21.0, 22.0, 24.0,
    )  # fmt: skip
    batch: int = 32
    expected: int = 16_000
    most: int = 40_000
    threshold: float = 1e-5
    multiples: tuple[float, ...] = (0.5, 0.8, 1.0, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0)

    # All sizes an eighth, and the steps with them.
    smoke = {
        "items": 250,
        "width": 188,
        "dimension": 125,
        "test_items": 250,
        "seeds": 2,
        "rates": (0.375, 1.0, 1.375, 1.75, 2.125, 2.75),
        "batch": 4,
        "expected": 2_000,
        "most": 3_000,
        "multiples": (0.5, 2.0, 3.0),
    }

    @property
    def student(self) -> Student:
        return Student(self.items, self.width, self.dimension, self.test_items, tau=self.tau, noise=self.noise)

    @property
    def case(self) -> Case:
        return Case("sgd", self.rates[0], self.batch, halved=False, expected=self.expected, most=self.most)

    def measure(self, run: Run) -> None:
        run_legs(run.record, legs(self, run.seed, run.device), self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def swept(config: LearningRateTransition, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """Every rate and seed as one ensemble; spectra and alignments of each network at the end."""
    grid = [(rate, seed) for rate in config.rates for seed in seeds]
    together = train_case(
        config.student,
        config.case,
        [seed for _, seed in grid],
        device=device,
        threshold=config.threshold,
        rates=[rate for rate, _ in grid],
    )
    rows: list[dict[str, Any]] = []
    for i, ((rate, seed), told) in enumerate(zip(grid, together.scores())):
        row: dict[str, Any] = {"rate": rate, "seed": seed, **told}
        if not told["diverged"]:
            found = spectra_of(together.member(i), together.splits[i], device)
            row["top"] = {kind: rounded(spectrum.values[:4].tolist()) for kind, spectrum in found.items()}
            row["alignment"] = alignments(found, together.splits[i])
        rows.append(row)
    return {"runs": rows, "notes": list(together.ensemble.notes), "fit_seconds": round(together.seconds, 1)}


def starts(config: LearningRateTransition, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """The same networks before training: where the bulks end, and alignments by chance."""
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        split = config.student.split(seed)
        found = spectra_of(config.student.network(seed), split, device)
        top = {kind: rounded(spectrum.values[:4].tolist()) for kind, spectrum in found.items()}
        rows.append({"seed": seed, "top": top, "alignment": alignments(found, split)})
    return {"runs": rows}


def one_step(config: LearningRateTransition, kept: bool, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """One full-batch step on Eq. 74's loss at several sizes, beside the theory.

    Without f₀ (`kept` false) the targets are y + f₀(X), so that the residual is y while W stays as it was drawn.
    """
    student = config.student
    moments = label_moments(student)
    slope = slope_moments(activation(student.activation)).coefficients[0]
    rows: list[dict[str, Any]] = []
    limits: list[float] = []
    for seed in seeds:
        split, model = student.split(seed), student.network(seed).eval()
        setting = sample_setting(student, split, model, slope)
        limit = one_step_threshold(setting)  # of f₀ = 0, for both: the same steps are made
        if kept:
            setting = replace(setting, start=float(outputs_of(model, split).square().mean()))
        limits.append(one_step_threshold(setting))
        rates = [multiple * limit for multiple in config.multiples]
        weights = stepped(student, seed, targets_of(model, split, kept), rates, device)
        beta = split.extras["directions"][0].double()
        for multiple, rate, W in zip(config.multiples, rates, weights):
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
    population = OneStepSetting(
        student.items, student.width, student.dimension, slope, moments["linear"], moments["second"], start=float(kept)
    )
    return {
        "runs": rows,
        "thresholds": limits,
        "population threshold": one_step_threshold(population),
        "naive threshold": one_step_threshold(population, naive=True),
    }


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


def legs(config: LearningRateTransition, seed: int, device: torch.device) -> list[Leg]:
    """Every measurement."""
    seeds = list(range(seed, seed + config.seeds))
    return [
        Leg("start", partial(starts, config, seeds, device)),
        Leg("one-step/without", partial(one_step, config, False, seeds, device)),
        Leg("one-step/with", partial(one_step, config, True, seeds, device)),
        Leg("rates", partial(swept, config, seeds, device)),
    ]
