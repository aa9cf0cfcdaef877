"""Nearest neighbours under a kernel: the labels of the training points it finds most similar."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ntkscope.core.checked import Count
from ntkscope.linalg import Gram
from ntkscope.linalg.grams.gram import slices
from ntkscope.surrogates._base import Array, KernelClassifier, as_array, keep
from ntkscope.surrogates._checks import class_labels, query_kernel, training_kernel
from ntkscope.surrogates.registry import SURROGATES

ROWS = 512


@final
@SURROGATES.register("neighbors")
class KernelNeighbors(KernelClassifier):
    """The classes of the `k` training points with the largest `κ(x, x_i)`, one vote each; O(n_test n).

    Similarity is the kernel's value itself, signed; of equal ones the lower index comes first. Use a normalised kernel
    where length should not count. `logits` are the logarithms of `(count + 1/classes) / (k + 1)`, finite for every class,
    so `predict_proba` are the smoothed shares. A tied vote goes to the tied class with the nearest neighbour.

    Examples:
        >>> K = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> KernelNeighbors(k=1).fit(K, ["a", "a", "b"]).predict([[0.1, 0.0, 0.9]]).tolist()
        ['b']
    """

    def __init__(self, k: Count = 5) -> None:
        keep(locals())

    def fit(self, K: Any, y: Any) -> KernelNeighbors:
        """Store the labels; the kernel (n, n) is checked but not stored."""
        gram = training_kernel(self, K)
        self.classes_, self.numbers_ = class_labels(gram, y, "KernelNeighbors")
        self.k_ = min(int(self.k), len(self.numbers_))
        return self

    def kneighbors(self, K: Any) -> Array:
        """The indices (n_test, k) of the most similar training points, nearest first."""
        check_is_fitted(self)
        return _nearest(query_kernel(self, K), self.k_)

    def logits(self, K: Any) -> Array:
        """Logarithms of the smoothed shares of votes, (n_test, classes)."""
        return self._votes(self.kneighbors(K))

    def predict(self, K: Any) -> Array:
        """The class with the most votes; among tied classes, that of the nearest neighbour."""
        nearest = self.kneighbors(K)
        return self.classes_[self._winners(nearest)]

    def _votes(self, nearest: Array) -> Array:
        classes = len(self.classes_)
        counts = np.stack([(self.numbers_[nearest] == c).sum(1) for c in range(classes)], axis=1)
        return np.log((counts + 1 / classes) / (nearest.shape[1] + 1))

    def _winners(self, nearest: Array) -> Array:
        votes = self._votes(nearest)
        labels = self.numbers_[nearest]
        leads = np.take_along_axis(votes, labels, axis=1) == votes.max(1, keepdims=True)
        return labels[np.arange(len(labels)), leads.argmax(1)]


def _nearest(gram: Gram, k: int) -> Array:
    """By blocks of rows, so that a kernel on disk is never formed."""
    found = []
    for rows in slices(gram.shape[0], ROWS):
        values = as_array(gram[rows].dense())
        found.append(np.argsort(-values, axis=1, kind="stable")[:, :k])
    return np.concatenate(found) if found else np.zeros((0, k), dtype=np.int64)
