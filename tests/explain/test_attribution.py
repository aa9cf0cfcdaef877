"""Attribution: complete, lazy, and summarised as by hand."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ntkscope.core import UsageError, numpy_generator
from ntkscope.explain import attribute, class_summary, concentration
from ntkscope.linalg import FactoredGram
from ntkscope.surrogates import KernelGLM, KernelRidgeClassifier


def problem(n: int = 40, m: int = 7, c: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = numpy_generator(seed, "test", "attribution")
    y = np.arange(n) % c
    x = random.normal(size=(n, 6)) + 2 * np.eye(6)[y]
    t = random.normal(size=(m, 6))
    return x @ x.T + 1, t @ x.T + 1, y


SURROGATES = {
    "glm": KernelGLM(alpha=1e-3),
    "ovr": KernelGLM(alpha=1e-3, multi_class="ovr"),
    "ridge": KernelRidgeClassifier(alpha=0.1),
}


class TestCompleteness:
    @pytest.mark.parametrize("name", SURROGATES)
    @pytest.mark.parametrize("c", [2, 4])
    def test_sums_to_the_logits(self, name: str, c: int) -> None:
        K, K_test, y = problem(c=c)
        surrogate = SURROGATES[name].fit(K, y)
        logits = surrogate.logits(K_test)
        found = attribute(surrogate, K_test)
        assert found.shape == (7, 40, c)
        for index, values in enumerate(found):
            assert np.abs(values.sum(0) - logits[index]).max() < 1e-8  # float64: 40 terms of size ≤ 100
        assert np.abs(found.values.sum(1) - logits).max() < 1e-8
        assert np.abs(found.sums() - logits).max() < 1e-8

    @settings(max_examples=15)
    @given(seed=st.integers(0, 1000), n=st.integers(4, 60), c=st.integers(2, 4))
    def test_on_random_problems_in_single_precision(self, seed: int, n: int, c: int) -> None:
        K, K_test, y = problem(n=max(n, c), c=c, seed=seed)
        surrogate = KernelRidgeClassifier(alpha=1.0).fit(K, y)
        narrow = torch.from_numpy(K_test).float()
        for index, values in enumerate(attribute(surrogate, narrow)):
            assert np.abs(values.sum(0) - surrogate.logits(narrow)[index]).max() < 1e-6

    def test_each_term_is_the_equation(self) -> None:
        K, K_test, y = problem()
        glm = KernelGLM(alpha=1e-3).fit(K, y)
        values = attribute(glm, K_test).item(2)
        for i, c in ((0, 0), (5, 2), (39, 1)):
            assert values[i, c] == pytest.approx(glm.coef_[c, i] * K_test[2, i] + glm.intercept_[c] / 40, abs=1e-12)


class TestShape:
    def test_rows_pick_items_and_grams_are_taken(self) -> None:
        K, _, y = problem()
        random = numpy_generator(1, "test", "factors")
        left, right = (torch.from_numpy(v) for v in random.normal(size=(2, 40, 6)))
        surrogate = KernelRidgeClassifier(alpha=0.1).fit(K, y)
        gram = FactoredGram(left, right)
        whole = attribute(surrogate, gram)
        some = attribute(surrogate, gram, rows=[3, 1])
        assert np.allclose(some.item(0), whole.item(3), atol=1e-12)
        assert np.allclose(some.item(-1), whole.item(1), atol=1e-12)
        assert len(some) == 2

    def test_items_never_hold_everything(self) -> None:
        """200 items of 20,000 points and 10 logits: all at once are 320 MB, one at a time 1.6 MB and its products."""
        random = numpy_generator(2, "test", "memory")
        factors = torch.from_numpy(random.normal(size=(20_000, 2)))

        class Fitted:
            coef_ = random.normal(size=(10, 20_000))
            intercept_ = np.zeros(10)

        found = attribute(Fitted(), FactoredGram(factors[:200], factors))
        tracemalloc.start()
        total = sum(float(values.sum()) for values in found)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == pytest.approx(found.sums().sum(), rel=1e-6)
        assert peak < 30e6

    def test_bad_input(self) -> None:
        K, K_test, y = problem()
        surrogate = KernelRidgeClassifier(alpha=0.1).fit(K, y)
        with pytest.raises(UsageError, match=r"expected \(n_test, 40\)"):
            attribute(surrogate, K_test.T)
        with pytest.raises(UsageError, match="without coef_"):
            attribute(KernelRidgeClassifier(), K_test)
        with pytest.raises(UsageError, match="test item 7"):
            attribute(surrogate, K_test).item(7)


class TestClassSummary:
    @settings(max_examples=30)
    @given(seed=st.integers(0, 1000), n=st.integers(6, 60))
    def test_is_the_box_plot_matplotlib_draws(self, seed: int, n: int) -> None:
        from matplotlib.cbook import boxplot_stats

        random = numpy_generator(seed, "test", "boxes")
        values, labels = random.standard_t(2, size=(n, 2)), np.arange(n) % 3
        found = class_summary(values, labels)
        for k in range(3):
            for c, expected in enumerate(boxplot_stats(values[labels == k])):
                assert found.mean[k, c] == pytest.approx(expected["mean"])
                assert found.q1[k, c] == pytest.approx(expected["q1"])
                assert found.median[k, c] == pytest.approx(expected["med"])
                assert found.q3[k, c] == pytest.approx(expected["q3"])
                assert found.low[k, c] == pytest.approx(expected["whislo"])
                assert found.high[k, c] == pytest.approx(expected["whishi"])
                assert sorted(values[found.outliers[k][c], c]) == pytest.approx(sorted(expected["fliers"]))
                assert bool(found.mean_inside[k, c]) == (expected["q1"] <= expected["mean"] <= expected["q3"])
        assert found.count.tolist() == np.bincount(labels).tolist()

    def test_a_class_without_members(self) -> None:
        found = class_summary(np.ones((3, 1)), np.array([0, 2, 2]))
        assert np.isnan(found.mean[1, 0])
        assert found.count.tolist() == [1, 0, 2]


class TestConcentration:
    def test_known_answers(self) -> None:
        one = np.zeros(200)
        one[17] = -3
        found = concentration(one)
        assert (float(found.top), float(found.top_percent)) == (1, 1)
        assert float(found.participation) == pytest.approx(1 / 200)
        even = concentration(np.full((200, 2), -0.5))
        assert even.top.tolist() == pytest.approx([0.025, 0.025])
        assert even.top_percent.tolist() == pytest.approx([0.01, 0.01])
        assert even.participation.tolist() == pytest.approx([1, 1])

    @given(seed=st.integers(0, 1000), n=st.integers(5, 300))
    def test_laws(self, seed: int, n: int) -> None:
        values = numpy_generator(seed, "test", "concentration").normal(size=n)
        found = concentration(values)
        assert 1 / n - 1e-12 <= found.participation <= 1 + 1e-12
        assert 5 / n - 1e-12 <= found.top <= 1 + 1e-12
        largest = np.argsort(-np.abs(values))[:5]
        assert found.top == pytest.approx(np.abs(values[largest]).sum() / np.abs(values).sum())
        assert concentration(-3 * values).participation == pytest.approx(float(found.participation))


def test_an_attribution_is_an_array_to_numpy() -> None:
    K, K_test, y = problem()
    glm = KernelGLM(alpha=1e-3).fit(K, y)
    found = np.asarray(attribute(glm, K_test))
    assert found.shape == (*K_test.shape, 3)
    np.testing.assert_allclose(found.sum(1), glm.logits(K_test), atol=1e-9)
    assert np.asarray(attribute(glm, K_test), dtype=np.float32).dtype == np.float32
