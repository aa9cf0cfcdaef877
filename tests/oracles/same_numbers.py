"""`python -m oracles.same_numbers write|compare FILE`: kernels of forty fixed networks, before and after a change.

Run from the root with PYTHONPATH=src:tests. `compare` prints the largest relative difference of every network, and exits with 1
where one is beyond 1e-12 (of the largest entry) in float64 or a network that had a kernel has none any more.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch

import ntkscope as ns
from ntkscope.core import NtkscopeError
from oracles.against import options_for
from zoo.catalogue import CASES

COUNT = 40
KERNELS = tuple(ns.KERNELS)
LARGEST = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-5}


def chosen() -> list[str]:
    """Forty networks, evenly from all families, float64 parameters, no options of their own."""
    names = sorted((case.family, name) for name, case in CASES.items() if case.expect == "exact" and not case.options)
    return [names[k * len(names) // COUNT][1] for k in range(COUNT)]


def numbers() -> dict[str, np.ndarray]:
    torch.set_num_threads(1)
    found: dict[str, np.ndarray] = {}
    for name in chosen():
        for kernel in KERNELS:
            for where in ("memory", "store"):
                model, x = CASES[name].make()
                try:
                    options = options_for(kernel, model)
                    with tempfile.TemporaryDirectory() as folder:
                        place = {"store": Path(folder) / "store"} if where == "store" else {}
                        found[f"{name} | {kernel} | {where}"] = ns.kernel(kernel, model, x, **options, **place).numpy()
                except (NtkscopeError, IndexError):  # refused, or no affine layer to name
                    continue
    return found


def main(verb: str, file: str) -> int:
    warnings.simplefilter("ignore")
    now = numbers()
    if verb == "write":
        np.savez(file, **now)
        print(f"{len(now)} kernels of {COUNT} networks written to {file}")
        return 0
    before = dict(np.load(file))
    worst, lost = 0.0, sorted(set(before) - set(now))
    bad = list(lost)
    for key in sorted(set(before) & set(now)):
        old, new = before[key], now[key]
        if old.shape != new.shape or old.dtype != new.dtype:
            bad.append(key)
            continue
        difference = float(np.abs(old.astype(float) - new).max() / (np.abs(old).max() or 1.0))
        worst = max(worst, difference if old.dtype == np.float64 else 0.0)
        if difference > LARGEST.get(old.dtype, 1e-2):
            bad.append(f"{key}: {difference:.1e}")
    same = sum(np.array_equal(before[key], now[key]) for key in set(before) & set(now))
    print(
        f"{len(before)} kernels before, {len(now)} now, {same} bit for bit; largest difference in float64 {worst:.1e}"
    )
    print("\n".join(f"differs: {name}" for name in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
