"""Odd trees of modules: the limit is what wide networks do on average, or it is refused."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

from ntkscope import infinite
from ntkscope.core import UsageError
from ntkscope.infinite import Dense, Erf, LayerNorm, Relu, Residual, module_rule, serial
from ntkscope.infinite.rules import Concat, Sum
from oracles.wide_networks import Build, drawn, held_to_monte_carlo

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
IMAGES = torch.randn(2, 3, 7, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def frozen(width: int) -> nn.Module:
    net = nn.Sequential(nn.Linear(4, width), nn.LeakyReLU(0.3), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    net[0].requires_grad_(False)
    net[2].bias.requires_grad_(False)
    return net


def normalised(width: int) -> nn.Module:
    norm = nn.LayerNorm(width, elementwise_affine=False)
    return nn.Sequential(
        nn.Linear(4, width), norm, nn.GELU(), nn.Linear(width, width), norm, nn.ReLU(), nn.Linear(width, 1)
    )


RIGHT = {
    "frozen": (frozen, X, 256, 24),
    "layer norm used twice": (normalised, X, 256, 24),
}


@pytest.mark.guard
@pytest.mark.parametrize("name", RIGHT)
def test_the_limit_is_what_wide_networks_do(name: str) -> None:
    held_to_monte_carlo(*RIGHT[name])


def test_the_check_can_fail() -> None:
    """The limit of a network of ReLUs, held to networks of tanh."""
    kinds = iter([nn.ReLU, *[nn.Tanh] * 24])

    def build(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, width), next(kinds)(), nn.Linear(width, 1))

    with pytest.raises(AssertionError):
        held_to_monte_carlo(build, X, 256, 24)


def random_network(draw: random.Random) -> tuple[Build, bool]:
    """A tree of modules with some oddity, and whether its limit is one the room has."""
    activations = [
        nn.ReLU,
        nn.Tanh,
        lambda: nn.LeakyReLU(0.1),
        nn.GELU,
        lambda: nn.ELU(inplace=True),
        nn.Hardtanh,
        nn.Sigmoid,
    ]
    depth, kind, bias = draw.randint(1, 3), draw.choice(activations), draw.random() < 0.7
    share, freeze, nest = (draw.random() < 0.5 for _ in range(3))
    oddity = draw.choice(list(ODDITIES)) if draw.random() < 0.4 else None

    def build(width: int) -> nn.Module:
        act = kind()
        layers: list[nn.Module] = []
        for k in range(depth):
            block = [nn.Linear(4 if k == 0 else width, width, bias), act if share else kind()]
            layers += [nn.Sequential(*block)] if nest else block
        net = nn.Sequential(*layers, nn.Linear(width, 1, bias))
        if freeze:
            next(m for m in net.modules() if isinstance(m, nn.Linear)).requires_grad_(False)
        if oddity is not None:
            ODDITIES[oddity](next(m for m in net.modules() if isinstance(m, nn.Linear)), net)
        return net

    return build, oddity is None


def tripled(module: nn.Module, given: object, out: Tensor) -> Tensor:
    return 3 * out


class Absolute(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.abs()


ODDITIES: dict[str, Callable[[nn.Linear, nn.Sequential], object]] = {
    "forward hook": lambda layer, net: layer.register_forward_hook(tripled),
    "hook on the network": lambda layer, net: net.register_forward_hook(tripled),
    "pre-hook": lambda layer, net: layer.register_forward_pre_hook(lambda m, given: (given[0] + 1,)),
    "patched forward": lambda layer, net: setattr(
        layer, "forward", lambda x: torch.sin(nn.functional.linear(x, layer.weight))
    ),
    "patched network": lambda layer, net: setattr(net, "forward", lambda x: x.sum(1, keepdim=True)),
    "parametrised": lambda layer, net: nn.utils.parametrize.register_parametrization(layer, "weight", Absolute()),
    "weight norm": lambda layer, net: parametrizations.weight_norm(layer),
    "spectral norm": lambda layer, net: spectral_norm(layer),
    "tied readout": lambda layer, net: net.append(net[-1]),
}


@pytest.mark.guard
@pytest.mark.parametrize("seed", range(40))
def test_random_networks_are_right_or_refused(seed: int) -> None:
    build, plain = random_network(random.Random(seed))
    if not plain:
        with pytest.raises(UsageError, match=r"at '|Sequential"):
            infinite.kernel(drawn(build, 64, 0), X, init="default")
        return
    held_to_monte_carlo(build, X, 192, 12)


def random_convolution(draw: random.Random) -> Build:
    """Convolutions of odd kernels, strides, paddings and dilations, flattened or pooled."""
    shared, pooled = draw.random() < 0.5, draw.choice(["flatten", "global", "windows"])
    geometry = []
    for _ in range(draw.randint(1, 2)):
        kernel = draw.choice([1, 2, 3, (3, 1), (1, 2), (2, 3)])
        if draw.random() < 0.25:
            geometry.append({"kernel_size": 3, "padding": 1, "padding_mode": "circular"})
            continue
        stride = draw.choice([1, 1, 2, (1, 2)])
        padding = draw.choice(["valid", 0, 1, 2, (2, 0), (1, 3)] + (["same", "same"] if stride == 1 else []))
        geometry.append(
            {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": draw.choice([1, 1, 2, (1, 2)])}
        )
    bias, kind = draw.random() < 0.7, draw.choice([nn.ReLU, nn.GELU, lambda: nn.LeakyReLU(0.2, inplace=True)])

    def build(width: int) -> nn.Module:
        act, layers, channels = kind(), [], 3
        for options in geometry:
            layers += [nn.Conv2d(channels, width, bias=bias, **options), act if shared else kind()]
            channels = width
        if pooled == "windows":
            layers.append(nn.AvgPool2d(2, stride=1))
        layers += [nn.AdaptiveAvgPool2d(1)] if pooled == "global" else []
        head = nn.Sequential(*layers, nn.Flatten())
        with torch.no_grad():
            features = head.float()(IMAGES.float()).shape[1]
        return nn.Sequential(head, nn.Linear(features, 1))

    return build


@pytest.mark.guard
@pytest.mark.parametrize("seed", range(24))
def test_random_convolutions_are_right_or_refused(seed: int) -> None:
    build = random_convolution(random.Random(seed))
    try:
        drawn(build, 8, 0)
    except RuntimeError:
        return  # PyTorch itself refuses this geometry
    held_to_monte_carlo(build, IMAGES, 48, 16)


@pytest.mark.parametrize("oddity", ODDITIES)
def test_what_computes_something_else_is_refused_by_name(oddity: str) -> None:
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    ODDITIES[oddity](net[0], net)
    with pytest.raises(UsageError, match=r"\(at '|^Sequential"):
        infinite.kernel(net, X, init="default")


def test_a_module_used_twice() -> None:
    act = nn.ReLU()
    one = nn.Sequential(nn.Linear(4, 64), act, nn.Linear(64, 64), act, nn.Linear(64, 1))
    two = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    options = {"kind": "ntk", "init": "default"}
    assert torch.equal(infinite.kernel(one, X, **options).dense(), infinite.kernel(two, X, **options).dense())
    tied = nn.Linear(64, 64)
    with pytest.raises(UsageError, match=r"Linear \(at '4'\) uses the parameter of '2.weight' a second time"):
        infinite.kernel(nn.Sequential(nn.Linear(4, 64), act, tied, act, tied, act, nn.Linear(64, 1)), X)
    other = nn.Linear(64, 64)
    other.weight = tied.weight
    with pytest.raises(UsageError, match="a second time"):
        infinite.kernel(nn.Sequential(nn.Linear(4, 64), act, tied, act, other, act, nn.Linear(64, 1)), X)


class Strange(nn.Conv2d):
    def _conv_forward(self, *given: object) -> Tensor:
        return 2 * super()._conv_forward(*given)


class Backwards(nn.Sequential):
    def __iter__(self) -> Iterator[nn.Module]:
        return reversed(list(super().__iter__()))


class Shrunk(nn.Linear):
    @property
    def in_features(self) -> int:
        return 4

    @in_features.setter
    def in_features(self, value: int) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return found * 2 if name == "weight" else found


@pytest.mark.parametrize(
    ("net", "x", "message"),
    [
        (
            nn.Sequential(Strange(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 1)),
            IMAGES,
            "replaces Conv2d._conv_forward",
        ),
        (Backwards(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), X, "replaces Sequential.__iter__"),
        (nn.Sequential(Shrunk(4, 4), nn.ReLU(), nn.Linear(4, 1)), X, "replaces Linear.__getattr__"),
        (
            nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)),
            X,
            r"\(at '0'\) takes 5 features but gets 4",
        ),
        (
            nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(7, 1)),
            X,
            r"\(at '2'\) takes 7 features but gets 8",
        ),
        (nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1)), IMAGES, "takes 2 features"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1)), IMAGES, "takes 8 features"),
        (
            nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(7, elementwise_affine=False), nn.Linear(8, 1)),
            X,
            r"sizes \(7,\)",
        ),
        (
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(1, 4, affine=False), nn.Flatten(), nn.Linear(160, 1)),
            IMAGES,
            "sizes",
        ),
    ],
)
def test_overrides_and_sizes(net: nn.Module, x: Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        infinite.kernel(net, x, init="default")


class Block(nn.Module):
    """Works in place on what the sum still needs."""

    def __init__(self, width: int, inplace: bool) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(width, width), nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.act(x))


def test_rules_of_a_users_own_are_held_to_the_module() -> None:
    @module_rule(Block)
    def block(module: Block, translate: infinite.registry.Translator, path: str) -> infinite.layer.Layer:
        return Residual(translate(module.act, f"{path}.act"), translate(module.inner, f"{path}.inner"))

    try:
        for inplace in (False, True):
            net = nn.Sequential(nn.Linear(4, 16), Block(16, inplace), nn.ReLU(), nn.Linear(16, 1))
            if inplace:
                with pytest.raises(UsageError, match=r"Block \(at '1'\) computes something other"):
                    infinite.kernel(net, X, init="default")
            else:
                assert infinite.kernel(net, X, init="default").shape == (2, 2)
    finally:
        del infinite.registry.MODULES[Block]


def test_the_network_is_not_touched() -> None:
    """Not its mode, weights, buffers, gradients or hooks, nor the random state."""
    net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 1)).eval()
    net.register_buffer("counter", torch.zeros(()))
    before, state, modes = copy.deepcopy(net.state_dict()), torch.get_rng_state(), [m.training for m in net.modules()]
    infinite.kernel(net, X, init="default")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in net.modules()] == modes
    assert all(p.grad is None and p.dtype == torch.float32 for p in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_branches_side_by_side_keep_their_own_covariances() -> None:
    """Σ = mean over branches of E[erf²], by hand; the function of the mean is 0.9 and wrong."""
    q = float(X[0].square().mean())
    by_hand = sum(2 / math.pi * math.asin(2 * s * q / (1 + 2 * s * q)) for s in (25.0, 0.01)) / 2
    branches = Concat((Dense(5.0), Dense(0.1)))
    for net in (
        serial(Dense(), branches, Erf(), Dense()),
        serial(serial(Dense(), branches), serial(Erf(), Dense())),
        serial(Dense(), Concat((serial(Dense(5.0), Erf()), serial(Dense(0.1), Erf()))), Dense()),
    ):
        assert float(infinite.kernel(net, X, kind="nngp").dense()[0, 0]) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (serial(Dense(), Concat((Dense(), Dense(2.0))), LayerNorm(), Relu(), Dense()), "branches side by side"),
        (serial(Dense(), Sum((Concat((Dense(), Dense(2.0))), Dense())), Relu(), Dense()), "branches side by side"),
        (serial(Dense(), Concat((Dense(width=3), Dense())), Relu(), Dense()), "give their shares"),
        (
            serial(Dense(), Concat((Dense(width=3), Dense(width=6)), (0.5, 0.5)), Relu(), Dense()),
            "shares of these widths",
        ),
    ],
)
def test_mixtures_that_are_not_known_are_refused(net: infinite.layer.Layer, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        infinite.kernel(net, X)
