"""Projected trace-NTK of ResNet-18 on all of CIFAR-10 on one CUDA device: seconds of every stage, error on a block.

    python -m benchmarks.gpu.projection --weights FILE --data-root DIR --kind kronecker --precision bf16 --out FILE

One run from images on the device to normalised projected features of all inputs, which are the kernel (a factored Gram);
then, each timed apart, the n × n matrix of them in float32 on the device, with `--store DIR` the features on disk, and the
conjugate kernel of the same images. The device is waited for around every step, so that stages are true. The error is that of a
256 × 256 block against the exact kernel in float64.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from torch import Tensor, nn

import ntkscope as ns
from benchmarks import machine
from benchmarks.outcome import plain
from ntkscope.core.script import run_script

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


def run(
    settings: dict[str, Any],
    *,
    n: int,
    weights: str | None,
    data_root: str | None,
    store: str | None,
    with_matrix: bool,
) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, x = build(weights, device), inputs(n, data_root, device)
    chosen = {**settings, "profile": True}

    def kernel(images: Tensor, **more: Any) -> Any:
        return ns.kernel("proj-trntk", model, images, **chosen, **more)

    kernel(x[: min(len(x), 1024)])  # libraries load their kernels on first use
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds, gram = seconds_of(lambda: kernel(x))
    stages = dict(gram.coverage.stages)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    block = errors(gram, model, x[: min(BLOCK, len(x))], settings["memory"])
    forming, _ = seconds_of(lambda: matrix(gram.left)) if with_matrix else (None, None)
    written = None
    if store is not None:
        layers = dict(gram.coverage.seconds)
        del gram
        if device == "cuda":
            torch.cuda.empty_cache()
        total, stored = seconds_of(lambda: kernel(x, store=store))
        written = {"seconds": total, "stages": dict(stored.coverage.stages)}
    else:
        layers = dict(gram.coverage.seconds)
    ns.kernel("ck", model, x[: min(len(x), 1024)])
    conjugate, _ = seconds_of(lambda: ns.kernel("ck", model, x))
    return {
        "name": "gpu_projection",
        "title": f"proj-trntk of ResNet-18, {len(x):,} images, 10 outputs, K = {settings['dim']:,}, {settings['kind']},"
        f" {settings['precision']}",
        "weights": "initial" if weights is None else Path(weights).name,
        "seconds": seconds,
        "minutes": seconds / 60,
        "stages": stages | {"rest": seconds - sum(stages.values())},
        "ms a sample": {name: 1e3 * spent / len(x) for name, spent in stages.items()},
        "matrix of all pairs, seconds": forming,
        "to disk": written,
        "ck, seconds": conjugate,
        "error": block,
        "layers": dict(sorted(layers.items(), key=lambda item: -item[1])[:12]),
        "peak device GiB": peak,
        "promise": f"≤ {MINUTES:g} min for 60,000 images",
        "holds": seconds / 60 <= MINUTES if len(x) >= 60_000 else None,
        "options": {**chosen, "n": n},
        "machine": machine.describe(),
    }


def main(
    weights: Annotated[
        str | None, typer.Option(help="A safetensors file; without it the network is as initialised.")
    ] = None,
    data_root: Annotated[str | None, typer.Option(help="Where the data are; $NTKSCOPE_DATA unless given.")] = None,
    n: Annotated[int, typer.Option(help="Images.")] = 60_000,
    dim: Annotated[int, typer.Option(help="Dimensions to project to.")] = 10_240,
    kind: Annotated[
        Literal["rademacher", "gaussian", "sparse", "kronecker"], typer.Option(help="Of projection.")
    ] = "kronecker",
    precision: Annotated[Literal["exact", "tf32", "bf16", "fp16"], typer.Option(help="Of the products.")] = "bf16",
    memory: Annotated[str, typer.Option(help="Most memory besides model and data.")] = "110GiB",
    store: Annotated[
        str | None, typer.Option(help="A new folder: the features are also computed once more into it.")
    ] = None,
    no_matrix: Annotated[bool, typer.Option("--no-matrix", help="Leave out the n × n matrix.")] = False,
    out: Annotated[Path, typer.Option(help="File for the record.")] = Path(
        "benchmarks/results/gpu/gpu_projection.json"
    ),
) -> int:
    settings: dict[str, Any] = {"kind": kind, "precision": precision, "dim": dim, "memory": memory}
    record = run(settings, n=n, weights=weights, data_root=data_root, store=store, with_matrix=not no_matrix)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(plain(record), indent=1) + "\n")
    print(
        json.dumps(
            plain({key: record[key] for key in ("title", "minutes", "stages", "error", "to disk", "ck, seconds")}),
            indent=1,
        )
    )
    return 0 if record["holds"] is not False else 1


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks.gpu.projection", __doc__))
