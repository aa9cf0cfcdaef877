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


def test_only_the_parameter_without_a_rule_takes_the_slow_road() -> None:
    found = coverage("trntk0", network(), noise(3, 4))
    assert [key for key, method in found.methods.items() if method == "func"] == ["scale"]
    assert found.func_method == "vmap"  # not sample by sample
    total = sum(p.numel() for p in network().parameters())
    assert found.share("func") == pytest.approx(6 / total)


@pytest.mark.parametrize(
    ("inside", "wide", "positions", "method"),
    [(30, 40, 1, "kronecker"), (2, 2, 200, "direct"), (128, 128, 2, "positions")],
)
def test_the_cheapest_method_is_taken(inside: int, wide: int, positions: int, method: str) -> None:
    layers = [nn.Linear(inside, wide), nn.Tanh(), nn.Flatten(), nn.Linear(positions * wide, 2)]
    x = noise(5, positions, inside) if positions > 1 else noise(5, inside)
    assert coverage("trntk0", randomize(nn.Sequential(*layers)), x).methods["0.weight"] == method


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
