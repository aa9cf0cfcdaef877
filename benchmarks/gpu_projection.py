"""Projected trace-NTK of ResNet-18 on all of CIFAR-10 on one CUDA device: seconds of every stage, error on a block.

    python -m benchmarks.gpu_projection --weights FILE --data-root DIR --kind kronecker --precision bf16 --out FILE

One run from images on the device to normalised projected features of all inputs, which are the kernel (a factored Gram);
then, each timed apart, the n × n matrix of them in float32 on the device, and with `--store DIR` the features on disk. The
device is waited for around every step, so that stages are true. The error is that of a 256 × 256 block against the exact
kernel in float64.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ntkscope as ns
from benchmarks import machine
from benchmarks.outcome import plain

MINUTES = 3.0
BLOCK = 256


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    _wait()
    start = time.perf_counter()
    result = work()
    _wait()
    return time.perf_counter() - start, result


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def inputs(n: int, root: str | None, device: str) -> Tensor:
    """The first n of CIFAR-10's training and then test images."""
    split = ns.data.load("cifar10", root=root)
    x = torch.cat([torch.as_tensor(split.train.x), torch.as_tensor(split.test.x)]).float()
    if len(x) < n:
        raise SystemExit(f"--n {n} came; there are {len(x)} images")
    return x[:n].to(device)


def build(weights: str | None, device: str) -> nn.Module:
    model = ns.models.build("resnet18")
    if weights is not None:
        ns.models.load_weights(model, weights)
    return model.eval().to(device)


def errors(gram: Any, model: nn.Module, x: Tensor, memory: str) -> dict[str, float]:
    """The block of the first inputs against the exact one: relative error, its error bars, how often they cover."""
    exact = ns.kernel("trntk", model, x, dtype=torch.float64, memory=memory).dense()
    rows = list(range(len(x)))
    apart = ~torch.eye(len(x), dtype=torch.bool, device=exact.device)
    found = gram[rows, rows].dense().double()
    error = gram.standard_error(rows, rows)
    low, high = gram.confidence_interval(0.95, rows, rows)
    difference = (found - exact)[apart]
    return {
        "relative error (Frobenius, off the diagonal)": float(difference.norm() / exact[apart].norm()),
        "said by the error bars": float((error[apart].square().sum() / exact[apart].square().sum()).sqrt()),
        "root mean square error of a cosine": float(difference.square().mean().sqrt()),
        "largest error of a cosine": float(difference.abs().max()),
        "1/sqrt(dim)": gram.meta["dim"] ** -0.5,
        "95 % intervals cover": float(((low <= exact) & (exact <= high))[apart].double().mean()),
    }


def matrix(left: Tensor, rows: int = 2048) -> Tensor:
    """All cosines, float32, on the device."""
    found = torch.empty(len(left), len(left), dtype=left.dtype, device=left.device)
    for start in range(0, len(left), rows):
        torch.mm(left[start : start + rows], left.T, out=found[start : start + rows])
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, x = build(options.weights, device), inputs(options.n, options.data_root, device)
    chosen: dict[str, Any] = {"kind": options.kind, "precision": options.precision, "dim": options.dim}
    chosen |= {"memory": options.memory, "profile": True}

    def kernel(images: Tensor, **more: Any) -> Any:
        return ns.kernel("proj-trntk", model, images, **chosen, **more)

    kernel(x[: min(len(x), 1024)])  # libraries load their kernels on first use
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds, gram = seconds_of(lambda: kernel(x))
    stages = dict(gram.coverage.stages)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    block = errors(gram, model, x[: min(BLOCK, len(x))], options.memory)
    forming, _ = (None, None) if options.no_matrix else seconds_of(lambda: matrix(gram.left))
    written = None
    if options.store is not None:
        layers = dict(gram.coverage.seconds)
        del gram
        if device == "cuda":
            torch.cuda.empty_cache()
        total, stored = seconds_of(lambda: kernel(x, store=options.store))
        written = {"seconds": total, "stages": dict(stored.coverage.stages)}
    else:
        layers = dict(gram.coverage.seconds)
    return {
        "name": "gpu_projection",
        "title": f"proj-trntk of ResNet-18, {len(x):,} images, 10 outputs, K = {options.dim:,}, {options.kind},"
        f" {options.precision}",
        "weights": "initial" if options.weights is None else Path(options.weights).name,
        "seconds": seconds,
        "minutes": seconds / 60,
        "stages": stages | {"rest": seconds - sum(stages.values())},
        "ms a sample": {name: 1e3 * spent / len(x) for name, spent in stages.items()},
        "matrix of all pairs, seconds": forming,
        "to disk": written,
        "error": block,
        "layers": dict(sorted(layers.items(), key=lambda item: -item[1])[:12]),
        "peak device GiB": peak,
        "promise": f"≤ {MINUTES:g} min for 60,000 images",
        "holds": seconds / 60 <= MINUTES if len(x) >= 60_000 else None,
        "options": {**chosen, "n": options.n},
        "machine": machine.describe(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_projection", description=__doc__)
    parser.add_argument("--weights", help="a safetensors file; without it the network is as initialised")
    parser.add_argument("--data-root", help="where the data are; $NTKSCOPE_DATA when left out")
    parser.add_argument("--n", type=int, default=60_000)
    parser.add_argument("--dim", type=int, default=10_240)
    parser.add_argument("--kind", default="kronecker", choices=("rademacher", "gaussian", "sparse", "kronecker"))
    parser.add_argument("--precision", default="bf16", choices=("exact", "tf32", "bf16", "fp16"))
    parser.add_argument("--memory", default="110GiB")
    parser.add_argument("--store", help="a new folder: the features are also computed once more into it")
    parser.add_argument("--no-matrix", action="store_true", help="leave out the n × n matrix")
    parser.add_argument("--out", type=Path, default=Path("results/gpu/gpu_projection.json"))
    options = parser.parse_args()
    record = run(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(plain(record), indent=1) + "\n")
    print(json.dumps(plain({key: record[key] for key in ("title", "minutes", "stages", "error", "to disk")}), indent=1))
    return 0 if record["holds"] is not False else 1


if __name__ == "__main__":
    raise SystemExit(main())
