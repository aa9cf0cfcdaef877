"""What every layer of infinite width that is no nonlinearity must do: a new one's test class inherits `LayerContract`.

class TestMine(LayerContract):
    kinds = (Mine,)

    def network(self):
        return serial(Dense(), Mine(), Relu(), Dense())
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ntkscope import infinite
from ntkscope.infinite.layer import Layer

STANDARD_ERRORS = 4.0
FINITE_WIDTH = 3.0  # the mean itself is off by a few 1/width of the largest entry


def empirical(model: nn.Module, x: Tensor) -> Tensor:
    """⟨∇f(x), ∇f(x′)⟩ of a network with one output, by plain autograd."""
    rows = []
    for one in x:
        gradients = torch.autograd.grad(model(one[None]).sum(), list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in gradients]))
    J = torch.stack(rows)
    return J @ J.T


def check_limit(net: Layer, x: Tensor, width: int, seeds: int, limit: Layer | None = None) -> None:
    """The mean of networks of kind `net` is the kernel of `limit`, by default their own."""
    expected = infinite.kernel(limit or net, x).dense()
    draws = torch.stack(
        [empirical(infinite.finite(net, tuple(x.shape[1:]), width, seed=s).double(), x) for s in range(seeds)]
    )
    mean, error = draws.mean(0), draws.std(0) / math.sqrt(seeds)
    allowed = STANDARD_ERRORS * error + FINITE_WIDTH / width * expected.abs().max()
    off = (mean - expected).abs() / allowed
    assert float(off.max()) <= 1, f"{float(off.max()):.2f} of what is allowed\nmean {mean}\nexpected {expected}"


def layers_of(value: Any) -> Iterator[Layer]:
    """A layer and all layers in it."""
    if isinstance(value, Layer):
        yield value
        for field in fields(value):
            yield from layers_of(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from layers_of(item)


class LayerContract(ABC):
    """`kinds`: the layers under test; `shape`: of one input; `width` and `seeds`: of the finite networks."""

    kinds: ClassVar[tuple[type[Layer], ...]]
    shape: ClassVar[tuple[int, ...]] = (5,)
    items: ClassVar[int] = 3
    width: ClassVar[int] = 256
    seeds: ClassVar[int] = 24

    @abstractmethod
    def network(self) -> Layer:
        """A network with the layers in it, whose last layer is affine."""

    def inputs(self) -> Tensor:
        draw = torch.Generator().manual_seed(1)
        return torch.randn(self.items, *self.shape, generator=draw, dtype=torch.float64)

    def test_they_are_registered_and_in_the_network(self) -> None:
        assert set(self.kinds) <= set(infinite.registry.LAYERS.values())
        assert set(self.kinds) <= {type(layer) for layer in layers_of(self.network())}

    def test_it_is_the_limit_of_its_finite_networks(self) -> None:
        check_limit(self.network(), self.inputs(), self.width, self.seeds)

    def test_two_sets_are_a_part_of_one(self) -> None:
        x = self.inputs()
        whole = infinite.kernel(self.network(), x).dense()
        assert torch.equal(whole, whole.T)
        part = infinite.kernel(self.network(), x[:1], x[1:]).dense()
        torch.testing.assert_close(part, whole[:1, 1:], rtol=1e-12, atol=1e-12)
