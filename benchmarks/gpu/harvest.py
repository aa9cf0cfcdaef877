"""How long one CUDA device takes to run samples through a network and back, for every way of doing so and block size.

    python -m benchmarks.gpu.harvest [--only NAME]… [--precision bf16]… [--out FOLDER] [--quick]

Each row is the second call of a kept engine that was told which way to take: milliseconds per sample that capture and
certificate took, of the device. Below are four calls of an engine that chooses for itself.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer

import ntkscope as ns
from benchmarks import machine
from benchmarks.gpu.cases import CASES, GpuCase, check_names
from benchmarks.gpu.peers import timed
from benchmarks.outcome import plain, table
from ntkscope.core.script import run_script
from ntkscope.tangent.blocks.execution import Execution, ExecutionMode

NAMES = ("resnet18", "lenet")
WAYS = (
    ExecutionMode(),
    ExecutionMode(channels_last=True),
    ExecutionMode(together=16),
    ExecutionMode(channels_last=True, together=16),
)
BLOCKS = (256, 512, 1024)


def told(
    case: GpuCase, mode: ExecutionMode, block: int, n: int, device: str, how: dict[str, Any], tiny: bool
) -> dict[str, Any]:
    """One way, in blocks of at most so many samples."""
    model, x = case.made(n, device, tiny)
    chosen = Execution(mode=mode)
    with patch.object(Execution, "of", lambda *_: chosen), patch.object(Execution, "longest", lambda *_: block):
        tangent = ns.Tangent(model, **how)
        tangent.kernel("trntk0", x)
        seconds, K = timed(lambda: tangent.kernel("trntk0", x), device)
    did: Any = K.coverage
    spent = {f"{stage} ms": 1e3 * did.stages.get(stage, 0.0) / did.samples_run for stage in ("capture", "certificate")}
    taken = (
        "as told"
        if str(did.execution or ExecutionMode()) == str(mode)
        else f"instead: {did.execution or ExecutionMode()}"
    )
    return {"way": str(mode), "block": block, "seconds": seconds, **spent, "taken": taken, "plan": str(K.meta["plan"])}


def chosen(case: GpuCase, n: int, device: str, how: dict[str, Any], tiny: bool) -> list[dict[str, Any]]:
    """Four calls of an engine that chooses for itself."""
    model, x = case.made(n, device, tiny)
    tangent = ns.Tangent(model, **how)
    rows = []
    for call in range(4):
        seconds, K = timed(lambda: tangent.kernel("trntk0", x), device)
        did: Any = K.coverage
        spent = {f"{s} s": did.stages.get(s, 0.0) for s in ("capture", "certificate", "trial", "features", "products")}
        rows.append(
            {"call": call + 1, "seconds": seconds, **spent, "harvest": did.execution, "plan": str(K.meta["plan"])}
        )
    return rows


def main(
    only: Annotated[list[str] | None, typer.Option(help="One network; repeatable; two unless given.")] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="exact, tf32, bf16; repeatable; bf16 unless given.")
    ] = None,
    inputs: Annotated[int, typer.Option(help="How many inputs.")] = 2048,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("benchmarks/results/gpu/harvest"),
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cuda",
    memory: Annotated[str, typer.Option(help="Most memory besides model and data.")] = "100GiB",
    quick: Annotated[bool, typer.Option("--quick", help="Tiny networks on the CPU: tries the machinery.")] = False,
) -> int:
    device, memory, inputs = ("cpu", "1GiB", 6) if quick else (device, memory, inputs)
    check_names(only)
    out.mkdir(parents=True, exist_ok=True)
    for name in only or NAMES:
        for rounding in precision or (["exact"] if quick else ["bf16"]):
            start, how = time.perf_counter(), {"precision": rounding, "memory": memory}
            rows = []
            for mode in WAYS:
                for block in (4,) if quick else BLOCKS:
                    rows.append(told(CASES[name], mode, block, inputs, device, how, quick))
                    if device.startswith("cuda"):
                        torch.cuda.empty_cache()
            calls = chosen(CASES[name], inputs, device, how, quick)
            record = {"network": name, "inputs": inputs, "precision": rounding, "ways": rows, "calls": calls}
            record |= {"machine": machine.describe(), "wall seconds": time.perf_counter() - start}
            (out / f"{name}-{rounding}.json").write_text(json.dumps(plain(record), indent=1) + "\n")
            print(f"{name}, {inputs} inputs, {rounding}")
            print(table(rows), table(calls), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks.gpu.harvest", __doc__))
