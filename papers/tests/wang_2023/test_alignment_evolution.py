"""Alignment of the conjugate kernel through training: the contract."""

from __future__ import annotations

import pytest

from contracts.dataset import given
from contracts.experiment import ExperimentContract


@pytest.mark.guard
class TestAlignmentEvolution(ExperimentContract):
    name = "alignment-evolution"
    tiny = given(items=60, width=45, dimension=30, most=(10, 20, 10), expected=(10, 20, 10), moments=2)
