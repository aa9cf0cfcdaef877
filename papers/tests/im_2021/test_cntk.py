"""The convolutional NTK: the contract, every claim of the review in one experiment, paired standard errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

import ntkscope as ns
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


@pytest.mark.data
def test_every_claim_of_the_review_is_judged_in_exactly_one_experiment() -> None:
    ledger = Path(os.environ["NTKSCOPE_DATA"]).parent / "claims" / "four-documents.yaml"
    if not ledger.is_file():
        pytest.skip("the ledger of claims does not lie beside the data")
    wanted = sorted(
        one["id"] for one in yaml.safe_load(ledger.read_text(encoding="utf-8")) if one["id"].startswith("ntkreview-")
    )
    judged = sorted(
        claim.id
        for name in ns.EXPERIMENTS
        for claim in ns.EXPERIMENTS[name].published()
        if claim.id.startswith("ntkreview-")
    )
    assert judged == wanted
