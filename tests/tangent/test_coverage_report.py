"""`K.coverage`: which road each parameter took and what share of the parameters that is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ntkscope as ns
from strategies.networks import Net, noise, randomize


def network() -> nn.Module:
    def run(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return m.head(m.norm(m.a(x)).relu() * m.scale)

    parts = {"a": nn.Linear(4, 6), "norm": nn.LayerNorm(6), "head": nn.Linear(6, 3)}
    return randomize(Net(run, **parts, scale=nn.Parameter(torch.ones(6))))


@pytest.mark.parametrize("name", ["entk", "trntk", "trntk0", "pntk", "proj-trntk", "proj-pntk"])
def test_every_trainable_parameter_has_one_road(name: str) -> None:
    model = network()
    model.get_parameter("a.bias").requires_grad_(False)
    roads = ns.kernel(name, model, noise(3, 4)).coverage.roads
    assert set(roads) == {key for key, p in model.named_parameters() if p.requires_grad}
    assert all(isinstance(road, str) and road for road in roads.values())


def test_only_the_bare_parameter_takes_the_slow_road() -> None:
    coverage = ns.kernel("trntk0", network(), noise(3, 4)).coverage
    assert [key for key, road in coverage.roads.items() if road == "func"] == ["scale"]
    total = sum(p.numel() for p in network().parameters())
    assert coverage.share("func") == pytest.approx(6 / total)


def test_shares_add_up_to_one() -> None:
    coverage = ns.kernel("entk", network(), noise(3, 4)).coverage
    assert sum(coverage.share(road) for road in set(coverage.roads.values())) == pytest.approx(1)
    assert coverage.share("no such road") == 0


def test_restricted_parameters_restrict_the_coverage() -> None:
    roads = ns.kernel("trntk0", network(), noise(3, 4), params="norm.*").coverage.roads
    assert set(roads) == {"norm.weight", "norm.bias"}


def test_a_linear_layer_on_vectors_is_a_kronecker_product() -> None:
    model = randomize(nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 2)))
    assert ns.kernel("trntk0", model, noise(5, 30)).coverage.roads["0.weight"] == "kronecker"


def test_long_sequences_through_narrow_layers_are_formed_directly() -> None:
    model = randomize(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(400, 2)))
    assert ns.kernel("trntk0", model, noise(5, 200, 2)).coverage.roads["0.weight"] == "direct"


def test_short_sequences_through_wide_layers_contract_positions() -> None:
    model = randomize(nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Flatten(), nn.Linear(256, 2)))
    assert ns.kernel("trntk0", model, noise(5, 2, 128)).coverage.roads["0.weight"] == "positions"
