"""Arguments at the door: what is refused, with a named error, and what any scale, label or container gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.core import NumericalError, Part, Record, UsageError
from ntkscope.core import arguments as given
from ntkscope.linalg import least_squares, lsmr
from ntkscope.measures.alignment import kernel_target_alignment
from ntkscope.measures.change import relative_change
from ntkscope_papers.framework.intervals import CORRELATION, R2, interval

ODD = ["x", None, [1, 2], math.nan, math.inf, 2.5, True, -3]
SCALES = [1e-300, 1e-200, 1e-80, 1e80, 1e200, 1e300]


def part() -> Part:
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    return Part(x, torch.tensor([0, 1, 0, 1, 0, 1]))


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def matrix(rows: int = 8, columns: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns))


@pytest.mark.parametrize("value", [5, None, b"folder", ["folder"], "a\0b"])
@pytest.mark.parametrize(
    "call",
    [
        Record.open,
        Record.resume,
        lambda v: Record.create(v, kind="test"),
        ns.open_kernel,
        ns.report.write_page,
        lambda v: ns.Tracker(model(), (part().x, part().y), v),
    ],
)
def test_paths_are_paths(call: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(UsageError, match="expected a path"):
        call(value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
@pytest.mark.parametrize(
    "call",
    [
        lambda **d: ns.kernel("ck", model(), part().x, **d),
        lambda **d: ns.Tangent(model(), **d),
        lambda **d: ns.feature_matrices(model(), part().x, **d),
        lambda **d: ns.infinite.kernel(ns.infinite.serial(ns.infinite.Dense()), part().x, **d),
        lambda **d: ns.training.fit(model(), part(), lr=0.1, steps=1, **d),
        lambda **d: ns.training.fit_ensemble(lambda seed: model(), part(), seeds=2, lr=0.1, steps=1, **d),
        lambda **d: ns.training.adapt(model(), part(), method="linear-probe", lr=0.1, epochs=1, **d),
        lambda **d: ns.retrain_last_layer(model(), part(), **d),
    ],
)
def test_devices_that_are_not_there(call: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="CUDA is not available"):
        call(device="cuda")
    with pytest.raises(UsageError, match="cannot be used here"):
        call(device="meta")


class TestLabels:
    y = np.array([0, 1, 0, 1, 0, 1])
    K = np.eye(6) + 0.1

    @pytest.mark.parametrize(
        "labels", [y.astype(bool), np.array(["no", "yes"])[y], y * 10**12, y.tolist(), torch.tensor(y) == 1]
    )
    def test_classes_are_counted(self, labels: Any) -> None:
        assert kernel_target_alignment(self.K, labels) == kernel_target_alignment(self.K, self.y)

    def test_columns_are_not_counted_to_a_million(self) -> None:
        with pytest.raises(UsageError, match="label 1000000 among 6 items"):
            ns.explain.influence(self.K, self.K[:2], self.y * 10**6, alpha=1.0)

    def test_training_on_booleans(self) -> None:
        found = [
            ns.training.fit(torch.nn.Linear(3, 2), Part(part().x, y), lr=0.0, steps=1).final().metrics["loss"]
            for y in (part().y, part().y.bool())
        ]
        assert all(map(math.isfinite, found))

    @pytest.mark.parametrize("labels", [[0, 1, math.nan], [0.5, 1, 2], [-1, 0, 1], ["a", "b", "c"], [[0], [1]], [0, 1]])
    def test_what_numbers_no_class(self, labels: Any) -> None:
        with pytest.raises(UsageError, match="expected"):
            given.labels_of(labels, 3)


class TestScale:
    """Every scale gives the answer of scale 1, times the scale to its power."""

    @pytest.mark.parametrize("scale", SCALES)
    def test_units_are_exact(self, scale: float) -> None:
        unit = given.unit_of(np.array([scale, -scale / 3]))
        assert math.frexp(unit)[0] == 0.5
        assert 2.0**-80 < scale / unit < 2.0**80
        assert math.isfinite((scale / unit) ** 4)

    def test_a_solution_beyond_the_floats_is_refused(self) -> None:
        for solve in (least_squares, lsmr):
            with pytest.raises(NumericalError, match="leaves the range"):
                solve(matrix() * 1e-200, matrix(8, 1) * 1e200)

    def test_a_change_from_nothing_is_undefined(self) -> None:
        with pytest.raises(NumericalError, match="zero"):
            relative_change(np.zeros((3, 3)), np.eye(3))
        assert relative_change(np.zeros((3, 3)), np.zeros((3, 3))) == 0.0


class TestRanges:
    def test_intervals_stay_in_the_range_of_the_quantity(self) -> None:
        told = interval([0.9, 0.2], CORRELATION)
        assert (told["low"], told["high"]) == (-1.0, 1.0)
        assert interval([0.7, 0.9], R2)["high"] == 1.0
        assert interval([0.7, 0.9])["high"] > 1.5


@pytest.mark.parametrize("radii", [(1.0, 5.0), (1.0, 4.0), (1.0, math.inf), (1.0, "x")])
def test_shells_stay_in_their_orthant(radii: Any) -> None:
    with pytest.raises(UsageError, match="radii"):
        ns.data.load("orthant-shells", dimension=2, radii=radii)


@pytest.mark.parametrize("rows", [4, 9])
def test_leave_one_out_is_of_the_training_points(rows: int) -> None:
    y = np.array([0, 1, 0, 1, 0, 1])
    for kind in (ns.surrogates.KernelRidgeClassifier(), ns.surrogates.KernelGLM(alpha=1.0)):
        fitted = kind.fit(np.eye(6) + 0.1, y)
        with pytest.raises(UsageError, match="expected the 6 training points"):
            fitted.leave_one_out(np.eye(rows))
        assert fitted.leave_one_out(np.eye(6) + 0.1).shape == (6, 2)
