"""Each layer kind with each of its options, alone under a nonlinear head, and the method its parameters take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ntkscope.tangent.trace import func_method
from oracles.against import compare
from strategies.layers import LAYERS
from strategies.modes import PLAIN, harvested
from strategies.networks import Net, noise, randomize

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
def test_every_layer_and_the_method_it_takes(name: str) -> None:
    model, x = LAYERS[name]()
    coverage = compare("entk", model, x).coverage
    if name in RULE_PROMISED:
        assert [parameter for parameter, method in coverage.methods.items() if method == "func"] == []
    if name in WITHOUT_A_RULE:
        assert coverage.share("func") > 0
    compare("trntk0", model, x, x[1:], memory="smallest")
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


WIDE = 4
EXPANDED: dict[str, tuple[Callable[[Any, Tensor], Tensor], tuple[int, ...]]] = {
    "class token": (lambda m, x: torch.cat([m.p.expand(len(x), -1, -1), x], 1), (1, 1, WIDE)),
    "by broadcast_to": (lambda m, x: torch.cat([torch.broadcast_to(m.p, (len(x), 1, WIDE)), x], 1), (1, 1, WIDE)),
    "its own broadcast_to": (lambda m, x: torch.cat([m.p.broadcast_to(len(x), 1, WIDE), x], 1), (1, 1, WIDE)),
    "a size by name": (lambda m, x: torch.cat([m.p.expand(size=(len(x), 1, WIDE)), x], 1), (1, 1, WIDE)),
    "two tokens": (lambda m, x: torch.cat([m.p.expand((len(x), 2, WIDE)), x], 1), (2, WIDE)),
    "rows of a table": (
        lambda m, x: torch.cat([m.p[1:2].expand(len(x), 1, WIDE), m.p[:1].expand(len(x), 1, WIDE), x], 1),
        (3, WIDE),
    ),
    "as an activation": (lambda m, x: x * m.p.expand_as(x), (WIDE,)),
    "one number a position": (lambda m, x: x * m.p.expand_as(x), (3, 1)),
    "one number": (lambda m, x: x * m.p.expand(len(x), 1, 1), (1,)),
    "a matrix a sample": (lambda m, x: torch.bmm(x, m.p.expand(len(x), WIDE, WIDE)), (WIDE, WIDE)),
    "a view and no more": (lambda m, x: nn.functional.linear(x, m.p.expand(WIDE, -1)), (WIDE, WIDE)),
    "a view of all axes": (lambda m, x: nn.functional.linear(x, m.p.expand(-1, -1)), (1, WIDE)),
    "inside alone": (lambda m, x: x + m.p.expand(3, WIDE), (1, WIDE)),
    "and added": (lambda m, x: torch.cat([m.p.expand(len(x), -1, -1), x + m.p], 1), (1, 1, WIDE)),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_parameters_spread_over_the_samples(name: str) -> None:
    used, shape = EXPANDED[name]
    parts = {"p": nn.Parameter(torch.zeros(shape)), "head": nn.Linear(1 if "all axes" in name else WIDE, 3)}
    model = randomize(Net(lambda m, x: m.head(torch.tanh(used(m, x)).mean(1)), **parts))
    x = noise(5, 3, WIDE)
    coverage = compare("entk", model, x).coverage
    assert coverage.share("func") == 0
    compare("trntk0", model, x, x[1:], memory="smallest")
    with harvested(PLAIN, 4):  # a block of one sample, in which sizes may be what they were
        found = compare("trntk0", model, x)
    assert found.coverage.share("func") == 0


def test_ways_of_the_func_method_are_compared_in_full_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded to TF32 one sample and several differ by more than two methods may, and samples would be run one by one."""
    allowed: list[bool] = []
    inside: list[list[bool]] = []
    vectorised = func_method.vectorised

    @contextmanager
    def cores(allow: bool) -> Iterator[None]:
        allowed.append(allow)
        yield
        allowed.pop()

    def noted(*args: Any) -> Any:
        inside.append(list(allowed))
        return vectorised(*args)

    monkeypatch.setattr(func_method, "tensor_cores", cores)
    monkeypatch.setattr(func_method, "vectorised", noted)
    model, x = LAYERS["prelu"]()
    found = compare("entk", model, x)
    assert found.coverage.share("func") > 0
    assert inside[0] == [False]
