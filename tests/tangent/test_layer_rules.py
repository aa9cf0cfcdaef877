"""Each layer kind with each of its options, alone under a nonlinear head, and the road its parameters take."""

from __future__ import annotations

import pytest
import torch

import ntkscope as ns
from oracles.against import compare
from strategies.layers import LAYERS

WITHOUT_A_RULE = ("bilinear", "prelu", "bag of embeddings", "lstm", "bidirectional gru", "rnn", "transposed linear")
# the gradient by a key's bias is zero but for rounding ("attention across widths"): nothing a rule could be held to
NOT_PROMISED = (*WITHOUT_A_RULE, "instance norm", "attention with added keys", "attention across widths")
RULE_PROMISED = [name for name in LAYERS if name not in NOT_PROMISED]


@pytest.mark.parametrize("name", LAYERS)
def test_all_output_pairs(name: str) -> None:
    model, x = LAYERS[name]()
    compare("entk", model, x)


@pytest.mark.parametrize("name", LAYERS)
def test_trace_between_two_sets_in_the_smallest_memory(name: str) -> None:
    model, x = LAYERS[name]()
    compare("trntk0", model, x, x[1:], memory="smallest")


@pytest.mark.parametrize("name", LAYERS)
def test_pseudo_of_some_outputs(name: str) -> None:
    model, x = LAYERS[name]()
    compare("pntk", model, x, outputs=[2, 0])


@pytest.mark.parametrize("name", LAYERS)
def test_projected(name: str) -> None:
    model, x = LAYERS[name]()
    compare("proj-trntk", model, x, dim=9, normalize=False)


@pytest.mark.parametrize("name", RULE_PROMISED)
def test_layers_with_a_rule_do_not_take_the_slow_road(name: str) -> None:
    model, x = LAYERS[name]()
    coverage = ns.kernel("trntk0", model, x).coverage
    slow = [parameter for parameter, road in coverage.roads.items() if road == "func"]
    assert slow == []


@pytest.mark.parametrize("name", WITHOUT_A_RULE[:-1])
def test_layers_without_a_rule_are_named(name: str) -> None:
    model, x = LAYERS[name]()
    coverage = ns.kernel("trntk0", model, x).coverage
    assert all(road == "func" for parameter, road in coverage.roads.items() if parameter.startswith("layer."))
    assert coverage.share("func") > 0


@pytest.mark.parametrize("positions", [1, 2, 9, 40])
@pytest.mark.parametrize(("inner", "outer"), [(1, 1), (2, 30), (30, 2)])
def test_every_contraction_whatever_the_cost_model_prefers(positions: int, inner: int, outer: int) -> None:
    """Few and many positions against narrow and wide layers: the choice moves, the kernel does not."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(inner, outer), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(outer * positions, 2)
    ).double()
    x = torch.randn(3, positions, inner, dtype=torch.float64)
    compare("entk", model, x)
    compare("trntk0", model, x, x[:2])
