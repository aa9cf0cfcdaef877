"""xrfm's RFM in its own environment: fitted at given settings, or at the ones that its validation set prefers."""

from __future__ import annotations

import math
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor
from xrfm.rfm_src import RFM
from xrfm.rfm_src.class_conversion import ClassificationConverter

from benchmarks.learning.grid import Place, downhill
from benchmarks.peers import THREADS, serve

BANDWIDTHS = tuple(10.0 * 4.0**k for k in range(-3, 6))  # its default is 10
RIDGES = tuple(1e-3 * 100.0**k for k in range(-4, 3))  # its default is 1e-3
DEFAULTS = (3, 4)
ITERATIONS = 5  # its default
HELD_OUT = 0.2  # its default


def problem(path: str, dtype: str = "float64") -> tuple[Tensor, Tensor, Tensor]:
    """Training inputs, targets (n, outputs) and test inputs of a file."""
    with np.load(path, allow_pickle=False) as file:
        x, y, x_test = (torch.from_numpy(file[name]).to(getattr(torch, dtype)) for name in ("x", "y", "x_test"))
    return x, y, x_test


def fit(path: str, bandwidth: float, ridge: float, iterations: int, dtype: str) -> dict[str, Any]:
    """Seconds of `fit`, the metric and the predictions after exactly so many iterations."""
    x, y, x_test = problem(path, dtype)
    machine = RFM("l2", iters=iterations, bandwidth=bandwidth, device="cpu", verbose=False)
    start = time.perf_counter()
    # It needs something to validate on: two points, so that this costs it nothing.
    machine.fit((x, y), (x[:2], y[:2]), iters=iterations, reg=ridge, return_best_params=False, early_stop_rfm=False)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "predictions": machine.predict(x_test).double().tolist()}


Candidate = tuple[float, str, RFM]


def candidate(parts: tuple[Tensor, ...], classes: int, place: Place) -> Candidate:
    """A setting with its error on the validation set, the iteration chosen by the machine itself; infinite if the fit fails."""
    x, y, x_val, y_val = parts
    metric = "accuracy" if classes else "mse"
    bandwidth, ridge = BANDWIDTHS[place[0]], RIDGES[place[1]]
    machine = RFM("l2", iters=ITERATIONS, bandwidth=bandwidth, device="cpu", verbose=False, tuning_metric=metric)
    if classes:
        machine.class_converter = ClassificationConverter(mode="zero_one", n_classes=classes)
    try:
        machine.fit((x, y), (x_val, y_val), iters=ITERATIONS, reg=ridge)
        score = float(machine.score(x_val, y_val, [metric])[metric])
    except torch.linalg.LinAlgError:
        score = math.nan
    setting = f"bandwidth {bandwidth:g}, ridge {ridge:g}, iteration {machine.best_iter}"
    return math.inf if math.isnan(score) else -score if classes else score, setting, machine


def select(path: str, classes: int, seed: int) -> dict[str, Any]:
    """Predictions of the setting with the least error on a fifth of the training points, which are not fitted."""
    x, y, x_test = problem(path)
    start = time.perf_counter()
    mean, scale = (0.0, 1.0) if classes else (y.mean(0), y.std(0))
    y = (y - mean) / scale
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    held = int(HELD_OUT * len(x))
    val, train = order[:held], order[held:]
    parts = x[train], y[train], x[val], y[val]
    tried: dict[Place, Candidate] = {}

    def error(place: Place) -> float:
        tried[place] = candidate(parts, classes, place)
        return tried[place][0]

    _, setting, machine = tried[downhill(error, DEFAULTS, (len(BANDWIDTHS), len(RIDGES)))]
    seconds = time.perf_counter() - start
    predictions = machine.predict(x_test) * scale + mean
    return {"seconds": seconds, "setting": setting, "predictions": predictions.tolist()}


def about() -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    return {"version": version("xrfm"), "threads": torch.get_num_threads()}


if __name__ == "__main__":
    serve({"about": about, "fit": fit, "select": select})
