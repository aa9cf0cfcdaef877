"""The view of what layers look for: pictures of directions, patches, words with their weight, and a sentence per layer."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from contracts.dataset import given
from contracts.view import ViewContract
from ntkscope.core import Record
from ntkscope.report.plots.direction import pixels_of
from ntkscope.report.source import Section, Source
from ntkscope.report.track import by_layer
from ntkscope.report.views.layer_features import features_summary, layer_features, layer_sentence
from ntkscope.xray.sections.layer_features import Layer
from report.browsing import Made
from report.fixtures.examples import example
from report.fixtures.xray import HOSTILE

INPUT = example(Layer, name="input", kind="input", rows=64, columns=64, positions=1, shape=[1, 8, 8], agop=[0.6, 0.2])
RATED = {"correlation": 0.93, "low": 0.45, "high": 0.6, "p": 0.005, "draws": 200, "centred": 0.95, "overlap": 0.9}
SEEN = {**INPUT, **RATED, "name": "conv1", "kind": "patches", "rows": 6, "columns": 9, "shape": [1, 3, 3]}
SEEN |= {"agop": [0.4, 0.2], "nfm": [0.5, 0.3], "vectors": 128}
DEEP = {**SEEN, "name": "conv2", "kind": "deep", "rows": 8, "columns": 36, "shape": [4, 3, 3], "vectors": 164}
DEEP |= {"items": 0, "shown": 3, "patches": 0, "patch": [3, 3, 1], "size": [7, 7], "correlation": 0.5}
WORDED = {**DEEP, "name": HOSTILE[0], "shape": [], "columns": 8, "vectors": 320, "items": 12}
WORDED |= {"patches": None, "patch": [], "tokens": [["good", HOSTILE[0], ""]] * 4}
DATA: dict[str, Any] = {"items": 300, "outputs": 10, "passes": 10, "left_out": {HOSTILE[1]: HOSTILE[0]}}


class TestLayerFeatures(ViewContract):
    name = "layer_features"
    data = given(**DATA, layers=[INPUT, SEEN, DEEP], items_are="image")


class TestOfTexts(ViewContract):
    name = "layer_features"
    data = given(**DATA, layers=[WORDED], items_are="text")


def drawn(made: Made, kind: str = "image", **data: Any) -> str:
    source = Source(Record.open(made(kind=kind)))
    return str(layer_features(Section("layer_features", data={**DATA, "items_are": kind, **data}), source).body)


def test_directions_are_pictures_and_deep_layers_have_patches_that_open_their_item(made: Made) -> None:
    body = drawn(made, layers=[INPUT, SEEN, DEEP])
    assert body.count('class="direction"') == 2 + 4 + 4  # the last are windows
    assert body.count('class="patch"') == 4 * 3
    links = re.findall(r'href="#train-(\d+)"', body)
    assert [int(number) - 1000 for number in links] == list(range(12))  # originals of the made-up record
    assert "ρ 0.930" in body
    assert "as by chance" in body


def test_inputs_that_are_no_images_have_their_largest_entries(made: Made) -> None:
    body = drawn(made, "vector", layers=[{**INPUT, "shape": [64]}])
    assert body.count('class="bar-name"') == 2 * 6
    assert "input " in body
    assert "<svg" not in body


def test_a_record_that_ends_early_has_no_pictures_of_it(made: Made) -> None:
    body = drawn(made, layers=[{**INPUT, "vectors": 590}, {**DEEP, "items": 20, "patches": 290}])
    assert body.count('class="direction"') == 4
    assert 'class="patch"' not in body


def test_many_layers_are_folded_and_all_are_in_the_table(made: Made) -> None:
    body = drawn(made, layers=[{**SEEN, "name": f"layer{k}"} for k in range(40)])
    assert "24 more layers" in body
    assert len(re.findall("<tr>", body)) == 41


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (SEEN, "look for what the outputs react to: ρ = 0.930, where random directions give 0.45 to 0.6"),
        (SEEN, "What training added to them: ρ = 0.950"),
        ({**SEEN, "correlation": 0.5}, "as random directions would"),
        ({**SEEN, "correlation": 0.1}, "avoid what the outputs react to"),
        ({**SEEN, "reason": "no output reacts"}, "There is nothing to compare here: no output reacts."),
        (INPUT, "One direction is 60 % of what the outputs react to."),
    ],
)
def test_every_layer_has_a_sentence(layer: dict[str, Any], words: str) -> None:
    assert words in layer_sentence(layer)


def test_the_summary_counts_layers_above_chance() -> None:
    low = {**SEEN, "correlation": 0.5}
    assert features_summary([INPUT, SEEN, low]).startswith("In 1 of 2 layers")
    assert features_summary([SEEN, SEEN]).startswith("In both layers")
    assert features_summary([SEEN] * 3).startswith("In all 3 layers")
    assert features_summary([low, low]).startswith("In none of 2 layers")
    assert "No layer has weights" in features_summary([INPUT])


@pytest.mark.parametrize("shape", [(1, 4, 6), (3, 4, 6), (5, 4, 6), (1, 200, 100)])
def test_pictures_have_the_shape_of_their_direction(shape: tuple[int, ...]) -> None:
    pixels = pixels_of(np.random.default_rng(0).normal(size=int(np.prod(shape))), shape)
    assert pixels is not None
    assert pixels.dtype == np.uint8
    assert max(pixels.shape[:2]) <= 64
    assert pixels.shape[0] / pixels.shape[1] == pytest.approx(shape[1] / shape[2], rel=0.05)
    assert pixels_of(np.full(4, np.nan), (1, 2, 2)) is None


def test_tracked_layers_share_a_picture() -> None:
    rows = [
        {"moment": m, "step": m, "of": f"nfa:{n}", "correlation": 0.5, "centred": 0.6} for m in (0, 1) for n in "ab"
    ]
    found = by_layer([{"moment": 0, "step": 0, "of": "ck", "kta": 0.3}, *rows])
    assert [row["of"] for row in found] == ["ck", "nfa", "nfa centred", "nfa", "nfa centred"]
    assert found[1] == {"moment": 0, "step": 0, "of": "nfa", "layer a": 0.5, "layer b": 0.5}
