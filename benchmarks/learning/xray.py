"""What an X-ray costs: seconds of the processor, by the clock, and the size of its page; the code as it is, or beside another.

    python -m benchmarks xray [--quick]
    python -m benchmarks.learning.xray --beside OTHER/src [--threads 1] [--rounds 1]

"demo" is `ntkscope xray --demo`, "own" a CNN of 78,431 parameters on 3,000 training and 1,000 test images of MNIST, 4 % of the
labels wrong, without a limit of time. Every X-ray is a process of its own, those of both checkouts in turn.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn

import ntkscope as ns
from benchmarks import machine
from benchmarks.outcome import Check, Outcome, table, write
from benchmarks.timing import Spread, interleaved, ratio
from ntkscope.core import Part, generator

ROOT = Path(__file__).parents[2]
HALF = 2.0
TRAIN, TEST, WRONG = 3000, 1000, 120
OWN = "benchmarks.learning.xray"


def network() -> nn.Module:
    """Two convolutions and two dense layers."""
    sides = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    sides += [nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*sides, nn.Flatten(), nn.Linear(24 * 49, 63), nn.ReLU(), nn.Linear(63, 10))


def items() -> tuple[Part, Part]:
    """The images; the labels of some training images are those of others."""
    split, draw = ns.data.load("mnist"), generator(0, "benchmarks", "xray")
    train, test = (
        part.take(torch.randperm(len(part), generator=draw)[:n])
        for part, n in ((split.train, TRAIN), (split.test, TEST))
    )
    y = train.y.clone()
    y[:WRONG] = (y[:WRONG] + torch.randint(1, 10, (WRONG,), generator=draw)) % 10
    return Part(train.x, y), test


def trained(folder: Path) -> list[str]:
    """Train the network; the arguments that name it."""
    torch.manual_seed(0)
    model = network()
    initial = copy.deepcopy(model)
    settings = ns.training.Settings(optimizer="adam", lr=1e-3, loss="cross_entropy", batch_size=64, epochs=10, seed=0)
    ns.training.fit(model, items()[0], settings).final()
    paths = [folder / "weights.safetensors", folder / "initial.safetensors"]
    for state, path in zip((model, initial), paths):
        ns.models.save_weights(state, path)
    named = ["--model", f"{OWN}:network", "--weights", str(paths[0]), "--initial-weights", str(paths[1])]
    return [*named, "--data", f"{OWN}:items", "--time", "none"]


def xray(source: Path, arguments: list[str], out: Path, threads: int) -> dict[str, float]:
    """One X-ray by the package in `source`."""
    places = {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "ntkscope", "xray", *arguments, "--out", str(out)]
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, env={**os.environ, **places}, cwd=out.parent, check=True, stdout=subprocess.DEVNULL)
    after, seconds = os.times(), time.perf_counter() - start
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return {"processor": spent, "clock": seconds, "page": (out / "page.html").stat().st_size / 2**20}


def run(quick: bool = False, beside: Path | None = None, threads: int = 1, rounds: int = 1) -> Outcome:
    """Both X-rays; `beside`: the `src` of another checkout."""
    sources = {"now": ROOT / "src"} | ({} if beside is None else {"beside": beside.resolve()})
    rows, checks, details = [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        cases = {"demo": ["--demo"]} | ({} if quick else {"own": trained(Path(folder))})
        for case in cases:
            found: dict[str, list[dict[str, float]]] = {name: [] for name in sources}

            def timed(name: str, case: str, found: dict[str, list[dict[str, float]]]) -> float:
                out = Path(folder) / f"{case}-{name}-{len(found[name])}"
                found[name].append(xray(sources[name], cases[case], out, threads))
                return found[name][-1]["processor"]

            times = interleaved({name: partial(timed, name, case, found) for name in sources}, rounds=rounds)
            for name in sources:
                clock = Spread(tuple(one["clock"] for one in found[name]))
                page = found[name][-1]["page"]
                rows.append(
                    {
                        "X-ray": case,
                        "of": name,
                        "processor, s": str(times[name]),
                        "clock, s": str(clock),
                        "page, MiB": page,
                    }
                )
            if beside is not None:
                faster = ratio(times["beside"], times["now"])
                what, holds = f"{case}: processor time of the other ÷ of this", faster.median >= HALF
                checks.append(Check(what, f"≥ {HALF:g}", str(faster), holds))
            details[case] = found
    return Outcome("What an X-ray costs", rows, checks, [f"{threads} thread(s)"], details)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/bench")
    chosen = parser.parse_args()
    here, start = machine.describe(), time.perf_counter()
    outcome = run(chosen.quick, chosen.beside, chosen.threads, chosen.rounds)
    write("xray", outcome, here, time.perf_counter() - start, chosen.out)
    print(table(outcome.rows), *(f"{c.what}: {c.target}, {c.measured}: {c.verdict}" for c in outcome.checks), sep="\n")
