"""The pre-activation tangent kernel: what the outputs feel of a layer's pre-activations."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from contracts.kernel import KernelContract, perceptron, seeded
from ntkscope.core import UsageError
from oracles.against import compare
from oracles.closeness import assert_kernel_close
from strategies.layers import LAYERS
from strategies.networks import Net, noise, randomize
from strategies.traps import TRAPS

LAYER_KINDS = ["linear", "linear on sequences", "conv1d", "conv2d grouped", "conv3d", "layer norm", "embedding"]
both_forms = pytest.mark.parametrize("form", ["dual", "features"])


class TestPreactivation(KernelContract):
    name = "ptk"
    takes_params = False


@both_forms
@pytest.mark.parametrize("layer", ["0", "3", "5"])
def test_every_layer_of_a_perceptron(layer: str, form: str) -> None:
    model, x = seeded(perceptron)
    compare("ptk", model, x, layer=layer, form=form)
    compare("ptk", model, x, layer=layer, form=form, outputs=[2, 0])


@both_forms
@pytest.mark.parametrize("name", LAYER_KINDS)
def test_layers_with_positions(name: str, form: str) -> None:
    model, x = LAYERS[name]()
    compare("ptk", model, x, layer="layer", form=form)


@both_forms
@pytest.mark.parametrize("name", ["in_place_relu", "frozen_below_and_between"])
def test_what_follows_may_work_in_place_and_below_may_be_frozen(name: str, form: str) -> None:
    model, x = TRAPS[name]()
    for layer in ("0", "2", "4"):
        compare("ptk", model, x, layer=layer, form=form)


def test_the_feature_form_is_a_named_symmetric_matrix() -> None:
    model, x = seeded(perceptron)
    gram = ns.kernel("ptk", model, x, layer="0", form="features")
    assert gram.shape == (8, 8)
    assert gram.symmetric
    assert "features of 0" in gram.rows
    assert float(torch.linalg.eigvalsh(gram.dense())[0]) >= -1e-12 * float(gram.dense().trace())


def test_it_is_the_middle_of_the_average_gradient_outer_product() -> None:
    """Wᵀ K W is the mean of ∇_z f ∇_z fᵀ at the layer's input z (the alignment decomposition)."""
    model = randomize(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))
    x = noise(5, 4).requires_grad_()
    k = ns.kernel("ptk", model, x.detach(), layer="0", form="features").dense()
    w = model[0].weight.detach()
    total = torch.zeros(4, 4, dtype=torch.float64)
    for c in range(2):
        (g,) = torch.autograd.grad(model(x)[:, c].sum(), x)
        total += g.T @ g
    assert_kernel_close(w.T @ k @ w, total / 5)


def test_the_default_layer_is_named() -> None:
    model, x = seeded(perceptron)
    gram = ns.kernel("ptk", model, x)
    assert gram.meta["layer"] == "3"  # the last affine layer before the readout
    assert_kernel_close(gram.dense(), ns.kernel("ptk", model, x, layer="3").dense(), 1e-14)


@both_forms
def test_a_layer_called_twice_is_right_or_refused(form: str) -> None:
    """Both calls are positions of one layer; a kernel that does not do that must say so."""
    model, x = TRAPS["module_called_twice"]()
    try:
        compare("ptk", model, x, layer="a", form=form)
    except UsageError as error:
        assert re.search(r"'a'.*called 2 times", str(error))  # noqa: PT017 - a refusal is one of two right answers


# -- a layer's output that is used in more than one place ----------------------------------------------------------
class _Keeps(nn.Linear):
    """A layer that also keeps its output, and twice it, for others."""

    def forward(self, x: Tensor) -> Tensor:
        self.out = super().forward(x)
        self.twice = 2 * self.out
        return self.out


def _sees(how: str, frozen: bool, width: int) -> nn.Module:
    """A model whose layer `a` reaches the outputs in the way `how` names, and perhaps in the ordinary one too."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        kept = {"hook": lambda: m.seen, "attribute": lambda: m.a.out, "before": lambda: m.a.twice, "no": lambda: h}
        name, _, alone = how.partition(" ")
        hidden = torch.sin(kept[name]())
        return m.b(hidden if alone else hidden + 0.05 * torch.tanh(h))

    model = randomize(Net(run, a=_Keeps(4, width), b=nn.Linear(width, 3)))
    model.a.register_forward_hook(lambda module, args, output: setattr(model, "seen", output))
    model.a.requires_grad_(not frozen)
    return model


def by_bias(model: nn.Module, x: Tensor) -> Tensor:
    """∂f_c/∂h of a linear layer on vectors is the gradient by its bias, whoever sees h: nothing of the model is replaced."""
    bias = model.get_parameter("a.bias")
    asks = bias.requires_grad
    bias.requires_grad_()
    rows = [
        torch.stack([torch.autograd.grad(f, bias, retain_graph=True)[0] for f in model(each)[0]]) for each in x.split(1)
    ]
    bias.requires_grad_(asks)
    features = torch.stack(rows).flatten(1)
    return features @ features.T


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("how", ["no", "hook", "hook alone", "attribute", "attribute alone"])
def test_every_use_of_the_output_counts(how: str, frozen: bool) -> None:
    for seed, width in enumerate((1, 5)):
        model, x = _sees(how, frozen, width), noise(4, 4, seed=seed)
        assert_kernel_close(ns.kernel("ptk", model, x, layer="a").dense(), by_bias(model, x), 1e-12)


def test_what_a_layer_makes_of_its_output_before_it_returns_counts() -> None:
    model, x = _sees("before", False, 5), noise(4, 4)
    assert_kernel_close(ns.kernel("ptk", model, x, layer="a").dense(), by_bias(model, x), 1e-12)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_kept_output_written_in_place_is_refused(frozen: bool) -> None:
    kept = Net(lambda m, x: (m.a(x), m.b(m.a.out.relu_()))[1], a=_Keeps(4, 5), b=nn.Linear(5, 3))
    returned = Net(lambda m, x: m.b(m.a(x).relu_() + m.a.out), a=_Keeps(4, 5), b=nn.Linear(5, 3))
    for model in (randomize(kept), randomize(returned)):
        model.a.requires_grad_(not frozen)
        with pytest.raises(UsageError, match="in place"):
            ns.kernel("ptk", model, noise(4, 4), layer="a")


def test_an_output_that_nothing_depends_on() -> None:
    model = randomize(Net(lambda m, x: m.b(x + 0 * m.a(x).detach()), a=nn.Linear(4, 4), b=nn.Linear(4, 3)))
    assert not ns.kernel("ptk", model, noise(4, 4), layer="a").dense().any()
    with pytest.raises(UsageError, match="no output depends on"):
        ns.kernel("ptk", model.requires_grad_(False), noise(4, 4), layer="a")
