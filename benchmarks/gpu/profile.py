"""Where the time of one call goes on a CUDA device: kernels and operations of a kept engine's call, by PyTorch's profiler.

    python -m benchmarks.gpu.profile [--only NAME]… [--precision bf16] [--inputs N] [--out FOLDER] [--quick]

Two tables for each network: what the device did, longest first, and what the processor did to launch it. `busy` is the share
of the call in which some kernel ran: far below 1, launches are what it waits for. The profiler slows the call itself down, so
its seconds stand beside those of the call before, without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import ntkscope as ns
from benchmarks import machine
from benchmarks.gpu.cases import CASES, GpuCase, check_names
from benchmarks.gpu.peers import timed
from benchmarks.outcome import plain, table
from ntkscope.core.script import run_script

ROWS = 25


def profiled(case: GpuCase, n: int, device: str, how: dict[str, Any], tiny: bool) -> dict[str, Any]:
    """The third call of a kept engine beside the second."""
    model, x = case.made(n, device, tiny)
    tangent = ns.Tangent(model, **how)
    tangent.kernel("trntk0", x)
    without, K = timed(lambda: tangent.kernel("trntk0", x), device)
    cuda = device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as watched:
        seconds, K = timed(lambda: tangent.kernel("trntk0", x), device)
    averages = watched.key_averages()
    kernels = [event for event in averages if event.device_type == DeviceType.CUDA]
    return {
        "seconds without": without,
        "seconds profiled": seconds,
        "busy": busy(watched.events() or []) / seconds if cuda else None,
        "device": rows(kernels, "self_device_time_total", seconds),
        "processor": rows(averages, "self_cpu_time_total", seconds),
        "plan": str(K.meta["plan"]),
        "harvest": K.coverage.execution,
        "stages": dict(K.coverage.stages),
    }


def busy(events: Iterable[Any]) -> float:
    """Seconds in which the device did something."""
    spans = sorted((e.time_range.start, e.time_range.end) for e in events if e.device_type == DeviceType.CUDA)
    return covered(spans) / 1e6


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length that spans, sorted by their start, cover together.

    >>> covered([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def rows(events: Iterable[Any], by: str, seconds: float) -> list[dict[str, Any]]:
    """The events that took longest: name, how often, milliseconds, share of the call."""
    longest = sorted(events, key=lambda event: -getattr(event, by))[:ROWS]
    return [
        {
            "name": event.key[:90],
            "calls": event.count,
            "ms": getattr(event, by) / 1e3,
            "share": getattr(event, by) / 1e6 / seconds,
        }
        for event in longest
        if getattr(event, by) > 0
    ]


def main(
    only: Annotated[list[str] | None, typer.Option(help="One network; repeatable; all unless given.")] = None,
    precision: Annotated[str, typer.Option(help="exact, tf32 or bf16.")] = "exact",
    inputs: Annotated[int, typer.Option(help="How many inputs; 0: each network's smaller number.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("benchmarks/results/gpu/profile"),
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cuda",
    memory: Annotated[str, typer.Option(help="Most memory besides model and data.")] = "100GiB",
    quick: Annotated[bool, typer.Option("--quick", help="Tiny networks on the CPU: tries the machinery.")] = False,
) -> int:
    device, memory, inputs = ("cpu", "1GiB", 5) if quick else (device, memory, inputs)
    check_names(only)
    out.mkdir(parents=True, exist_ok=True)
    for name in only or CASES:
        case = CASES[name]
        n = inputs or case.small
        found = profiled(case, n, device, {"precision": precision, "memory": memory}, quick)
        record = {"network": name, "inputs": n, "precision": precision, **found, "machine": machine.describe()}
        (out / f"{name}-{n}-{precision}.json").write_text(json.dumps(plain(record), indent=1) + "\n")
        print(
            f"{name}, {n} inputs, {precision}: {found['seconds without']:.3f} s, profiled {found['seconds profiled']:.3f} s"
        )
        print(f"device busy: {found['busy']}", found["plan"], found["harvest"], sep="\n")
        print(table(found["device"]), table(found["processor"]), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks.gpu.profile", __doc__))
