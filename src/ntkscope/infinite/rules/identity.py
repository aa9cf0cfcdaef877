"""What does nothing: the identity, and dropout in evaluation mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn

from ntkscope.core import UsageError
from ntkscope.infinite.field import Field
from ntkscope.infinite.layer import Context, Layer, Need, Shape, Spatial
from ntkscope.infinite.registry import NEAREST, Translator, layer, module_rule


@layer
@final
@dataclass(frozen=True)
class Identity(Spatial):
    """x."""

    def shape(self, given: Shape, path: str) -> Shape:
        return given

    def need(self, out: Need, single: bool) -> Need:
        return out

    def follows_shifts(self, wrap: bool) -> bool:
        return True

    def propagate(self, given: Field, context: Context, path: str, need: Need) -> Field | None:
        return given

    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        return nn.Identity()


@module_rule(nn.Identity)
def identity(module: nn.Identity, translate: Translator, path: str) -> Layer:
    return Identity()


@module_rule(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
def dropout(module: nn.Dropout, translate: Translator, path: str) -> Layer:
    """Nothing in evaluation mode, refused in training mode."""
    if module.training and module.p > 0:
        raise UsageError(f"{type(module).__name__} (at {path!r}) is in training mode; expected {NEAREST['Dropout']}")
    return Identity()
