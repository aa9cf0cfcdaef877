"""The pre-activation tangent kernel: what the outputs feel of a layer's pre-activations."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import ntkscope as ns
from contracts.kernel import KernelContract, convolutional, perceptron, seeded
from ntkscope.core import UsageError
from oracles.against import compare
from oracles.closeness import assert_kernel_close
from strategies.layers import LAYERS
from strategies.networks import noise, randomize
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


def test_both_forms_share_their_trace() -> None:
    """tr ΓᵀΓ = tr ΓΓᵀ: the features' trace is the mean of the dual's diagonal."""
    for case in (perceptron, convolutional):
        model, x = seeded(case)
        dual = ns.kernel("ptk", model, x, layer="0").dense()
        features = ns.kernel("ptk", model, x, layer="0", form="features").dense()
        assert float(features.trace()) == pytest.approx(float(dual.trace()) / len(x), rel=1e-12)


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


def test_nothing_trainable_is_needed() -> None:
    model, x = seeded(perceptron)
    expected = ns.kernel("ptk", model, x, layer="0").dense()
    assert_kernel_close(ns.kernel("ptk", model.requires_grad_(False), x, layer="0").dense(), expected, 1e-14)
