"""Boolean cube {-1, +1}^d: all of it when small, a sample otherwise; parities and their combinations as targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Part, Split, UsageError, generator
from ntkscope.core.arguments import as_dtype, whole
from ntkscope.core.checked import Count, CountOrZero
from ntkscope.data.orthant_shells import orthant_signs
from ntkscope.data.registry import DATASETS

ENUMERABLE = 16  # the largest dimension whose 2^d points are listed rather than sampled


def parity(x: Float[Tensor, "n d"], subset: Iterable[int]) -> Float[Tensor, " n"]:
    """χ_S(x) = Π_{i in S} x_i, the degree-|S| parity; 1 for the empty set. O(n |S|).

    >>> parity(torch.tensor([[1.0, -1.0, -1.0]]), (0, 1)).item()
    -1.0
    """
    return x[:, list(subset)].prod(dim=1)


def combination(x: Float[Tensor, "n d"], monomials: Mapping[tuple[int, ...], float]) -> Float[Tensor, " n"]:
    """Σ_S c_S χ_S(x).

    >>> combination(torch.tensor([[1.0, -1.0]]), {(0, 1): 2.0, (): 0.5}).item()
    -1.5
    """
    return torch.stack([weight * parity(x, subset) for subset, weight in monomials.items()]).sum(dim=0)


def _monomials(
    monomials: Mapping[tuple[int, ...], float] | None, degree: int, dimension: int, seed: int
) -> dict[tuple[int, ...], float]:
    """The given monomials, or one parity of `degree` coordinates drawn at random."""
    if monomials is None:
        size = whole(degree, "degree", low=0, high=dimension)
        drawn = torch.randperm(dimension, generator=generator(seed, "subset"))[:size]
        return {tuple(sorted(drawn.tolist())): 1.0}
    for subset in monomials:
        if len(set(subset)) != len(subset) or any(not 0 <= i < dimension for i in subset):
            raise UsageError(f"monomial {subset}; expected distinct coordinates from 0 to {dimension - 1}")
    if not monomials:
        raise UsageError("monomials is empty; expected at least one, such as {(0, 1): 1.0}")
    return {tuple(subset): float(weight) for subset, weight in monomials.items()}


@DATASETS.register("boolean-cube")
def boolean_cube(
    *,
    root: str | None = None,
    seed: int = 0,
    dimension: Count = 7,
    degree: CountOrZero = 2,
    monomials: Mapping[tuple[int, ...], float] | None = None,
    function: Callable[[Tensor], Tensor] | None = None,
    train: Count | None = None,
    test: Count | None = None,
    dtype: str | torch.dtype = "float32",
) -> Split:
    """y = Σ_S c_S χ_S(x) on {-1, +1}^d.

    The target is one parity of `degree` random coordinates, the given `monomials` {S: c_S}, or any `function` of the
    (n, d) points.
    Without `train` both parts hold all 2^d points in order (d <= 16). With it, `train` points are drawn, and `test`
    others (default: all the rest) from the remaining ones; for d > 16 both are independent uniform samples, of 1,024
    by default. The split's extras hold the subsets as a mask `monomials` (terms, d) and their `coefficients`.
    Cost: O(n · d). Reference: Yang & Salman (2019), reviewed by Im (2021), section 3.

    >>> split = boolean_cube(dimension=3, monomials={(0, 1, 2): 1.0})
    >>> split.train.y.tolist()
    [-1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0, 1.0]
    """
    if monomials is not None and function is not None:
        raise UsageError("both monomials and function are given; expected at most one of them")
    kind = as_dtype(dtype)

    if dimension <= ENUMERABLE:
        cube, points = orthant_signs(dimension), 2**dimension
        if train is None:
            if test is not None:
                raise UsageError(f"test={test} without train; expected train as well, or neither for the whole cube")
            x_train = x_test = cube
        else:
            whole(train, "train", low=1, high=points - 1)
            rest = points - train if test is None else whole(test, "test", low=1, high=points - train)
            order = torch.randperm(points, generator=generator(seed, "points"))
            x_train, x_test = cube[order[:train]], cube[order[train : train + rest]]
    else:
        sizes = {"train": 1024 if train is None else train, "test": 1024 if test is None else test}
        x_train, x_test = (
            torch.randint(0, 2, (count, dimension), generator=generator(seed, name)).double() * 2 - 1
            for name, count in sizes.items()
        )

    extras = {}
    if function is None:
        terms = _monomials(monomials, degree, dimension, seed)
        mask = torch.zeros(len(terms), dimension, dtype=torch.bool)
        for row, subset in zip(mask, terms):
            row[list(subset)] = True
        extras = {"monomials": mask, "coefficients": torch.tensor(list(terms.values()), dtype=kind)}
        function = partial(combination, monomials=terms)

    def part(x: Tensor, target: Callable[[Tensor], Tensor] = function) -> Part:
        y = target(x)
        if y.shape != (len(x),):
            raise UsageError(f"function returned shape {tuple(y.shape)} for {len(x)} points; expected one value each")
        return Part(x.to(kind), y.to(kind))

    return Split(part(x_train), part(x_test), name="boolean-cube", extras=extras)
