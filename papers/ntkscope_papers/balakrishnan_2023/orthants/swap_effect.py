"""The swap effect: does a learner answer in an orthant it never saw by what its neighbours were taught?

The labels of the empty orthant's neighbours are exchanged, or those of as many distant orthants. Who copies the neighbours is
wrong in the empty orthant after the first and right after the second, an effect of 1; who folds all orthants onto one follows
the majority both times, an effect of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ntkscope.core import Part
from ntkscope.measures.uncertainty import bootstrap_means, percentile_interval
from ntkscope_papers.balakrishnan_2023.orthants.data import CENTRE, arm_data, distances_from, empty_orthant
from ntkscope_papers.balakrishnan_2023.orthants.measures import accuracy_by_orthant

RESAMPLES = 10_000
ALIKE = 0.25  # radii of planted learners


@dataclass(frozen=True)
class SwapEffect:
    """Accuracy in the empty orthant after distant labels were exchanged, minus that after its neighbours' were: mean over
    seeds with a 95 % bootstrap interval, and of each seed."""

    mean: float
    low: float
    high: float
    each: tuple[float, ...]


def swap_effect(near: Sequence[float], far: Sequence[float], *, seed: int = 0) -> SwapEffect:
    """Paired over seeds: entry i of both is of the same data and the same initial network.

    >>> effect = swap_effect([0.0, 0.1], [1.0, 0.9])
    >>> round(effect.mean, 6), [round(value, 6) for value in effect.each]
    (0.9, [1.0, 0.8])
    """
    each = np.asarray(far, dtype=np.float64) - np.asarray(near, dtype=np.float64)
    means = bootstrap_means(each[:, None], lambda means: means, resamples=RESAMPLES, seed=seed)[:, 0]
    low, high = percentile_interval(means, items=len(each))
    return SwapEffect(float(each.mean()), low, high, tuple(each.tolist()))


# -- learners of known kind -----------------------------------------------------------------------------------------------


def planted_answers(kind: str, train: Part, test: Part, empty: int) -> Int64[Tensor, " m"]:
    """Classes of test items in the empty orthant by a vote of the training items whose |x| is as far from the centre as theirs:
    of all orthants (`kind` "folder"), or of the empty one's neighbours alone ("copier")."""
    dimension = train.x.shape[1]
    allowed = torch.ones(len(train), dtype=torch.bool)
    if kind == "copier":
        allowed = torch.from_numpy(distances_from(empty, dimension) == 1)[train.extras["orthant"]]
    own, other = ((x.abs() - CENTRE).norm(dim=1) for x in (test.x[test.extras["orthant"] == empty], train.x[allowed]))
    votes = ((own[:, None] - other).abs() < ALIKE).double()
    return (votes @ train.y[allowed].double() > votes.sum(1) / 2).long()


def planted_effects(config: Any, seeds: Sequence[int]) -> dict[str, Any]:
    """The swap effect of both planted learners, measured as that of networks is."""
    right: dict[str, dict[str, list[float]]] = {kind: {"near": [], "far": []} for kind in ("copier", "folder")}
    for seed in seeds:
        for arm in ("near", "far"):
            split = arm_data(config, seed, arm)
            empty = empty_orthant(split)
            for kind, arms in right.items():
                scores = torch.zeros(len(split.test))
                at = split.test.extras["orthant"] == empty
                scores[at] = planted_answers(kind, split.train, split.test, empty).float() * 2 - 1
                arms[arm].append(float(accuracy_by_orthant(scores, split.test, 2**config.dimension)[empty]))
    found = {}
    for kind, arms in right.items():
        effect = swap_effect(arms["near"], arms["far"])
        found[kind] = {"effect": effect.mean, "interval": [effect.low, effect.high], **arms}
    return found
