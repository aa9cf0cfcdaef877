"""Fold or copy: the contract, the swap effect of planted learners, and verdicts that can fail."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import pytest

from contracts.dataset import given
from contracts.experiment import ExperimentContract, readings
from contracts.made_up import REMOVED, Changes, made_up
from ntkscope_papers.balakrishnan_2023.orthants.fold_or_copy import FoldOrCopy
from ntkscope_papers.balakrishnan_2023.orthants.networks import OrthantNetworks
from ntkscope_papers.balakrishnan_2023.orthants.orthant_symmetry import OrthantSymmetry
from ntkscope_papers.balakrishnan_2023.orthants.swap_effect import planted_effects, swap_effect

READINGS = readings("fold-or-copy")


@pytest.mark.guard
class TestFoldOrCopy(ExperimentContract):
    name = "fold-or-copy"
    tiny = given(
        depths=(1, 3),
        widths=(8,),
        decays=(0.0,),
        grid_epochs=1,
        epochs=2,
        patience=1,
        kernel_seeds=1,
        costs=(0.01, 1.0),
    )
    own = True


def test_planted_learners_are_told_apart() -> None:
    """In seven dimensions, as networks are measured: a neighbour-copier has an effect of 0.9 or more, a folder none."""
    found = planted_effects(OrthantNetworks(per_class=30, test_per_class=50), range(3))
    assert found["copier"]["effect"] >= 0.9
    assert abs(found["folder"]["effect"]) <= 0.05
    assert min(found["folder"]["near"]) > 0.9  # right both times, not wrong both times
    low, high = found["copier"]["interval"]
    assert 0.9 <= low <= found["copier"]["effect"] <= high


def test_both_experiments_train_the_same_networks() -> None:
    """At both scales, so that one can use the other's."""
    for scale in ("smoke", "paper"):
        own, other = (asdict(kind.at(scale)) for kind in (FoldOrCopy, OrthantSymmetry))
        assert {f.name: own[f.name] for f in fields(OrthantNetworks)} == {
            f.name: other[f.name] for f in fields(OrthantNetworks)
        }


def test_the_effect_is_paired_over_seeds() -> None:
    """Seeds differ by more than the arms do: pairing keeps the interval narrow."""
    near, far = [0.1, 0.5, 0.9, 0.3], [0.2, 0.6, 1.0, 0.4]
    effect = swap_effect(near, far)
    assert (effect.mean, effect.low, effect.high) == pytest.approx((0.1, 0.1, 0.1))
    shuffled = swap_effect(near, [far[i] for i in (2, 0, 3, 1)])
    assert shuffled.high - shuffled.low > 0.3


# -- verdicts ---------------------------------------------------------------------------------------------------------------

DEPTHS = (1, 2, 3, 4, 5)
CONFIG = FoldOrCopy()


def arm(empty: float, learned: float | None = None) -> list[dict[str, float]]:
    rows = []
    for seed in range(10):
        row = {"seed": seed, "empty": empty + 0.002 * (seed % 3), "untouched": 0.95}
        rows.append(row if learned is None else {**row, "exchanged labels": learned})
    return rows


def good() -> dict[str, Any]:
    """Results in which depth 3 folds and deeper networks copy: all statements but "networks copy at every depth"."""
    copied = {1: 0.3, 2: 0.3, 3: 0.02, 4: 0.6, 5: 0.7}
    rows: dict[str, Any] = {"planted": {"copier": {"effect": 0.99}, "folder": {"effect": 0.01}}}
    for depth in DEPTHS:
        far = 0.8
        rows[f"swaps/{depth}"] = {
            "plain": arm(0.8),
            "near": arm(far - copied[depth], 0.9),
            "far": arm(far, 0.9),
            "folding": [{"empty": [1.0, 0.5 + 0.01 * s, *[0.2] * 5, 0.1]} for s in range(10)],
        }
        for seed in range(5):
            told = {"mass": [0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02], "items": [7 / 127] * 7}
            rows[f"attribution/{depth}/{seed}"] = {"logit": dict(told), "probability": dict(told)}
    return rows


def test_statements_hold_in_made_up_records_that_fit_them() -> None:
    claims = {claim.id: claim.verdict for claim in CONFIG.judge(made_up(good()), "")}
    assert claims.pop("own-networks-copy") == "not reproduced"
    assert set(claims.values()) == {"reproduced"}
    copies = made_up(good(), {("swaps/3", "near"): arm(0.3, 0.9)})
    claims = {claim.id: claim.verdict for claim in CONFIG.judge(copies, "")}
    assert claims["own-networks-copy"] == "reproduced"
    assert claims["own-depth-3-folds"] == "not reproduced"


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        ("swap-effect-planted", {("planted", "folder", "effect"): 0.06}),
        ("swaps-are-learned", {("swaps/2", "far"): arm(0.8, 0.7)}),
        ("depth-3-folds", {("swaps/3", "plain"): arm(0.5)}),
        ("copying-grows-with-depth", {("swaps/4",): good()["swaps/3"]}),
        ("mirror-images-fade", {("swaps/1", "folding", "*", "empty"): [1.0] * 8}),
        ("mirror-images-fade", {("swaps/1", "folding", "*", "empty"): [None] * 8}),
        ("attribution-is-near", {(f"attribution/5/{s}", "probability", "mass"): [0.1] * 7 for s in range(5)}),
    ],
)
def test_a_verdict_follows_what_was_measured(claim: str, changes: Changes) -> None:
    assert READINGS[f"own-{claim}"](CONFIG, made_up(good(), changes)).holds is False


def test_missing_depths_name_the_command() -> None:
    claims = {claim.id: claim for claim in CONFIG.judge(made_up(good(), {("swaps/4",): REMOVED}), "")}
    assert claims["own-networks-copy"].verdict == "not testable here"
    assert '"swaps/4"' in claims["own-copying-grows-with-depth"].note
    assert claims["own-depth-3-folds"].verdict == "reproduced"
