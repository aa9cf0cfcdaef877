"""Feature matrices of all layers of ResNet-20 against as many plain backward passes as it has outputs.

The plain passes are what a user would write: for each batch one forward pass, and for each output `backward()` of its sum, with
the graph kept and gradients of all weights accumulated. Ours is the whole call over all inputs: probe, forward passes,
cotangents, covariances of all layers and of the input, and the checks against autograd; in a fresh process whose memory is read
as in `memory`. Plain passes cost the same for every batch, so they are timed on some slices of the inputs, taken from all over
them, and their seconds scaled to all inputs. On the same slices, in turn, ours and passes that stop short of the weights.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ntkscope as ns
from benchmarks import networks
from benchmarks.kernels.memory import MIB, resident, settled
from benchmarks.machine import ROOT, THREADS
from benchmarks.outcome import Check, Outcome
from benchmarks.timing import Spread, interleaved, ratio, wall

NETWORK, SIZE, SLICES, SLICE, BATCH, MEMORY = "resnet20", 10_000, 3, 500, 125, "1GiB"
QUICK_SIZE, QUICK_SLICES, QUICK_SLICE = 32, 1, 16
SLOWER, ABOVE = 1.2, 1024
HELD = 192  # MiB that loading leaves behind
WRITE = f"""\
import sys
import numpy as np
from safetensors.torch import save_file
from benchmarks import networks
case = networks.case("{NETWORK}", int(sys.argv[1]))
np.save(sys.argv[2], case.x.numpy())
save_file(case.model.state_dict(), sys.argv[3])
"""
"""Inputs are cut from the data set by another process: the allocator may hold on to the rest of it."""


def plain_passes(model: nn.Module, x: Tensor) -> None:
    """One backward pass per output over all inputs, and the forward passes they need."""
    for batch in x.split(BATCH):
        outputs = model(batch)
        for k in range(outputs.shape[1]):
            outputs[:, k].sum().backward(retain_graph=True)
        model.zero_grad(set_to_none=True)


def passes_to_the_input(model: nn.Module, x: Tensor) -> None:
    """The same passes for gradients by the input alone, as autograd computes them; the weights' are half of the work."""
    model.requires_grad_(False)
    for batch in x.split(BATCH):
        leaf = batch.clone().requires_grad_()
        outputs = model(leaf)
        for k in range(outputs.shape[1]):
            torch.autograd.grad(outputs[:, k].sum(), leaf, retain_graph=True)
    model.requires_grad_(True)


def slices(n: int, count: int, width: int) -> list[slice]:
    """`count` slices of `width` inputs, spread evenly over n.

    >>> slices(10, 2, 3)
    [slice(0, 3, None), slice(7, 10, None)]
    """
    if not 0 < count * width <= n:
        raise ValueError(f"got {count} slices of {width}; expected at least one, and no more than all {n} inputs")
    starts = [round(k * (n - width) / max(1, count - 1)) for k in range(count)]
    return [slice(start, start + width) for start in starts]


def measure(n: int) -> dict[str, Any]:
    """One call in this process; bytes before and at most during."""
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        inputs, weights = Path(folder) / "inputs.npy", Path(folder) / "weights.safetensors"
        subprocess.run([sys.executable, "-c", WRITE, str(n), str(inputs), str(weights)], cwd=ROOT, check=True)
        imported = settled()
        model = ns.models.load_weights(ns.models.build(NETWORK), weights).eval().requires_grad_(True)
        x = torch.from_numpy(np.load(inputs))
    before = settled()
    held = (before - imported - x.numel() * x.element_size()) / MIB
    if held > HELD:
        raise RuntimeError(
            f"{held:.0f} MiB beyond the inputs are resident, expected at most {HELD}: the allocator holds on to what was freed,"
            " and the peak would be understated; run it again"
        )
    start = time.perf_counter()
    fm = ns.feature_matrices(model, x, memory=MEMORY)
    seconds, peak = time.perf_counter() - start, resident("VmHWM")
    layers = {name: {"seconds": layer.seconds, "positions": layer.positions} for name, layer in fm.items()}
    checks = {"seconds": fm.certificate.seconds, "said": str(fm.certificate)}
    return {"before": before, "peak": peak, "seconds": seconds, "layers": layers, "checks": checks}


def in_fresh_process(n: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.kernels.feature_matrices", str(n)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def side_by_side(model: nn.Module, x: Tensor, chosen: list[slice]) -> dict[str, Spread]:
    """Seconds of every candidate, one round per slice."""
    few = x[: min(len(x), 16)]
    plain_passes(model, few)  # once, to warm up
    passes_to_the_input(model, few)
    ns.feature_matrices(model, few, memory=MEMORY)
    rounds = {name: iter(chosen) for name in ("ours", "plain", "input")}
    candidates = {
        "ours": wall(lambda: ns.feature_matrices(model, x[next(rounds["ours"])], memory=MEMORY)),
        "plain": wall(lambda: plain_passes(model, x[next(rounds["plain"])])),
        "input": wall(lambda: passes_to_the_input(model, x[next(rounds["input"])])),
    }
    return interleaved(candidates, rounds=len(chosen))


def run(quick: bool = False) -> Outcome:
    """All layers and the input of ResNet-20, ten outputs."""
    torch.set_num_threads(THREADS)
    n, count, width = (QUICK_SIZE, QUICK_SLICES, QUICK_SLICE) if quick else (SIZE, SLICES, SLICE)
    case = networks.case(NETWORK, n)
    seconds = side_by_side(case.model, case.x, slices(n, count, width))
    whole = in_fresh_process(n)
    above = (whole["peak"] - whole["before"]) / MIB
    plain = Spread(tuple(s * n / width for s in seconds["plain"].values))
    slower = Spread(tuple(whole["seconds"] / s for s in plain.values))
    covariances = sum(layer["seconds"] for name, layer in whole["layers"].items() if name != "input")
    rows = [
        {
            "inputs": f"{n:,}",
            "layers": len(whole["layers"]),
            "seconds": whole["seconds"],
            "of it K": covariances,
            "of it the input's AGOP": whole["layers"]["input"]["seconds"],
            "of it checks": whole["checks"]["seconds"],
            "ten plain backward passes": plain,
            "times as long": slower,
            "MiB above model and data": round(above),
        },
        {
            "inputs": f"{count} × {width}, in turn",
            "seconds": seconds["ours"],
            "ten plain backward passes": seconds["plain"],
            "times as long": ratio(seconds["ours"], seconds["plain"]),
            "ten passes to the input alone": seconds["input"],
            "times as long as those": ratio(seconds["ours"], seconds["input"]),
        },
    ]
    what = f"feature matrices of {NETWORK}, {n:,} inputs, ten outputs"
    checks = [
        Check(f"{what}: time of ten plain backward passes", f"≤ {SLOWER:g}×", f"{slower}×",
              None if quick else slower.high <= SLOWER),
        Check(f"{what}: memory above model and data", f"≤ {ABOVE} MiB", f"{above:.0f} MiB", above <= ABOVE),
    ]  # fmt: skip
    notes = [
        f"{case.source}; {whole['checks']['said']}.",
        f"Ours over all {n:,} inputs is one call; plain passes over them are scaled from {count} slices of {width} inputs.",
        "How much a gradient of weights costs beside one of inputs depends on the processor's convolutions: passes to the"
        " input alone do without the former.",
    ]
    title = f"Feature matrices of all layers, {THREADS} core{'s' * (THREADS > 1)}, float32"
    return Outcome(title, rows, checks, notes, {"whole": whole, "slices": seconds})


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
