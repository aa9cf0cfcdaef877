"""Balakrishnan (2023), appendix A and Figures 6 and 7: layers that stop learning after the first epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ntkscope.core import Record
from ntkscope.kernels import Tangent
from ntkscope.training.modes import Phase
from ntkscope_papers.balakrishnan_2023.polynomials import mode_claims as claims
from ntkscope_papers.balakrishnan_2023.polynomials.data import FREE, PARTS, SMALL, Inputs, PolynomialRuns, Task
from ntkscope_papers.balakrishnan_2023.polynomials.machines import (
    Problem,
    everything,
    tangent_kernel,
    told,
    with_gaussian_kernel,
    with_tangent_kernel,
)
from ntkscope_papers.balakrishnan_2023.polynomials.mode_claims import MODES, PLAIN, kernels_key, networks_key, variants
from ntkscope_papers.balakrishnan_2023.polynomials.mode_figures import array_name, draw
from ntkscope_papers.balakrishnan_2023.polynomials.networks import (
    Recipe,
    Trained,
    columns,
    member_scores,
    network,
    outputs,
    stored,
    train,
)
from ntkscope_papers.framework import experiment as framework
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.legs import Leg, run_legs

NAME = "training-modes"
LOSSES = ("svr", "ridge")


@dataclass(frozen=True)
class TrainingModes(PolynomialRuns):
    """Training modes, Figures 6 and 7: a first layer that learns for one epoch, on polynomials of odd and even degree.

    `kernel_degrees`: those with kernel machines, which have raw targets and the plain reading of the modes.
    """

    name = NAME
    statements = claims_of(claims)
    free = FREE

    degrees: tuple[int, ...] = (3, 4, 5, 6, 7)
    kernel_degrees: tuple[int, ...] = (3, 6)
    targets: tuple[str, ...] = ("raw", "unit")
    width: int = 512
    rate: float = 1.0
    follow: int = 20

    smoke = {
        **SMALL,
        "width": 8,
        "follow": 2,
    }

    def measure(self, run: framework.Run) -> None:
        made = legs(Run(self, run.record, run.seed, run.device, Inputs(self, run.seed)))
        run_legs(run.record, made, self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def phases(mode: str, freeze: str, state: str) -> tuple[Phase, ...]:
    """The phases of a mode: the first layer, or its weights alone, stop after one epoch; the optimiser's state is kept or not.

    With the weights alone frozen, the biases of the first layer learn on, in first-last too.
    """
    frozen = ("first",) if freeze == "layer" else ("first.weight",)
    reset = state == "reset"
    if mode == "reg":
        return (Phase(),)
    before = Phase(train=("first",), epochs=1) if mode == "first-last" else Phase(epochs=1)
    again = ("last",) if mode == "reinit" else ()
    return (before, Phase(freeze=frozen, reinit=again, reset_optimizer=reset))


@dataclass(frozen=True, eq=False)
class Run:
    """What a leg needs besides its own name."""

    config: TrainingModes
    record: Record
    seed: int
    device: torch.device
    inputs: Inputs

    @property
    def tasks(self) -> list[Task]:
        return [Task("isotropic", degree, target) for target in self.config.targets for degree in self.config.degrees]

    def trained(self, mode: str, freeze: str, state: str) -> Trained:
        """The networks of a mode, trained if they are not in the record's folder."""
        config = self.config
        recipe = Recipe(config.width, config.rate, config.follow, mode=phases(mode, freeze, state))
        make = partial(train, config, self.inputs, self.tasks, recipe, seed=self.seed, device=self.device)
        return stored(self.record, networks_key(mode, freeze, state), make, self.device)

    def problem(self, task: Task, s: int) -> tuple[torch.Tensor, Problem]:
        drawn = self.inputs.draw(task.kind, s)
        targets = {name: drawn.clean(name, task) for name in PARTS}
        return everything(drawn.x, self.device), Problem.of(targets, drawn.v["test"], task.degree, self.device)


def networks(run: Run, mode: str, freeze: str, state: str) -> dict[str, Any]:
    """All degrees and targets in one mode."""
    config, found = run.config, run.trained(mode, freeze, state)
    weights, biases, readout = found.changes.amax(0).tolist()
    if (freeze, state) == PLAIN:
        for degree in config.kernel_degrees:
            task = Task("isotropic", degree, config.targets[0])
            drawn, member = run.inputs.draw(task.kind, 0), run.tasks.index(task) * config.seeds
            predicted = outputs(found.params, member, drawn.x["test"].to(run.device)).numpy()
            rows = [drawn.v["test"].numpy(), drawn.clean("test", task).numpy(), predicted]
            run.record.array(array_name(mode, degree), np.stack(rows).astype(np.float32))
    changes = {
        "first-layer weights after epoch 1": weights,
        "first-layer biases after epoch 1": biases,
        "readout weights in epoch 1": readout,
    }
    scores = member_scores(found, run.inputs, run.tasks, config.seeds)
    return {"moments": list(found.moments), "changes": changes, "tasks": scores}


def tangent_machines(run: Run, mode: str, degree: int) -> dict[str, Any]:
    """SVR and ridge regression with the NTK of all parameters, and of those that learn after the first epoch."""
    config, task = run.config, Task("isotropic", degree, run.config.targets[0])
    found, place = run.trained(mode, *PLAIN), run.tasks.index(task)
    model = network(config.dimension, config.width, 0).double().to(run.device).eval()
    options: dict[str, Any] = {"dtype": torch.float64, "device": run.device, "memory": config.memory}
    tangents = {"": Tangent(model, certify="sampled", **options)}
    if mode != "reg":
        tangents["learning "] = Tangent(model, params="readout.*", certify="sampled", **options)
    rows: dict[str, list[dict[str, float]]] = {}
    for s in range(config.kernel_seeds):
        x, problem = run.problem(task, s)
        found.member(place * config.seeds + s, model)
        for which, tangent in tangents.items():
            machines = with_tangent_kernel(tangent_kernel(tangent, x), problem, config, LOSSES)
            for loss, machine in machines.items():
                rows.setdefault(f"{which}ntk {loss}", []).append(told(machine, problem))
    return {"models": {name: columns(each) for name, each in rows.items()}}


def gaussian_machines(run: Run, degree: int) -> dict[str, Any]:
    """SVR and ridge regression with the Gaussian kernel."""
    task = Task("isotropic", degree, run.config.targets[0])
    rows: dict[str, list[dict[str, float]]] = {}
    for s in range(run.config.kernel_seeds):
        x, problem = run.problem(task, s)
        machines, gamma = with_gaussian_kernel(x, problem, run.config, LOSSES)
        for loss, machine in machines.items():
            rows.setdefault(f"rbf {loss}", []).append({**told(machine, problem), "gamma": gamma})
    return {"models": {name: columns(each) for name, each in rows.items()}}


def legs(run: Run) -> list[Leg]:
    cases = [("reg", *PLAIN), *((mode, *variant) for variant in variants() for mode in MODES[1:])]
    found = [Leg(networks_key(*case), partial(networks, run, *case)) for case in cases]
    for degree in run.config.kernel_degrees:
        found.append(Leg(kernels_key("rbf", degree), partial(gaussian_machines, run, degree)))
        found += [Leg(kernels_key(mode, degree), partial(tangent_machines, run, mode, degree)) for mode in MODES]
    return found
