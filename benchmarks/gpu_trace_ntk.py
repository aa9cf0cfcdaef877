"""Exact trace-NTK of ResNet-18 for 32x32 inputs on one CUDA device: speed and error of every precision, extrapolated.

Times are wall clock with the device synchronised. Seconds follow `features · n + product · n²` for the symmetric kernel,
fitted over several n, and `features · (n + m) + cross · n m` for the rectangular one; the whole training set's kernel and
its test rows follow from these. Errors are relative, on a block whose float64 kernel is computed on the device too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ntkscope as ns
from benchmarks import machine, networks
from benchmarks.networks import relative_error
from benchmarks.outcome import Check, Outcome, table, write

PRECISIONS = ("exact", "tf32", "bf16", "fp16")
SIZES = (2048, 4096, 8192)
TRAIN, TEST = 50_000, 10_000
BLOCK = 64
TOLERANCE, MINUTES = 2e-3, 15.0


def kernel(model: nn.Module, x1: Tensor, x2: Tensor | None, precision: str, memory: str) -> ns.Gram:
    """The one place that names the engine's speed options."""
    return ns.kernel("trntk0", model, x1, x2, precision=precision, memory=memory)


def float64_block(model: nn.Module, x: Tensor) -> Tensor:
    """The kernel of `x` in float64, held to the naive one on its first four inputs."""
    K = ns.kernel("trntk0", model, x, dtype=torch.float64).dense()
    error = relative_error(K[:4, :4], networks.oracle_trace_ntk(model, x[:4]))
    if error > 1e-10:
        raise ArithmeticError(f"the float64 kernel is {error:.2g} off the naive one; expected ≤ 1e-10")
    return K


def seconds_of(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Cost:
    """Seconds a sample (features), a pair of the symmetric kernel (of n²), a pair of a rectangular one, a byte written."""

    features: float
    pair: float
    cross_pair: float
    byte: float

    def parts(self, train: int, test: int) -> dict[str, float]:
        """Seconds of K(train, train) and K(test, train), features of both calls computed anew, results in float32.

        >>> Cost(1e-3, 1e-7, 1e-7, 1e-9).parts(1000, 100)["features"]
        2.1
        """
        return {
            "features": self.features * (train + train + test),
            "symmetric products": self.pair * train**2,
            "rectangular products": self.cross_pair * train * test,
            "writing": self.byte * 4 * train * (train + test),
        }


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Least squares `seconds = a n + b n²`, neither below zero.

    >>> a, b = fit([1, 2, 4], [3.0, 10.0, 36.0])
    >>> round(a, 6), round(b, 6)
    (1.0, 2.0)
    """
    n, t = np.asarray(sizes, float), np.asarray(seconds, float)
    a, b = np.linalg.lstsq(np.stack([n, n**2], 1), t, rcond=None)[0]
    if a < 0:
        return 0.0, float((n**2 @ t) / (n**2 @ n**2))
    if b < 0:
        return float((n @ t) / (n @ n)), 0.0
    return float(a), float(b)


def write_seconds(K: Tensor, folder: Path) -> float:
    """Seconds a byte to bring the kernel to the host and to disk, forced out of the page cache."""

    def save() -> None:
        path = folder / "K.npy"
        with path.open("wb") as file:
            np.save(file, K.cpu().numpy())
            file.flush()
            os.fsync(file.fileno())
        path.unlink()

    return seconds_of(save) / (K.numel() * K.element_size())


def measure(
    model: nn.Module, x: Tensor, precision: str, sizes: Sequence[int], memory: str, K64: Tensor
) -> dict[str, Any]:
    """One precision: error on the block, seconds at every size, the share of every layer, the extrapolation."""
    block = len(K64)
    error = relative_error(kernel(model, x[:block], None, precision, memory).dense(), K64)
    largest = float(((kernel(model, x[:block], None, precision, memory).dense() - K64) / K64).abs().max())
    torch.cuda.reset_peak_memory_stats()
    seconds = [seconds_of(partial(kernel, model, x[:n], None, precision, memory)) for n in sizes]
    K = kernel(model, x[: sizes[-1]], None, precision, memory)
    features, pair = fit(sizes, seconds)
    half = sizes[-1] // 2
    crossing = seconds_of(lambda: kernel(model, x[:half], x[half : 2 * half], precision, memory))
    cross_pair = max(0.0, crossing - features * 2 * half) / half**2
    with tempfile.TemporaryDirectory() as scratch:
        byte = write_seconds(K.dense(), Path(scratch))
    cost = Cost(features, pair, cross_pair, byte)
    parts = cost.parts(TRAIN, TEST)
    layers: Mapping[str, float] = K.coverage.seconds if K.coverage is not None else {}
    return {
        "precision": precision,
        "relative error": error,
        "largest entry's relative error": largest,
        "seconds": dict(zip(map(str, sizes), seconds)),
        "rectangular seconds": {f"{half}x{half}": crossing},
        "cost": cost,
        "extrapolated parts": parts,
        "extrapolated minutes": sum(parts.values()) / 60,
        "layers": dict(sorted(layers.items(), key=lambda item: -item[1])),
        "roads": dict(K.coverage.roads) if K.coverage is not None else {},
        "peak device GiB": torch.cuda.max_memory_allocated() / 2**30,
    }


def run(quick: bool = False, *, memory: str = "80GiB") -> Outcome:
    """Every precision on the one device there is."""
    if not torch.cuda.is_available():
        raise SystemExit("gpu_trace_ntk needs a CUDA device and found none; run it where torch.cuda.is_available()")
    sizes = tuple(n // 16 for n in SIZES) if quick else SIZES
    x, source = networks.images("cifar10", max(sizes))
    model = ns.models.build("resnet18").eval().cuda()
    x = x.cuda()
    K64 = float64_block(model, x[:BLOCK])
    kernel(model, x[: sizes[0]], None, "exact", memory)
    results = [measure(model, x, precision, sizes, memory, K64) for precision in PRECISIONS]
    good = [r for r in results if r["relative error"] <= TOLERANCE]
    best = min(good, key=lambda r: r["extrapolated minutes"], default=None)
    rows = [
        {
            "precision": r["precision"],
            "relative error": f"{r['relative error']:.1e}",
            f"seconds, {sizes[-1]:,} inputs": r["seconds"][str(sizes[-1])],
            "ms a sample": 1e3 * r["cost"].features,
            "µs a pair": 1e6 * r["cost"].pair,
            **{f"min {part}": seconds / 60 for part, seconds in r["extrapolated parts"].items()},
            "minutes in all": r["extrapolated minutes"],
        }
        for r in results
    ]
    check = Check(
        f"ResNet-18, 10 outputs, {TRAIN:,} × ({TRAIN:,} symmetric + {TEST:,}), extrapolated from {sizes[-1]:,}²",
        f"≤ {MINUTES:g} min at relative error ≤ {TOLERANCE:g}",
        "no precision is that good"
        if best is None
        else f"{best['extrapolated minutes']:.1f} min ({best['precision']})",
        None if quick else best is not None and best["extrapolated minutes"] <= MINUTES,
    )
    title = f"Exact trace-NTK of ResNet-18 (32×32, 10 outputs) on {torch.cuda.get_device_name()}"
    return Outcome(title, rows, [check], details={"source": source, "results": results, "memory": memory})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_trace_ntk", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--memory", default="80GiB")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args()
    start = time.perf_counter()
    outcome = run(options.quick, memory=options.memory)
    path = write("gpu_trace_ntk", outcome, machine.describe(), time.perf_counter() - start, options.out)
    print(table(outcome.rows), *(f"{c.what}: {c.measured}: {c.verdict}" for c in outcome.checks), path, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
