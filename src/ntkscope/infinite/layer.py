"""What every rule of this room is: a frozen layer that says what it does to shapes and to covariances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar

import mpmath
import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.infinite.field import Field, Values, equal_positions, paired, shifted


class Need(IntEnum):
    """Which positions later layers still need."""

    NOTHING = 0
    SAME = 1
    FULL = 2


@dataclass(frozen=True)
class Shape:
    """What flows between two layers: how many features (None: unknown), the image's size, and what is known about it.

    `gaussian`: units are independent, Gaussian and of mean zero, as behind a layer with random weights. `mixed`: some units
    have other covariances than others, as those of branches side by side, and only their mean is known.
    """

    features: int | None
    spatial: tuple[int, ...] = ()
    gaussian: bool = False
    mixed: bool = False

    def __str__(self) -> str:
        sizes = [str(self.features or "…"), *map(str, self.spatial)]
        return f"({', '.join(sizes)})"


@dataclass(frozen=True)
class Context:
    """One pass through a network: over single inputs, whose variances it notes, or over pairs, whose sides it looks up.

    `left` is written when `right` is None. `tangent`: the NTK is required. `standard`: gradients are those of the standard
    parametrisation. `fan_in`: features seen by the affine layer at a path.
    """

    left: dict[str, Values]
    right: dict[str, Values] | None
    tangent: bool
    standard: bool = False
    fan_in: dict[str, int | None] = field(default_factory=dict)

    @property
    def single(self) -> bool:
        """Each input with itself."""
        return self.right is None

    def variances(self, path: str, given: Field) -> tuple[Values, Values]:
        """The variances at both ends of every covariance of `given`, shaped to go with them."""
        if self.right is None:
            q = equal_positions(given.nngp, len(given.spatial)) if given.full else given.nngp
            self.left[path] = q
            return (paired(q, given.double, 0), paired(q, given.double, 1)) if given.full else (q, q)
        left, right = self.left[path], self.right[path]
        if given.shifts is not None:
            left, right = (shifted(q, given.shifts, s, given.wrap) for s, q in enumerate((left, right)))
        left, right = left[..., :, None], right[..., None, :]
        if not any(given.double):
            return left, right
        # Spread over the pairs, which are few and innermost: what is left to broadcast are long runs.
        left, right = (torch.broadcast_tensors(left, right)[s].contiguous() for s in (0, 1))
        return paired(left, given.double, 0), paired(right, given.double, 1)


class Layer(ABC):
    """A layer of an infinitely wide network. Abstract: the files of `rules/` hold the final ones, one kind each."""

    @abstractmethod
    def shape(self, given: Shape, path: str) -> Shape:
        """What comes out for what comes in; refuses what has no limit."""

    @abstractmethod
    def propagate(self, given: Field, context: Context, path: str, need: Need) -> Field | None:
        """The covariances behind the layer; `need` is what its successors need. None when they need nothing."""

    @abstractmethod
    def need(self, out: Need, single: bool) -> Need:
        """What it needs from its predecessor when its successors need `out`."""

    @abstractmethod
    def fresh(self, before: bool) -> bool:
        """Whether its output is independent of whatever else is computed from its input: random weights come last."""

    @abstractmethod
    def follows_shifts(self, wrap: bool) -> bool:
        """Whether covariances at one shift need only those of one shift before: images are zero outside, or rings."""

    @abstractmethod
    def affine(self, given: Shape, path: str) -> Iterator[tuple[str, int | None]]:
        """Path and fan-in of every affine layer in it."""

    @property
    def side_by_side(self) -> bool:
        """Whether its units are of several kinds, so that what follows has to be applied to each kind for itself."""
        return False

    def followed_by(self, layers: Sequence[Layer]) -> Layer:
        """The layer with others applied to each kind of its units; of those that are `side_by_side` only."""
        raise NotImplementedError(f"{self} has units of one kind")

    @abstractmethod
    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        """A network of this kind in the NTK parametrisation; `outputs` replaces the width of its last affine layer."""


class Weighted(Layer):
    """A layer with random weights. Abstract."""

    def need(self, out: Need, single: bool) -> Need:
        return out

    def fresh(self, before: bool) -> bool:
        return True

    def affine(self, given: Shape, path: str) -> Iterator[tuple[str, int | None]]:
        yield path, given.features


class Weightless(Layer):
    """A layer without weights. Abstract."""

    def affine(self, given: Shape, path: str) -> Iterator[tuple[str, int | None]]:
        return iter(())


class Spatial(Weightless):
    """A weightless layer that only moves or averages positions. Abstract."""

    def fresh(self, before: bool) -> bool:
        return before


class Nonlinearity(Weightless):
    """A function of each unit; needs the variance of its inputs. Abstract: the duals of `rules/` are its final classes.

    With `normalize` the kernel is multiplied by c_σ = 1 / E[σ(z)²], z ~ N(0, 1), as if σ were √c_σ σ.
    """

    normalize: bool
    accuracy: ClassVar[tuple[float, float]] = (1e-12, 1e-12)
    """What `error` says where there is a closed form: of E[σσ] and of E[σ̇σ̇]."""

    def error(self, q: float | int, derivative: bool = False) -> float:
        """A bound of the error of E[σσ] (or E[σ̇σ̇]) at variances q, relative to E[σ²] (E[σ̇²]), at any correlation; float64.

        It is that of the formula: of a covariance that is itself rounded, nearly equal inputs magnify the rounding.
        """
        return self.accuracy[derivative]

    def shape(self, given: Shape, path: str) -> Shape:
        if not given.gaussian:
            raise UsageError(
                f"{self} (at {path!r}) follows something without random weights; expected the units it acts on to be"
                " Gaussian: put a Dense or Conv between them"
            )
        if given.mixed:
            raise UsageError(
                f"{self} (at {path!r}) follows branches side by side, whose units have different covariances; expected"
                " units of one kind: put it into each branch, or a Dense or Conv between them"
            )
        return Shape(given.features, given.spatial)

    def need(self, out: Need, single: bool) -> Need:
        return max(out, Need.SAME) if single else out

    def fresh(self, before: bool) -> bool:
        return False

    def follows_shifts(self, wrap: bool) -> bool:
        return True

    def propagate(self, given: Field, context: Context, path: str, need: Need) -> Field | None:
        """Σ′ = E[σ(u) σ(v)], Θ′ = Θ E[σ̇(u) σ̇(v)] with (u, v) ~ N(0, [[q₁, Σ], [Σ, q₂]])."""
        q1, q2 = context.variances(path, given)
        slopes = context.tangent and given.ntk is not None
        if not isinstance(given.nngp, Tensor):
            values, slope = self.exact(given.nngp, q1, q2)
            factor: Any = self.normaliser_exact() if self.normalize else 1
        else:
            factor = self.normaliser() if self.normalize else 1.0
            if context.single and not given.full:
                values, slope = self.moments(q1, slopes)
            else:
                values, slope = self.covariances(given.nngp, q1, q2, slopes)
        ntk = None
        if slopes and given.ntk is not None:
            in_place = isinstance(slope, Tensor) and not (slope.requires_grad or given.ntk.requires_grad)
            ntk = slope.mul_(given.ntk) if in_place else given.ntk * slope
        if factor != 1.0:
            values, ntk = values * factor, None if ntk is None else ntk * factor
        return Field(values, ntk, given.spatial, given.double, given.shifts, given.wrap)

    def normaliser(self) -> float:
        """c_σ = 1 / E[σ(z)²], z ~ N(0, 1)."""
        return 1.0 / float(self.moments(torch.ones((), dtype=torch.float64), False)[0])

    def normaliser_exact(self) -> Any:
        one = np.array([mpmath.mpf(1)], dtype=object)
        return 1 / self.exact(one, one, one)[0][0]

    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        scale = self.normaliser() ** 0.5 if self.normalize else 1.0
        return Pointwise(self, scale)

    @abstractmethod
    def covariances(self, cov: Tensor, q1: Tensor, q2: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        """E[σ(u) σ(v)] and, if requested, E[σ̇(u) σ̇(v)]; `q1`, `q2` broadcast against `cov`."""

    @abstractmethod
    def moments(self, q: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        """E[σ(u)²] and, if requested, E[σ̇(u)²], for u ~ N(0, q)."""

    @abstractmethod
    def exact(self, cov: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
        """Both covariances for arrays of mpmath numbers, to its working precision."""

    @abstractmethod
    def function(self, z: Tensor) -> Tensor:
        """σ itself."""


class Pointwise(nn.Module):
    """A nonlinearity as a module: scale · σ(z)."""

    def __init__(self, kind: Nonlinearity, scale: float | int) -> None:
        super().__init__()
        self.kind, self.scale = kind, scale

    def forward(self, z: Tensor) -> Tensor:
        values = self.kind.function(z)
        return values if self.scale == 1.0 else values * self.scale

    def extra_repr(self) -> str:
        return str(self.kind)
