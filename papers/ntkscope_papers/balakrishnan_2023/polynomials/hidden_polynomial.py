"""Balakrishnan (2023), section 5 and Figures 3 to 5: polynomials of a hidden direction, networks against kernel machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from ntkscope.core import Record, UsageError
from ntkscope.kernels import Tangent
from ntkscope_papers.balakrishnan_2023.polynomials import claims
from ntkscope_papers.balakrishnan_2023.polynomials.damian import Learned, learn
from ntkscope_papers.balakrishnan_2023.polynomials.data import (
    AUTHORS,
    CHOSEN,
    FREE,
    PARTS,
    SMALL,
    Draw,
    Inputs,
    PolynomialRuns,
    Task,
)
from ntkscope_papers.balakrishnan_2023.polynomials.figures import draw
from ntkscope_papers.balakrishnan_2023.polynomials.identities import identities
from ntkscope_papers.balakrishnan_2023.polynomials.machines import (
    Chosen,
    Problem,
    by_authors,
    everything,
    fit_on_all,
    tangent_kernel,
    told,
    with_gaussian_kernel,
    with_tangent_kernel,
)
from ntkscope_papers.balakrishnan_2023.polynomials.networks import (
    Recipe,
    Trained,
    columns,
    member_scores,
    network,
    outputs,
    scores,
    stored,
    train,
)
from ntkscope_papers.balakrishnan_2023.polynomials.readings import (
    GROUPS,
    IDENTITIES,
    SYMMETRIC,
    Results,
    array_name,
    damian_key,
    group_of,
    kernels_key,
    networks_key,
    tasks_of,
)
from ntkscope_papers.framework import experiment as framework
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.legs import Leg, not_run, run_legs

NAME = "hidden-polynomial"


@dataclass(frozen=True)
class HiddenPolynomial(PolynomialRuns):
    """Hidden polynomials, Figures 3–5: the degrees that a network, its NTK and a Gaussian kernel fit, v hidden or given.

    `isotropic`, `correlated`, `direct`: the degrees of each kind of inputs. `follow`: epochs at whose ends the alignment of
    units is measured. `noise`: of the labels, ±, with Damian's algorithm and start.
    """

    name = NAME
    statements = claims_of(claims)
    free = FREE

    isotropic: tuple[int, ...] = tuple(range(3, 10))
    correlated: tuple[int, ...] = tuple(range(3, 13))
    direct: tuple[int, ...] = tuple(range(9, 21))
    targets: tuple[str, ...] = ("raw", "unit")
    widths: tuple[int, ...] = (128, 512)
    rates: tuple[float, ...] = (1.0,)
    follow: int = 20
    noise: float = 0.01

    smoke = {
        **SMALL,
        "correlated": (3, 11),
        "direct": (9, 18, 19),
        "targets": ("raw",),
        "widths": (8, 16),
        "follow": 2,
    }

    def measure(self, run: framework.Run) -> None:
        made = legs(Run(self, run.record, run.seed, run.device, Inputs(self, run.seed)))
        run_legs(run.record, made, self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


@dataclass(frozen=True, eq=False)
class Run:
    """What a leg needs besides its own name."""

    config: HiddenPolynomial
    record: Record
    seed: int
    device: torch.device
    inputs: Inputs
    tangents: dict[int, Tangent] = field(default_factory=dict)  # by width: probed once
    read: dict[str, Trained] = field(default_factory=dict)

    def trained(self, group: str, width: int, rate: float) -> Trained:
        """The networks of a group, trained if they are not in the record's folder."""
        tasks = tasks_of(self.config, group)
        decay = CHOSEN[tasks[0].degree][1] if tasks[0].target == AUTHORS else None
        recipe = Recipe(width, rate, self.config.follow, decay=decay)
        return self._stored(networks_key(group, width, rate), tasks, recipe)

    def symmetric(self) -> Trained:
        """Networks on noisy isotropic data from a symmetric start."""
        config = self.config
        recipe = Recipe(config.widths[-1], config.rates[0], config.follow, config.noise, symmetric=True)
        return self._stored(SYMMETRIC, damian_tasks(config), recipe)

    def _stored(self, key: str, tasks: list[Task], recipe: Recipe) -> Trained:
        if key not in self.read:
            make = partial(train, self.config, self.inputs, tasks, recipe, seed=self.seed, device=self.device)
            self.read[key] = stored(self.record, key, make, self.device)
        return self.read[key]

    def tangent(self, width: int) -> Tangent:
        """Of a network of this width, whose weights change in place."""
        if width not in self.tangents:
            model = network(self.config.dimension, width, 0).double().to(self.device).eval()
            self.tangents[width] = Tangent(
                model, dtype=torch.float64, device=self.device, memory=self.config.memory, certify="sampled"
            )
        return self.tangents[width]


def damian_tasks(config: HiddenPolynomial) -> list[Task]:
    return [Task("isotropic", degree, config.targets[0]) for degree in config.isotropic]


def networks(run: Run, group: str, width: int, rate: float) -> dict[str, Any]:
    """All tasks of a group at one width and rate."""
    found, tasks = run.trained(group, width, rate), tasks_of(run.config, group)
    if group == "direct" and (width, rate) == (run.config.widths[-1], run.config.rates[0]):
        for i, task in enumerate(tasks[: len(run.config.direct)]):  # those of the first kind of targets
            drawn = run.inputs.draw(task.kind, 0)
            predicted = outputs(found.params, i * run.config.seeds, drawn.part("test", task).x.to(run.device))
            keep_predictions(run.record, task, drawn, {"network": predicted.numpy()})
    told_of = member_scores(found, run.inputs, tasks, run.config.seeds)
    return {"moments": list(found.moments), "members": len(found.epochs), "tasks": told_of}


def keep_predictions(record: Record, task: Task, drawn: Draw, rows: Mapping[str, Any]) -> None:
    """For the figures: v, y, and predictions on test items, in single precision."""
    kept = [drawn.v["test"].numpy(), drawn.clean("test", task).numpy(), *rows.values()]
    record.array(array_name(task), np.stack(kept).astype(np.float32))


def machines(run: Run, task: Task) -> dict[str, Any]:
    """The kernel machines of one task: with the NTK of the network of the chosen width and rate, and the Gaussian kernel."""
    config, results = run.config, Results(run.config, run.record)
    if missing := results.missing([task]):
        raise UsageError(f"{kernels_key(task)} needs the networks of every width: {not_run(NAME, missing)}")
    width, rate = results.chosen(task)
    group = group_of(task)
    found, place = run.trained(group, width, rate), tasks_of(config, group).index(task)
    rows: dict[str, list[dict[str, float]]] = {}
    for s in range(config.kernel_seeds):
        drawn, member = run.inputs.draw(task.kind, s), place * config.seeds + s
        targets = {name: drawn.clean(name, task) for name in PARTS}
        problem = Problem.of(targets, drawn.v["test"], task.degree, run.device)
        x = everything(drawn.x, run.device)
        tangent = run.tangent(width)
        found.member(member, tangent.model)
        if task.target == AUTHORS:
            ntk, rbf, gamma = by_authors(tangent, x, problem, config)
        else:
            ntk = with_tangent_kernel(tangent_kernel(tangent, x), problem, config)
            rbf, gamma = with_gaussian_kernel(x, problem, config)
        for kernel, machines_of in (("ntk", ntk), ("rbf", rbf)):
            for loss, machine in machines_of.items():
                extra = {"gamma": gamma} if kernel == "rbf" else {}
                rows.setdefault(f"{kernel} {loss}", []).append({**told(machine, problem), **extra})
        if s == 0:
            own = outputs(found.params, member, drawn.x["test"].to(run.device)).numpy()
            shown = {"network": own, "ntk": ntk["svr"].predictions["test"], "rbf": rbf["svr"].predictions["test"]}
            keep_predictions(run.record, task, drawn, shown)
    return {"width": width, "rate": rate, "models": {name: columns(each) for name, each in rows.items()}}


def symmetric_networks(run: Run) -> dict[str, Any]:
    """AdaDelta from a symmetric start on noisy labels; what the start puts out."""
    config, tasks = run.config, damian_tasks(run.config)
    found = run.symmetric()
    x = run.inputs.draw("isotropic", 0).x["train"]
    model = network(config.dimension, config.widths[-1], run.seed, symmetric=True)
    weight, readout = model.get_parameter("layer1.weight"), model.get_parameter("readout.weight")
    half = len(weight) // 2
    with torch.no_grad():
        by_sum = float(model(x).abs().max())
    paired = bool(torch.equal(weight[:half], weight[half:]) and torch.equal(readout[0, :half], -readout[0, half:]))
    return {
        "start": {"in exact pairs": paired, "largest |output|, summed in any order": by_sum},
        "moments": list(found.moments),
        "tasks": member_scores(found, run.inputs, tasks, config.seeds),
    }


def damian(run: Run, place: int, task: Task) -> dict[str, Any]:
    """One degree: the NTK of networks from a symmetric start, and Damian's algorithm with its own NTK."""
    config, found = run.config, run.symmetric()
    rows: dict[str, list[dict[str, float]]] = {}
    starts: list[float] = []
    for s in range(config.seeds):
        drawn = run.inputs.draw(task.kind, s)
        targets = {name: drawn.part(name, task, config.noise).y.double() for name in PARTS}
        problem = Problem.of(targets, drawn.v["test"], task.degree, run.device)
        x = everything(drawn.x, run.device)
        z = x / x[problem.rows["train"]].std()
        parts = {name: z[rows_of] for name, rows_of in problem.rows.items()}
        y = {name: problem.y[rows_of] for name, rows_of in problem.rows.items()}
        learned = learn(parts, y, config.widths[-1], run.seed + s)
        starts.append(learned.start)
        own = {name: learned(each).cpu().numpy() for name, each in parts.items()}
        clean = {name: problem.targets(name) for name in PARTS}
        row = {**scores(own, clean, problem.v, task.degree), "step": learned.step, "ridge": learned.ridge}
        rows.setdefault("algorithm", []).append(row)
        if s < config.kernel_seeds:
            tangent = run.tangent(config.widths[-1])
            found.member(place * config.seeds + s, tangent.model)
            svr = fit_on_all(tangent_kernel(tangent, x), problem, "svr", config, "penalised")
            rows.setdefault("symmetric start, ntk svr", []).append(told(svr, problem))
            fitted = own_kernel(run, learned, z, problem)
            rows.setdefault("algorithm, ntk ridge", []).append(told(fitted, problem))
    return {
        "largest |output| at the start": max(starts),
        "models": {name: columns(each) for name, each in rows.items()},
    }


def own_kernel(run: Run, learned: Learned, z: torch.Tensor, problem: Problem) -> Chosen:
    """Ridge regression with the NTK of what the algorithm learned, on targets without their linear part."""
    tangent = run.tangent(run.config.widths[-1])
    with torch.no_grad():
        for parameter, value in zip(tangent.model.parameters(), learned.network().parameters()):
            parameter.copy_(value)
    line = learned.linear(z)
    rest = Problem(problem.y - line, problem.rows, problem.v, problem.degree)
    found = fit_on_all(tangent_kernel(tangent, z), rest, "ridge", run.config, "penalised")
    lines = {name: line[rows].cpu().numpy() for name, rows in problem.rows.items()}
    predictions = {name: values + lines[name] for name, values in found.predictions.items()}
    return Chosen(found.C, found.gap, predictions, found.validation)


def legs(run: Run) -> list[Leg]:
    config = run.config
    found = [Leg(IDENTITIES, partial(identities, config.roots, run.seed))]
    found += [
        Leg(networks_key(group, width, rate), partial(networks, run, group, width, rate))
        for group in GROUPS
        for width in config.widths
        for rate in config.rates
    ]
    found += [Leg(kernels_key(task), partial(machines, run, task)) for task in tasks_of(config, "hidden")]
    for task in (Task("isotropic", degree, AUTHORS) for degree in config.isotropic):
        setting = group_of(task), CHOSEN[task.degree][0], 1.0
        found.append(Leg(networks_key(*setting), partial(networks, run, *setting), optional=True))
        found.append(Leg(kernels_key(task), partial(machines, run, task), optional=True))
    found.append(Leg(SYMMETRIC, partial(symmetric_networks, run)))
    tasks = damian_tasks(config)
    found += [Leg(damian_key(task.degree), partial(damian, run, i, task)) for i, task in enumerate(tasks)]
    return found
