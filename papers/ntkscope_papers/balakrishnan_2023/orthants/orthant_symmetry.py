"""Balakrishnan (2023), Tables 1 and 2, Figures 1 and 2: what networks and kernel machines say in an orthant they never saw.

The document leaves widths, rates, lengths and C open; the grids are those of the code it names. Its tangent kernel is that of
the network's probability in that code and of "the network function" in its text: both are measured. Every seed has its own
data, empty orthant and network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import Claim, Record, generator
from ntkscope.data.orthant_shells import orthant_signs
from ntkscope.kernels import kernel
from ntkscope_papers.balakrishnan_2023.orthants.arithmetic import implied_counts, recovered_counts
from ntkscope_papers.balakrishnan_2023.orthants.claims import PUBLISHED, READINGS
from ntkscope_papers.balakrishnan_2023.orthants.data import AUTHORS, SHARE, distances_from, empty_orthant, shells
from ntkscope_papers.balakrishnan_2023.orthants.figures import draw
from ntkscope_papers.balakrishnan_2023.orthants.machines import (
    LINEAR_SVC,
    SVC,
    Choice,
    Machine,
    TangentMachines,
    linear_machine,
    rbf_machine,
)
from ntkscope_papers.balakrishnan_2023.orthants.machines import READINGS as OUTPUTS
from ntkscope_papers.balakrishnan_2023.orthants.measures import (
    Score,
    accuracy_by_orthant,
    by_distance,
    by_radius,
    class_matches,
    folding,
    matched,
    parted,
    radial_scores,
)
from ntkscope_papers.balakrishnan_2023.orthants.networks import (
    CHOSEN,
    SMALL,
    OrthantNetworks,
    Run,
    build,
    chosen,
    fit_all,
    fresh,
    grid_key,
    grid_leg,
    logits,
    networks,
)
from ntkscope_papers.framework import experiment as framework
from ntkscope_papers.framework.claims import Published, verdicts
from ntkscope_papers.framework.legs import Leg, run_legs

NAME = "orthant-symmetry"
ARRANGEMENTS = ("scattered", "gathered")


@dataclass(frozen=True)
class OrthantSymmetry(OrthantNetworks):
    """Learning symmetry, Tables 1, 2, Figures 1, 2: networks and kernel machines in an orthant without training items.

    `directions`: base directions of the radial profiles, the same in all orthants, mirrored. `empties`: how many orthants
    are empty in the further data sets, with `sparse` sparse ones beside them; `coverage_steps`, `coverage_patience`: how long
    networks train on those, in updates, as smaller data sets have shorter epochs. `kernel_seeds`: seeds whose machines are
    fitted, C among `costs` by items held out of `choice_per_class` per class and orthant; `gammas`: of the RBF kernel, in
    units of 1 / (d · variance).
    """

    name = NAME
    free = ("seeds", "kernel_seeds", "memory", "directions")
    parts = ("legs", "networks_from")

    directions: int = 100
    empties: tuple[int, ...] = (8, 32, 64)
    sparse: tuple[int, ...] = (8, 32, 32)
    coverage_steps: int = 50_000
    coverage_patience: int = 15_000
    kernel_seeds: int = 5
    costs: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4)
    gammas: tuple[float, ...] = (1.0, 10.0, 100.0)
    choice_per_class: int = 20

    smoke = {
        **SMALL,
        **{"empties": (8,), "sparse": (4,), "coverage_steps": 40, "coverage_patience": 20, "gammas": (10.0,)},
    }

    def measure(self, run: framework.Run) -> None:
        run_legs(run.record, legs(Run(self, run.record, run.seed, run.device)), self.legs, progress=run.progress)

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return tuple(PUBLISHED.values())

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return verdicts(self.name, PUBLISHED, READINGS, self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


# -- what needs no network ------------------------------------------------------------------------------------------------


def arithmetic() -> dict[str, Any]:
    """The n that Table 1's intervals imply, and the counts behind Table 2's."""
    return {"implied n": implied_counts(), "wilson": recovered_counts()}


def generated(run: Run) -> dict[str, Any]:
    """The data of the first seed, checked, and matches by the distance of the inputs themselves for every seed."""
    config, split = run.config, shells(run.config, run.seed)
    centres = 4 * orthant_signs(config.dimension)
    away = 0.0
    for part in (split.train, split.test):
        radius = (part.x.double() - centres[part.extras["orthant"]]).norm(dim=1)
        away = max(away, float((radius - (1 + part.y)).abs().max()))
    matches = []
    for seed in run.seeds:
        own = split if seed == run.seed else shells(config, seed)
        matches.append(class_matches(own.train.x.double(), own.test.x.double(), own, empty_orthant(own)))
    return {
        "train": len(split.train),
        "test": len(split.test),
        "orthants": 2**config.dimension,
        "largest distance from a shell": away,
        "training items in the empty orthant": int((split.train.extras["orthant"] == empty_orthant(split)).sum()),
        "matches by distance of inputs": matches,
    }


def definition(run: Run) -> dict[str, Any]:
    """The engine's kernel of a fresh network of every depth against inner products of autograd's gradients, pair by pair."""
    config, found = run.config, {}
    x = shells(config, run.seed).train.x.double()
    x = x[torch.randperm(len(x), generator=generator(run.seed, "definition"))[:12]]
    for depth in config.depths:
        model = build(config, depth, run.seed, config.widths[0]).double()
        for reading, subject in zip(OUTPUTS, (model, nn.Sequential(model, nn.Sigmoid()))):
            gram = kernel("trntk0", subject, x).dense()
            rows = [_gradient(subject, item) for item in x]
            pairs = torch.stack([torch.stack([a @ b for b in rows]) for a in rows])
            values = torch.linalg.eigvalsh((gram + gram.T) / 2)
            found[f"{depth}, {reading}"] = {
                "error": float((gram - pairs).norm() / pairs.norm()),
                "asymmetry": float((gram - gram.T).abs().max() / gram.abs().max()),
                "smallest eigenvalue": float(values[0] / values[-1]),
            }
    worst = {name: max(row[name] for row in found.values()) for name in ("error", "asymmetry")}
    return {**worst, "smallest eigenvalue": min(row["smallest eigenvalue"] for row in found.values()), "each": found}


def _gradient(model: nn.Module, item: Tensor) -> Tensor:
    grads = torch.autograd.grad(model(item[None]).sum(), list(model.parameters()))
    return torch.cat([grad.flatten() for grad in grads])


# -- networks ---------------------------------------------------------------------------------------------------------------


def measured_networks(run: Run, depth: int) -> dict[str, Any]:
    """All seeds of one depth: accuracies by orthant, matches before and after training, radial profiles, folding."""
    config = run.config
    orthants = 2**config.dimension
    trained, untrained = networks(run, depth, (run.arm,))[run.arm], fresh(run, depth)
    rows: list[dict[str, Any]] = []
    accuracies, profiles = [], []
    for seed, model, before in zip(run.seeds, trained, untrained):
        split = shells(config, seed)
        empty = empty_orthant(split)
        own = accuracy_by_orthant(logits(model, split.test.x), split.test, orthants)
        scores, radii = radial_scores(partial(logits, model), config, seed)
        accuracies.append(_from_empty(own, empty))
        profiles.append(_from_empty(by_radius(torch.sigmoid(scores)), empty))
        rows.append(
            {
                "seed": seed,
                "empty orthant": empty,
                **parted(own, empty),
                "initial matches": matched(before, split, empty),
                "matches": matched(model, split, empty),
                "folding": folding(scores, radii, empty),
            }
        )
    run.record.array(f"{_prefix(run)}accuracy-{depth}", np.stack(accuracies).astype(np.float32))
    run.record.array(f"{_prefix(run)}profile-{depth}", np.stack(profiles).astype(np.float32))
    return {"networks": rows, **({"chosen": chosen(run, depth)} if _prefix(run) else {})}


def _prefix(run: Run) -> str:
    """Of the names of arrays."""
    return "" if run.arm == "plain" else f"{run.arm}-"


def _from_empty(values: np.ndarray, empty: int) -> np.ndarray:
    """The rows of orthants in another order: entry o is of the orthant that differs from the empty one in the bits of o."""
    return values[np.arange(len(values)) ^ empty]


def coverage(run: Run, depth: int, empties: int, sparse: int) -> dict[str, Any]:
    """Networks on data with several empty and sparse orthants, at random or gathered around one: accuracy by distance.

    Gathered: the empty orthants are those nearest to one of them, so that some are several signs from every dense one.
    """
    config, dimension = run.config, run.config.dimension
    which = [(arrangement, seed) for arrangement in ARRANGEMENTS for seed in run.seeds]
    splits = []
    for arrangement, seed in which:
        empty: Any = empties
        if arrangement == "gathered":
            centre = empty_orthant(shells(config, seed))
            empty = np.argsort(distances_from(centre, dimension), kind="stable")[:empties].tolist()
        splits.append(shells(config, seed, empty=empty, sparse=sparse, sparse_per_class=max(1, config.per_class // 10)))
    per_epoch = max(1, round((1 - SHARE) * len(splits[0].train) / config.batch))
    made = fit_all(
        run,
        depth,
        [split.train for split in splits],
        [seed for _, seed in which],
        epochs=math.ceil(config.coverage_steps / per_epoch),
        patience=math.ceil(config.coverage_patience / per_epoch),
        store=None,
    )
    found: dict[str, Any] = {arrangement: [] for arrangement in ARRANGEMENTS}
    for i, ((arrangement, _), split) in enumerate(zip(which, splits)):
        own = accuracy_by_orthant(logits(made.member(i).eval(), split.test.x), split.test, 2**dimension)
        kinds = {kind: split.extras[kind].tolist() for kind in ("dense", "sparse", "empty")}
        found[arrangement].append(by_distance(own, kinds, dimension))
    return {**found, "steps": made.steps.tolist(), "items": len(splits[0].train)}


# -- kernel machines ------------------------------------------------------------------------------------------------------


def _choice(config: OrthantSymmetry, seed: int) -> Choice:
    return Choice(config.costs, config.choice_per_class, seed)


def scored(run: Run, seed: int, machine: Machine, score: Score, array: str | None = None) -> dict[str, Any]:
    """A machine's accuracies; with `array`, its shares of class 1 by orthant and radius go there."""
    config, split = run.config, shells(run.config, seed)
    empty = empty_orthant(split)
    own = accuracy_by_orthant(score(split.test.x), split.test, 2**config.dimension)
    if array is not None:
        scores, _ = radial_scores(score, config, seed)
        run.record.array(array, _from_empty(by_radius(scores > 0), empty).astype(np.float32))
    return {**parted(own, empty), **machine.told}


def input_machine(run: Run, name: str, seed: int) -> dict[str, Any]:
    """The linear or RBF machine of one seed."""
    part, choice = shells(run.config, seed).train, _choice(run.config, seed)
    if name == "linear":
        return scored(run, seed, *linear_machine(part, choice, run.device))
    return scored(run, seed, *rbf_machine(part, run.config.gammas, choice, run.device), array=f"share-rbf-{seed}")


def tangent_machine(run: Run, depth: int, seed: int, how: Mapping[str, str]) -> dict[str, Any]:
    """Both readings of one network's tangent kernel, at all training items, and the network's own accuracies: trained again,
    it may be another one."""
    config, split = run.config, shells(run.config, seed)
    model = networks(run, depth, (run.arm,))[run.arm][seed - run.seed]
    tangent = TangentMachines(model, split.train, config.memory)
    own = accuracy_by_orthant(logits(model, split.test.x), split.test, 2**config.dimension)
    found: dict[str, Any] = {"certificate": _certified(tangent), "network": parted(own, empty_orthant(split))}
    loss = "" if how == LINEAR_SVC else f"-{how['loss']}"
    for reading in OUTPUTS:
        machine = tangent.machine(reading, _choice(config, seed), dict(how))
        array = f"{_prefix(run)}share-{reading}{loss}-{depth}-{seed}"
        found[reading] = scored(run, seed, machine, tangent.scores(reading, machine), array)
    found["slopes"] = _quantiles(tangent.slopes("probability", tangent.x))
    return found


def _certified(tangent: TangentMachines) -> str:
    certificate = tangent.gram.certificate
    return "" if certificate is None else str(certificate).splitlines()[0]


def _quantiles(slopes: Tensor) -> dict[str, float]:
    """How many training items the probability's kernel hardly sees."""
    return {
        "median": float(f"{float(slopes.median()):.3g}"),
        "share below 1e-3": round(float((slopes < 1e-3).double().mean()), 4),
    }


def legs(run: Run) -> list[Leg]:
    config, authors = run.config, replace(run, arm=AUTHORS)
    found = [
        Leg("arithmetic", arithmetic),
        Leg("data", partial(generated, run)),
        Leg("definition", partial(definition, run)),
    ]
    found += [Leg(grid_key(depth), partial(grid_leg, run, depth)) for depth in config.depths]
    found += [Leg(f"networks/{depth}", partial(measured_networks, run, depth)) for depth in config.depths]
    found += [
        Leg(f"coverage/{depth}/{empties}", partial(coverage, run, depth, empties, sparse))
        for depth in config.depths
        for empties, sparse in zip(config.empties, config.sparse, strict=True)
    ]
    seeds = run.seeds[: config.kernel_seeds]
    found += [
        Leg(f"svm/{name}/{seed}", partial(input_machine, run, name, seed))
        for name in ("linear", "rbf")
        for seed in seeds
    ]
    known = [depth for depth in config.depths if depth in CHOSEN]
    found += [Leg(f"{AUTHORS}/{d}", partial(measured_networks, authors, d), optional=True) for d in known]
    for kind, one, how in (("ntk", run, LINEAR_SVC), ("ntk-hinge", run, SVC), (AUTHORS, authors, LINEAR_SVC)):
        found += [
            Leg(f"svm/{kind}/{depth}/{seed}", partial(tangent_machine, one, depth, seed, how), optional=kind != "ntk")
            for depth in (known if one is authors else config.depths)
            for seed in seeds
        ]
    return found
