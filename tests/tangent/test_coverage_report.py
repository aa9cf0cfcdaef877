"""`K.coverage`: which method each parameter took and what share of the parameters that is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.tangent.kernel.coverage import Coverage
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


@pytest.mark.parametrize("schedule", ["blocks", "layers"])
@pytest.mark.parametrize("name", ["trntk0", "entk"])
def test_floating_point_operations_are_those_of_the_products(name: str, schedule: str) -> None:
    model = randomize(nn.Sequential(nn.Linear(30, 40, bias=False), nn.Tanh(), nn.Linear(40, 2, bias=False)))
    found = coverage(name, model, noise(5, 30), noise(3, 30), schedule=schedule)
    pair = 2 if name == "trntk0" else 4  # heads, or pairs of them
    assert found.flops["products"] == 2 * 5 * 3 * (30 + pair * 40 + 40 + pair * 2)
    forward = 30 * 40 + 40 * 2
    assert found.flops["capture"] == 2 * (5 + 3) * forward * (1 + 2 + 2)  # forward, two heads back, and the check
    assert found.flops.get("features", 0.0) == 0  # both sides stay apart


def test_every_stage_has_seconds_flops_and_a_share_of_the_peak() -> None:
    model = randomize(nn.Sequential(nn.Conv2d(2, 6, 3, bias=False), nn.Flatten(), nn.Linear(96, 3, bias=False)))
    found = coverage("trntk0", model, noise(6, 2, 6, 6))
    rows = {row["stage"]: row for row in found.by_stage()}
    assert {"capture", "features", "products", "certificate"} <= rows.keys()
    assert found.flops["features"] == 2 * 6 * 3 * 16 * 6 * 18
    for stage in ("capture", "features", "products"):
        assert rows[stage]["share of peak"] == pytest.approx(
            found.flops[stage] / found.stages[stage] / found.peak(stage)
        )
        assert rows[stage]["seconds"] > 0
    both = found + found
    assert both.flops["products"] == 2 * found.flops["products"]
    assert both.share_of_peak("products") == pytest.approx(found.share_of_peak("products"))


def test_the_peak_of_a_stage_is_that_of_its_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    from ntkscope.core.machine import peak

    assert peak.sheet_peak("NVIDIA H200", "tf32") == 494.7e12
    assert peak.sheet_peak("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak.sheet_peak("something else", "bf16") is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    found = Coverage(
        {}, {}, {}, {"products": 2.0, "capture": 1.0}, flops={"products": 989.4e12}, device="cuda", kind="bf16"
    )
    assert found.share_of_peak("products") == pytest.approx(0.5)
    assert found.peak("capture") == 494.7e12
    assert found.peak("certificate") == 67e12
    assert found.share_of_peak("capture") == 0
    assert peak.peak(torch.device("cpu"), "float64")[1] == "trial"
    assert peak.peak(torch.device("cpu"), "float64")[0] > 1e7
