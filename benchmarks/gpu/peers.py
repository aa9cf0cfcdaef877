"""The trace-NTK on one CUDA device: a kept engine in three precisions against `torch.func` at its best block size.

    python -m benchmarks.gpu.peers [--only NAME]… [--out benchmarks/results/gpu/peers] [--quick]

The peer is what a user writes: `vmap(jacrev)` in blocks of samples, one product a parameter, the upper triangle of blocks;
Jacobians of as many samples as fit stay on the device, the others are computed again for each group of them. Block sizes are
timed on one block and one product each, until two longer ones are no faster, and the best runs as a whole. It runs twice: in
full float32, as our `exact` does, and with PyTorch's own settings, in which a convolution may round to TF32. Ours is a kept
`ns.Tangent` with certificates on: the first call, and the median of later ones. Both are compared with plain autograd in
float64 on the first inputs. One json per network, written as it ends; `--quick` runs tiny networks anywhere.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import ntkscope as ns
from benchmarks import machine, networks
from benchmarks.gpu.cases import CASES, GpuCase
from benchmarks.outcome import plain, table
from benchmarks.peers.vmap import contract, jacobians
from ntkscope.core.machine.peak import measured_peak
from ntkscope.core.script import run_script

PRECISIONS = ("exact", "tf32", "bf16")
BLOCKS = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
PEERS = {"torch.func": True, "torch.func, float32": False}  # whether a convolution may round to TF32
CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d
ORACLE = 3
LIMITS = {
    "exact": 1e-3,
    "tf32": 1e-2,
    "bf16": 1e-2,
}  # relative error of a few entries, beyond which a time counts for nothing


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds and the result, the device waited for on both ends."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def blocked(model: nn.Module, x: Tensor, chunk: int, held: int) -> Tensor:
    """The kernel by `vmap(jacrev)`, `chunk` samples at a time; Jacobians of at most `held` samples stay.

    Groups of `held` samples stay while all later ones pass by: upper triangle alone, mirrored at the end.
    """
    n, held = len(x), max(chunk, held // chunk * chunk)
    K = torch.zeros(n, n, dtype=torch.float32, device=x.device)
    for start in range(0, n, held):
        kept: list[tuple[int, list[Tensor]]] = []
        for at in range(start, n, chunk):
            new = jacobians(model, x[at : at + chunk])
            if at < start + held:
                kept.append((at, new))
            for row, old in kept:
                K[row : row + chunk, at : at + chunk] = contract(old, new)
        del kept, new
    return torch.triu(K) + torch.triu(K, 1).T


def captures(n: int, chunk: int, held: int) -> tuple[int, int]:
    """Blocks whose Jacobians `blocked` computes, and products of two blocks.

    >>> captures(4, 1, 4), captures(4, 1, 2)
    ((4, 10), (6, 10))
    """
    held = max(chunk, held // chunk * chunk)
    blocks = products = 0
    for start in range(0, n, held):
        inside = -(-min(held, n - start) // chunk)
        after = -(-(n - start) // chunk) - inside
        blocks += inside + after
        products += inside * (inside + 1) // 2 + inside * after
    return blocks, products


def _one_block(model: nn.Module, x: Tensor, device: str) -> tuple[float, float]:
    """Seconds of the Jacobians of one block, and of their product with another; the first of each loads libraries."""
    jacobians(model, x)
    forming, j = timed(lambda: jacobians(model, x), device)
    contract(j, j)
    return forming, timed(lambda: contract(j, j), device)[0]


def block_sizes(
    model: nn.Module, x: Tensor, device: str, budget: float, sizes: Sequence[int]
) -> dict[int, dict[str, float]]:
    """For each block size that fits: how many samples may stay, and the predicted seconds of the whole kernel."""
    with torch.no_grad():
        outputs = model(x[:1]).shape[1]
    each = 4 * outputs * sum(p.numel() for p in model.parameters() if p.requires_grad)
    found: dict[int, dict[str, float]] = {}
    for chunk in sorted({min(size, len(x)) for size in sizes}):
        held = int(budget / each) - 3 * chunk  # what passes by, and what making it takes
        if held < chunk:
            break
        try:
            forming, product = _one_block(model, x[:chunk], device)
        except torch.OutOfMemoryError:
            break
        finally:
            if device.startswith("cuda"):
                torch.cuda.empty_cache()
        held = min(held, len(x))
        blocks, products = captures(len(x), chunk, held)
        found[chunk] = {"held": held, "predicted seconds": blocks * forming + products * product}
        seconds = [each["predicted seconds"] for each in found.values()]
        if seconds.index(min(seconds)) < len(seconds) - 2:  # two longer ones were no faster
            break
    return found


def peer(
    model: nn.Module, x: Tensor, device: str, budget: float, patience: float, sizes: Sequence[int]
) -> dict[str, Any]:
    """`torch.func` at its best block size; `patience`: seconds beyond which what is predicted counts and nothing is run."""
    found = block_sizes(model, x, device, budget, sizes)
    if not found:
        return {"failed": "the Jacobians of one block do not fit"}
    best = min(found, key=lambda chunk: found[chunk]["predicted seconds"])
    record: dict[str, Any] = {"block sizes": found, "block": best}
    predicted = found[best]["predicted seconds"]
    if predicted > patience:
        return record | {"seconds": predicted, "measured": False}
    held = int(found[best]["held"])
    runs = [timed(lambda: blocked(model, x, best, held), device) for _ in range(1 if predicted > patience / 4 else 2)]
    return record | {"seconds": min(run[0] for run in runs), "measured": True, "kernel": runs[-1][1]}


def ours(model: nn.Module, x: Tensor, device: str, precision: str, memory: str, calls: int) -> dict[str, Any]:
    """A kept engine: seconds of the first call and of later ones, what each stage took, what was checked."""
    tangent = ns.Tangent(model, precision=precision, memory=memory)
    runs = [timed(lambda: tangent.kernel("trntk0", x), device) for _ in range(1 + calls)]
    K = runs[-1][1]
    did: Any = K.coverage
    reached = measured_peak(x.device.type, x.device.index, did.kind, torch.get_num_threads())
    return {
        "flops": dict(did.flops),
        "floor": sum(did.flops.values()) / reached,  # seconds, at the rate of a large product of this precision
        "first call": runs[0][0],
        "later calls": [seconds for seconds, _ in runs[1:]],
        "seconds": statistics.median(seconds for seconds, _ in runs[1:]),
        "plan": str(K.meta["plan"]),
        "harvest": did.execution,
        "stages": dict(did.stages),
        "certificate": K.certificate.to_json(),
        "kernel": K.dense(),
    }


def compare(case: GpuCase, n: int, device: str, *, memory: str, patience: float, tiny: bool) -> dict[str, Any]:
    """One network with n inputs: the peer, and ours in every precision."""
    model, x = case.made(n, device, tiny)
    budget = 0.85 * torch.cuda.get_device_properties(0).total_memory if device.startswith("cuda") else 2e9
    truth = _oracle(model, x[:ORACLE])
    record: dict[str, Any] = {"inputs": n, "outputs": int(model(x[:1]).shape[1])}
    convolved = any(isinstance(module, CONVOLUTIONS) for module in model.modules())
    for name, rounds in PEERS.items():
        if not rounds and not convolved:
            record[name] = record["torch.func"]  # the same settings
            continue
        with convolutions(rounds):
            theirs = peer(model, x, device, budget, patience, BLOCKS[:3] if tiny else BLOCKS)
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
        K = theirs.pop("kernel", None)
        if K is not None:
            theirs["relative error"] = networks.relative_error(K[:ORACLE, :ORACLE].cpu(), truth)
        record[name] = theirs
    for precision in PRECISIONS:
        try:
            made = ours(model, x, device, precision, memory, calls=2 if tiny else 3)
        except torch.OutOfMemoryError as error:
            record[precision] = {"failed": str(error).splitlines()[0]}
            continue
        found = made.pop("kernel")
        made["relative error"] = networks.relative_error(found[:ORACLE, :ORACLE].cpu(), truth)
        made["right"] = made["relative error"] <= LIMITS[precision]
        if K is not None:
            made["relative difference from torch.func"] = networks.relative_error(found, K)
        made["ratios"] = {
            name: record[name]["seconds"] / made["seconds"] for name in PEERS if "seconds" in record[name]
        }
        equal = (
            ["torch.func, float32"] if precision == "exact" else list(PEERS)
        )  # of those in as short numbers, the faster
        made["ratio"] = min((made["ratios"][name] for name in equal if name in made["ratios"]), default=0.0)
        target = case.targets.get((n, precision))
        if target is not None:
            made |= {"target": target, "holds": made["right"] and made.get("ratio", 0.0) >= target}
        record[precision] = made
        del found
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
    return record


@contextlib.contextmanager
def convolutions(rounded: bool) -> Iterator[None]:
    """PyTorch's own settings, or convolutions in full float32 as well; products of matrices are so in both."""
    setting: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = setting.fp32_precision
    if not rounded:
        setting.fp32_precision = "ieee"
    try:
        yield
    finally:
        setting.fp32_precision = before


def _oracle(model: nn.Module, x: Tensor) -> Tensor:
    """Plain autograd in float64 on the CPU, one input and output after another; inputs may be whole numbers."""
    import copy

    model = copy.deepcopy(model).double().cpu()
    x = x.cpu() if not x.is_floating_point() else x.double().cpu()
    params = [p for p in model.parameters() if p.requires_grad]
    outputs = [model(x[i : i + 1])[0] for i in range(len(x))]
    total = torch.zeros(len(x), len(x), dtype=torch.float64)
    for c in range(len(outputs[0])):
        rows = [torch.autograd.grad(f[c], params, retain_graph=True, allow_unused=True) for f in outputs]
        for i, left in enumerate(rows):
            for j, right in enumerate(rows):
                total[i, j] += sum(float((a * b).sum()) for a, b in zip(left, right) if a is not None and b is not None)
    return total


def rows_of(name: str, record: dict[str, Any]) -> list[dict[str, Any]]:
    """One line of the table for each number of inputs."""
    lines = []
    for run in record["runs"]:
        line = {"network": name, "inputs": run["inputs"]}
        for peer_name in PEERS:
            theirs = run[peer_name]
            told = theirs.get("seconds") if theirs.get("measured") else f"{theirs.get('seconds', 0.0):.3g} predicted"
            line |= {f"{peer_name} s": told, f"{peer_name}'s block": theirs.get("block")}
        for precision in PRECISIONS:
            made = run[precision]
            ratios = " / ".join(f"{ratio:.3g}" for ratio in reversed(made.get("ratios", {}).values()))
            line |= {f"{precision} s": made.get("seconds"), f"{precision} ×": ratios}
            line |= {f"{precision} floor": made.get("floor"), f"{precision} error": made.get("relative error")}
        lines.append(line)
    return lines


def main(
    only: Annotated[list[str] | None, typer.Option(help="One network; repeatable; all unless given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("benchmarks/results/gpu/peers"),
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cuda",
    memory: Annotated[str, typer.Option(help="Most memory of ours besides model and data.")] = "100GiB",
    size: Annotated[str, typer.Option(help="small, large or both numbers of inputs.")] = "both",
    patience: Annotated[float, typer.Option(help="Seconds a peer may take; beyond, its time is predicted.")] = 40.0,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny networks on the CPU: tries the machinery.")] = False,
) -> int:
    device, memory = ("cpu", "1GiB") if quick else (device, memory)
    out.mkdir(parents=True, exist_ok=True)
    unknown = [name for name in only or () if name not in CASES]
    if unknown or size not in ("small", "large", "both"):
        raise SystemExit(
            f"got --only {', '.join(unknown)} --size {size}; expected {', '.join(CASES)} and small, large or both"
        )
    lines, failed = [], 0
    for name in only or CASES:
        start, case = time.perf_counter(), CASES[name]
        counts = [case.small] if size == "small" else [case.large] if size == "large" else [case.small, case.large]
        counts = [5] if quick else counts
        record: dict[str, Any] = {"network": name, "runs": []}
        for n in counts:
            record["runs"].append(compare(case, n, device, memory=memory, patience=patience, tiny=quick))
            record |= {"machine": machine.describe(), "wall seconds": time.perf_counter() - start}
            (out / f"{name}.json").write_text(json.dumps(plain(record), indent=1) + "\n")
        lines += rows_of(name, record)
        made = [run[precision] for run in record["runs"] for precision in PRECISIONS]
        failed += any(not m.get("right", False) or m.get("holds") is False for m in made)
        print(table(lines[-len(counts) :]), flush=True)
    print(table(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks.gpu.peers", __doc__))
