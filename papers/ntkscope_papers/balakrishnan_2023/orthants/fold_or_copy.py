"""Do networks fold orthants onto one, or copy the neighbours of the one they never saw? Balakrishnan (2023) left it open.

The labels of the empty orthant's neighbours are exchanged in training, or those of as many orthants at least three signs away.
The effect on the empty orthant (`_swap_effect`) stands beside how alike the network treats mirror images (`fold_profile`) and
which orthants the scores of its tangent machine are made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.balakrishnan_2023.orthants import fold_claims as claims
from ntkscope_papers.balakrishnan_2023.orthants.data import (
    ARMS,
    arm_data,
    empty_orthant,
    shells,
    some_of_each,
    swapped_orthants,
)
from ntkscope_papers.balakrishnan_2023.orthants.fold_figures import draw
from ntkscope_papers.balakrishnan_2023.orthants.machines import LINEAR_SVC, Choice, TangentMachines, mass_by_distance
from ntkscope_papers.balakrishnan_2023.orthants.machines import READINGS as OUTPUTS
from ntkscope_papers.balakrishnan_2023.orthants.measures import accuracy_by_orthant, folding, radial_scores
from ntkscope_papers.balakrishnan_2023.orthants.networks import (
    SMALL,
    OrthantNetworks,
    Run,
    grid_key,
    grid_leg,
    logits,
    networks,
)
from ntkscope_papers.balakrishnan_2023.orthants.swap_effect import planted_effects
from ntkscope_papers.framework import experiment as framework
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.legs import Leg, run_legs

NAME = "fold-or-copy"


@dataclass(frozen=True)
class FoldOrCopy(OrthantNetworks):
    """Fold or copy: networks in an orthant without training items when labels are exchanged next to it, or far away.

    `directions`: base directions of the mirror images. `kernel_seeds`: seeds whose tangent machines are fitted, on
    `kernel_per_class` items per class and orthant, C among `costs` by items held out of `choice_per_class`.
    """

    name = NAME
    statements = claims_of(claims)
    free = ("seeds", "kernel_seeds", "memory", "directions")
    parts = ("legs", "networks_from")

    directions: int = 100
    kernel_seeds: int = 5
    kernel_per_class: int = 30
    costs: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4)
    choice_per_class: int = 20

    smoke = {**SMALL, "kernel_per_class": 10}

    def measure(self, run: framework.Run) -> None:
        run_legs(run.record, legs(Run(self, run.record, run.seed, run.device)), self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def planted(run: Run) -> dict[str, Any]:
    """The swap effect of learners that are known to copy and to fold."""
    return planted_effects(run.config, run.seeds)


def swaps(run: Run, depth: int) -> dict[str, Any]:
    """Networks of one depth, trained on all three data sets of every seed: accuracies in the empty orthant, and whether
    exchanged labels were learned; of the plain ones how alike they treat mirror images."""
    config, orthants = run.config, 2**run.config.dimension
    found = networks(run, depth, ARMS)
    rows: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    profiles = []
    for i, seed in enumerate(run.seeds):
        split = shells(config, seed)
        empty = empty_orthant(split)
        for arm in ARMS:
            own = accuracy_by_orthant(logits(found[arm][i], split.test.x), split.test, orthants)
            row = {"seed": seed, "empty": float(own[empty])}
            swapped = [] if arm == "plain" else swapped_orthants(arm, empty, config.dimension, seed)
            untouched = np.setdiff1d(np.arange(orthants), [empty, *swapped])
            row["untouched"] = float(own[untouched].mean())
            if swapped:
                row["exchanged labels"] = float(1 - own[swapped].mean())  # test labels are as they were
            rows[arm].append(row)
        scores, radii = radial_scores(partial(logits, found["plain"][i]), config, seed)
        profiles.append(folding(scores, radii, empty))
    return {**rows, "folding": profiles}


def attribution(run: Run, depth: int, seed: int) -> dict[str, Any]:
    """What the scores of one network's tangent machine in the empty orthant are made of, by distance of the training items."""
    config = run.config
    split = arm_data(config, seed, "plain")
    empty = empty_orthant(split)
    model = networks(run, depth, ("plain",))["plain"][seed - run.seed]
    part = split.train.take(some_of_each(split.train, config.kernel_per_class, seed))
    tangent = TangentMachines(model, part, config.memory)
    unseen = split.test.x[split.test.extras["orthant"] == empty]
    found: dict[str, Any] = {"training items": len(part)}
    for reading in OUTPUTS:
        machine = tangent.machine(reading, Choice(config.costs, config.choice_per_class, seed), dict(LINEAR_SVC))
        shares = mass_by_distance(tangent.attributions(machine, unseen, config.memory), split, part, empty)
        found[reading] = {**shares, "C": machine.told["C"], "gap": machine.told["gap"]}
    return found


def legs(run: Run) -> list[Leg]:
    config = run.config
    found = [Leg("planted", partial(planted, run))]
    found += [Leg(grid_key(depth), partial(grid_leg, run, depth)) for depth in config.depths]
    found += [Leg(f"swaps/{depth}", partial(swaps, run, depth)) for depth in config.depths]
    found += [
        Leg(f"attribution/{depth}/{seed}", partial(attribution, run, depth, seed))
        for depth in config.depths
        for seed in run.seeds[: config.kernel_seeds]
    ]
    return found
