"""The convolutional NTK: the contract, every claim of the review in one experiment, paired standard errors."""

from __future__ import annotations

import pytest

from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope_papers.im_2021.cntk import over_items


class TestCNTK(ExperimentContract):
    name = "cntk"
    tiny = given(layers=1, checked=2, widths=(4, 8), draws=2, items=12, test_items=10, channels=(4,), judged=4, seeds=1)


def test_standard_errorsover_items_are_of_paired_differences() -> None:
    same = {"right": "1100" * 25}
    assert over_items(same, [same, same]) == 0
    other = {"right": "1010" * 25}
    assert over_items(same, [other]) == pytest.approx(100 * (0.5 / 99) ** 0.5, rel=1e-9)  # gaps 0, 1, -1, 0
