"""Plots: values lie where they should, and labels are round."""

from __future__ import annotations

import base64
import io
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ntkscope.report.items import image_uri
from ntkscope.report.numbers import NONE, interval, number, percent, plain
from ntkscope.report.plots import Bar, Line, Point, Scale, bars, forest, gauge, heatmap, lines, scatter
from ntkscope.report.plots.frame import Frame
from ntkscope.report.plots.heatmap import colours

SCALES = [
    Scale(-3, 7),
    Scale(0.001, 4000, "log"),
    Scale(1e-4, 1 - 1e-5, "logit"),
    Scale(0, 5000, "log1p"),
    Scale(0, 300, "sqrt"),
]


@pytest.mark.parametrize("scale", SCALES)
@given(st.floats(0, 1), st.floats(0, 1))
def test_scales_are_monotone_and_stay_on_the_axis(scale: Scale, a: float, b: float) -> None:
    low, high = sorted(float(scale.low) + (float(scale.high) - float(scale.low)) * v for v in (a, b))
    assert 0 <= scale(low) <= scale(high) <= 1
    assert scale(scale.low) == 0
    assert scale(scale.high) == pytest.approx(1)


@pytest.mark.parametrize("scale", SCALES)
def test_ticks_are_few_in_order_and_inside(scale: Scale) -> None:
    values = [value for value, _ in scale.ticks()]
    assert 2 <= len(values) <= 13
    assert values == sorted(values)
    assert all(scale.low <= value <= scale.high for value in values)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_linear_ticks_exist_for_any_range(low: float, span: float) -> None:
    if low + span > low:
        assert 1 <= len(Scale(low, low + span).ticks()) <= 12


def test_points_are_drawn_at_their_pixels() -> None:
    frame = Frame(Scale(0, 10), Scale(0, 1), "x", "y", width=200, height=120, left=50, right=10, top=10, bottom=10)
    drawn = scatter(frame, [Point(5, 0.5), Point(10, 1, stands_out=True)], describe="two points")
    assert 'cx="120.0" cy="60.0"' in drawn
    assert 'd="M190.0 10.0m' in drawn
    assert 'aria-label="two points"' in drawn


def test_a_legend_only_where_there_is_more_than_one_curve() -> None:
    frame = Frame(Scale(0, 1), Scale(0, 1), "x", "y")
    one = lines(frame, [Line("a", [0, 1], [0, 1])], describe="d")
    two = lines(frame, [Line("a", [0, 1], [0, 1]), Line("b", [0, 1], [1, 0])], describe="d")
    assert "legend" not in one
    assert two.count("legend") == 2


def test_bars_and_marks_leave_out_what_is_no_number() -> None:
    drawn = bars([Bar("a", 2, "2"), Bar("b", None, NONE), Bar("c", math.nan, NONE), Bar("d", 1, "1")], label="l")
    assert re.findall(r"width:([\d.]+)%", drawn) == ["100.00", "0.00", "0.00", "50.00"]
    assert forest(math.nan, 0, 1, smallest=0, largest=1) == ""
    assert "whisker" not in forest(0.5, None, None, smallest=0, largest=1)
    assert 'left:75.0%"' in forest(0.5, 0.4, 0.6, smallest=-1, largest=1)
    assert "left:100.0%" in gauge(1.7, low="a", high="b")
    assert "no score" in gauge(None, low="a", high="b")


def test_an_image_comes_back_from_its_address() -> None:
    draw = np.random.default_rng(0)
    few = colours(draw.normal(size=(40, 30)), -1, 1)
    few[0, 0] = colours(np.array([[np.nan]]), -1, 1)
    for pixels in (few, draw.integers(0, 256, (40, 30, 3), dtype=np.uint8), few[..., :1]):
        image = Image.open(io.BytesIO(base64.b64decode(image_uri(pixels).split(",")[1])))
        assert (image.mode == "P") == (pixels is few)  # with a palette
        shown = np.asarray(image.convert("RGB" if pixels.shape[2] == 3 else "L"))
        np.testing.assert_array_equal(shown.reshape(pixels.shape), pixels)


def test_heat_maps_name_runs_of_classes_and_survive_what_is_not_finite() -> None:
    values = np.eye(6)
    values[0, 1] = np.nan
    drawn = heatmap(values, np.array([0, 0, 1, 1, 1, 2]), ["cat", "dog", "<elk>"], describe="d")
    assert drawn.count(">cat<") == drawn.count(">dog<") == drawn.count(">&lt;elk&gt;<") == 2
    assert drawn.count('class="cut"') == 2
    heatmap(np.full((2, 2), np.nan), None, [], describe="d")
    heatmap(np.ones((1, 1)), np.array([5]), [], describe="d")


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.booleans() | st.none())
def test_every_value_has_a_short_text(value: float | int | None) -> None:
    assert isinstance(number(value), str)
    assert "nan" not in f"{number(value)}{percent(value)}{plain(value)}".lower()
    assert isinstance(interval(value, value), str)
