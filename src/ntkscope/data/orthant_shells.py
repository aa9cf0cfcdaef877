"""Orthant shells: two concentric spherical shells in every orthant, some orthants left sparse or empty in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ntkscope.core import Part, Split, UsageError, generator
from ntkscope.core.arguments import Real, as_dtype, whole
from ntkscope.core.checked import Count, CountOrZero, Positive, within
from ntkscope.data.registry import DATASETS


def orthant_signs(dimension: int) -> Float[Tensor, "orthants dimension"]:
    """The sign vectors of all 2^dimension orthants; bit j of an orthant's number, most significant first, is set for +.

    >>> orthant_signs(2)
    tensor([[-1., -1.],
            [-1.,  1.],
            [ 1., -1.],
            [ 1.,  1.]], dtype=torch.float64)
    """
    numbers, bits = torch.arange(2**dimension)[:, None], torch.arange(dimension - 1, -1, -1)
    return (numbers >> bits & 1).double() * 2 - 1


def sample_shell(
    count: int, centre: Float[Tensor, " d"], radius: Real, random: torch.Generator
) -> Float[Tensor, "count d"]:
    """Points uniform on the sphere |x - centre| = radius: centre + radius · z / |z|, z standard normal."""
    z = torch.randn(count, len(centre), generator=random, dtype=torch.float64)
    return centre + radius * z / z.norm(dim=1, keepdim=True)


def neighbours(orthant: int, dimension: int) -> list[int]:
    """The orthants that differ from `orthant` in one sign, ascending.

    >>> neighbours(0, 3)
    [1, 2, 4]
    """
    return sorted(orthant ^ 1 << bit for bit in range(dimension))


def _listed(which: Sequence[int], name: str, orthants: int) -> Tensor:
    """The orthants listed in `which`, ascending."""
    if len(set(which)) != len(which) or any(orthant >= orthants for orthant in which):
        raise UsageError(f"{name}={tuple(which)}; expected distinct orthant numbers from 0 to {orthants - 1}")
    return torch.tensor(sorted(which), dtype=torch.int64)


def _chosen(which: int | Sequence[int], name: str, free: Tensor, orthants: int) -> Tensor:
    """The first `which` orthants of the shuffled `free`, or exactly the orthants listed in `which`."""
    if isinstance(which, int):
        return free[: whole(which, name, low=0, high=len(free))].sort().values
    listed = _listed(which, name, orthants)
    if not torch.isin(listed, free).all():
        raise UsageError(f"{name}={tuple(which)} lists an orthant that is empty; expected sparse and empty apart")
    return listed


def _swapped(which: Sequence[int], empties: Tensor, orthants: int, classes: int) -> Tensor:
    """The orthants in which the two classes exchange their training labels, ascending."""
    listed = _listed(which, "swapped", orthants)
    if torch.isin(listed, empties).any():
        raise UsageError(
            f"swapped={tuple(which)} lists an orthant that is empty, which has no training labels to exchange; the empty"
            f" ones are {empties.tolist()}: leave them out"
        )
    if len(listed) and classes != 2:
        raise UsageError(
            f"swapped={tuple(which)} with {classes} radii; expected two classes, whose labels are exchanged"
        )
    return listed


def _part(
    counts: Int64[Tensor, " orthants"], signs: Tensor, centre: Real, radii: Sequence[Real], seed: int, stream: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels and orthant numbers with `counts[o]` points of each class in orthant o.

    Every orthant and class has its own random stream, so its points do not depend on what the others hold.
    """
    x, y, where = [], [], []
    for orthant, count in enumerate(counts.tolist()):
        for label, radius in enumerate(radii):
            x.append(sample_shell(count, centre * signs[orthant], radius, generator(seed, stream, orthant, label)))
            y.append(torch.full((count,), label))
            where.append(torch.full((count,), orthant))
    return torch.cat(x), torch.cat(y), torch.cat(where)


@DATASETS.register("orthant-shells")
def orthant_shells(
    *,
    root: str | None = None,
    seed: int = 0,
    dimension: Annotated[int, within(low=1, high=16)] = 7,
    centre: Positive = 4.0,
    radii: Sequence[Positive] = (1.0, 2.0),
    per_class: Count = 100,
    empty: CountOrZero | Sequence[CountOrZero] = 1,
    sparse: CountOrZero | Sequence[CountOrZero] = 0,
    sparse_per_class: CountOrZero = 10,
    swapped: Sequence[CountOrZero] = (),
    test_per_class: Count = 100,
    dtype: str | torch.dtype = "float32",
) -> Split:
    """Class 0 on the sphere of radius 1, class 1 on that of radius 2, around (±4, …, ±4) in each of the 2^7 orthants.

    In training an orthant is dense (`per_class` points per class), sparse (`sparse_per_class`) or empty; `empty` and
    `sparse` say how many (chosen at random) or list which. In the orthants listed as `swapped` the two classes exchange their
    training labels (`extras["clean_y"]` keeps the labels before); points and test part stay as they are, so a network that
    copies its neighbours and one that folds can be told apart. The test part holds every orthant. Points are uniform on
    the sphere, a surface without thickness (the report leaves both open). Each part's `extras["orthant"]` says where
    an item lies; the split's extras hold the `signs` and the orthants that are `empty`, `sparse`, `dense` and, if any,
    `swapped`.
    Cost: O(2^dimension · per_class). Reference: Balakrishnan (2023), section 4.1.

    >>> split = orthant_shells(dimension=2, empty=[3])
    >>> len(split.train), len(split.test), 3 in split.train.extras["orthant"]
    (600, 800, False)
    """
    if len(radii) < 2 or max(radii) >= centre:
        raise UsageError(
            f"radii={tuple(radii)}; expected a positive radius below centre={centre}, so that a shell stays in its orthant,"
            " for each of two or more classes"
        )
    kind, signs, orthants = as_dtype(dtype), orthant_signs(dimension), 2**dimension

    shuffled = torch.randperm(orthants, generator=generator(seed, "orthants"))
    empties = _chosen(empty, "empty", shuffled, orthants)
    filled = shuffled[~torch.isin(shuffled, empties)]
    sparses = _chosen(sparse, "sparse", filled, orthants)
    if len(empties) == orthants:
        raise UsageError(f"all {orthants} orthants are empty; expected at least one with training points")
    exchanged = _swapped(swapped, empties, orthants, len(radii))
    counts = torch.full((orthants,), per_class)
    counts[sparses] = sparse_per_class
    counts[empties] = 0

    def part(counts: Tensor, stream: str) -> Part:
        x, y, where = _part(counts, signs, centre, radii, seed, stream)
        return Part(x.to(kind), y, {"orthant": where})

    train = part(counts, "train")
    if len(exchanged):
        y = torch.where(torch.isin(train.extras["orthant"], exchanged), 1 - train.y, train.y)
        train = Part(train.x, y, {**train.extras, "clean_y": train.y})
    hidden = {
        "signs": signs.to(kind),
        "empty": empties,
        "sparse": sparses,
        "dense": filled[~torch.isin(filled, sparses)].sort().values,
        **({"swapped": exchanged} if len(exchanged) else {}),
    }
    names = ("inner", "outer") if len(radii) == 2 else tuple(f"radius {radius:g}" for radius in radii)
    return Split(
        train,
        part(torch.full((orthants,), test_per_class), "test"),
        classes=names,
        name="orthant-shells",
        extras=hidden,
    )
