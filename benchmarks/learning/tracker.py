"""What a tracker costs: training with `ns.Tracker` at its defaults against the same training without it.

LeNet on MNIST and ResNet-20 on CIFAR-10, batches of 64, SGD with momentum, a probe of 256 items. Both runs start from the same
weights and see the same batches; they are interleaved, and their final weights (BatchNorm's buffers included) are compared bit
for bit. On a CUDA device with `--device cuda`.

    python -m benchmarks tracker [--quick]
    python -m benchmarks.learning.tracker --device cuda [--quick] [--rounds 5]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ntkscope as ns
from benchmarks.outcome import Check, Outcome, table
from benchmarks.timing import Timed, interleaved, ratio
from ntkscope.core import Part, generator
from ntkscope.core.errors import DataNotFound

WITH, WITHOUT = "with", "without"
TARGET, PROBE, BATCH, RATE, MOMENTUM = 1.07, 256, 64, 0.02, 0.9
STEPS = {"lenet": 8000, "resnet20": 700}  # about a minute each on two cores
QUICK = {"lenet": 60, "resnet20": 6}
ON_DEVICE = {"lenet": 30_000, "resnet20": 6000}
DATA = {"lenet": ("mnist", (1, 28, 28)), "resnet20": ("cifar10", (3, 32, 32))}


@dataclass(frozen=True, eq=False)
class Task:
    """A network's name, what it is trained on, what it is measured on, and for how many steps."""

    name: str
    train: Part
    probe: Part
    source: str
    steps: int
    device: str


def task(name: str, steps: int, device: str) -> Task:
    """Real data where `$NTKSCOPE_DATA` has it, else noise of the same shape."""
    data, shape = DATA[name]
    items = min(10_000, 64 + BATCH * steps)
    try:
        split = ns.data.load(data)
        return Task(name, split.train.take(range(items)), split.test.take(range(PROBE)).to(device), data, steps, device)
    except DataNotFound:
        draw = generator(0, "benchmarks", "tracker")
        x, y = torch.randn(items + PROBE, *shape, generator=draw), torch.arange(items + PROBE) % 10
        noise = Part(x, y)
        some = (noise.take(range(items)), noise.take(range(items, items + PROBE)).to(device))
        return Task(name, *some, f"noise of {data}'s shape", steps, device)


def trained(what: Task, tracked: Path | None) -> tuple[float, dict[str, Tensor]]:
    """Seconds of one training run, the tracker's own start and end included; and what it left."""
    model = ns.models.build(what.name).to(what.device)
    if what.device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    tracker = None if tracked is None else ns.Tracker(model, what.probe, tracked, total=what.steps)
    ns.training.fit(
        model,
        what.train,
        lr=RATE,
        momentum=MOMENTUM,
        batch_size=BATCH,
        steps=what.steps,
        device=what.device,
        measure=False,
        snapshots="final",
        on_step=None if tracker is None else tracker.on_step,
    ).final()
    if tracker is not None:
        tracker.close()
    if what.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start, {name: value.cpu() for name, value in model.state_dict().items()}


def compare(what: Task, rounds: int) -> tuple[dict[str, Any], list[Check], dict[str, Any]]:
    """Row, checks and details of one network."""
    left: dict[str, Mapping[str, Tensor]] = {}
    moments: list[dict[str, Any]] = []

    def timed(kind: str) -> Timed:
        def once() -> float:
            with tempfile.TemporaryDirectory() as folder:
                record = Path(folder) / "run" if kind == WITH else None
                seconds, left[kind] = trained(what, record)
                if record is not None:
                    moments[:] = list(ns.Record.open(record).series("moments"))
            return seconds

        return once

    times = interleaved({kind: timed(kind) for kind in (WITHOUT, WITH)}, rounds=rounds)
    overhead = ratio(times[WITH], times[WITHOUT])
    same = all(torch.equal(value, left[WITHOUT][name]) for name, value in left[WITH].items())
    row = {
        "network": what.name,
        "data": what.source,
        "device": what.device,
        "steps": what.steps,
        "without, s": str(times[WITHOUT]),
        "with, s": str(times[WITH]),
        "with ÷ without": str(overhead),
        "moments": len(moments),
        "items": f"{min(m['probe_items'] for m in moments)}–{max(m['probe_items'] for m in moments)}",
        "weights": "same bits" if same else "differ",
    }
    checks = [
        Check(
            f"{what.name}: wall time with a tracker ÷ without",
            f"≤ {TARGET}",
            f"{overhead.median:.3f}",
            overhead.median <= TARGET,
        ),
        Check(f"{what.name}: final weights", "equal to the bit", "same bits" if same else "differ", same),
    ]
    return row, checks, {"times": times, "ratio": overhead, "moments": moments}


def run(quick: bool = False, device: str = "cpu", rounds: int | None = None) -> Outcome:
    """Both networks."""
    sizes = QUICK if quick else STEPS if device == "cpu" else ON_DEVICE
    rows, checks, details = [], [], {}
    for name, steps in sizes.items():
        row, found, more = compare(task(name, steps, device), rounds or (1 if quick else 5))
        rows.append(row)
        checks += [Check(c.what, c.target, c.measured, None) if quick and "wall" in c.what else c for c in found]
        details[name] = more
    notes = [
        f"Tracker at its defaults: weights, ck, trntk and alignment, LogSpaced(60), overhead 0.05; probe of {PROBE} items."
    ]
    return Outcome("Training with a tracker against without", rows, checks, notes, details)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    chosen = parser.parse_args()
    outcome = run(chosen.quick, chosen.device, chosen.rounds)
    print(table(outcome.rows), *(f"{c.what}: {c.target}, {c.measured}: {c.verdict}" for c in outcome.checks), sep="\n")
    raise SystemExit(any(check.holds is False for check in outcome.checks))
