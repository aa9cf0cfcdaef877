"""alibi-detect's detectors on pairs of samples; runs in its own environment (it asks for NumPy below 2), with our torch."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from alibi_detect.cd import ClassifierDrift, KSDrift, MMDDrift
from sklearn.linear_model import LogisticRegression

from benchmarks.peers import THREADS, serve

FOLDS = 5


class Detectors:
    """Tests of the pairs in a file: arrays `a` (draws, n, p) and `b` (draws, m, p)."""

    def load(self, file: str) -> dict[str, Any]:
        torch.set_num_threads(THREADS)
        held = dict(np.load(file))
        self.a, self.b = (held[name].astype(np.float32) for name in "ab")
        return {"version": version("alibi-detect")}

    def test(self, name: str, permutations: int) -> dict[str, Any]:
        """p of every pair, and the seconds of all."""
        torch.manual_seed(0)
        start = time.perf_counter()
        p = [getattr(self, name)(a, b, permutations) for a, b in zip(self.a, self.b)]
        return {"p": p, "seconds": time.perf_counter() - start}

    def mmd(self, a: np.ndarray, b: np.ndarray, permutations: int) -> float:
        detector = MMDDrift(a, backend="pytorch", n_permutations=permutations, device="cpu")
        return float(detector.predict(b)["data"]["p_val"])

    def ks(self, a: np.ndarray, b: np.ndarray, permutations: int) -> float:
        """Every feature on its own, corrected after Bonferroni: p times their number."""
        p = KSDrift(a).predict(b)["data"]["p_val"]
        return float(min(1.0, p.min() * p.size))

    def c2st(self, a: np.ndarray, b: np.ndarray, permutations: int) -> float:
        """A logistic regression, and the Kolmogorov–Smirnov test of its scores on items that it was not fitted on."""
        model = LogisticRegression(max_iter=1000)
        detector = ClassifierDrift(a, model, backend="sklearn", preds_type="probs", n_folds=FOLDS, seed=0)
        return float(detector.predict(b)["data"]["p_val"])


if __name__ == "__main__":
    detectors = Detectors()
    serve({"load": detectors.load, "test": detectors.test})
