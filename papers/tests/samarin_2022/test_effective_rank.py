"""Effective ranks by width: the contract, the spectrum against the definition."""

from __future__ import annotations

import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope.linalg import effective_rank
from ntkscope_papers.samarin_2022.effective_rank import rises, spectrum


@pytest.mark.guard
class TestEffectiveRank(ExperimentContract):
    name = "effective-rank"
    tiny = given(enlarge=2, widths=(0.5, 1.0))
    identities = ("linearized-effective-rank-def", "linearized-rank-deficiency")


@pytest.mark.parametrize("shape", [(12, 40), (12, 7)])
def test_the_spectrum_is_that_of_the_jacobian(shape: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(0)
    J = torch.randn(*shape, generator=draw, dtype=torch.float64)
    values = torch.linalg.svdvals(J)
    found = spectrum(J @ J.T)
    # eigenvalues that are zero up to rounding have roots of 1e-8
    assert found["of the Jacobian"] == pytest.approx(effective_rank(J @ J.T, of="features"), rel=1e-5)
    assert found["of the kernel"] == pytest.approx(effective_rank(J @ J.T), rel=1e-9)
    assert found["non-zero"] == min(shape)
    assert found["condition"] == pytest.approx(float(values[0] / values[-1]), rel=1e-6)
    assert found["values"][0] == pytest.approx(float(values[0]), rel=1e-4)


def test_a_rise_needs_two_values() -> None:
    assert rises([1.0, 2.0])
    assert not rises([1.0])
    assert not rises([1.0, 3.0, 2.0])
