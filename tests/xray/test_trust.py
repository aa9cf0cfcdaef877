"""Trust: each figure can take it away, few items cannot give it, and what is said is why."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from ntkscope.xray.trust import LEVELS, item_trust, output_trust, page_trust


@dataclass(frozen=True)
class Figures:
    agreement: float = 0.99
    wrong: int = 30
    agreement_wrong: float = 0.9
    tau_low: float = 0.85
    r2_logits: float = 0.97


GOOD = Figures()


@pytest.mark.parametrize(
    ("change", "items", "level", "said"),
    [
        ({}, 400, 2, "99.0 % of 400 test items and on 27 of the 30 it gets wrong."),
        ({"agreement": 0.7}, 400, 0, "another classifier"),
        ({"agreement_wrong": 0.4}, 400, 0, "cannot explain them"),
        ({"tau_low": -0.1}, 400, 0, "unrelated"),
        ({"r2_logits": -3.0}, 400, 1, "(R² -3.00)"),
        ({"agreement": 0.9}, 400, 1, "may agree on as few as 87 %"),
        ({"agreement_wrong": 0.6}, 400, 1, "other errors it may agree on as few as 42 %"),
        ({"tau_low": 0.5}, 400, 1, "τ may be as low as 0.50"),
        ({"tau_low": math.nan}, 400, 1, "τ is undefined"),
        ({"r2_logits": 0.2}, 400, 1, "misses part of the logits (R² 0.20)"),
        ({"agreement": 1.0}, 20, 1, "may agree on as few as 84 %"),  # twenty items prove little
        ({"wrong": 2, "agreement_wrong": 1.0}, 400, 1, "other errors"),  # nor do two errors,
        ({"wrong": 2, "agreement_wrong": 0.0}, 400, 1, "other errors"),  # either way,
        ({"wrong": 2, "agreement_wrong": 1.0, "tau_low": 0.95, "r2_logits": 0.995}, 400, 2, ""),  # unless logits agree
        ({"wrong": 2, "agreement_wrong": 0.5, "tau_low": 0.95, "r2_logits": 0.995}, 400, 1, "other errors"),
        ({"wrong": 0, "agreement_wrong": math.nan}, 400, 1, "where the network is wrong is not known"),
        ({"wrong": 0, "agreement_wrong": math.nan, "tau_low": 0.95, "r2_logits": 0.995}, 400, 2, "none of which"),
    ],
)
def test_each_figure_counts(change: dict, items: int, level: int, said: str) -> None:
    found = page_trust(replace(GOOD, **change), items)
    assert (found.level, found.word) == (level, LEVELS[level])
    assert said in found.why
    assert found.why.endswith(".")


def test_better_figures_never_lower_it() -> None:
    draw = np.random.default_rng(0)
    for _ in range(300):
        one = Figures(
            draw.uniform(0.6, 1), int(draw.integers(0, 40)), draw.uniform(), draw.uniform(-0.2, 1), draw.uniform(-1, 1)
        )
        for field in ("agreement", "agreement_wrong", "tau_low", "r2_logits"):
            better = replace(one, **{field: min(1.0, getattr(one, field) + 0.2)})
            assert page_trust(better, 200).level >= page_trust(one, 200).level, (one, field)


def test_without_a_surrogate_there_is_no_trust() -> None:
    for trust in (page_trust, output_trust):
        found = trust(None, 10)
        assert (found.level, found.word, found.why) == (0, "not measured", "The surrogates were left out.")


def test_items_that_disagree_are_never_trusted_and_near_ones_are() -> None:
    draw = np.random.default_rng(0)
    network = 5 * draw.normal(size=(200, 4))
    for noise in (0.01, 1.0, 8.0):
        surrogate = network + noise * draw.normal(size=network.shape) + draw.normal(size=(200, 1))
        level = item_trust(surrogate, network, 2)
        same = surrogate.argmax(1) == network.argmax(1)
        assert (level[~same] == 0).all()
        assert item_trust(surrogate, network, 0).max() <= 1
        if noise == 0.01:
            assert (level == 2).all()
        if noise == 8.0:
            assert (level < 2).all()


def test_constant_networks_have_nothing_to_trust() -> None:
    """No margin: any distance is too far, and none is near."""
    network = np.ones((5, 3))
    assert item_trust(network, network, 2).tolist() == [2] * 5
    assert item_trust(network + np.eye(3)[[0, 0, 1, 1, 2]], network, 2).max() == 0
