"""The conjugate kernel: the Gram of the readout's input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from contracts.kernel import KernelContract, convolutional, perceptron, seeded
from ntkscope.core import UsageError
from oracles.against import compare
from oracles.closeness import assert_kernel_close
from strategies.networks import Net, noise, randomize


class TestConjugate(KernelContract):
    name = "ck"
    takes_outputs = False
    takes_params = False


def test_the_one_of_the_bias() -> None:
    model, x = seeded(perceptron)
    hidden = model[:5](x).detach()
    assert_kernel_close(ns.kernel("ck", model, x).dense(), hidden @ hidden.T + 1, 1e-13)
    model[5].bias = None
    assert_kernel_close(ns.kernel("ck", model, x).dense(), hidden @ hidden.T, 1e-13)


def test_it_is_the_kernel_of_the_readout_alone() -> None:
    """Over C, the trace kernel of the last layer's parameters is the conjugate kernel."""
    for case in (perceptron, convolutional):
        model, x = seeded(case)
        last = ns.kernel("trntk0", model, x, params="last").dense()
        assert_kernel_close(ns.kernel("ck", model, x).dense(), last / 3, 1e-12)


def test_the_readout_is_the_last_module_called_not_the_last_registered() -> None:
    model = randomize(Net(lambda m, x: m.top(torch.tanh(m.bottom(x))), top=nn.Linear(4, 3), bottom=nn.Linear(5, 4)))
    compare("ck", model, noise(4, 5))
    compare("trntk0", model, noise(4, 5), params="last")


def test_the_readout_of_features_that_are_all_zero_is_found() -> None:
    """Its weights have no gradient at these inputs, but the outputs follow its result."""
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3, bias=False)).double()
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    K = ns.kernel("trntk0", model, noise(4, 5), params="last").dense()
    assert not K.any()


def test_a_frozen_readout_still_has_its_input() -> None:
    model, x = seeded(perceptron)
    expected = ns.kernel("ck", model, x).dense()
    assert_kernel_close(ns.kernel("ck", model.requires_grad_(False), x).dense(), expected, 1e-14)


@pytest.mark.parametrize("name", ["lstm", "encoder layer", "conv2d", "embedding"])
def test_after_other_layers(name: str) -> None:
    from strategies.layers import LAYERS

    model, x = LAYERS[name]()
    compare("ck", model, x, x[:2])


# -- readouts that are not modules ---------------------------------------------------------------------------------
WRITTEN: dict[str, tuple[Callable[[Any, Tensor], Tensor], bool]] = {
    "h @ W.T + b": (lambda m, h: h @ m.W.T + m.b, True),
    "b + matmul(h, W.t())": (lambda m, h: m.b + torch.matmul(h, m.W.t()), True),
    "h @ W.T": (lambda m, h: h @ m.W.T, False),
    "in place": (lambda m, h: (h @ m.W.mT).add_(m.b), True),
    "addmm": (lambda m, h: torch.addmm(m.b, h, m.W.T), True),
    "linear(h, W) + b": (lambda m, h: nn.functional.linear(h, m.W) + m.b, True),
    "some columns": (lambda m, h: h @ m.W.T[:, :2] + m.b[:2], True),
    "a constant": (lambda m, h: h @ m.W.T + 3.0, False),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_a_readout_written_out(how: str) -> None:
    written, bias = WRITTEN[how]
    for seed, (width, outputs) in enumerate([(6, 3), (3, 3), (1, 2)]):
        parts = {"a": nn.Linear(4, width), "W": nn.Parameter(noise(outputs, width)), "b": nn.Parameter(noise(outputs))}
        model, x = randomize(Net(lambda m, x: written(m, torch.tanh(m.a(x))), **parts)), noise(5, 4, seed=seed)
        hidden = torch.tanh(model.a(x)).detach()
        assert_kernel_close(ns.kernel("ck", model, x).dense(), hidden @ hidden.T + bias, 1e-12)
        assert set(ns.Tangent(model, params="last").features(x)) == ({"W", "b"} if bias else {"W"})


def test_a_constant_hides_no_second_head() -> None:
    """Beside an offset of 10⁴, float32 outputs of two heads looked like those of one."""
    parts = {"a": nn.Linear(4, 6), "b": nn.Linear(6, 3), "c": nn.Linear(4, 3)}
    model = Net(lambda m, x: m.b(torch.tanh(m.a(x))) + 0.5 * torch.sin(m.c(x)) + 1e4, **parts)
    with pytest.raises(UsageError, match="affine function of none"):
        ns.kernel("ck", randomize(model).float(), noise(5, 4).float())
