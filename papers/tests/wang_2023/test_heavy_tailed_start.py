"""Cauchy weights: the contract, and how heavy their spectra are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope_papers.wang_2023.teacher_spectra import hill


@pytest.mark.guard
class TestHeavyTailedStart(ExperimentContract):
    name = "heavy-tailed-start"
    tiny = given(items=100, width=90, dimension=60, test_items=30, most=20, adam_most=10)


def test_cauchy_weights_have_heavier_spectra_than_gaussian_ones(tmp_path: Path) -> None:
    sizes = given(items=120, width=90, dimension=60, test_items=1, seeds=1)
    record = ns.run("heavy-tailed-start", out=tmp_path / "run", device="cpu", legs=("start",), **sizes)
    found = record.metrics["start"]
    gaussian, cauchy = found["normal"][0], found["cauchy"][0]
    assert cauchy["weights"]["top"][0] > 100 * gaussian["weights"]["top"][0]
    assert cauchy["weights"]["hill"] < gaussian["weights"]["hill"]


def test_hills_exponent_is_that_of_a_pareto_law() -> None:
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert hill(uniform.pow(-1 / 2.5)) == pytest.approx(2.5, rel=0.1)  # 1,000 in the tail: a standard error of 3 %
