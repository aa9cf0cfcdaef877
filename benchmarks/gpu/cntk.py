"""The convolutional NTK with global pooling, 21 layers on 32 × 32 images, float32, on one CUDA device: time and error.

Twenty 3 × 3 convolutions with ReLU, the global mean, one dense layer: the network whose kernel Arora et al. (2019) report
at 2.70 ms an entry on a V100. Times are of cross kernels, where no entry is another's mirror image. Errors are against
float64 on the same device by the road that carries all shifts through memory. Everything is tried and nothing stops the
rest: what fails is reported with its traceback.
"""

from __future__ import annotations

import itertools
import statistics
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from torch import Tensor
from torch.nn import functional

from benchmarks import machine, networks
from benchmarks.outcome import Check, Outcome, table, write
from ntkscope import infinite
from ntkscope.core import generator
from ntkscope.core.script import run_script
from ntkscope.infinite import Conv, Dense, GlobalAvgPool, LeakyRelu, Relu, cyclic, serial
from ntkscope.infinite.layer import Shape
from ntkscope.infinite.pairs import Network
from ntkscope.infinite.rules import Serial

PUBLISHED, TARGET, ERROR = 2.70, 0.15, 1e-4  # ms an entry on a V100, ms an entry, relative
CONVOLUTIONS, SIDE = 20, 32
WARPS, REGISTERS = (4, 1, 2, 8), (None, 96, 160)
REPEATS = 5


def deep(count: int = CONVOLUTIONS, b_std: float = 0.0, **options: Any) -> Serial:
    """`count` convolutions with ReLU, pooled; σ_w² = 2 keeps variances as they are."""
    convolution = Conv(3, W_std=2**0.5, b_std=b_std, **options)
    return serial(*[layer for _ in range(count) for layer in (convolution, Relu())], GlobalAvgPool(), Dense())


def smooth(n: int, side: int = SIDE) -> Tensor:
    """Positive images whose neighbouring pixels are alike, as those of photographs are; the last two nearly equal."""
    coarse = torch.randn(n, 3, 5, 5, generator=generator(0, "smooth images"), dtype=torch.float64)
    x = functional.interpolate(coarse, size=(side, side), mode="bicubic").sigmoid()
    x[-1] = x[-2] + 1e-3 * x[-3]
    return x


def milliseconds(work: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """By the device's clock, after one run untimed."""
    work()
    found = []
    for _ in range(repeats):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        work()
        events[1].record()
        torch.cuda.synchronize()
        found.append(events[0].elapsed_time(events[1]))
    return found


def attempt(what: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` found, or how it failed."""
    start = time.perf_counter()
    try:
        found = work()
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {error}"[:300], "traceback": traceback.format_exc()[-6000:]}
    found = {"what": what, **found, "wall s": time.perf_counter() - start}
    print({key: value for key, value in found.items() if key != "traceback"}, flush=True)
    if "traceback" in found:
        print(found["traceback"], flush=True)
    return found


def errors(found: Tensor, exact: Tensor) -> dict[str, float]:
    difference = (found.double() - exact).abs()
    return {
        "relative error (Frobenius)": networks.relative_error(found, exact),
        "largest relative error": float((difference / exact.abs()).max()),
    }


def by_memory() -> Any:
    """The road of every other network, for comparison."""
    return mock.patch.object(cyclic, "applies", return_value=False)


def exactly(net: Serial, x1: Tensor, x2: Tensor, **options: Any) -> Tensor:
    with by_memory():
        return infinite.kernel(net, x1.double(), x2.double(), device="cuda", memory="64GiB", **options).dense()


def tuned(x: Tensor, exact: Tensor, warps: int, registers: int | None) -> dict[str, Any]:
    """The kernel alone: all pairs of the first and the second half of the images."""
    network = Network.of(deep(), Shape(3, (SIDE, SIDE)), True, False)
    half = len(x) // 2
    one, two = network.block(x[:half]), network.block(x[half:])
    options = {"WARPS": warps} if registers is None else {"WARPS": warps, "maxnreg": registers}
    times = milliseconds(lambda: cyclic.mean(network, one, two, **options))
    k = len(exact)
    nngp, ntk = cyclic.mean(network, one, two, **options)
    assert ntk is not None
    return {
        "ms an entry": statistics.median(times) / half**2,
        "spread": [t / half**2 for t in times],
        **errors((nngp + ntk)[:k, :k], exact),  # Dense() adds the NNGP
        "entries": half**2,
    }


def public(x: Tensor, exact: Tensor, symmetric: bool) -> dict[str, Any]:
    """As a user calls it, from inputs to a Gram."""
    half = len(x) // 2
    net = deep()

    def call() -> Tensor:
        other = None if symmetric else x[half:]
        return infinite.kernel(net, x if symmetric else x[:half], other, dtype=torch.float32, device="cuda").dense()

    entries = len(x) * (len(x) + 1) // 2 if symmetric else half**2
    K, k = call(), len(exact)
    part = K[:k, half : half + k] if symmetric else K[:k, :k]
    return {"ms an entry": statistics.median(milliseconds(call)) / entries, **errors(part, exact), "entries": entries}


def memory_road(x: Tensor, exact: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    k = len(exact)
    half = len(x) // 2
    net = deep()
    with by_memory():

        def call() -> Tensor:
            return infinite.kernel(net, x[:k], x[half : half + k], dtype=dtype, device="cuda", memory="64GiB").dense()

        found = call()
        return {"ms an entry": statistics.median(milliseconds(call, 2)) / k**2, **errors(found, exact), "entries": k**2}


def another(net: Serial, x: Tensor, **options: Any) -> dict[str, Any]:
    """Agreement alone, on other networks and images."""
    half = len(x) // 2
    exact = exactly(net, x[:half], x[half:], **options)
    found = infinite.kernel(net, x[:half], x[half:], dtype=torch.float32, device="cuda", **options).dense()
    return errors(found, exact)


def run(n: int = 64) -> Outcome:
    """The kernel under every setting, the public call, the other road, other networks."""
    if not torch.cuda.is_available():
        raise SystemExit("gpu_cntk needs a CUDA device and found none; run it where torch.cuda.is_available()")
    x, source = networks.images("cifar10", 2 * n)
    x = x.cuda()
    few = 4
    exact = exactly(deep(), x[:few], x[n : n + few])
    results = [
        attempt(
            f"kernel, {warps} warps, registers {registers or 'free'}",
            partial(tuned, x, exact, warps, registers),
        )
        for warps, registers in itertools.product(WARPS, REGISTERS)
        if registers is None or warps == 4
    ]
    calls = [
        attempt("infinite.kernel, float32", lambda: public(x, exact, False)),
        attempt("infinite.kernel, float32, symmetric", lambda: public(x, exact, True)),
        attempt("by memory, float32", lambda: memory_road(x, exact, torch.float32)),
        attempt("by memory, float64", lambda: memory_road(x, exact, torch.float64)),
    ]
    rolling = serial(
        *[each for _ in range(5) for each in (Conv(3, padding="circular", W_std=1.4, b_std=0.1), LeakyRelu(0.1))],
        GlobalAvgPool(),
        Dense(),
    )
    natural = smooth(8)
    others = [
        attempt("smooth images, two nearly equal", lambda: another(deep(), natural.cuda())),
        attempt("biases of 0.3", lambda: another(deep(b_std=0.3), natural.cuda())),
        attempt("nngp", lambda: another(deep(), natural.cuda(), kind="nngp")),
        attempt("leaky, rings, 16 × 16", lambda: another(rolling, smooth(8, 16).cuda())),
        attempt("28 × 28", lambda: another(deep(5), smooth(8, 28).cuda())),
        attempt("8 × 8", lambda: another(deep(5), smooth(8, 8).cuda())),
    ]
    return outcome(results + calls, others, calls[0], source)


def outcome(timed: list[dict[str, Any]], others: list[dict[str, Any]], call: dict[str, Any], source: str) -> Outcome:
    rows = [{key: value for key, value in r.items() if key not in ("traceback", "spread")} for r in timed + others]
    for row in rows:
        for key in [key for key in row if "error" in key]:
            row[key] = f"{row[key]:.1e}"
    good = [r for r in others if "failed" not in r]
    worst = max((r["largest relative error"] for r in [*good, call] if "failed" not in r), default=float("nan"))
    reached = call.get("ms an entry")
    checks = [
        Check(
            f"21 layers, global pooling, {SIDE} × {SIDE}, float32: ms an entry of infinite.kernel",
            f"≤ {TARGET:g}",
            "failed" if reached is None else f"{reached:.4f} ({PUBLISHED / reached:.0f} times the published speed)",
            reached is not None and reached <= TARGET,
        ),
        Check(
            "largest relative error of an entry",
            f"≤ {ERROR:g}",
            f"{worst:.1e}",
            worst <= ERROR and len(good) == len(others),
        ),
    ]
    title = f"Convolutional NTK, 21 layers, global pooling, {SIDE} × {SIDE}, float32, {torch.cuda.get_device_name()}"
    return Outcome(title, rows, checks, details={"source": source, "timed": timed, "others": others})


def main(
    n: Annotated[int, typer.Option(help="Images on each side.")] = 64,
    out: Annotated[Path, typer.Option(help="File for the record.")] = Path("benchmarks/results/gpu/gpu_cntk.json"),
) -> int:
    start = time.perf_counter()
    found = run(n)
    path = write(out.stem, found, machine.describe(), time.perf_counter() - start, out.parent)
    print(table(found.rows), *(f"{c.what}: {c.measured}: {c.verdict}" for c in found.checks), path, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks.gpu.cntk", __doc__))
