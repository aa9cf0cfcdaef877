"""Representations in an X-ray: a network that collapses is told from one that does not, and layers without numbers say why."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.core import Part, Record, generator
from ntkscope.xray.sections import representations
from ntkscope.xray.sections.representations import Representations
from xray.small import only


class Planted(nn.Module):
    """A noisy first layer, and a second one at which every class is nearly one point; a dead layer between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 20, bias=False)
        self.dead = nn.Linear(20, 4)
        self.second = nn.Linear(20, 3, bias=False)
        self.squash = nn.Tanh()
        self.readout = nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.randn(20, 12, generator=generator(0, "planted")) / 12**0.5)
            self.dead.weight.zero_()
            inverse = torch.linalg.pinv(self.first.weight)
            self.second.weight.copy_(40 * inverse[:3])
            self.readout.weight.copy_(2 * torch.eye(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return self.readout(self.squash(self.second(hidden + 0 * self.dead(hidden).sum(1, keepdim=True))))


def part(n: int, seed: int) -> Part:
    """Three classes along three coordinates, ±1, and nine loud ones without meaning."""
    draw = generator(seed, "planted items")
    y = torch.arange(n) % 3
    signal = 2.0 * nn.functional.one_hot(y, 3) - 1 + 0.25 * torch.randn(n, 3, generator=draw)
    return Part(torch.cat([signal, 3 * torch.randn(n, 9, generator=draw)], dim=1), y)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Representations]:
    folder = tmp_path_factory.mktemp("representations")
    with only(representations.SECTION):
        record = ns.xray(
            Planted().eval(), part(150, 0), part(90, 1), folder, kernels=["ck"], untrained=True, progress=False
        )
    result = representations.SECTION.read(record.metrics)
    assert result is not None, record.metrics[representations.SECTION.key]
    return record, result


def test_the_collapse_is_found_where_it_is(found: tuple[Record, Representations]) -> None:
    _, result = found
    layers = {layer.name: layer for layer in result.layers}
    assert result.collapse in ("squash", "second")
    assert result.before in ("first", "second")
    assert not layers["first"].agree
    first, last = layers["first"], layers["squash"]
    assert first.nc1 is not None
    assert last.nc1 is not None
    assert last.nc1 < first.nc1 / 3
    assert (first.cdnv or 0) > (last.cdnv or 0)
    assert last.accuracy["ncc"] >= 0.95 > first.accuracy["ncc"]
    assert last.differs is not None
    assert last.differs <= 0.05
    assert sum(result.distribution.values()) == pytest.approx(1.0)
    assert (result.train, result.test, result.left_out) == (150, 90, 0)
    assert first.dimension is not None
    assert first.dimension > 5


def test_a_dead_layer_says_why_it_has_no_numbers(found: tuple[Record, Representations]) -> None:
    record, result = found
    dead = next(layer for layer in result.layers if layer.name == "dead")
    assert "constant" in dead.reason
    assert (dead.accuracy, dead.nc1, dead.agree) == ({}, None, False)
    page = ns.report.write_page(record.folder).read_text()
    assert "1 layers without numbers" in page
    assert "undrawn" not in page


def test_accuracies_are_those_of_the_probes(found: tuple[Record, Representations]) -> None:
    _, result = found
    train, test = part(150, 0), part(90, 1)
    swept = ns.explain.probes(
        Planted().eval(), train, test, "first", dims=list(range(1, 11)), C=representations.STRENGTH, validation=None
    )["first"].sweep
    layer = result.layers[0]
    for probe, accuracy in layer.accuracy.items():
        best = max(swept.accuracy[probe].values())
        assert accuracy >= best - 1e-12 or np.isclose(accuracy, best)
