"""The same network at finite width, in the NTK parametrisation: what the limit is the limit of."""

from __future__ import annotations

from torch import nn

from ntkscope.core import UsageError
from ntkscope.core.checked import Count
from ntkscope.infinite.layer import Layer, Shape
from ntkscope.infinite.rules.serial import Serial
from ntkscope.models._init import seeded


def finite(net: Layer, shape: tuple[Count, ...], width: Count, *, outputs: Count = 1, seed: int = 0) -> nn.Module:
    """A module whose empirical NTK tends to `kernel(net, …)` as `width` grows, at the rate 1/√width.

    `shape`: of one input, (d,), (c, l) or (c, h, w). Weights and biases are standard normal draws of `seed`, their scales
    outside. The last affine layer has `outputs` units.

    >>> import torch
    >>> from ntkscope.infinite import Dense, Relu, serial
    >>> finite(serial(Dense(), Relu(), Dense()), (3,), 8, outputs=2)(torch.zeros(1, 3)).shape
    torch.Size([1, 2])
    """
    if not 1 <= len(shape) <= 3:
        raise UsageError(f"got shape={shape}; expected the shape of one input")
    layers = Serial((net,))
    layers.shape(Shape(shape[0], tuple(shape[1:])), "")
    with seeded(seed, "infinite"):
        return layers.finite(Shape(shape[0], tuple(shape[1:])), width, outputs)
