"""Images to vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn

from ntkscope.core import UsageError
from ntkscope.infinite.field import Field
from ntkscope.infinite.layer import Context, Layer, Need, Shape, Spatial
from ntkscope.infinite.registry import Translator, layer, module_rule


@layer
@final
@dataclass(frozen=True)
class Flatten(Spatial):
    """All positions as features: Σ′ is the mean over positions of Σ(p, p); covariances of unequal ones are not needed.

    Examples:
        >>> from ntkscope.infinite import Dense, kernel, serial
        >>> x = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]], dtype=torch.float64)[None]
        >>> kernel(serial(Flatten(), Dense()), x, kind="nngp").dense().item()
        7.5
    """

    def shape(self, given: Shape, path: str) -> Shape:
        features = given.features
        for length in given.spatial:
            features = features and features * length
        return Shape(features, gaussian=given.gaussian and not given.spatial, mixed=given.mixed)

    def need(self, out: Need, single: bool) -> Need:
        return min(out, Need.SAME)

    def follows_shifts(self, wrap: bool) -> bool:
        return False

    def propagate(self, given: Field, context: Context, path: str, need: Need) -> Field | None:
        if not given.spatial:
            return given
        axes = tuple(range(len(given.spatial)))
        return given.same().mapped(lambda values: values.mean(axes), spatial=(), double=())

    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        return nn.Flatten()


@module_rule(nn.Flatten)
def flatten(module: nn.Flatten, translate: Translator, path: str) -> Layer:
    if (module.start_dim, module.end_dim) != (1, -1):
        raise UsageError(
            f"nn.Flatten({module.start_dim}, {module.end_dim}) (at {path!r}); expected nn.Flatten(): all but the samples"
        )
    return Flatten()
