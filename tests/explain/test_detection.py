"""Neighbours, poison and wrong labels: the rules by hand, and planted things found."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import precision_recall_fscore_support, roc_auc_score

from ntkscope.core import NumericalError, Part, UsageError, numpy_generator
from ntkscope.data.transforms.label_noise import label_noise
from ntkscope.explain import auroc, forensics, mislabelled, nearest, precision_at
from ntkscope.linalg import FactoredGram
from ntkscope.surrogates import KernelGLM, KernelRidgeClassifier, KernelSVM


class TestNearest:
    @settings(max_examples=60)
    @given(seed=st.integers(0, 1000), m=st.integers(1, 6), n=st.integers(1, 30), k=st.integers(1, 30))
    def test_equals_a_full_sort_with_ties(self, seed: int, m: int, n: int, k: int) -> None:
        k = min(k, n)
        K = numpy_generator(seed, "test", "nearest").integers(-2, 3, size=(m, n)).astype(float)
        found = nearest(K, k)
        for i in range(m):
            expected = sorted(range(n), key=lambda j: (-K[i, j], j))[:k]
            assert found.indices[i].tolist() == expected
            assert found.values[i].tolist() == K[i, expected].tolist()

    def test_signed_and_without_itself(self) -> None:
        assert nearest(np.array([[-9.0, 1.0]]), 1).indices.tolist() == [[1]]
        K = np.array([[9.0, 1.0, 2.0], [1.0, 9.0, 3.0], [2.0, 3.0, 9.0]])
        assert nearest(K, 1, skip_self=True).indices.tolist() == [[2], [2], [1]]

    def test_grams(self) -> None:
        f = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert np.array_equal(nearest(FactoredGram(f[:4], f), 3).indices, nearest(f[:4] @ f.T, 3).indices)

    def test_bad_input(self) -> None:
        with pytest.raises(UsageError, match="got k=3; expected 1 … 2 for 2 training points"):
            nearest(np.eye(2), 3)
        with pytest.raises(UsageError, match="square"):
            nearest(np.ones((2, 3)), 1, skip_self=True)
        with pytest.raises(NumericalError):
            nearest(np.array([[np.nan, 1.0]]), 1)


class TestForensics:
    def test_three_of_five(self) -> None:
        """Items whose five neighbours hold 0 … 5 poisoned points: flagged from three on."""
        poisoned = np.array([True] * 5 + [False] * 10)
        K = np.full((6, 15), -1.0)
        for count in range(6):
            K[count, :count] = 1 + np.arange(count)
            K[count, 5 : 10 - count] = 0.5
        assert forensics.flag(K, poisoned).tolist() == [False, False, False, True, True, True]
        assert forensics.flag(K, torch.from_numpy(poisoned), threshold=5).tolist() == [False] * 5 + [True]

    def test_similarity_is_signed(self) -> None:
        K = np.array([[-9.0, -8.0, -7.0, 0.1, 0.2, 0.3, 0.4, 0.5]])
        assert not forensics.flag(K, [True] * 3 + [False] * 5)[0]

    @given(seed=st.integers(0, 1000), n=st.integers(1, 40))
    def test_scores_are_those_of_scikit_learn(self, seed: int, n: int) -> None:
        random = numpy_generator(seed, "test", "flags")
        flags, truth = random.random(n) < 0.5, random.random(n) < 0.5
        found = forensics.score(flags, truth)
        if flags.any() and truth.any():
            expected = precision_recall_fscore_support(truth, flags, average="binary")
            assert (found.precision, found.recall, found.f1) == pytest.approx(expected[:3])
        counts = found.true_positives + found.false_positives + found.false_negatives + found.true_negatives
        assert counts == n

    def test_nothing_flagged_is_no_precision(self) -> None:
        found = forensics.score([False, False], [True, False])
        assert math.isnan(found.precision)
        assert (found.recall, found.f1) == (0, 0)

    def test_bad_input(self) -> None:
        with pytest.raises(UsageError, match="poisoned training points"):
            forensics.flag(np.eye(6), [True, False])
        with pytest.raises(UsageError, match="threshold=6"):
            forensics.flag(np.eye(6), [True] * 6, threshold=6)
        with pytest.raises(UsageError, match="the flags"):
            forensics.score([True], [True, False])


def clusters(n: int = 150, noise: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A linear kernel of three clusters, labels of which some are wrong, and which."""
    random = numpy_generator(seed, "test", "clusters")
    y = np.arange(n) % 3
    x = random.normal(size=(n, 8)) + 3 * np.eye(8)[y]
    part = label_noise(Part(torch.from_numpy(x), torch.from_numpy(y)), noise, 3, seed=seed)
    return x @ x.T, part.y.numpy(), part.extras["noisy"].numpy()


def refitted(surrogate: KernelRidgeClassifier | KernelGLM, K: np.ndarray, y: np.ndarray, i: int) -> np.ndarray:
    """The logits of point i by the surrogate fitted without it."""
    kept = np.arange(len(y)) != i
    return type(surrogate)(**surrogate.get_params()).fit(K[np.ix_(kept, kept)], y[kept]).logits(K[i : i + 1, kept])[0]


class TestMislabelled:
    def test_scores_are_those_of_refits(self) -> None:
        K, y, _ = clusters(45, noise=0.1)
        ridge = KernelRidgeClassifier(alpha=0.5)
        found = mislabelled(K, y, ridge)
        for i in range(45):
            logits = refitted(ridge, K, y, i)
            assert found.scores[i] == pytest.approx(np.delete(logits, y[i]).max() - logits[y[i]], abs=1e-9)
            assert found.suggested[i] == logits.argmax()
        assert np.array_equal(found.order, np.argsort(-found.scores, kind="stable"))

    @pytest.mark.parametrize("surrogate", [None, KernelGLM(alpha=1e-2)], ids=["default", "glm"])
    def test_finds_planted_noise(self, surrogate: KernelGLM | None) -> None:
        K, y, planted = clusters(noise=0.1)
        found = mislabelled(K, y, surrogate)
        assert auroc(found.scores, planted) > 0.95
        assert precision_at(found.scores, planted, 10) >= 0.8
        truth = np.arange(len(y)) % 3
        assert (found.suggested[planted] == truth[planted]).mean() > 0.8
        assert planted[found.top(5)].all()

    def test_any_labels(self) -> None:
        K, y, _ = clusters(noise=0.05)
        names = np.array(["cat", "dog", "emu"])[y]
        found = mislabelled(K, names)
        assert np.array_equal(found.scores, mislabelled(K, y).scores)
        assert set(found.suggested) <= {"cat", "dog", "emu"}

    def test_the_default_does_not_depend_on_scale(self) -> None:
        K, y, _ = clusters(noise=0.05)
        assert mislabelled(1e4 * K, y).scores == pytest.approx(mislabelled(K, y).scores, abs=1e-8)

    def test_leaves_the_estimator_as_it_was(self) -> None:
        K, y, _ = clusters(30)
        ridge = KernelRidgeClassifier(alpha=0.5)
        mislabelled(K, y, ridge)
        assert not hasattr(ridge, "coef_")

    def test_bad_input(self) -> None:
        K, y, _ = clusters(30)
        with pytest.raises(UsageError, match="one label each"):
            mislabelled(K, y[:-1])
        with pytest.raises(UsageError, match="one label each"):
            mislabelled(K[:, :-1], y)
        with pytest.raises(UsageError, match="KernelSVM, which has no leave_one_out"):
            mislabelled(K, y, KernelSVM())


class TestRankings:
    @given(seed=st.integers(0, 1000), n=st.integers(2, 50))
    def test_auroc_by_pairs(self, seed: int, n: int) -> None:
        random = numpy_generator(seed, "test", "auroc")
        scores, planted = random.integers(0, 5, n).astype(float), np.arange(n) % 3 == 0
        pairs = [(p > q) + 0.5 * (p == q) for p in scores[planted] for q in scores[~planted]]
        assert auroc(scores, planted) == pytest.approx(np.mean(pairs))
        assert auroc(scores, planted) == pytest.approx(roc_auc_score(planted, scores))
