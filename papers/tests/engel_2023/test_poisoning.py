"""Poisoning: the contract, the second trigger, and figures of made-up records."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope.data import Trigger
from ntkscope_papers.engel_2023.poisoning import Poisoning, second_trigger
from ntkscope_papers.engel_2023.table3_claims import TABLE


@pytest.mark.nightly
class TestPoisoning(ExperimentContract):
    name = "poisoning"
    tiny = given(
        width=0.0625,
        train_items=150,
        test_items=30,
        epochs=1,
        points=30,
        dim=16,
        triggers=("square", "none"),
        sgd_seeds=1,
    )


def test_the_setup_is_not_judged_without_the_clean_network(tmp_path: Path) -> None:
    record = ns.Record.create(tmp_path / "run", kind="experiment", name="poisoning")
    sides = {side: {"tau": 0.5, "tad": 0.0} for side in ("clean", "poisoned")}
    filters = {name: {"precision": 1.0, "recall": 1.0, "f1": 1.0} for name in ("filter", "filter, cosine")}
    record.put(**{f"square/0/{k}": {**sides, **filters} for k in Poisoning().kernels})
    record.put(**{"square/0/network": {"clean_accuracy": 0.9, "attack_success": 1.0}})
    found = {claim.id: claim for claim in Poisoning().judge(record, "")}
    assert found["surrogate-poison-setup"].verdict == "not testable here"
    assert 'legs=["none/0"' in found["surrogate-poison-setup"].note
    assert found["surrogate-table3-trntk"].holds


def test_the_second_trigger_is_never_the_first() -> None:
    first = Trigger().mask(32, 32)
    seen = {second_trigger(seed, 32) for seed in range(40)}
    assert len(seen) > 20, "the trigger is drawn from the seed"
    for trigger in seen:
        assert not torch.equal(trigger.mask(32, 32), first)
        assert trigger.pattern != "square"


def drawn(folder: Path, networks: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The bars of each panel by their title, of a record with these networks, whose kernels are all alike."""
    config = dataclasses.asdict(Poisoning())
    record = ns.Record.create(folder, kind="experiment", name="poisoning", config=config)
    for kind, rows in networks.items():
        record.put(**{f"{kind}/{s}/{k}": row for s, row in enumerate(rows) for k in Poisoning().kernels})
    figure = Poisoning().draw(record)["table3"]
    figure.draw_without_rendering()
    return [{one.get_label(): one for one in axis.containers if one.get_label()[0] != "_"} for axis in figure.axes]


def figures_of(tau: float, *sgd: float, f1: float = 1.0) -> dict[str, Any]:
    """One kernel: τ at the optimum, and by SGD for every seed; on stamped images both are 0.1 less."""
    less = {"clean": 0.0, "poisoned": 0.1}
    sides = {side: {"tau": tau - by} for side, by in less.items()}
    fits = {
        side: {"seeds": {str(s): {"unsaturated": {"tau": one - by}} for s, one in enumerate(sgd)}}
        for side, by in less.items()
    }
    return {**sides, "filter": {"f1": f1}, **({"sgd": fits} if sgd else {})}


def heights(bars: Any) -> list[float]:
    return [bar.get_height() for bar in bars]


def test_three_networks_of_one_trigger_are_drawn_with_their_spread(tmp_path: Path) -> None:
    rows = [figures_of(tau, tau - 0.3, tau - 0.1, f1=f1) for tau, f1 in ((0.5, 0.7), (0.6, 0.8), (0.7, 0.9))]
    filters, clean, stamped = drawn(tmp_path / "run", {"square": rows})
    assert set(filters) == {"yellow square"}
    assert heights(filters["yellow square"]) == pytest.approx([0.8] * 6)
    for panel, less, column in ((clean, 0.0, 2), (stamped, 0.1, 4)):
        assert set(panel) == {"at the optimum", "by SGD", "published"}
        assert heights(panel["at the optimum"]) == pytest.approx([0.6 - less] * 6)
        assert heights(panel["by SGD"]) == pytest.approx([0.4 - less] * 6)
        assert heights(panel["published"]) == [row[column] for row in TABLE.values()]
    for bars in (filters["yellow square"], clean["at the optimum"], stamped["by SGD"]):
        low, high = bars.errorbar.lines[2][0].get_segments()[0][:, 1]
        assert high - low == pytest.approx(2 * 0.1 / 3**0.5)  # a standard deviation of 0.1 over three networks


def test_a_record_without_networks_is_drawn_with_what_was_published(tmp_path: Path) -> None:
    filters, clean, stamped = drawn(tmp_path / "run", {})
    assert (set(filters), set(clean), set(stamped)) == (set(), {"published"}, {"published"})
    assert set(drawn(tmp_path / "other", {"random": [figures_of(0.5)]})[0]) == {"second trigger"}


@pytest.mark.parametrize("sgd", [(), (float("nan"),)], ids=["none", "no tau"])
def test_networks_without_fits_by_sgd_leave_a_gap(sgd: tuple[float, ...], tmp_path: Path) -> None:
    _, clean, stamped = drawn(tmp_path / "run", {"square": [figures_of(0.5, *sgd), figures_of(0.7, *sgd)]})
    assert np.isnan(heights(clean["by SGD"]) + heights(stamped["by SGD"])).all()
    assert heights(clean["at the optimum"]) == pytest.approx([0.6] * 6)
    _, clean, _ = drawn(tmp_path / "some", {"square": [figures_of(0.5, *sgd), figures_of(0.7, 0.3)]})
    assert heights(clean["by SGD"]) == pytest.approx([0.3] * 6)  # of the network that has them


def test_a_filter_that_finds_nothing_is_a_bar_not_a_gap(tmp_path: Path) -> None:
    filters, _, _ = drawn(tmp_path / "run", {"square": [figures_of(0.5, f1=0.0)] * 2})
    assert heights(filters["yellow square"]) == [0.0] * 6
