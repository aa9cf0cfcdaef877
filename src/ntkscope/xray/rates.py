"""Rates: what a kernel, a fit and a decomposition cost on this machine, measured on a few items before anything starts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ntkscope.core import Inputs, Part
from ntkscope.core.calling import call
from ntkscope.core.random import numpy_generator
from ntkscope.core.tree import length
from ntkscope.kernels import kernel
from ntkscope.linalg.sketch import projection_rows

ENOUGH = 0.4  # seconds after which a probe is long enough to believe
MOST = 128  # items a probe takes at most
PROJECTION_BLOCK = 256  # samples for which a projection is drawn once
FIT_STEPS = 500  # products with the kernel that a surrogate's fit is worth, by experience


@dataclass(frozen=True)
class Rates:
    """Seconds: to set the exact kernel up, for a sample, for a pair; for a forward pass; for a multiply-add in float64 and
    float32; to draw one entry of a projection."""

    setup: float
    sample: float
    pair: float
    forward: float
    double: float
    single: float
    draw: float
    parameters: int
    outputs: int


@dataclass(frozen=True)
class Workload:
    """How many training and test items are used, and for how many of each the initial network is looked at."""

    train: int
    test: int
    initial_train: int
    initial_test: int
    classes: int
    rates: Rates

    def products(self, name: str) -> float:
        """Seconds the kernel `name` is expected to take, training and test rows."""
        return kernel_seconds(name, self.train, self.test, self.rates)

    def initial(self) -> float:
        """Seconds for the exact kernel of the initial network on its subset, and its readout's."""
        if not self.initial_train:
            return 0.0
        return kernel_seconds("trntk0", self.initial_train, self.initial_test, self.rates)

    def fit(self) -> float:
        """Seconds of one surrogate's fit."""
        return FIT_STEPS * 2 * self.train**2 * self.classes * self.rates.double

    def decomposition(self, rows: int) -> float:
        """Seconds for the eigenvalues of a matrix with `rows` rows; about 4/3 n³ multiply-adds, in slow pieces."""
        return 3 * min(rows, self.train) ** 3 * self.rates.double


def projection_dim(name: str) -> int:
    """How many numbers a projected gradient keeps: the Johnson-Lindenstrauss error is about 1/√dim."""
    return 256 if name == "proj-trntk" else 1024


def kernel_seconds(name: str, n: int, m: int, rates: Rates) -> float:
    """Seconds for the kernel `name` of n training items, and of m test items with them."""
    pairs = n * n / 2 + n * m
    if name in ("trntk0", "trntk"):
        return 2 * rates.setup + rates.sample * (2 * n + m) + rates.pair * pairs
    if name == "pntk":
        return 2 * rates.setup + (rates.sample * (2 * n + m) + rates.pair * pairs) * 2 / (rates.outputs + 1)
    if name in ("proj-trntk", "proj-pntk"):
        heads, dim = (rates.outputs if name == "proj-trntk" else 1), projection_dim(name)
        blocks = -(-(n + m) // PROJECTION_BLOCK)
        draws = blocks * rates.parameters * dim * rates.draw
        multiply = (n + m) * heads * rates.parameters * dim * rates.single
        gram = 2 * pairs * heads * dim * rates.single
        return rates.setup + rates.sample * (n + m) * heads / rates.outputs + draws + multiply + gram
    return 3 * rates.forward * (n + m) + pairs * 4096 * rates.single


def measure_rates(
    model: nn.Module, x: Inputs, *, device: Any = None, memory: int = 2**31, certify: str | bool = "every"
) -> Rates:
    """Time the exact kernel on 4, 8, 16, … items until that takes a moment, and a few matrix products."""
    total = length(x)
    count = min(4, total)
    while True:
        items = Part(x, torch.zeros(total)).take(torch.arange(count)).x
        costs = _time_kernel(model, items, count, device, memory, certify)
        if sum(costs[1:]) > ENOUGH or count >= min(MOST, total):
            break
        count = min(2 * count, MOST, total)
    again = _time_kernel(
        model, items, count, device, memory, certify
    )  # the smaller of two: others use the machine, too
    setup, each, products = (min(pair) for pair in zip(costs, again))
    start = time.perf_counter()
    with torch.no_grad():
        where = next((p.device for p in model.parameters()), torch.device("cpu"))
        outputs = call(model, Part(items, torch.zeros(count)).to(where).x)
    forward = (time.perf_counter() - start) / count
    return Rates(
        setup=setup,
        sample=each / count,
        pair=products / (count * (count + 1) / 2),
        forward=forward,
        double=_product_rate(np.float64),
        single=_product_rate(np.float32),
        draw=_draw_rate(),
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        outputs=outputs.shape[1] if outputs.ndim == 2 else 1,
    )


def _time_kernel(
    model: nn.Module, x: Inputs, count: int, device: Any, memory: int, certify: str | bool
) -> tuple[float, float, float]:
    """Seconds of one small kernel: setting up, all samples, all pairs."""
    start = time.perf_counter()
    gram = kernel("trntk0", model, x, device=device, memory=memory, profile=True, certify=certify)
    spent = time.perf_counter() - start
    stages = dict(gram.coverage.stages) if gram.coverage is not None else {}
    products = stages.get("products", 0.0) + stages.get("writing", 0.0)
    each = stages.get("harvest", 0.0) + stages.get("features", 0.0) + stages.get("certificate", 0.0)
    return max(0.0, spent - products - each), each, products


def _product_rate(dtype: Any, size: int = 512) -> float:
    """Seconds a multiply-add of a matrix product."""
    matrix = numpy_generator(0, "rates").standard_normal((size, size)).astype(dtype)
    matrix @ matrix
    start = time.perf_counter()
    for _ in range(4):
        matrix @ matrix
    return (time.perf_counter() - start) / 4 / size**3


def _draw_rate(rows: int = 256, columns: int = 512) -> float:
    """Seconds an entry of a random projection."""
    start = time.perf_counter()
    projection_rows(0, "rates", 0, rows, columns, "rademacher", torch.float32, torch.device("cpu"))
    return (time.perf_counter() - start) / (rows * columns)
