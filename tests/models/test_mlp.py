"""Laws of the MLP: the two parametrisations, the initial laws and scales, symmetric starts, activations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor, nn
from torch.testing import assert_close

from ntkscope.core import UsageError, generator
from ntkscope.kernels import kernel
from ntkscope.models import NTKLinear, activation, mlp
from ntkscope.models._layers import ACTIVATIONS, Normalised

SIGMA_W, SIGMA_B = [1.5, 1.0, 0.5], [0.3, 0.7, 0.2]


def affine(net: nn.Module) -> list[nn.Linear | NTKLinear]:
    return [m for m in net.modules() if isinstance(m, nn.Linear | NTKLinear)]


def tangent_norm(net: nn.Module, x: Tensor) -> float:
    """Θ(x, x): the squared gradient norm of the first output."""
    gradients = torch.autograd.grad(net(x)[0, 0], list(net.parameters()))
    return float(sum(g.square().sum() for g in gradients))


def test_ntk_network_is_the_standard_one_with_scaled_weights() -> None:
    x = torch.randn(4, 5, generator=generator(0, "x"), dtype=torch.float64)
    ntk = mlp(5, 3, widths=[6, 7], ntk=True, sigma_w=SIGMA_W, sigma_b=SIGMA_B, activation="erf").double()
    standard = mlp(5, 3, widths=[6, 7], activation="erf").double()
    with torch.no_grad():
        for layer, source, s_w, s_b in zip(affine(standard), affine(ntk), SIGMA_W, SIGMA_B):
            layer.weight.copy_(source.weight * s_w / math.sqrt(source.in_features))
            layer.bias.copy_(source.bias * s_b)
    assert_close(ntk(x), standard(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ntk", [True, False])
def test_both_parametrisations_are_the_same_random_function(ntk: bool) -> None:
    """Var f(x) = K⁽²⁾(x, x) at any width: K⁽⁰⁾ = σ_w²|x|²/d + σ_b², K⁽ˡ⁾ = σ_w² K⁽ˡ⁻¹⁾/2 + σ_b² for ReLU."""
    x = torch.tensor([[1.0, -2.0, 0.5, 3.0]])
    variance = 0.0
    for layer, (s_w, s_b) in enumerate(zip(SIGMA_W, SIGMA_B)):
        variance = s_w**2 * (float(x.square().mean()) if layer == 0 else variance / 2) + s_b**2
    seeds, outputs = 150, 32
    values = [
        mlp(4, outputs, widths=[32, 32], ntk=ntk, sigma_w=SIGMA_W, sigma_b=SIGMA_B, seed=seed)(x).detach()
        for seed in range(seeds)
    ]
    second = torch.cat(values).square().mean(1)  # one a network: outputs of one network are not independent
    standard_error = float(second.std()) / math.sqrt(seeds)
    assert abs(float(second.mean()) - variance) < 4 * standard_error
    assert standard_error < 0.05 * variance  # the test can fail


def test_tangent_kernel_keeps_its_scale_in_ntk_parametrisation_and_grows_in_the_standard_one() -> None:
    """One hidden ReLU layer, σ_w² = 2, no bias: E Θ(x, x) = 4|x|²/d at every width with the scales outside."""
    x = torch.tensor([[1.0, 1.0, -1.0, 1.0]])
    measured: dict[tuple[bool, int], Tensor] = {}
    for ntk in (True, False):
        for width in (64, 256):
            nets = (mlp(4, widths=[width], bias=False, ntk=ntk, sigma_w=2**0.5, seed=seed) for seed in range(60))
            measured[ntk, width] = torch.tensor([tangent_norm(net, x) for net in nets])
    for width in (64, 256):
        theta = measured[True, width]
        assert abs(float(theta.mean()) - 4.0) < 4 * float(theta.std()) / math.sqrt(60)
    # standard: the readout's gradient is width times larger, the hidden one's d = 4 times; E Θ = width·|x|²/d + |x|²
    for width in (64, 256):
        theta = measured[False, width]
        assert abs(float(theta.mean()) - (width + 4.0)) < 4 * float(theta.std()) / math.sqrt(60)


def test_default_is_pytorchs_own_initialisation() -> None:
    weight = mlp(100, widths=[200], seed=5).layer1.weight.detach()
    assert float(weight.abs().max()) <= 0.1  # U(−1/√fan_in, 1/√fan_in)
    assert abs(float(weight.var()) * 300 - 1) < 0.05


@pytest.mark.parametrize("ntk", [True, False])
def test_init_scale_multiplies_the_drawn_weights(ntk: bool) -> None:
    options: dict[str, Any] = {"widths": [6, 6], "bias": False, "ntk": ntk, "sigma_w": 1.0}
    plain, scaled = mlp(4, **options), mlp(4, init_scale=[0.01, 1.0, 3.0], **options)
    for before, after, factor in zip(plain.parameters(), scaled.parameters(), [0.01, 1.0, 3.0]):
        assert_close(after, factor * before)
    if not ntk:  # and PyTorch's default alike
        assert_close(mlp(4, init_scale=0.5).layer1.weight, 0.5 * mlp(4).layer1.weight)


def test_standard_weights_have_variance_sigma_squared_over_fan_in() -> None:
    net = mlp(300, widths=[400], sigma_w=[2.0, 1.0], sigma_b=[0.5, 0.0], classes=3)
    weight = net.layer1.weight.detach()
    n = weight.numel()
    assert abs(float(weight.var()) * 300 / 4 - 1) < 5 * math.sqrt(2 / n)
    assert abs(float(net.layer1.bias.detach().std()) / 0.5 - 1) < 5 / math.sqrt(2 * 400)
    assert not net.readout.bias.any()


def test_laws_of_the_weights() -> None:
    def weights(law: str) -> Tensor:
        return mlp(100, widths=[100], ntk=True, law=[law, "normal"]).layer1.weight.detach().flatten()

    sign, uniform, cauchy = weights("sign"), weights("uniform"), weights("cauchy")
    assert set(sign.tolist()) == {-1.0, 1.0}
    assert abs(float(sign.mean())) < 5 / 100
    assert float(uniform.abs().max()) <= 1
    assert abs(float(uniform.var()) - 1 / 3) < 0.02
    assert abs(float((cauchy.abs() < 1).float().mean()) - 0.5) < 5 * 0.5 / 100  # half lies within the scale
    assert float(cauchy.abs().max()) > 100  # the tail a normal law has not


@pytest.mark.parametrize("ntk", [True, False])
def test_symmetric_start_is_the_zero_function_but_not_a_dead_one(ntk: bool) -> None:
    net = mlp(5, 2, widths=[8, 10], ntk=ntk, symmetric=True).double()
    x = torch.randn(3, 5, generator=generator(0, "x"), dtype=torch.float64)
    assert_close(net(x), torch.zeros(3, 2, dtype=torch.float64), rtol=0, atol=1e-13)  # roundoff of the paired sums
    assert tangent_norm(net, x[:1]) > 0.1


def test_depth_and_widths() -> None:
    assert [layer.out_features for layer in affine(mlp(3, widths=5, depth=4))] == [5, 5, 5, 5, 1]
    assert [layer.out_features for layer in affine(mlp(3, 2, widths=[]))] == [2]
    assert [layer.out_features for layer in affine(mlp(3))] == [128, 128, 1]
    assert all(layer.bias is None for layer in affine(mlp(3, bias=False, ntk=True)))


def test_a_given_activation_module_is_copied_for_each_layer() -> None:
    given = nn.LeakyReLU(0.3)
    net = mlp(3, widths=[4, 4], activation=given)
    assert net.act1 is not net.act2
    assert net.act1 is not given
    assert net.act1.negative_slope == 0.3


def gaussian_mean(module: nn.Module, power: int) -> float:
    """E[σ(z)^power] by adaptive quadrature with a break at the kink, independent of the rule under test."""

    def integrand(z: float) -> float:
        value = float(module(torch.tensor(z, dtype=torch.float64)))
        return value**power * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    return quad(integrand, -12, 0, epsabs=1e-13)[0] + quad(integrand, 0, 12, epsabs=1e-13)[0]


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_normalised_activations_have_mean_zero_and_second_moment_one(name: str) -> None:
    module = activation(f"normalised-{name}")
    assert isinstance(module, Normalised)
    assert abs(gaussian_mean(module, 1)) < 1e-10
    assert abs(gaussian_mean(module, 2) - 1) < 1e-10


def test_odd_activations_stay_odd() -> None:
    z = torch.linspace(-3, 3, 7)
    for name in ("tanh", "erf", "identity"):
        module = activation(f"normalised-{name}")
        assert torch.equal(module(-z), -module(z))


def test_a_constant_cannot_be_normalised() -> None:
    with pytest.raises(UsageError, match="constant under N"):
        Normalised(nn.Threshold(1e9, 0.5))


@pytest.mark.parametrize("sigma_b", [0.0, 0.3, 1.0])
def test_ntk_layers_take_the_rule_of_affine_layers(sigma_b: float) -> None:
    """The scales stand outside the parameters, so a wide network costs the engine no Jacobian; the function is the same."""
    net = mlp(3, 2, widths=5, depth=1, ntk=True, sigma_w=1.7, sigma_b=sigma_b)
    net, x = net.double(), torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert "func" not in set(kernel("trntk0", net, x).coverage.methods.values())
    hidden = torch.relu(1.7 / 3**0.5 * x @ net.layer1.weight.T + sigma_b * net.layer1.bias)
    expected = 1.7 / 5**0.5 * hidden @ net.readout.weight.T + sigma_b * net.readout.bias
    torch.testing.assert_close(net(x), expected)
