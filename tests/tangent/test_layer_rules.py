"""Each layer kind with each of its options, alone under a nonlinear head, and the method its parameters take."""

from __future__ import annotations

import pytest
import torch

from oracles.against import compare
from strategies.layers import LAYERS
from strategies.networks import noise, randomize

WITHOUT_A_RULE = ("bilinear", "prelu", "bag of embeddings", "lstm", "bidirectional gru", "rnn")
# the gradient by a key's bias is zero but for rounding ("attention across widths"): nothing a rule could be held to
NOT_PROMISED = (
    *WITHOUT_A_RULE,
    "instance norm",
    "transposed linear",
    "attention with added keys",
    "attention across widths",
)
RULE_PROMISED = [name for name in LAYERS if name not in NOT_PROMISED]


@pytest.mark.parametrize("name", LAYERS)
def test_all_output_pairs_and_the_road_taken(name: str) -> None:
    model, x = LAYERS[name]()
    coverage = compare("entk", model, x).coverage
    if name in RULE_PROMISED:
        assert [parameter for parameter, method in coverage.methods.items() if method == "func"] == []
    if name in WITHOUT_A_RULE:
        assert coverage.share("func") > 0


@pytest.mark.parametrize("name", LAYERS)
def test_trace_between_two_sets_in_the_smallest_memory(name: str) -> None:
    model, x = LAYERS[name]()
    compare("trntk0", model, x, x[1:], memory="smallest")


@pytest.mark.parametrize("name", LAYERS)
def test_projected_gradients_of_some_outputs(name: str) -> None:
    model, x = LAYERS[name]()
    compare("proj-trntk", model, x, outputs=[2, 0], dim=9, normalize=False)


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


def test_the_transposed_linear_layer_of_hugging_face() -> None:
    """The class itself, where the package is installed; `LAYERS` has its equation."""
    utils = pytest.importorskip("transformers.pytorch_utils", reason="the extra [text] is not installed")
    layers = [utils.Conv1D(6, 4), torch.nn.GELU(), utils.Conv1D(3, 6), torch.nn.Flatten(), torch.nn.Linear(15, 2)]
    model = randomize(torch.nn.Sequential(*layers))
    gram = compare("entk", model, noise(3, 5, 4))
    assert gram.coverage.share("func") == 0
