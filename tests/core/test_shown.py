"""Results that hold arrays are shown on one line, and in a notebook as a table of escaped texts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from ntkscope.core import Part, Snapshot, Split
from ntkscope.core.shown import Shown
from ntkscope.infinite.dynamics import dynamics
from ntkscope.linalg.features.correlation import Control
from ntkscope.linalg.random_matrices.spike_test import spike_test

PART = Part(torch.rand(4000, 3), torch.zeros(4000), {"text": ["<b>bold</b> and long" * 99] * 4000})
WEIGHTS = {f"layer{n}.weight": torch.rand(40, 40) for n in range(50)}
DRAW = np.random.default_rng(0)
SPIKED = DRAW.normal(size=(80, 90)) + 3 * DRAW.normal(size=(80, 9)) @ DRAW.normal(size=(9, 90))
MADE: dict[str, Callable[[], Shown]] = {
    "part": lambda: PART,
    "split": lambda: Split(PART, PART, classes=tuple(map(str, range(1000)))),
    "snapshot": lambda: Snapshot(3, 0.1, WEIGHTS, WEIGHTS, {"loss": 1 / 3}, {"adam": {"state": WEIGHTS}}),
    "control": lambda: Control(0.9, np.linspace(0, 1, 2000)),
    "spikes": lambda: spike_test(SPIKED, null="tracy-widom"),
    "dynamics": lambda: dynamics(torch.eye(200), torch.ones(200, 2)),
}


@pytest.mark.parametrize("name", MADE)
def test_one_line_and_an_escaped_table(name: str) -> None:
    found = MADE[name]()
    shown, html = repr(found), found._repr_html_()
    assert shown.startswith(f"{type(found).__name__}(")
    assert "\n" not in shown
    assert len(shown) < 600
    assert html.count("<tr>") == shown.count("=") or name == "split"  # a row for each fact; a split holds parts
    assert "<b>" not in html
