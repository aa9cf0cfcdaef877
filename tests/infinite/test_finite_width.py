"""The limit against networks of finite width, by Monte Carlo: the mean of empirical kernels within standard errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from contracts.infinite_layer import FINITE_WIDTH, STANDARD_ERRORS, LayerContract, check_limit, empirical
from ntkscope import infinite
from ntkscope.core import UsageError
from ntkscope.infinite import AvgPool, Conv, Dense, Erf, Flatten, Gelu, GlobalAvgPool, LayerNorm, Relu, Residual, serial
from ntkscope.infinite.layer import Layer
from ntkscope.infinite.rules import Concat, Identity, Serial, Sum


def vectors(n: int, d: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def images(n: int, *shape: int) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


D, C = Dense(1.4, 0.3), Conv(3, W_std=1.4, b_std=0.3)
FULLY_CONNECTED = {
    "gelu": serial(D, Gelu(), D, Gelu(), Dense()),
    "mixture": serial(D, Concat((Dense(4.0), Dense(0.2, 0.1)), (0.25, 0.75)), Erf(), D),
    "normalised": serial(Dense(5**0.5), Relu(normalize=True), Dense(), Relu(normalize=True), Dense()),
}
CONVOLUTIONAL = {
    "circular": serial(Conv(3, padding="circular", W_std=1.4), Relu(), GlobalAvgPool(), D, Relu(), D),
    "stride, valid": serial(Conv(2, 2, W_std=1.4), Relu(), Conv(2, 1, "valid", 1.4, 0.3), Relu(), GlobalAvgPool(), D),
    "shortcut": serial(C, Sum((serial(Relu(), Conv(3, 2)), Conv(1, 2))), Relu(), GlobalAvgPool(), D),
    "mixture": serial(C, Concat((serial(Relu(), Conv(3, W_std=4.0)), Conv(1, W_std=0.3))), Relu(), GlobalAvgPool(), D),
    "dilated": serial(Conv(3, padding=2, dilation=2, W_std=1.4), Relu(), Flatten(), D),
}


VECTORS: dict[str, tuple[tuple[type[Layer], ...], Layer]] = {
    "FullyConnected": ((Dense, Serial), serial(D, Relu(), D, Relu(), D)),
    "Residual": ((Sum,), serial(D, Residual(Relu(), D), Erf(), D)),
    "LayerNorm": ((LayerNorm,), serial(D, LayerNorm(), Erf(), D, LayerNorm("all"), Relu(), D)),
    "Concat": ((Concat,), serial(D, Concat((serial(Relu(), D), serial(Erf(), D)), (0.25, 0.75)), Relu(), D)),
    "Identity": ((Identity,), serial(D, Identity(), Relu(), D)),
}
IMAGES: dict[str, tuple[tuple[type[Layer], ...], Layer]] = {
    "Convolution": ((Conv, Flatten), serial(C, Relu(), C, Relu(), Flatten(), D)),
    "GlobalPooling": ((GlobalAvgPool,), serial(C, Relu(), C, Relu(), GlobalAvgPool(), D)),
    "Pooling": ((AvgPool,), serial(C, Relu(), AvgPool(2), C, Relu(), Flatten(), D)),
}
for title, (covered, network) in {**VECTORS, **IMAGES}.items():
    attributes: dict[str, Any] = {"kinds": covered, "network": lambda self, network=network: network}
    attributes |= {"shape": (2, 4, 5), "items": 2, "width": 96} if title in IMAGES else {}
    globals()[f"Test{title}"] = type(f"Test{title}", (LayerContract,), attributes)


@pytest.mark.parametrize("name", FULLY_CONNECTED)
def test_fully_connected(name: str) -> None:
    check_limit(FULLY_CONNECTED[name], vectors(3, 5), 256, 24)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_convolutional(name: str) -> None:
    check_limit(CONVOLUTIONAL[name], images(2, 2, 4, 5 if name != "stride, valid" else 4), 96, 24)


def test_one_dimension() -> None:
    check_limit(serial(C, Residual(Relu(), C), Relu(), GlobalAvgPool(), D), images(2, 2, 6), 128, 24)


def test_the_check_can_fail() -> None:
    right, wrong = serial(D, Relu(), D, Relu(), D), serial(D, Relu(), D, Relu(), Dense(1.7, 0.3))
    with pytest.raises(AssertionError, match="of what is allowed"):
        check_limit(right, vectors(3, 5), 256, 24, limit=wrong)


@pytest.mark.nightly
def test_error_falls_as_the_root_of_the_width() -> None:
    """The root mean square error of the empirical NTK has slope −1/2 in the width (log-log)."""
    net, x = serial(D, Relu(), D, Relu(), D), vectors(3, 5)
    expected = infinite.kernel(net, x).dense()
    widths = [64, 256, 1024]
    errors = []
    for width in widths:
        draws = [empirical(infinite.finite(net, (5,), width, seed=s).double(), x) - expected for s in range(24)]
        errors.append(float(torch.stack(draws).square().mean().sqrt()))
    slope = math.log(errors[-1] / errors[0]) / math.log(widths[-1] / widths[0])
    assert slope == pytest.approx(-0.5, abs=0.12)  # 24 draws know each error to 10 %


def test_frozen_ntk_layers() -> None:
    """`mlp(ntk=True)` says its scales itself; a frozen readout adds nothing."""
    x = vectors(3, 5)

    def frozen(seed: int) -> nn.Module:
        options = {"in_features": 5, "classes": 1, "widths": [256], "ntk": True, "sigma_w": 1.5, "sigma_b": 0.4}
        model = ns.models.build("mlp", **options, seed=seed).double()
        model.readout.requires_grad_(False)
        return model

    expected = infinite.kernel(frozen(0), x).dense()
    draws = torch.stack([ns.kernel("trntk0", frozen(seed), x).dense() for seed in range(12)])
    allowed = STANDARD_ERRORS * draws.std(0) / math.sqrt(12) + FINITE_WIDTH / 256 * expected.abs().max()
    assert bool(((draws.mean(0) - expected).abs() <= allowed).all())
    whole = infinite.kernel(frozen(0).requires_grad_(), x).dense()
    net = serial(Dense(1.5, 0.4), Relu(), Dense(1.5, 0.4))
    torch.testing.assert_close(whole, infinite.kernel(net, x).dense(), rtol=1e-14, atol=0)
    assert not torch.allclose(expected, whole)


def _he(seed: int, zero: bool) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(5, 200), nn.ReLU(), nn.Linear(200, 150), nn.ReLU(), nn.Linear(150, 1)).double()
        for layer in (net[0], net[2], net[4]):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias) if zero else nn.init.normal_(layer.bias, std=0.3)
    return net


def _conv(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(2, 96, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 1)]
        return nn.Sequential(*layers).double()


def _mlp(seed: int, **options: Any) -> nn.Module:
    return ns.models.build("mlp", in_features=5, classes=1, widths=[200, 150], seed=seed, **options).double()


OWN: dict[str, tuple[Any, dict[str, Any]]] = {
    "PyTorch's default": (_mlp, {}),
    "convolution": (_conv, {}),
    "He": (lambda seed: _he(seed, False), {"init": "measured"}),
    "He, biases that start at zero": (lambda seed: _he(seed, True), {"init": "measured"}),
    "scales inside the weights": (lambda seed: _mlp(seed, sigma_w=1.3, sigma_b=0.2), {"init": "measured"}),
    "NTK parametrisation": (lambda seed: _mlp(seed, ntk=True, sigma_w=1.3, sigma_b=0.2), {}),
}


def _of_draws(name: str, expected: Tensor, x: Tensor) -> Tensor:
    """How far the mean over draws of the module's own empirical NTK is from `expected`, as a share of what is allowed."""
    build, options = OWN[name]
    draws = torch.stack([empirical(build(seed), x) for seed in range(20)])
    scales = 0.05 if options else 0.0  # of measured scales: √(2 / 750) in the smallest layer's variance
    width = 96 if name == "convolution" else 150
    allowed = STANDARD_ERRORS * draws.std(0) / math.sqrt(20) + (FINITE_WIDTH / width + scales) * expected.abs().max()
    return (draws.mean(0) - expected).abs() / allowed


@pytest.mark.parametrize("name", OWN)
def test_a_module_has_the_ntk_of_its_own_parametrisation(name: str) -> None:
    """Without being told which: the mean of the empirical NTK over draws of that module."""
    build, options = OWN[name]
    x = images(2, 2, 4, 4) if name == "convolution" else vectors(3, 5)
    K = infinite.kernel(build(0), x, **options)
    assert K.meta["parametrization"] == ("ntk" if name.startswith("NTK") else "standard")
    assert float(_of_draws(name, K.dense(), x).max()) <= 1
    if name in ("PyTorch's default", "He"):  # canary: the other parametrisation is another kernel
        other = infinite.kernel(build(0), x, parametrization="ntk", **options).dense()
        assert float(_of_draws(name, other, x).max()) > 2


def test_a_module_of_both_parametrisations_is_asked_about() -> None:
    first = ns.models.build("mlp", in_features=5, classes=4, widths=[8], ntk=True)
    both = nn.Sequential(first, nn.ReLU(), nn.Linear(4, 1))
    x = vectors(2, 5)
    with pytest.raises(UsageError, match=r'parametrization="ntk" or "standard"'):
        infinite.kernel(both, x)
    for said in ("ntk", "standard"):
        assert infinite.kernel(both, x, parametrization=said).meta["parametrization"] == said
    assert infinite.kernel(both, x, kind="nngp").shape == (2, 2)
