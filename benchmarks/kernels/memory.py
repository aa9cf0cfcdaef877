"""Peak memory of one kernel call above model and inputs, read from the kernel's own books in a fresh process (Linux).

The process loads network and inputs, gives freed memory back, notes its resident size, resets the high-water mark, makes
the one call and reads the mark: allocator overhead, thread buffers and lazily loaded code all count against the budget.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.machine import ROOT, THREADS
from benchmarks.outcome import Check, Outcome

MIB = 2**20


def resident(field: str) -> int:
    """Bytes of `VmRSS` (now) or `VmHWM` (the most since the last reset) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}; expected Linux")


def settled(rounds: int = 100) -> int:
    """Give freed memory back and begin to count the most anew; bytes resident now.

    Some of PyTorch's builds have an allocator that returns memory a while after it was freed, and then only when it is used
    again: tensors of all sizes come and go until so many rounds in a row have returned nothing.
    """
    import torch

    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    least, waited = resident("VmRSS"), 0
    while waited < rounds:
        torch.zeros(MIB >> waited % 12)  # freed at once
        time.sleep(0.02)
        now = resident("VmRSS")
        least, waited = (now, 0) if now < least - MIB else (least, waited + 1)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    return resident("VmRSS")


def measure(network: str, n: int, memory: str) -> dict[str, float]:
    """One call in this process; bytes before, at most during, and after."""
    import torch

    import ntkscope as ns
    from benchmarks import networks

    torch.set_num_threads(THREADS)
    case = networks.case(network, n)
    case = networks.Case(case.name, case.model, case.x.clone(), case.source)  # not a view of the whole data set
    before, start = settled(), time.perf_counter()
    K = ns.kernel("trntk0", case.model, case.x, memory=memory)
    seconds, peak, after = time.perf_counter() - start, resident("VmHWM"), resident("VmRSS")
    return {
        "parameters": case.parameters,
        "before": before,
        "peak": peak,
        "after": after,
        "result": K.dense().numel() * K.dense().element_size(),
        "seconds": seconds,
    }


def in_fresh_process(network: str, n: int, memory: str) -> dict[str, float]:
    """`measure` in a process that has done nothing else."""
    command = [sys.executable, "-m", "benchmarks.kernels.memory", network, str(n), memory]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def run(quick: bool = False) -> Outcome:
    """LeNet four times as wide, 4,096 inputs, within 1 GiB."""
    n = 256 if quick else 4096
    budgets = {"1GiB": 1024}
    rows, above = [], {}
    for budget, mebibytes in budgets.items():
        seen = in_fresh_process("lenet4", n, budget)
        above[budget] = (seen["peak"] - seen["before"]) / MIB
        rows.append(
            {
                "memory=": budget,
                "MiB before": round(seen["before"] / MIB),
                "MiB at most": round(seen["peak"] / MIB),
                "MiB above": round(above[budget]),
                "of the budget": f"{above[budget] / mebibytes:.0%}",
                "of it the kernel": round(seen["result"] / MIB),
                "seconds": seen["seconds"],
            }
        )
    check = Check(
        f"LeNet width 4 ({int(seen['parameters']):,} parameters), {n:,} inputs: resident memory above the model",
        "< 1024 MiB with memory='1GiB'",
        f"{above['1GiB']:.0f} MiB",
        above["1GiB"] < 1024,
    )
    return Outcome(
        f"Peak memory, trace-NTK of LeNet width 4, {n:,} inputs", rows, [check], details={"above_mib": above}
    )


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
