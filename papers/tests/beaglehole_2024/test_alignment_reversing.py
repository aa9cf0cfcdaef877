"""The alignment-reversing set: the contract, predictions beside observations, verdicts that can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contracts.dataset import given
from contracts.experiment import ExperimentContract, made_record, readings, run_of
from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024.alignment_reversing import FIRST, AlignmentReversing, comparison, drop
from ntkscope_papers.beaglehole_2024.free_products import drawn_moments

READINGS = readings("alignment-reversing", "nfa-")


class TestAlignmentReversing(ExperimentContract):
    name = "alignment-reversing"
    tiny = given(size=16, balances=(0.25, 1.0), networks=2)
    identities = ("nfa-appF-X2",)


def test_one_balance_is_what_the_measures_say() -> None:
    config = AlignmentReversing(size=32, networks=3)
    run = run_of(config)
    found = config.one_balance(run, FIRST, 0.5, 1)
    assert len(found["observed"]) == 3
    assert all(0 < value <= 1 for value in found["observed"])
    drawn, _ = drawn_moments(32, 32, draws=3)
    assert run.data[1] == pytest.approx(drawn, rel=1e-10)
    assert 0 < found["predicted"] <= 1


def test_the_construction_exists_with_enough_rows_only() -> None:
    found = AlignmentReversing().construction(run_of(AlignmentReversing()))
    assert found["enough rows"] < 1e-8
    assert (found["rank of X₁ᵀX₁ over d, n = d"], found["columns of V₂ over d, n = d"]) == (0.25, 0.75)


def _record(tmp_path: Path, predicted: float, lowest: float, printed: float | None = None) -> Record:
    """Ten data seeds, three balances: observed 0.9, `lowest` at the smallest; predictions off by `predicted`."""

    def one(rho: float) -> dict[str, Any]:
        made = dict.fromkeys(("limits of the moments", "exact means", "mean term"), rho)
        return {
            "observed": [rho, rho],
            "predicted": rho + predicted,
            **{f"predicted, {key}": value for key, value in made.items()},
            "printed": printed,
            "SBS with I": 0.2,
            "S² with I": 0.1,
            "SBS with S²": 0.9,
        }

    row = {"balances": {"0.1": one(lowest), "0.5": one(0.8), "1": one(0.95)}}
    return made_record(tmp_path, "alignment-reversing", **{f"support/{seed}": row for seed in range(10)})


@pytest.mark.parametrize(
    ("predicted", "lowest", "printed", "match", "balance"),
    [
        (0.001, 0.7, None, True, True),
        (0.02, 0.7, None, False, True),
        (0.001, 0.9, None, True, False),
        (0.001, 0.7, 0.5, False, True),
    ],
)
def test_verdicts(
    tmp_path: Path, predicted: float, lowest: float, printed: float | None, match: bool, balance: bool
) -> None:
    record = _record(tmp_path, predicted, lowest, printed)
    assert READINGS["fig3-match"](AlignmentReversing(), record).holds is match
    assert READINGS["fig3-balance"](AlignmentReversing(), record).holds is balance
    assert READINGS["appF-agop-identity"](AlignmentReversing(), record).holds is False
    assert comparison(record, FIRST)["of"] == 30
    assert drop(record, FIRST)["lowest at"] == ("0.1" if lowest < 0.8 else "0.5")
