"""Branches side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.checked import NonNegative
from ntkscope.infinite.layer import Layer, Shape
from ntkscope.infinite.registry import layer
from ntkscope.infinite.rules._branches import Branches, BranchModules
from ntkscope.infinite.rules.serial import serial


@layer
@final
@dataclass(frozen=True)
class Concat(Branches):
    """Branches of the same input, their features side by side: Σ′ = Σ_b s_b Σ_b with s_b the share of features.

    Features of different branches never meet in a covariance, so branches may share anything. `shares` are equal unless
    given; they are needed where the branches say widths that differ. A nonlinearity behind it acts on each branch for itself,
    since E[σσ] is not a function of the mean covariance: `serial` moves it into the branches.

    >>> from ntkscope.infinite import Dense, Relu, serial
    >>> serial(Dense(), Concat((Dense(3.0), Dense(0.1))), Relu(), Dense()).layers[1].branches[1].layers[-1]
    Relu(normalize=False)
    """

    shares: tuple[NonNegative, ...] | None = None

    def weights(self) -> tuple[float, ...]:
        return self.shares or (1 / len(self.branches),) * len(self.branches)

    @property
    def side_by_side(self) -> bool:
        return len(self.branches) > 1

    def followed_by(self, layers: Sequence[Layer]) -> Layer:
        return replace(self, branches=tuple(serial(branch, *layers) for branch in self.branches))

    def shape(self, given: Shape, path: str) -> Shape:
        shapes = self.shapes(given, path)
        if len({s.spatial for s in shapes}) != 1:
            raise UsageError(
                f"the branches at {path!r} end as {', '.join(map(str, shapes))}; expected one size of images"
            )
        widths = [s.features for s in shapes]
        if self.shares is not None and (len(self.shares) != len(widths) or abs(sum(self.shares) - 1) > 1e-12):
            raise UsageError(
                f"got shares {self.shares} for {len(widths)} branches at {path!r}; expected as many, sum 1"
            )
        self._check_widths(widths, path)
        total = None if None in widths else sum(w for w in widths if w is not None)
        mixed = self.side_by_side or any(s.mixed for s in shapes)
        return Shape(total, shapes[0].spatial, all(s.gaussian for s in shapes), mixed)

    def _check_widths(self, widths: Sequence[int | None], path: str) -> None:
        known = [w for w in widths if w is not None]
        if self.shares is None and (len(set(known)) > 1 or 0 < len(known) < len(widths)):
            raise UsageError(
                f"the branches at {path!r} have widths {list(widths)}; give their shares of the features: shares=(…)"
            )
        if self.shares is not None and len(known) == len(widths):
            actual = [w / sum(known) for w in known]
            if max(abs(a - s) for a, s in zip(actual, self.shares)) > 1e-12:
                raise UsageError(
                    f"got shares {self.shares} for branches of widths {list(widths)} at {path!r}; expected the shares of"
                    f" these widths, {tuple(actual)}"
                )

    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        widths = [max(1, round(width * share)) for share in self.weights()]
        return Beside([b.finite(given, wide, None) for b, wide in zip(self.branches, widths)])


class Beside(BranchModules):
    """The outputs of modules for one input, along the channels."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)
