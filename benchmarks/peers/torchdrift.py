"""torchdrift's detectors on pairs of samples; runs in its own environment, with our torch."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import torchdrift

from benchmarks.peers import THREADS, serve

COMPONENTS = 20


class Detectors:
    """Tests of the pairs in a file: arrays `a` (draws, n, p) and `b` (draws, m, p)."""

    def load(self, file: str) -> dict[str, Any]:
        torch.set_num_threads(THREADS)
        held = dict(np.load(file))
        self.a, self.b = (torch.from_numpy(held[name]).float() for name in "ab")
        return {"version": version("torchdrift")}

    def test(self, name: str, permutations: int) -> dict[str, Any]:
        """p of every pair, and the seconds of all."""
        torch.manual_seed(0)
        start = time.perf_counter()
        p = [getattr(self, name)(a, b, permutations) for a, b in zip(self.a, self.b)]
        return {"p": p, "seconds": time.perf_counter() - start}

    def mmd(self, a: torch.Tensor, b: torch.Tensor, permutations: int) -> float:
        detector = torchdrift.detectors.KernelMMDDriftDetector(n_perm=permutations)
        detector.fit(a)
        return float(detector.compute_p_value(b))

    def ks(self, a: torch.Tensor, b: torch.Tensor, permutations: int) -> float:
        """On principal components of the reference, as its documentation does."""
        reducer = torchdrift.reducers.PCAReducer(n_components=min(COMPONENTS, *a.shape))
        detector = torchdrift.detectors.KSDriftDetector()
        detector.fit(reducer.fit(a))
        return float(detector.compute_p_value(reducer(b)))


if __name__ == "__main__":
    detectors = Detectors()
    serve({"load": detectors.load, "test": detectors.test})
