"""Feature matrices of all layers of ResNet-20 against as many plain backward passes as it has outputs.

The plain passes are what a user would write: for each batch one forward pass, and for each output `backward()` of its sum, with
the graph kept and gradients of all weights accumulated. Ours is the whole call: probe, forward passes, cotangents,
covariances of all layers and of the input, and the checks against autograd. Memory is read in a fresh process, as in `memory`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

import ntkscope as ns
from benchmarks import networks
from benchmarks.machine import ROOT, THREADS
from benchmarks.memory import MIB, resident, settled
from benchmarks.outcome import Check, Outcome
from benchmarks.timing import interleaved, ratio, wall

NETWORK, SIZE, QUICK, BATCH = "resnet20", 10_000, 32, 128
SLOWER, ABOVE = 1.2, 1024


def plain_passes(model: nn.Module, x: Tensor) -> None:
    """One backward pass per output over all inputs, and the forward passes they need."""
    for batch in x.split(BATCH):
        outputs = model(batch)
        for k in range(outputs.shape[1]):
            outputs[:, k].sum().backward(retain_graph=True)
        model.zero_grad(set_to_none=True)


def measure(n: int, memory: str) -> dict[str, Any]:
    """One call in this process; bytes before and at most during."""
    torch.set_num_threads(THREADS)
    case = networks.case(NETWORK, n)
    x = case.x.clone()
    before, start = settled(), time.perf_counter()
    fm = ns.feature_matrices(case.model, x, memory=memory)
    seconds, peak = time.perf_counter() - start, resident("VmHWM")
    return {"before": before, "peak": peak, "seconds": seconds, "layers": len(fm)}


def in_fresh_process(n: int, memory: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.feature_matrices", str(n), memory]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def run(quick: bool = False, n: int | None = None, rounds: int = 2) -> Outcome:
    """All layers and the input of ResNet-20, ten outputs."""
    torch.set_num_threads(THREADS)
    n = n or (QUICK if quick else SIZE)
    case = networks.case(NETWORK, n)
    few = case.x[: min(n, BATCH)]
    plain_passes(case.model, few)  # once, to warm up
    ns.feature_matrices(case.model, few)
    kept: list[ns.tangent.FeatureMatrices] = []

    def ours() -> None:
        kept[:] = [ns.feature_matrices(case.model, case.x, memory="1GiB")]

    candidates = {"feature matrices": wall(ours), "plain passes": wall(lambda: plain_passes(case.model, case.x))}
    seconds = interleaved(candidates, rounds=1 if quick else rounds)
    slower = ratio(seconds["feature matrices"], seconds["plain passes"])
    seen = in_fresh_process(n, "1GiB")
    above = (seen["peak"] - seen["before"]) / MIB
    fm = kept[0]
    covariances = sum(layer.seconds for name, layer in fm.items() if name != "input")
    rows = [
        {
            "inputs": f"{n:,}",
            "layers": len(fm),
            "seconds": seconds["feature matrices"],
            "of it K": covariances,
            "of it the input's AGOP": fm["input"].seconds,
            "of it checks": fm.certificate.seconds,
            "ten plain backward passes": seconds["plain passes"],
            "times as long": slower,
            "MiB above model and data": round(above),
        }
    ]
    what = f"feature matrices of {NETWORK}, {n:,} inputs, ten outputs"
    checks = [
        Check(f"{what}: time of ten plain backward passes", f"≤ {SLOWER:g}×", f"{slower.median:.2f}×",
              None if quick else slower.median <= SLOWER),
        Check(f"{what}: memory above model and data", f"≤ {ABOVE} MiB", f"{above:.0f} MiB", above <= ABOVE),
    ]  # fmt: skip
    notes = [f"{case.source}; {fm.certificate}."]
    details = {name: {"seconds": layer.seconds, "positions": layer.positions} for name, layer in fm.items()}
    return Outcome(f"Feature matrices of all layers, {THREADS} cores, float32", rows, checks, notes, details)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2])))
