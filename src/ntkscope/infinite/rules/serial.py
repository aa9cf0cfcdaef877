"""Layers one after the other: `serial`, `nn.Sequential`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from torch import nn

from ntkscope.core import UsageError
from ntkscope.infinite.field import Field
from ntkscope.infinite.layer import Context, Layer, Need, Nonlinearity, Shape, Spatial
from ntkscope.infinite.registry import Translator, layer, module_rule


@layer
@final
@dataclass(frozen=True)
class Serial(Layer):
    """Layers one after the other; nested ones are laid out flat."""

    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        flat: list[Layer] = []
        for each in self.layers:
            if not isinstance(each, Layer):
                raise UsageError(
                    f"got {type(each).__name__} among the layers of serial; expected layers of ntkscope.infinite"
                    " (translate modules with infinite.from_module)"
                )
            flat += each.layers if isinstance(each, Serial) else (each,)
        object.__setattr__(self, "layers", tuple(_inside_branches(flat)))

    def steps(self, given: Shape, path: str) -> Iterator[tuple[Layer, Shape, str]]:
        """Each layer with the shape before it and its path."""
        for i, each in enumerate(self.layers):
            here = f"{path}.{i}" if path else str(i)
            yield each, given, here
            given = each.shape(given, here)

    def shape(self, given: Shape, path: str) -> Shape:
        for i, each in enumerate(self.layers):
            given = each.shape(given, f"{path}.{i}" if path else str(i))
        return given

    def needs(self, out: Need, single: bool) -> list[Need]:
        """What each layer needs from its predecessor, and `out` at the end."""
        found = [out]
        for each in reversed(self.layers):
            found.append(each.need(found[-1], single))
        return found[::-1]

    def need(self, out: Need, single: bool) -> Need:
        return self.needs(out, single)[0]

    def fresh(self, before: bool) -> bool:
        for each in self.layers:
            before = each.fresh(before)
        return before

    def follows_shifts(self, wrap: bool) -> bool:
        return all(each.follows_shifts(wrap) for each in self.layers)

    def affine(self, given: Shape, path: str) -> Iterator[tuple[str, int | None]]:
        for each, before, here in self.steps(given, path):
            yield from each.affine(before, here)

    def propagate(self, given: Field, context: Context, path: str, need: Need) -> Field | None:
        needs = self.needs(need, context.single)
        field: Field | None = given
        for i, each in enumerate(self.layers):
            if field is None or needs[i] == Need.NOTHING:
                return None
            field = field if needs[i] == Need.FULL else field.same()
            field = each.propagate(field, context, f"{path}.{i}" if path else str(i), needs[i + 1])
        return field if field is None or need == Need.FULL else field.same()

    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        modules, last = [], None
        for i, (each, before, here) in enumerate(self.steps(given, "")):
            if any(True for _ in each.affine(before, here)):
                last = i
        shape = given
        for i, each in enumerate(self.layers):
            chosen = outputs if i == last else None
            modules.append(each.finite(shape, width, chosen))
            after = each.shape(shape, str(i))
            features = after.features or chosen or (width if after.gaussian else shape.features)
            shape = Shape(features, after.spatial, after.gaussian, after.mixed)
        return nn.Sequential(*modules)


def _inside_branches(layers: list[Layer]) -> Iterator[Layer]:
    """Functions of each unit behind branches side by side, moved into the branches: units of each are of one kind there.

    σ(cat(a, b)) = cat(σ(a), σ(b)), and so for pooling and for what else acts on each channel.
    """
    i = 0
    while i < len(layers):
        each, i = layers[i], i + 1
        if each.side_by_side:
            run = itertools.takewhile(lambda k: isinstance(layers[k], Nonlinearity | Spatial), range(i, len(layers)))
            last = max((k + 1 for k in run if isinstance(layers[k], Nonlinearity)), default=i)
            each, i = each.followed_by(layers[i:last]) if last > i else each, last
        yield each


def serial(*layers: Layer) -> Serial:
    """Layers one after the other.

    Examples:
        >>> from ntkscope.infinite import Dense, Relu
        >>> len(serial(Dense(), serial(Relu(), Dense())).layers)
        3
    """
    return Serial(layers)


@module_rule(nn.Sequential)
def sequential(module: nn.Sequential, translate: Translator, path: str) -> Layer:
    return Serial(
        tuple(
            translate(child, f"{path}.{name}" if path else name)  # as often as the forward pass runs it
            for name, child in module._modules.items()
            if child is not None
        )
    )
