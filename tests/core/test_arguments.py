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
from ntkscope.core import NtkscopeError, NumericalError, Part, Record, UsageError
from ntkscope.core import arguments as given
from ntkscope.linalg import least_squares, lsmr, spike_test
from ntkscope.linalg.random_matrices.spiked import spike_overlaps, spike_threshold
from ntkscope.measures.alignment import kernel_target_alignment
from ntkscope.measures.change import linearisation_error, relative_change
from ntkscope.measures.kendall import kendall
from ntkscope.measures.regression import r_squared, rmse
from ntkscope.measures.resampled import corrected_t_test
from ntkscope.measures.spectra import classify
from ntkscope.measures.uncertainty import holm, standard_error
from ntkscope.tracking.schedules import OnPlateau
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


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize(
    "call",
    [
        lambda v: ns.training.Every(v),
        lambda v: ns.training.LogSpaced(v),
        lambda v: OnPlateau(v),
        lambda v: list(ns.training.folds(part(), v)),
        lambda v: ns.explain.nearest(np.eye(4), v),
        lambda v: ns.infinite.sample(torch.eye(3), v),
        lambda v: ns.training.fit(model(), part(), lr=0.1, epochs=v) if v is not None else ns.training.Every(v),
        lambda v: ns.training.fit(model(), part(), lr=0.1, steps=v) if v is not None else ns.training.Every(v),
        lambda v: ns.training.fit(model(), part(), lr=0.1, steps=1, batch_size=2.5 if v is None else v),
    ],
)
def test_counts_are_whole_numbers(call: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(UsageError, match="expected"):
        call(value)


@pytest.mark.parametrize("value", ["x", None, [1, 2], math.nan, math.inf])
@pytest.mark.parametrize(
    "call",
    [
        lambda v: OnPlateau(3, v),
        lambda v: ns.training.fit(model(), part(), lr=v, steps=1),
        lambda v: ns.training.fit(model(), part(), lr=0.1, weight_decay=v, steps=1),
        lambda v: ns.training.fit(model(), part(), lr=0.1, momentum=v, steps=1),
        lambda v: kendall([1, 2, 3], [1, 3, 2]).interval("b", v),
        lambda v: spike_test(matrix(20, 30), level=v),
        lambda v: holm([0.1, v]),
        lambda v: ns.surrogates.KernelRidge(alpha=v).fit(np.eye(3), np.ones(3)) if v is not None else holm([v]),  # type: ignore[list-item]
        lambda v: least_squares(np.eye(3), np.ones(3), ridge=v),
        lambda v: spike_threshold((4, 4), v),
    ],
)
def test_numbers_are_finite(call: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(NtkscopeError, match="expected"):
        call(value)


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

    @pytest.mark.parametrize("scale", SCALES)
    @pytest.mark.parametrize("solve", [least_squares, lsmr])
    def test_least_squares(self, solve: Callable[..., Any], scale: float) -> None:
        A, Y = matrix(), matrix(8, 2, seed=1)
        expected = solve(A, Y).solution
        torch.testing.assert_close(solve(A * scale, Y * scale).solution, expected, rtol=1e-9, atol=0)
        torch.testing.assert_close(solve(A, Y * scale).solution / scale, expected, rtol=1e-9, atol=0)
        if 1e-250 < scale < 1e250:
            torch.testing.assert_close(solve(A * scale, Y).solution * scale, expected, rtol=1e-9, atol=0)
            found = solve(A * scale, Y, ridge=scale * scale if 1e-150 < scale < 1e150 else 0.0)
            assert bool(torch.isfinite(found.solution).all())

    def test_a_solution_beyond_the_floats_is_refused(self) -> None:
        for solve in (least_squares, lsmr):
            with pytest.raises(NumericalError, match="leaves the range"):
                solve(matrix() * 1e-200, matrix(8, 1) * 1e200)

    @pytest.mark.parametrize("scale", SCALES[1:-1])
    def test_measures(self, scale: float) -> None:
        a, b = matrix(9, 2), matrix(9, 2, seed=1)
        K, L = a @ a.T, b @ b.T
        np.testing.assert_allclose(r_squared(a * scale, b * scale), r_squared(a, b), rtol=1e-12)
        np.testing.assert_allclose(rmse(a * scale, b * scale) / scale, rmse(a, b), rtol=1e-12)
        assert relative_change(K * scale, L * scale) == pytest.approx(relative_change(K, L), rel=1e-11)
        assert linearisation_error(a * scale, b * scale) == pytest.approx(linearisation_error(a, b), rel=1e-12)
        assert kernel_target_alignment(K * scale, b[:, 0]) == pytest.approx(
            kernel_target_alignment(K, b[:, 0]), rel=1e-12
        )
        assert standard_error(a[:, 0] * scale) / scale == pytest.approx(standard_error(a[:, 0]), rel=1e-12)
        plain, far = (corrected_t_test(a[:, 0] * s, train=10, test=5) for s in (1.0, scale))
        assert (far.t, far.p, far.low / scale) == pytest.approx((plain.t, plain.p, plain.low), rel=1e-12)

    @pytest.mark.parametrize("scale", [1e-200, 1e200])
    def test_infinite_width_names_the_range(self, scale: float) -> None:
        net = ns.infinite.serial(ns.infinite.Dense(), ns.infinite.Relu(), ns.infinite.Dense())
        with pytest.raises(NumericalError, match="between 3e-151 and 3e"):
            ns.infinite.kernel(net, torch.tensor([[1.0, 1.0], [scale, 0.0]], dtype=torch.float64))

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

    def test_kendall_names_its_ties(self) -> None:
        with pytest.raises(UsageError, match="'b', 'discordant'"):
            kendall([1, 2, 3], [1, 3, 2]).interval("B")

    @pytest.mark.parametrize("shape", [(-4, 4), (-4, -4), (0, 4), (2.5, 4), (math.nan, 4)])
    def test_shapes_are_counts(self, shape: Any) -> None:
        for call in (spike_threshold, lambda s: spike_overlaps(3.0, s)):
            with pytest.raises(UsageError, match="shape"):
                call(shape)

    def test_holm_needs_probabilities(self) -> None:
        for bad in (math.nan, 1.5, -0.1):
            with pytest.raises(UsageError, match=r"p_values\[1\]"):
                holm([0.01, bad, 0.03])


def test_lists_are_matrices() -> None:
    W = matrix(60, 90)
    assert spike_test(W.tolist(), draws=19).count == spike_test(W, draws=19).count
    assert classify(W.tolist(), draws=0).label == classify(W, draws=0).label
    torch.testing.assert_close(
        least_squares(matrix().tolist(), [1.0] * 8).solution, least_squares(matrix(), np.ones(8)).solution
    )
    with pytest.raises(UsageError, match="probability"):
        classify(W, level=2)


@pytest.mark.parametrize("radii", [(1.0, 5.0), (1.0, 4.0), (1.0, math.inf), (1.0, "x")])
def test_shells_stay_in_their_orthant(radii: Any) -> None:
    with pytest.raises(UsageError, match="radii"):
        ns.data.load("orthant-shells", dimension=2, radii=radii)


@pytest.mark.parametrize("rows", [4, 9])
def test_leave_one_out_is_of_the_training_points(rows: int) -> None:
    y = np.array([0, 1, 0, 1, 0, 1])
    for kind in (
        ns.surrogates.KernelNeighbors(k=1),
        ns.surrogates.NearestClassCentre(),
        ns.surrogates.KernelGLM(alpha=1.0),
    ):
        fitted = kind.fit(np.eye(6) + 0.1, y)
        with pytest.raises(UsageError, match="expected the 6 training points"):
            fitted.leave_one_out(np.eye(rows))
        assert fitted.leave_one_out(np.eye(6) + 0.1).shape == (6, 2)
