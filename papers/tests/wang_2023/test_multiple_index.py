"""Five directions: the contract, what the angles measure, and the control at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope_papers.wang_2023.index_teacher import orthonormal_directions
from ntkscope_papers.wang_2023.teacher_spectra import outlier_overlap


@pytest.mark.guard
class TestMultipleIndex(ExperimentContract):
    name = "multiple-index"
    tiny = given(
        items=60,
        width=45,
        dimension=30,
        test_items=30,
        top=6,
        most=(10, 20, 10),
        expected=(10, 20, 10),
        moments=1,
        control_items=80,
        control_width=20,
        control_dimension=10,
        control_steps=10,
    )


def test_planted_directions_are_found_and_others_are_at_chance() -> None:
    draw = torch.Generator().manual_seed(0)
    beta = orthonormal_directions(3, 80, 0)
    W = torch.randn(120, 80, generator=draw, dtype=torch.float64)
    loud = W + 4 * torch.randn(120, 3, generator=draw, dtype=torch.float64) @ beta
    assert min(outlier_overlap(loud, beta, 3)) > 0.8
    assert sum(outlier_overlap(W, beta, 8)) / 3 == pytest.approx(0.1, abs=0.08)


@pytest.mark.nightly
def test_a_student_that_is_not_odd_finds_every_direction(tmp_path: Path) -> None:
    sizes = given(
        seeds=1,
        test_items=500,
        directions=3,
        control_items=3000,
        control_dimension=40,
        control_width=120,
        control_steps=600,
    )
    record = ns.run("multiple-index", "paper", out=tmp_path / "run", device="cpu", legs=("control",), **sizes)
    (member,) = record.metrics["control"]["members"]
    assert min(member["cos2"]) > 0.85
