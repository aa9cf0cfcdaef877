"""Orthant shells as the experiments on symmetry use them: a data set per seed, its held-out share, orthants by distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ntkscope import data
from ntkscope.core import Part, Split, UsageError, generator, numpy_generator
from ntkscope.data.orthant_shells import neighbours, orthant_signs

CENTRE, RADII = 4.0, (1.0, 2.0)
FAR = 3  # signs in which a distant orthant differs at least
ARMS = ("plain", "near", "far")
AUTHORS = "authors"  # an arm with plain labels, trained by the settings of the report's public code
SHARE = 0.2  # of the training items, held out for validation


def shells(config: Any, seed: int, **options: Any) -> Split:
    """The data of one seed: all orthants dense but one, unless `options` say otherwise."""
    sizes = {
        "dimension": config.dimension,
        "per_class": config.per_class,
        "test_per_class": config.test_per_class,
        "centre": CENTRE,
        "radii": RADII,
    }
    return data.load("orthant-shells", seed=seed, **{**sizes, **options})


def arm_data(config: Any, seed: int, arm: str) -> Split:
    """The data of one seed with the labels of some orthants exchanged: none, the empty one's neighbours, or distant ones."""
    split = shells(config, seed)
    if arm in ("plain", AUTHORS):
        return split
    return shells(config, seed, swapped=swapped_orthants(arm, empty_orthant(split), config.dimension, seed))


def empty_orthant(split: Split) -> int:
    """The one orthant without training items."""
    return int(split.extras["empty"].item())


def swapped_orthants(arm: str, empty: int, dimension: int, seed: int) -> list[int]:
    """The orthants whose labels are exchanged: the neighbours of the empty one, or as many at a distance of three or more."""
    if arm == "near":
        return neighbours(empty, dimension)
    distant = np.flatnonzero(distances_from(empty, dimension) >= FAR)
    if len(distant) < dimension:
        raise UsageError(
            f"{len(distant)} orthants of dimension {dimension} differ in {FAR} signs or more; expected at least {dimension}:"
            " use dimension 4 or more"
        )
    drawn = numpy_generator(seed, "far orthants").choice(distant, dimension, replace=False)
    return sorted(int(orthant) for orthant in drawn)


def distances_from(orthant: int, dimension: int) -> Int64[np.ndarray, " orthants"]:
    """In how many signs each orthant differs from this one.

    >>> distances_from(1, 2).tolist()
    [1, 0, 2, 1]
    """
    return np.bitwise_count(np.arange(2**dimension) ^ orthant).astype(np.int64)


def distances_to(orthants: Sequence[int], dimension: int) -> Int64[np.ndarray, " orthants"]:
    """In how many signs each orthant differs from the nearest of these.

    >>> distances_to([0, 3], 2).tolist()
    [0, 1, 1, 0]
    """
    return np.stack([distances_from(int(orthant), dimension) for orthant in orthants]).min(0)


def held_out(part: Part, share: float, seed: int) -> tuple[Part, Part]:
    """The rest and the held-out `share` of a part: the same number of items of each class in each orthant, at random.

    Classes are those before labels were exchanged, so that data sets which differ in labels alone are divided alike.
    """
    order, place, count = _dealt(part, seed, "held out")
    held = place < (share * count).round()
    return part.take(order[~held].sort().values), part.take(order[held].sort().values)


def some_of_each(part: Part, per_class: int, seed: int) -> Int64[Tensor, " some"]:
    """The places of at most `per_class` items of each class in each orthant, at random, ascending."""
    order, place, _ = _dealt(part, seed, "some of each")
    return order[place < per_class].sort().values


def _dealt(part: Part, seed: int, stream: str) -> tuple[Tensor, Tensor, Tensor]:
    """Items in random order; of each, how many of its class and orthant came before it, and how many there are."""
    order = torch.randperm(len(part), generator=generator(seed, stream))
    kind = (2 * part.extras["orthant"] + part.extras.get("clean_y", part.y))[order]
    by_kind = kind.argsort(stable=True)
    order, kind = order[by_kind], kind[by_kind]
    counts = torch.bincount(kind)
    return order, torch.arange(len(part)) - (torch.cumsum(counts, 0) - counts)[kind], counts[kind]


def radii_probed() -> Float[Tensor, " radii"]:
    """0.5 to 2.5 in steps of 0.1."""
    return torch.arange(5, 26, dtype=torch.float64) / 10


def mirrored_points(
    config: Any, directions: int, seed: int
) -> tuple[Float[Tensor, "points orthants d"], Float[Tensor, " points"]]:
    """Points around the centre of every orthant, at all radii in the same directions, mirrored; and their radii.

    Entry (i, o) is base point i reflected into orthant o, in the order of `orthant_signs`.
    """
    z = torch.randn(directions, config.dimension, generator=generator(seed, "directions"), dtype=torch.float64)
    unit, radii = z / z.norm(dim=1, keepdim=True), radii_probed()
    base = (CENTRE + radii[:, None, None] * unit).flatten(0, 1)
    return base[:, None] * orthant_signs(config.dimension), radii.repeat_interleave(directions)
