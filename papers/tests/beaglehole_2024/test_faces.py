"""Figure 9 of the feature-ansatz paper on Olivetti faces: the contract and verdicts on records made by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract, made_record, readings, run_of
from ntkscope.core import Part
from ntkscope_papers.beaglehole_2024 import faces

READINGS = readings("faces", "nfa-fig9-")

HERE = (Path(os.environ.get("NTKSCOPE_DATA", "/nowhere")) / "olivetti").is_dir()


@pytest.mark.guard
@pytest.mark.skipif(not HERE, reason="Olivetti faces are not on this machine: set NTKSCOPE_DATA")
class TestFaces(ExperimentContract):
    name = "faces"
    tiny = given(width=16, epochs=1, draws=3)
    identities = ("nfa-pearson-def",)


def test_balanced_parts_have_as_many_of_either_label() -> None:
    part = Part(torch.arange(12.0)[:, None], torch.tensor([0] * 9 + [1] * 3))
    found = faces.balanced(part, 1, 3)
    assert torch.bincount(found.y).tolist() == [3, 3]
    assert len(set(found.x.flatten().tolist())) == 6
    assert not torch.equal(found.x, faces.balanced(part, 2, 3).x)
    assert faces.signed(found).y.unique().tolist() == [-1.0, 1.0]


def test_the_pearson_form_is_numpys(tmp_path: Path) -> None:
    config = faces.Faces()
    record = made_record(tmp_path, "faces", definition=config.definition(run_of(config)))
    assert READINGS["nfa-pearson-def"](config, record).holds


def test_diagonals_are_those_of_the_matrices() -> None:
    draw = torch.Generator().manual_seed(0)
    W = torch.randn(3, faces.SIDE**2, generator=draw, dtype=torch.float64)
    K = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    nfm, agop, other = faces.diagonals(W, K, 0)
    np.testing.assert_allclose(nfm.ravel(), (W.T @ W).diagonal())
    np.testing.assert_allclose(agop.ravel(), (W.T @ K @ W).diagonal())
    assert not np.allclose(other, agop)


@pytest.mark.parametrize(("value", "draws", "rho", "control"), [(0.9, 0.3, True, True), (0.5, 0.4, False, False)])
def test_verdicts(tmp_path: Path, value: float, draws: float, rho: bool, control: bool) -> None:
    member: dict[str, Any] = {
        "items": 20,
        "with_glasses": 10,
        "pixels": [0.0, 1.0],
        "train_accuracy": 1.0,
        "test_accuracy": 0.8,
        "test_majority": 0.6,
        "pearson_diagonal": value,
        "draws": [draws, draws - 0.3, draws + 0.3],
        "p_value": 0.25,
        "rho": 0.9,
        "centred": 0.9,
    }
    record = made_record(tmp_path, "faces", trained={"members": [member] * 5})
    assert READINGS["rho"](faces.Faces(), record).holds is rho
    reading = READINGS["random-Q"](faces.Faces(), record)
    assert reading.holds is control
    assert reading.measured["share of draws up to 0.04"] == pytest.approx(1 / 3 if draws == 0.3 else 0, abs=1e-3)
    assert READINGS["setting"](faces.Faces(), record).holds
