"""Whether the same command gives the same X-ray on a busy machine: twenty of one CNN, while 0 to 8 other processes compute.

    python -m benchmarks steady [--quick]

Every ten seconds it is drawn anew how many processes are busy. An X-ray is `ntkscope xray` with `--time`, page included.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks.learning import xray
from benchmarks.outcome import Check, Outcome
from ntkscope.core import Part, generator

RUNS, MOST, EVERY = 20, 8, 10.0  # X-rays, busy processes, seconds between two draws of their number
MINUTES = 5
TRAIN, TEST = 1000, 300
STEADY, OVER = 0.95, 1.1  # share of X-rays that must be alike; of the time that may be used


def items() -> tuple[Part, Part]:
    """Some of the images of the other benchmark, 4 % of the training labels wrong."""
    train, test = xray.items()
    first = xray.WRONG - TRAIN // 25
    return train.take(torch.arange(first, first + TRAIN)), test.take(torch.arange(TEST))


@contextmanager
def busy(seed: int) -> Iterator[list[int]]:
    """Other processes that compute; how many is drawn again and again, and noted in the list."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(MOST)]
    drawn, counts, ended = generator(seed, "benchmarks", "steady"), list[int](), threading.Event()

    def change() -> None:
        while True:
            counts.append(int(torch.randint(0, MOST + 1, (1,), generator=drawn)))
            for place, other in enumerate(others):
                other.send_signal(signal.SIGCONT if place < counts[-1] else signal.SIGSTOP)
            if ended.wait(EVERY):
                return

    changing = threading.Thread(target=change)
    changing.start()
    try:
        yield counts
    finally:
        ended.set()
        changing.join()
        for other in others:
            other.kill()
            other.wait()


def one(number: int, arguments: list[str], folder: Path) -> dict[str, Any]:
    """One X-ray under load: how long it took and what it used."""
    out = folder / f"xray-{number}"
    with busy(number) as counts:
        spent = xray.xray(xray.ROOT / "src", arguments, out, torch.get_num_threads())
    metrics = json.loads((out / "record.json").read_text())["metrics"]
    kernels = [name for name in metrics["plan"]["kernels"] if name not in metrics["left_out"]]
    states = {name: metrics[f"section:{name}"]["status"] for name in metrics["sections"]}
    row = {
        "busy processes": sum(counts) / len(counts),
        "seconds": spent["clock"],
        "items": f"{metrics['plan']['train']} + {metrics['plan']['test']}",
        "kernels": ", ".join(kernels),
        "sections left out": ", ".join(name for name, state in states.items() if state != "done"),
    }
    print(f"  {row}", flush=True)
    return row


def run(quick: bool = False, runs: int | None = None) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        arguments = xray.trained(Path(folder))
        place = arguments.index("--data")
        arguments[place:] = ["--data", "benchmarks.learning.steady:items", "--time", f"{MINUTES}m"]
        rows = [one(number, arguments, Path(folder)) for number in range(runs or (2 if quick else RUNS))]
    alike = Counter((row["items"], row["kernels"]) for row in rows).most_common(1)[0][1]
    longest = max(row["seconds"] for row in rows) / (60 * MINUTES)
    checks = [
        Check(
            "X-rays with the same items and kernels",
            f"≥ {STEADY:.0%}",
            f"{alike} of {len(rows)}",
            alike >= STEADY * len(rows),
        ),
        Check("longest ÷ --time", f"≤ {OVER:g}", f"{longest:.2f}", longest <= OVER),
    ]
    return Outcome("X-rays on a busy machine", rows, checks, figures={"seconds": drawing(rows)})


def drawing(rows: list[dict[str, Any]]) -> Figure:
    """How long each took, by how busy the machine was."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    usual = Counter((row["items"], row["kernels"]) for row in rows).most_common(1)[0][0]
    for mark, said, same in (("o", "the same items and kernels", True), ("x", "others", False)):
        some = [row for row in rows if ((row["items"], row["kernels"]) == usual) is same]
        if some:
            axes.plot(
                [r["busy processes"] for r in some], [r["seconds"] for r in some], mark, label=f"{said}: {len(some)}"
            )
    axes.axhline(60 * MINUTES, color="grey", label=f"--time {MINUTES}m")
    axes.set(xlabel="other busy processes, mean", ylabel="seconds, page included", xlim=(0, MOST), ylim=(0, None))
    axes.legend()
    return figure
