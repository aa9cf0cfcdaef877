"""weightwatcher's analysis of one weight matrix, and powerlaw's exponent; runs in its own environment, with our torch."""

from __future__ import annotations

import time
import warnings
from importlib.metadata import version
from typing import Any

import numpy as np
import powerlaw
import torch
import weightwatcher

from benchmarks.peers import THREADS, serve


class Matrices:
    """The matrices of a file, as layers without bias."""

    def load(self, file: str) -> dict[str, Any]:
        torch.set_num_threads(THREADS)
        self.arrays = dict(np.load(file))
        return {"versions": {name: version(name) for name in ("weightwatcher", "powerlaw")}}

    def analyze(self, name: str) -> dict[str, Any]:
        """The whole analysis with default settings, and how long it took."""
        array = self.arrays[name]
        layer = torch.nn.Linear(array.shape[1], array.shape[0], bias=False)
        layer.weight.data = torch.from_numpy(array).float()
        model = torch.nn.Sequential(layer)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            details = weightwatcher.WeightWatcher(model=model).analyze(min_evals=10)
        seconds = time.perf_counter() - start
        row = details.iloc[0].to_dict() if len(details) else {}
        kept = {key: row.get(key) for key in ("alpha", "xmin", "num_spikes", "warning")}
        return {"seconds": seconds, **{key: _plain(value) for key, value in kept.items()}}

    def exponent(self, name: str, x_min: float) -> dict[str, Any]:
        """powerlaw's exponent of a sample at a given threshold, as it comes (some versions clip it at 3) and without bounds."""
        sample = self.arrays[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = powerlaw.Fit(sample, xmin=x_min, verbose=False)
        return {"alpha": float(plain.power_law.alpha)}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | None) else float(value)


if __name__ == "__main__":
    matrices = Matrices()
    serve({"load": matrices.load, "analyze": matrices.analyze, "exponent": matrices.exponent})
