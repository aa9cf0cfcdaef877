"""How the cost of the exact trace-NTK grows with the number of inputs: LeNet on MNIST, per-pair cost flat."""

from __future__ import annotations

import torch

from benchmarks import networks
from benchmarks.kernels.trace_ntk import ours
from benchmarks.machine import THREADS
from benchmarks.outcome import Check, Outcome
from benchmarks.timing import interleaved, wall

SIZES = (1000, 2000, 4000, 8000)
FLAT = 1.25  # the largest per-pair cost may exceed that of 1,000 inputs by this factor and still be called flat


def run(quick: bool = False) -> Outcome:
    """Seconds and microseconds a pair (n² of them, symmetry being the engine's own business) at each size."""
    torch.set_num_threads(THREADS)
    sizes = tuple(n // 20 for n in SIZES) if quick else SIZES
    case = networks.case("lenet", max(sizes))
    ours(case, sizes[0])()
    seconds = interleaved({str(n): wall(ours(case, n)) for n in sizes}, rounds=1 if quick else 2)
    per_pair = {n: 1e6 * seconds[str(n)].median / n**2 for n in sizes}
    largest = max(per_pair.values()) / per_pair[sizes[0]]
    return Outcome(
        f"Cost against the number of inputs, LeNet, 10 outputs, {THREADS} cores, float32",
        [{"inputs": n, "seconds": seconds[str(n)], "µs a pair": per_pair[n]} for n in sizes],
        [
            Check(
                f"cost a pair from {sizes[0]:,} to {sizes[-1]:,} inputs",
                f"at most {FLAT}× that of {sizes[0]:,}",
                f"{largest:.2f}×",
                None if quick else largest <= FLAT,
            )
        ],
        details={"source": case.source, "seconds": seconds},
    )
