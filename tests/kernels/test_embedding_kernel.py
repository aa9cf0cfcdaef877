"""The embedding kernel: Grams of chosen layers' outputs, summed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ntkscope as ns
from contracts.kernel import KernelContract, everywhere, perceptron, seeded
from oracles import naive
from oracles.against import compare
from oracles.closeness import assert_kernel_close
from strategies.layers import LAYERS
from strategies.networks import Case
from strategies.traps import TRAPS


class TestEmbedding(KernelContract):
    name = "em"
    takes_outputs = False
    takes_params = False

    @everywhere
    def test_the_default_layers_are_named(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        gram = ns.kernel("em", model, x)
        layers = gram.meta["layers"]
        assert layers
        assert_kernel_close(gram.dense(), naive.kernel("em", model, x, layers=layers))


@pytest.mark.parametrize("layers", [["2"], ["0", "4"], ["1", "5"]])
def test_any_module_can_be_a_layer(layers: list[str]) -> None:
    model, x = seeded(perceptron)
    compare("em", model, x, x[:2], layers=layers)


@pytest.mark.parametrize("name", ["conv2d", "batch norm on images", "embedding", "encoder layer", "layer norm"])
def test_outputs_with_positions_are_flattened(name: str) -> None:
    model, x = LAYERS[name]()
    compare("em", model, x, layers=["layer", "head"])


@pytest.mark.parametrize("name", ["module_called_twice", "in_place_residual", "user_hook_changes_the_output"])
def test_traps(name: str) -> None:
    model, x = TRAPS[name]()
    compare("em", model, x, layers=["a"])


def test_an_in_place_activation_does_not_change_what_was_seen() -> None:
    model, x = TRAPS["in_place_relu"]()
    compare("em", model, x, layers=["0", "2"])
