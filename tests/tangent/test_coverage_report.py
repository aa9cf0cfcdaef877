"""`K.coverage`: which method each parameter took and what share of the parameters that is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ntkscope as ns
from oracles.against import GRADIENT_NAMES
from strategies.networks import Net, noise, randomize


def coverage(*args: Any, **options: Any) -> Any:
    return ns.kernel(*args, **options).coverage


def network() -> Any:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.head(m.norm(m.a(x)).relu() * m.scale.exp())

    parts = {"a": nn.Linear(4, 6), "norm": nn.LayerNorm(6), "head": nn.Linear(6, 3)}
    return randomize(Net(run, **parts, scale=nn.Parameter(torch.ones(6))))


@pytest.mark.parametrize("name", GRADIENT_NAMES)
def test_every_trainable_parameter_has_one_road(name: str) -> None:
    model = network()
    model.get_parameter("a.bias").requires_grad_(False)
    methods = coverage(name, model, noise(3, 4)).methods
    assert set(methods) == {key for key, p in model.named_parameters() if p.requires_grad}
    assert all(isinstance(method, str) and method for method in methods.values())


def test_only_the_parameter_without_a_rule_takes_the_slow_road() -> None:
    found = coverage("trntk0", network(), noise(3, 4))
    assert [key for key, method in found.methods.items() if method == "func"] == ["scale"]
    total = sum(p.numel() for p in network().parameters())
    assert found.share("func") == pytest.approx(6 / total)


def test_shares_add_up_to_one() -> None:
    found = coverage("entk", network(), noise(3, 4))
    assert sum(found.share(method) for method in set(found.methods.values())) == pytest.approx(1)
    assert found.share("no such method") == 0


def test_restricted_parameters_restrict_the_coverage() -> None:
    methods = coverage("trntk0", network(), noise(3, 4), params="norm.*").methods
    assert set(methods) == {"norm.weight", "norm.bias"}


def test_a_linear_layer_on_vectors_is_a_kronecker_product() -> None:
    model = randomize(nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 2)))
    assert coverage("trntk0", model, noise(5, 30)).methods["0.weight"] == "kronecker"


def test_long_sequences_through_narrow_layers_are_formed_directly() -> None:
    model = randomize(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(400, 2)))
    assert coverage("trntk0", model, noise(5, 200, 2)).methods["0.weight"] == "direct"


def test_short_sequences_through_wide_layers_contract_positions() -> None:
    model = randomize(nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Flatten(), nn.Linear(256, 2)))
    assert coverage("trntk0", model, noise(5, 2, 128)).methods["0.weight"] == "positions"
