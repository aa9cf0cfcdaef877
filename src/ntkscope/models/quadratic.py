"""The one-hidden-layer network with quadratic activation."""

from __future__ import annotations

from torch import nn

from ntkscope.core.checked import Count
from ntkscope.models._init import seeded
from ntkscope.models.mlp import MLP
from ntkscope.models.registry import MODELS


@MODELS.register("quadratic")
def quadratic(in_features: Count, width: Count, classes: Count = 1, *, seed: int | None = 0) -> MLP:
    """f(x) = a · (W x)², with a ~ N(0, 1) and W ~ N(0, 1/width), no biases.

    The network whose feature alignment has a closed form: Beaglehole, Mitliagkas and Agarwala (2024), Proposition 10.
    Its input gradient is 2 Wᵀ diag(a) W x. W is `layer1.weight`, a is `readout.weight`.

    Examples:
        >>> net = quadratic(3, width=5)
        >>> import torch
        >>> x = torch.ones(1, 3)
        >>> torch.allclose(net(x), net.readout.weight @ (net.layer1.weight @ x.T) ** 2)
        True
    """
    with seeded(seed, "quadratic"):
        first = nn.Linear(in_features, width, bias=False)
        readout = nn.Linear(width, classes, bias=False)
        nn.init.normal_(first.weight, std=width**-0.5)
        nn.init.normal_(readout.weight)
    return MLP([first, readout], "quadratic")
