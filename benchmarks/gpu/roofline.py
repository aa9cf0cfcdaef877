"""Where the seconds of an exact trace-NTK go on one CUDA device, stage by stage, against the device's peak.

    python -m benchmarks.gpu.roofline [--only NAME]… [--precision bf16]… [--schedule auto] [--out FOLDER] [--quick]

A kept engine computes the kernel twice; the second call counts. Seconds are the device's own (events between stages), flops
those of layers with parameters (`K.coverage.by_stage()`). Shares are of the data sheet's peak, and of what a large square
product reaches on this device in this run. `outside` is what the call took beyond all stages: Python, launches, waiting.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import ntkscope as ns
from benchmarks import machine
from benchmarks.gpu.cases import CASES, GpuCase, check_names
from benchmarks.gpu.peers import timed
from benchmarks.outcome import plain, table
from ntkscope.core.machine.peak import measured_peak
from ntkscope.core.script import run_script

NAMES = ("resnet18", "vit-tiny", "bert-base")
INPUTS = {"bert-base": 512}
PRODUCTS = 0.55 * 790e12  # flop/s that products of ResNet-18 in bf16 must reach


def roofline(
    case: GpuCase, n: int, precision: str, device: str, schedule: str, memory: str, tiny: bool
) -> dict[str, Any]:
    """The second call of a kept engine: seconds, flops and shares of the peak of every stage."""
    model, x = case.made(n, device, tiny)
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    tangent = ns.Tangent(model, precision=precision, memory=memory)
    first, _ = timed(lambda: tangent.kernel("trntk0", x, schedule=schedule), device)
    seconds, K = timed(lambda: tangent.kernel("trntk0", x, schedule=schedule), device)
    did: Any = K.coverage
    reached = measured_peak(x.device.type, x.device.index, did.kind, torch.get_num_threads())
    rows = [
        {
            **row,
            "share of seconds": row["seconds"] / seconds,
            "TFLOP/s": row["flops"] / max(1e-12, row["seconds"]) / 1e12,
            "share of a large product": row["flops"] / max(1e-12, row["seconds"]) / reached,
        }
        for row in did.by_stage()
    ]
    outside = max(0.0, seconds - sum(did.stages.values()))
    rows.append({"stage": "outside", "seconds": outside, "share of seconds": outside / seconds})
    return {
        "network": case.name,
        "inputs": n,
        "precision": precision,
        "plan": str(K.meta["plan"]),
        "harvest": did.execution,
        "first call": first,
        "seconds": seconds,
        "samples run": did.samples_run,
        "ms a sample run": {
            s: 1e3 * did.stages.get(s, 0.0) / did.samples_run for s in ("capture", "features", "certificate")
        },
        "stages": rows,
        "large product flop/s": reached,
        "methods": {method: did.share(method) for method in sorted(set(did.methods.values()))},
        "slowest parameters": dict(sorted(did.seconds.items(), key=lambda item: -item[1])[:12]),
        "certificate": K.certificate.to_json(),
        "peak device GiB": torch.cuda.max_memory_allocated() / 2**30 if device.startswith("cuda") else None,
    }


def main(
    only: Annotated[list[str] | None, typer.Option(help="One network; repeatable; three unless given.")] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="exact, tf32, bf16; repeatable; all unless given.")
    ] = None,
    schedule: Annotated[str, typer.Option(help="auto, blocks or layers.")] = "auto",
    inputs: Annotated[int, typer.Option(help="How many inputs; 0: 2,048, of BERT 512.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("benchmarks/results/gpu/roofline"),
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cuda",
    memory: Annotated[str, typer.Option(help="Most memory besides model and data.")] = "120GiB",
    quick: Annotated[bool, typer.Option("--quick", help="Tiny networks on the CPU: tries the machinery.")] = False,
) -> int:
    device, memory = ("cpu", "1GiB") if quick else (device, memory)
    check_names(only)
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in only or NAMES:
        n = 6 if quick else inputs or INPUTS.get(name, 2048)
        for how in precision or (["exact"] if quick else ["bf16", "tf32", "exact"]):
            start = time.perf_counter()
            record = roofline(CASES[name], n, how, device, schedule, memory, quick)
            if name == "resnet18" and how == "bf16" and not quick:
                reached = next(row["TFLOP/s"] for row in record["stages"] if row["stage"] == "products") * 1e12
                record["holds"] = reached >= PRODUCTS
                failed += not record["holds"]
            record |= {"machine": machine.describe(), "wall seconds": time.perf_counter() - start}
            (out / f"{name}-{how}-{schedule}.json").write_text(json.dumps(plain(record), indent=1) + "\n")
            print(f"{name}, {n} inputs, {how}: {record['seconds']:.3g} s ({record['plan']})")
            print(table(record["stages"]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks.gpu.roofline", __doc__))
