"""Shift: every fast statistic against its definition, exact nulls, refusals, and shifts that are found."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ntkscope as ns
from ntkscope.core import NumericalError, UsageError, numpy_generator
from ntkscope.core.errors import StoreError
from ntkscope.explain import shift
from ntkscope.explain.two_sample import c2st, kolmogorov, mmd
from ntkscope.explain.two_sample.density_ratio import DensityRatio
from ntkscope.explain.two_sample.pooled import pool
from ntkscope.explain.two_sample.rearrangements import p_value, rearrange

SHAPES = st.tuples(
    st.integers(20, 45), st.integers(20, 45), st.sampled_from([1, 2, 7, 60, 130]), st.integers(0, 10_000)
)


def samples(n: int, m: int, p: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = numpy_generator(seed, "test", "shift")
    return random.normal(size=(n, p)) * (1 + np.arange(p)), random.normal(size=(m, p)) * (1 + np.arange(p))


def grouped(n: int, m: int, seed: int) -> list[str]:
    """Groups of one to four items, each in one sample."""
    random = numpy_generator(seed, "test", "groups")
    return [f"a{k}" for k in random.integers(0, n // 2, n)] + [f"b{k}" for k in random.integers(0, m // 2, m)]


def assert_same(one: ns.explain.two_sample.shift.Shift, other: ns.explain.two_sample.shift.Shift) -> None:
    assert list(one.effects) == list(other.effects)
    for name, values in one.effects.items():
        assert values == pytest.approx(other.effects[name], rel=1e-4, abs=1e-6)


class TestRearrangements:
    def test_groups_stay_together_and_their_number_stays(self) -> None:
        groups = grouped(30, 40, 0)
        found = rearrange(30, 40, groups, 200, 0)
        for row in found.labels:
            per_group = {name: {bool(row[i]) for i in range(70) if groups[i] == name} for name in set(groups)}
            assert all(len(values) == 1 for values in per_group.values())
            assert sum(values == {True} for values in per_group.values()) == len(set(groups[30:]))
        assert len({tuple(row) for row in found.labels.tolist()}) > 190

    def test_every_arrangement_is_equally_likely(self) -> None:
        """4 choose 2 arrangements of 4 items: a chi-squared test at one in a million."""
        labels = rearrange(2, 2, None, 6000, 1).labels[1:]
        counts = [
            int((labels == np.isin(np.arange(4), pair)).all(1).sum()) for pair in itertools.combinations(range(4), 2)
        ]
        assert sum(counts) == 6000
        assert scipy.stats.chisquare(counts).pvalue > 1e-6

    def test_folds_hold_whole_groups(self) -> None:
        found = rearrange(30, 40, grouped(30, 40, 0), 20, 0)
        for folds in (found.folds(5, 0), found.stratified_folds(5, 0)):
            assert all(len(set(folds[found.unit == unit])) == 1 for unit in range(len(found.sizes)))
        second = found.labels[0]
        assert all(second[folds == f].any() and (~second[folds == f]).any() for f in range(5))

    def test_equal_items_are_held_out_together(self) -> None:
        """Fitted on an item's double in the other sample, a classifier learns its label the wrong way round: AUC 0.07."""
        a, b = samples(60, 60, 20, 0)
        for other in (a, np.concatenate([a[:30], b[:30]])):
            area, low, high = shift(None, a, other, permutations=99, tests="c2st").effects["auc"]
            assert abs(area - 0.5) < (1e-12 if other is a else 0.2)
            assert low < 0.5 < high
        found = rearrange(60, 60, None, 1, 0)
        assert (found.folds(10, 0, np.concatenate([a, b])) == found.folds(10, 0)).all()
        coarse = np.concatenate([a, b])[:, :1].round()  # few values: equal ones are different items
        assert (found.folds(10, 0, coarse) == found.folds(10, 0)).all()

    def test_a_sample_that_is_one_group_and_statistics_that_are_not_numbers(self) -> None:
        a, b = samples(60, 60, 3, 0)
        with pytest.raises(UsageError, match=r"60 groups against 1 .*at least two"):
            shift(None, a, b, groups=[*range(60), *([60] * 60)], permutations=99)
        with pytest.raises(NumericalError, match="NaN or infinite"):
            p_value(np.array([np.nan, 1.0, 2.0]))

    def test_p_counts_ties_and_the_samples_themselves(self) -> None:
        assert p_value(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25
        assert p_value(np.array([1.0, 1.0 - 1e-15, 0.0, 0.0])) == 0.5

    @pytest.mark.parametrize(
        ("groups", "words"),
        [
            (list(range(20)) + list(range(20)), "20 groups have items in both"),
            ([0] * 39, "one name or number per item"),
            (([0] * 20, [1] * 19), "20 and 19 items"),
            ([0] * 20 + [1] * 20, "too few for a p"),
        ],
    )
    def test_groups_that_cannot_be(self, groups: Any, words: str) -> None:
        a, b = samples(20, 20, 3, 0)
        with pytest.raises(UsageError, match=words):
            shift(None, a, b, groups=groups, permutations=99)

    def test_groups_as_a_pair(self) -> None:
        a, b = samples(20, 20, 3, 0)
        names = np.arange(40) // 2
        whole = shift(None, a, b, groups=names, permutations=99)
        assert whole.p == shift(None, a, b, groups=(names[:20], names[20:]), permutations=99).p
        assert whole.units == (10, 10)


class TestC2st:
    @settings(max_examples=12)
    @given(SHAPES, st.booleans())
    def test_scores_are_those_of_refitted_ridge_regressions(
        self, shape: tuple[int, int, int, int], groups: bool
    ) -> None:
        n, m, p, seed = shape
        pooled = pool(*samples(n, m, p, seed))
        found = rearrange(n, m, grouped(n, m, seed) if groups else None, 3, seed)
        folds = found.folds(c2st.FOLDS, seed)
        scores = c2st.cross_fitted(pooled, found.labels, folds)
        s = pooled.decomposition[1]
        for column, labels in enumerate(found.labels):
            z = labels.astype(float)
            U = pooled.decomposition[0]
            total = np.array([np.square(z - z.mean()).sum()])
            ridge = c2st.chosen_ridges(s, (U.T @ z)[:, None], total, n + m)[0]
            errors = {}
            for other in c2st.ridges(s, n + m):  # generalised cross-validation by its definition
                H = 1 / (n + m) + (U * (s**2 / (s**2 + other))) @ U.T
                errors[other] = np.square(z - H @ z).sum() / (n + m - np.trace(H)) ** 2
            assert errors[ridge] == pytest.approx(min(errors.values()), rel=1e-9)
            for fold in np.unique(folds):
                held = folds == fold
                mean, X = pooled.centred[~held].mean(0), pooled.centred[~held]
                weights = np.linalg.solve((X - mean).T @ (X - mean) + ridge * np.eye(p), (X - mean).T @ z[~held])
                expected = (pooled.centred[held] - mean) @ weights
                np.testing.assert_allclose(scores[held, column], expected, rtol=1e-6, atol=1e-7)

    @settings(max_examples=40)
    @given(st.integers(0, 10_000), st.integers(4, 30), st.booleans())
    def test_area_is_the_share_of_ordered_pairs(self, seed: int, n: int, ties: bool) -> None:
        random = numpy_generator(seed, "test", "auc")
        scores = random.integers(0, 4, (n, 3)).astype(float) if ties else random.normal(size=(n, 3))
        labels = random.permuted(np.tile(np.arange(n) < max(1, n // 3), (3, 1)), axis=1)
        for column, area in enumerate(c2st.areas(scores, labels)):
            above, below = (scores[which, column] for which in (labels[column], ~labels[column]))
            expected = np.mean([(x > y) + (x == y) / 2 for x in above for y in below])
            assert area == pytest.approx(expected, abs=1e-12)
            assert c2st.auc_interval(scores[:, column], labels[column], np.arange(n))[0] == pytest.approx(
                expected, abs=1e-12
            )

    @pytest.mark.guard
    def test_interval_covers_the_area(self) -> None:
        """Gaussian scores one apart have the area Φ(1/√2); 400 samples, 95 % intervals, four standard errors. With every item
        three times over, only groups keep the coverage."""
        truth, held = scipy.stats.norm.cdf(2**-0.5), {1: 0, 3: 0, -3: 0}
        for trial in range(400):
            random = numpy_generator(trial, "test", "coverage")
            second = np.arange(120) >= 50
            scores = random.normal(size=120) + second
            for times in held:
                unit = np.repeat(np.arange(120), abs(times)) if times > 0 else np.arange(360)
                many = np.repeat(np.arange(120), abs(times))
                _, low, high = c2st.auc_interval(scores[many], second[many], unit)
                held[times] += low <= truth <= high
        assert min(held[1], held[3]) >= 400 * 0.95 - 4 * np.sqrt(400 * 0.95 * 0.05)
        assert held[-3] < 400 * 0.85

    def test_null_area_is_one_half_on_average(self) -> None:
        """With the mean labels of the fits it would be below 0.4: 300 rearrangements, four standard errors and 0.01, since a
        fit still knows a little of the labels that it was not given."""
        a, b = samples(40, 40, 10, 0)
        pooled, found = pool(a, b), rearrange(40, 40, None, 300, 0)
        areas = c2st.separation(pooled, found.labels, found.folds(5, 0)).auc[1:]
        assert abs(areas.mean() - 0.5) < 4 * areas.std() / np.sqrt(300) + 0.01


class TestMmd:
    @settings(max_examples=10)
    @given(SHAPES, st.booleans(), st.sampled_from([1, 50, 10**6]))
    def test_equals_its_definition(self, shape: tuple[int, int, int, int], groups: bool, block: int) -> None:
        n, m, p, seed = shape
        a, b = samples(n, m, p, seed)
        X = np.concatenate([a, b])
        found = rearrange(n, m, grouped(n, m, seed) if groups else None, 3, seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mmd, "BLOCK", block)
            values = mmd.discrepancies(mmd.gaussian(X, found.unit), found).squared
        apart = [
            float(np.square(X[i] - X[j]).sum())
            for i in range(n + m)
            for j in range(i)
            if found.unit[i] != found.unit[j]
        ]
        K = np.exp(-np.square(X[:, None] - X[None]).sum(2) / (2 * np.median(apart)))
        for labels, value in zip(found.labels, values):
            means = []
            for left, right in ((0, 0), (1, 1), (0, 1)):
                pairs = [
                    K[i, j]
                    for i in np.flatnonzero(labels == left)
                    for j in np.flatnonzero(labels == right)
                    if found.unit[i] != found.unit[j]
                ]
                means.append(np.mean(pairs))
            assert value == pytest.approx(means[0] + means[1] - 2 * means[2], abs=1e-10)

    def test_a_kernel_of_the_network(self) -> None:
        a, b = (torch.from_numpy(x).float() for x in samples(25, 30, 4, 0))
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        found = shift(model, a, b + 3, kernel="ck", permutations=99, tests=["mmd"])
        K = ns.kernel("ck", model, torch.cat([a, b + 3])).numpy().astype(float)
        np.fill_diagonal(K, 0)
        expected = K[:25, :25].sum() / 600 + K[25:, 25:].sum() / 870 - 2 * K[:25, 25:].mean()
        assert found.effects["mmd2"][0] == pytest.approx(expected, rel=1e-5)


class TestKolmogorov:
    @settings(max_examples=40)
    @given(st.integers(0, 10_000), st.integers(2, 40), st.integers(2, 40), st.booleans())
    def test_equals_scipy(self, seed: int, n: int, m: int, ties: bool) -> None:
        random = numpy_generator(seed, "test", "ks")
        values = random.integers(0, 5, n + m).astype(float) if ties else random.normal(size=n + m)
        found = rearrange(n, m, None, 3, seed)
        for labels, distance in zip(found.labels, kolmogorov.distances(values, found.labels)):
            expected = scipy.stats.ks_2samp(values[labels], values[~labels]).statistic
            assert distance == pytest.approx(expected, abs=1e-12)

    def test_ties_of_the_largest_distance_are_ordered_by_the_mean(self) -> None:
        random = numpy_generator(0, "test", "ks ties")
        components, found = random.normal(size=(50, 6)), rearrange(20, 30, None, 200, 0)
        largest = kolmogorov.largest_distances(components, found.labels)
        every = np.stack([kolmogorov.distances(column, found.labels) for column in components.T])
        order = sorted(range(201), key=lambda r: (round(every[:, r].max(), 9), every[:, r].mean()))
        assert np.diff(largest.statistic[order]).min() > -1e-12
        assert len(np.unique(largest.statistic.round(12))) > 3 * len(np.unique(every.max(0).round(12)))
        assert largest.distance == every[:, 0].max() == every[largest.component, 0]

    def test_interval_holds_the_distance(self) -> None:
        assert kolmogorov.distance_interval(0.5, np.arange(4000), np.arange(4000) < 2000, 1)[0] > 0.4
        assert kolmogorov.distance_interval(0.5, np.arange(4000) // 100, np.arange(4000) < 2000, 1)[0] == 0.0


class TestPooled:
    @settings(max_examples=25)
    @given(SHAPES)
    def test_principal_components_are_those_of_the_centred_embedded_kernel(
        self, shape: tuple[int, int, int, int]
    ) -> None:
        """PCA of the Gram matrix of activations, double-centred, is PCA of the activations: equal scores up to sign."""
        n, m, p, seed = shape
        a, b = samples(n, m, p, seed)
        X = np.concatenate([a, b])
        pooled = pool(a, b)
        centre = np.eye(n + m) - 1 / (n + m)
        values, vectors = np.linalg.eigh(centre @ (X @ X.T) @ centre)
        count = min(2, p)
        scores = pooled.components(count) * np.abs(X).max()
        for k in range(count):
            expected = vectors[:, -1 - k] * np.sqrt(values[-1 - k])
            worst = min(np.abs(scores[:, k] - sign * expected).max() for sign in (-1, 1))
            assert worst <= 1e-8 * np.abs(expected).max()

    def test_decomposition_multiplies_out(self) -> None:
        for p in (3, 30, 90):
            pooled = pool(*samples(20, 25, p, 0))
            U, s = pooled.decomposition
            np.testing.assert_allclose(U.T @ U, np.eye(len(s)), atol=1e-9)
            np.testing.assert_allclose(U @ (U.T @ pooled.centred), pooled.centred, atol=1e-9)
            np.testing.assert_allclose(np.linalg.svd(pooled.centred)[1][: len(s)], s, rtol=1e-7)

    @pytest.mark.parametrize("scale", [1e-200, 1e200])
    def test_scale_does_not_matter(self, scale: float) -> None:
        a, b = samples(25, 30, 4, 0)
        first, second = (shift(None, a * c, b * c, permutations=99) for c in (1.0, scale))
        assert first.p == second.p
        assert first.effects["auc"] == pytest.approx(second.effects["auc"])


class TestRefusals:
    @pytest.mark.parametrize(
        ("a", "b", "words"),
        [
            (np.ones((19, 2)), np.eye(30), "a has 19 items; expected at least 20"),
            (np.eye(30), np.ones((5, 30)), "b has 5 items"),
            (np.full((20, 2), np.nan), np.ones((20, 2)), "NaN or infinity for 20 items, the first at index 0"),
            (np.eye(20), np.eye(21), "20 dimensions and b in 21"),
            (np.ones((20, 3)), np.ones((30, 3)), "same vector for every item"),
            (["a"] * 20, ["b"] * 20, "expected numbers"),
        ],
    )
    def test_samples_that_cannot_be_compared(self, a: Any, b: Any, words: str) -> None:
        with pytest.raises(UsageError, match=words):
            shift(None, a, b)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"permutations": 10, "tests": "ks"}, "smallest p is 0.091"),
            ({"permutations": 58}, "smallest p of 3 tests after Holm is 0.051, .* at least 59"),
            ({"kernel": "ck"}, "together with a module"),
            ({"pooling": "median"}, "pooling='median'"),
            ({"layer": "0"}, "without a network"),
        ],
    )
    def test_options(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(UsageError, match=words):
            shift(None, *samples(20, 20, 3, 0), **options)

    def test_embed_of_another_type(self) -> None:
        with pytest.raises(UsageError, match="type int"):
            shift(3, *samples(20, 20, 3, 0))


class TestEmbeddings:
    def test_layers_of_a_network(self) -> None:
        a, b = (torch.from_numpy(x).float().reshape(-1, 1, 2, 2) for x in samples(25, 30, 4, 0))
        model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Flatten(), nn.Linear(12, 2))
        by_hand = [model[0](x).mean((2, 3)).detach() for x in (a, b)]
        first = shift(model, a, b, layer="0", permutations=99)
        assert_same(first, shift(None, *by_hand, permutations=99))
        assert_same(shift(model, a, b, permutations=99), shift(lambda x: model(x).detach(), a, b, permutations=99))

    def test_training_mode_and_unknown_layers_are_refused(self) -> None:
        a, b = (torch.from_numpy(x).float() for x in samples(25, 30, 4, 0))
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        with pytest.raises(UsageError, match="training mode"):
            shift(model, a, b)
        with pytest.raises(UsageError, match="no module called 'x'"):
            shift(model.eval(), a, b, layer="x")

    def test_a_store_keeps_vectors_of_these_items_alone(self, tmp_path: Path) -> None:
        a, b = (torch.from_numpy(x).float() for x in samples(25, 30, 4, 0))
        model = nn.Linear(4, 3)
        first = shift(model, a, b, store=tmp_path / "kept", permutations=99)
        assert shift(model, a, b, store=tmp_path / "kept", permutations=99).p == first.p
        with pytest.raises(StoreError, match="other items"):
            shift(model, a, b + 1, store=tmp_path / "kept", permutations=99)
        with pytest.raises(StoreError, match="other items"):
            shift(nn.Linear(4, 3), a, b, store=tmp_path / "kept", permutations=99)


class TestShift:
    def test_equal_in_two_components_different_in_a_small_one(self) -> None:
        """Different densities of components prove a shift, equal ones do not prove its absence: missed by the first two
        components, found by a linear classifier on all."""
        random = numpy_generator(0, "test", "one-sided")
        scale = np.array([30.0, 20.0, 5.0, 3.0, 0.1])
        a, b = (random.normal(size=(n, 5)) * scale for n in (200, 300))
        b[:, 4] += 0.2
        found = shift(None, a, b, permutations=199)
        plane = shift(None, found.plane[:200], found.plane[200:], permutations=199)
        assert plane.verdict == "no shift found"
        assert found.effects["auc_pc12"][1] < 0.5 < found.effects["auc_pc12"][2]
        assert found.p["c2st"] == 0.005
        assert found.effects["auc"][1] > 0.8
        assert found.verdict == "shift"

    def test_planted_contamination_is_found_by_the_ratio(self) -> None:
        """A fifth of b is from elsewhere: its items have the larger ratio (AUROC at least 0.9)."""
        random = numpy_generator(1, "test", "contamination")
        a, b = random.normal(size=(300, 20)), random.normal(size=(300, 20))
        planted = np.arange(300) < 60
        b[planted, :4] += 2.0
        found = shift(None, a, b, permutations=99)
        assert ns.explain.auroc(found.ratio.b, planted) >= 0.9
        assert found.ratio.a.mean() == pytest.approx(1, abs=0.15)  # E_a[p_b / p_a] = 1
        assert 100 < found.ratio.effective < 300

    def test_ratio_of_kernel_densities_and_rejection(self) -> None:
        """Two Gaussians one apart: the true ratio is exp(x - 1/2), and items accepted by it follow the second."""
        random = numpy_generator(2, "test", "ratio")
        a, b = random.normal(size=(1500, 2)), random.normal(size=(600, 2)) + np.array([1.0, 0.0])
        found = shift(None, a, b, permutations=19, level=0.1, tests=["ks"])
        for ratio in (found.ratio, found.ratio_pc12):
            middle = np.abs(a).max(1) < 1.5
            errors = np.log(ratio.a[middle]) - (a[middle, 0] - 0.5)
            assert np.abs(errors).mean() < 0.2
            kept = a[ratio.accepted(most=8.0)]
            assert kept[:, 0].mean() == pytest.approx(1.0, abs=0.2)
        assert DensityRatio(np.ones(10), np.ones(3)).effective == 10

    def test_words(self) -> None:
        a, b = samples(25, 30, 4, 0)
        found = shift(None, a, b + 100, permutations=99)
        assert str(found).startswith(
            "shift (25 against 30 items): c2st p = 0.01, mmd p = 0.01, ks p = 0.01, holm p = 0.03"
        )
        assert found.effects["auc"][0] == 1.0
        assert found.effects["auc"][1] == pytest.approx(1 - 3 / 25)

    def test_seeds_repeat_and_samples_may_trade_places(self) -> None:
        a, b = samples(30, 40, 5, 3)
        assert shift(None, a, b, permutations=99).p == shift(None, a, b, permutations=99).p
        turned = shift(None, b, a, permutations=99)
        assert turned.effects["mmd2"][0] == pytest.approx(shift(None, a, b, permutations=99).effects["mmd2"][0])


def test_a_large_constant_column_hides_nothing() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(60, 5)), random.normal(size=(60, 5)) + 2
    a, b = (np.c_[sample, np.full(60, 1e20)] for sample in (a, b))
    assert shift(None, a, b, permutations=99).verdict == "shift"
