"""Views of spectra: a sentence for every matrix, pictures of its singular values, and the tracked training inside an X-ray."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from contracts.dataset import given
from contracts.view import ViewContract
from ntkscope.core import Record
from ntkscope.report.plots.histogram import Axis, bars_path, histogram_frame
from ntkscope.report.source import Section, Source
from ntkscope.report.spectrum_words import layer_sentence
from ntkscope.report.views.weight_spectra import summary, weight_spectra
from ntkscope.xray.sections.tracked_training import Training
from ntkscope.xray.sections.weight_spectra import Layer
from report.browsing import Made
from report.fixtures.examples import example
from report.fixtures.xray import HOSTILE

NAMED = {"name": "fc.weight", "rows": 120, "columns": 80, "largest": 1.9, "edge": 2.0}
PLAIN = example(Layer, **NAMED, label="invariant bulk", p=0.4, holm=0.8)
SPIKES = {"count": 2, "values": [4.0, 3.0], "strengths": [3.9, 2.8], "largest": 4.0, "spread": 0.3}
SPIKED = {**PLAIN, **SPIKES, "label": "bulk + spikes", "p": 1e-9, "holm": 2e-9}
HEAVY = {**PLAIN, "label": "heavy tail", "count": 12, "alpha": 2.4, "alpha_low": 2.1, "alpha_high": 2.8}
HUGE = {**HEAVY, "cause": "a few huge entries"}
SMALL = example(Layer, **{**NAMED, "edge": None}, label="undecided", reason="9 singular values are too few")


class TestSpectra(ViewContract):
    name = "weight_spectra"
    data = given(
        layers=[SPIKED, {**HEAVY, "name": HOSTILE[1]}, PLAIN, {**SMALL, "reason": HOSTILE[0]}],
        tested=3,
        level=0.05,
        initial=False,
    )


class TestTraining(ViewContract):
    name = "tracked_training"
    data = example(Training, name="run", status="running", moments=4, last_step=5000, ends_here=False, thinned=100)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (PLAIN, "no direction stands out (the largest is 0.95 × the edge"),
        (SPIKED, "2 directions stand out of what otherwise looks like noise; the largest is 2.0 × its edge"),
        ({**SPIKED, "count": 1, "holm": 0.3, "p": 0.03}, "to be expected by chance (p = 0.30 after Holm)"),
        ({**SPIKED, "spread": 0.01}, "a few large entries rather than a direction"),
        (
            HEAVY,
            "12 singular values lie beyond the edge of the noise and reach down to it, as a heavy tail (exponent 2.40)",
        ),
        (HUGE, "A few huge entries make its largest singular values"),
        (SMALL, "cannot be told whether training wrote anything here: 9 singular values are too few."),
    ],
)
def test_every_class_has_a_sentence(layer: dict[str, Any], words: str) -> None:
    assert words in layer_sentence(layer, 0.05)


@pytest.mark.parametrize(
    ("layers", "line"),
    [
        (
            [SPIKED, PLAIN],
            "In 1 of 2 weight matrices, 2 directions stand out of the noise; 1 looks like random entries.",
        ),
        ([{**SPIKED, "holm": 0.5}, PLAIN, SMALL], "2 look like random entries; 1 is undecided."),
        ([HEAVY, SPIKED], "In 1 of 2 weight matrices, 2 directions stand out of the noise; 1 of 2 has a heavy tail."),
        ([HEAVY, SMALL], "1 of 2 weight matrices has a heavy tail; 1 is undecided."),
        ([SMALL, SMALL], "None of the 2 weight matrices is large enough, or clear enough, to tell."),
        ([SPIKED], "The only weight matrix has directions outside the noise."),
    ],
)
def test_the_summary_counts_what_holm_leaves(layers: list[dict[str, Any]], line: str) -> None:
    assert summary(layers, 0.05) == line


def test_more_matrices_than_pictures_are_folded_and_all_are_in_the_table(made: Made) -> None:
    source = Source(Record.open(made(kind="image")))
    layers = [{**PLAIN, "name": f"layer{k}.weight"} for k in range(40)]
    data = {"layers": layers, "tested": 40, "level": 0.05, "initial": False}
    body = weight_spectra(Section("weight_spectra", data=data), source).body
    assert "16 more matrices" in body
    assert body.count('class="card"') == 40
    assert len(re.findall("<tr>", body)) == 41
    assert body.count("<svg") == 1  # of the only matrix whose values the record holds


def test_bars_are_as_high_as_the_counts() -> None:
    values = np.sort(np.random.default_rng(0).gamma(2.0, 1.0, 400))[::-1]
    axis = Axis.of([values])
    counts = axis.counts(values)
    assert counts.sum() == 400
    frame = histogram_frame(axis, int(counts.max()), "singular value")
    floor = frame.height - frame.bottom
    tops = [float(y) for y in re.findall(r"V([\d.]+)H", bars_path(frame, axis, counts.tolist()))]
    heights = (floor - np.array(tops)) / (floor - frame.top)
    np.testing.assert_allclose(heights**2 * counts.max(), counts[counts > 0], atol=0.2)  # tenths of pixels, squared


@pytest.mark.parametrize(
    "values",
    [[], [0.0, 0.0], [5.0], [1e300, 1.0], [1e-300], [3.0, -1e-17]],
    ids=["none", "zeros", "one", "huge", "tiny", "rounding"],
)
def test_axes_of_odd_spectra(values: list[float]) -> None:
    axis = Axis.of([np.array(values)], [float("nan")])
    counts = axis.counts(np.array(values))
    assert counts.sum() + axis.below(np.array(values)) == len(values)
    assert np.isfinite(axis.edges).all()
    assert (np.diff(axis.edges) > 0).all()
