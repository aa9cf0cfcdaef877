"""Infinite-width kernels on two cores: ours against neural-tangents, same networks, inputs and precision.

First both are compared on thirteen small architectures in float64; then the times of three large ones count.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import THREADS
from benchmarks.networks import relative_error
from benchmarks.outcome import Check, Outcome
from benchmarks.peers import Peer, PeerUnavailable
from benchmarks.timing import Spread, interleaved, ratio, wall
from ntkscope import infinite

Layer = tuple[str, dict[str, Any]]
Spec = list[Layer]

AGREEMENT = 1e-6  # of the largest entry, float64 both sides
DENSE: Layer = ("Dense", {"W_std": 1.4, "b_std": 0.1})
RELU: Layer = ("Relu", {})
CONV: Layer = ("Conv", {"kernel": 3, "W_std": 1.4, "b_std": 0.1})
POOL: Layer = ("GlobalAvgPool", {})
FLAT: Layer = ("Flatten", {})
HALF: Layer = ("Conv", {"kernel": 3, "stride": 2, "W_std": 1.4, "b_std": 0.1})


def conv(**options: Any) -> tuple[str, dict[str, Any]]:
    return "Conv", {"kernel": 3, "W_std": 1.4, "b_std": 0.1, **options}


def block(*branch: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    return "Residual", {"branch": list(branch)}


ARCHITECTURES: dict[str, Spec] = {
    "fc relu": [DENSE, RELU, DENSE, RELU, DENSE],
    "fc erf": [DENSE, ("Erf", {}), DENSE, ("Erf", {}), DENSE],
    "fc gelu": [DENSE, ("Gelu", {}), DENSE, ("Gelu", {}), DENSE],
    "fc leaky, abs, sin": [DENSE, ("LeakyRelu", {"a": 0.2}), DENSE, ("Abs", {}), DENSE, ("Sin", {}), DENSE],
    "fc residual, layer norm": [DENSE, block(RELU, DENSE), ("LayerNorm", {}), RELU, DENSE],
    "conv flatten": [CONV, RELU, CONV, RELU, FLAT, DENSE],
    "conv pooled": [CONV, RELU, CONV, RELU, POOL, DENSE],
    "conv valid, pooled": [conv(padding="valid"), RELU, conv(padding="valid"), RELU, POOL, DENSE],
    "conv circular, pooled": [conv(padding="circular"), RELU, conv(padding="circular"), RELU, POOL, DENSE],
    "conv strides, pooled": [HALF, RELU, CONV, RELU, HALF, RELU, POOL, DENSE],
    "conv strides, flatten": [HALF, RELU, CONV, RELU, FLAT, DENSE, RELU, DENSE],
    "conv residual, pooled": [CONV, block(RELU, CONV, RELU, CONV), RELU, POOL, DENSE],
    "conv average pools": [CONV, RELU, ("AvgPool", {"window": 2}), CONV, RELU, ("AvgPool", {"window": 2}), FLAT, DENSE],
}


def ours(spec: Spec) -> infinite.layer.Layer:
    """The network in our vocabulary."""
    layers: list[infinite.layer.Layer] = []
    for kind, options in spec:
        if kind == "Residual":
            layers.append(infinite.Residual(ours(options["branch"])))
        else:
            layers.append(infinite.registry.LAYERS[kind](**options))
    return infinite.serial(*layers)


def inputs(spec: Spec, n: int, side: int = 8, features: int = 20) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    shape = (n, 3, side, side) if spec[0][0] == "Conv" else (n, features)
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def agreement(peer: Peer, folder: Path, spec: Spec, kind: str) -> float:
    """The largest difference over the largest entry, between two sets of inputs."""
    x = inputs(spec, 7)
    np.savez(folder / "x.npz", x1=x[:4].numpy(), x2=x[3:].numpy())
    peer.ask("load", layers=spec, path=str(folder / "x.npz"), kind=kind, double=True)
    peer.ask("kernel", out=str(folder / "K.npy"))
    theirs = torch.from_numpy(np.load(folder / "K.npy"))
    K = infinite.kernel(ours(spec), x[:4], x[3:], kind).dense()
    return float((K - theirs).abs().max() / theirs.abs().max())


def depth(count: int, *end: tuple[str, dict[str, Any]]) -> Spec:
    layers: Spec = []
    for _ in range(count):
        layers += [CONV if end else DENSE, RELU]
    return [*layers, *end, DENSE]


def matmul_seconds(n: int, features: int, dtype: torch.dtype) -> float:
    x = torch.randn(n, features, dtype=dtype)
    _ = x @ x.T
    return min(wall(lambda: x @ x.T)() for _ in range(3))


def run(quick: bool = False) -> Outcome:
    """Agreement, then times: FC of depth 3 on 3,000 × 784, and a CNN of depth 5 on 32 × 32, flattened and pooled."""
    torch.set_num_threads(THREADS)
    races: dict[str, tuple[Spec, int, int, float]] = {
        "fc, 3 hidden layers": (depth(3), 200 if quick else 3000, 784, 4.0),
        "cnn, 5 layers, flatten": (depth(5, FLAT), 4 if quick else 64, 8 if quick else 32, 4.0),
        "cnn, 5 layers, pooled": (depth(5, POOL), 2, 8 if quick else 32, 10.0),
    }
    rows: list[dict[str, Any]] = []
    checks: list[Check] = []
    details: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, Peer("neural-tangents-infinite") as peer:
        folder = Path(scratch)
        errors = {
            f"{name}, {kind}": agreement(peer, folder, spec, kind)
            for name, spec in ARCHITECTURES.items()
            for kind in ("nngp", "ntk")
        }
        details["agreement"] = errors
        worst = max(errors, key=lambda name: errors[name])
        checks.append(
            Check(
                f"{len(ARCHITECTURES)} architectures, both kernels, agree with neural-tangents",
                f"≤ {AGREEMENT:g}",
                f"{errors[worst]:.1e} ({worst})",
                errors[worst] <= AGREEMENT,
            )
        )
        for name, (spec, n, size, target) in races.items():
            x = inputs(spec, n, size, size).float()
            np.savez(folder / "x.npz", x1=x.numpy())
            details[name] = peer.ask("load", layers=spec, path=str(folder / "x.npz"), kind="ntk", double=False)
            peer.ask("kernel", out=str(folder / "K.npy"))
            theirs = torch.from_numpy(np.load(folder / "K.npy"))
            net = ours(spec)

            def kernel(net: infinite.layer.Layer = net, x: Tensor = x) -> Tensor:
                return infinite.kernel(net, x, dtype=torch.float32).dense()

            error = relative_error(kernel(), theirs)
            if error > 1e-3:
                raise PeerUnavailable(f"{name}: kernels differ by {error:.2g}")
            seconds = interleaved(
                {"ntkscope": wall(kernel), "neural-tangents": peer.timed("kernel")}, rounds=1 if quick else 3
            )
            faster = ratio(seconds["neural-tangents"], seconds["ntkscope"])
            started = time.process_time()
            kernel()
            used = time.process_time() - started
            details[name]["processor seconds"] = {
                "ntkscope": used,
                "neural-tangents": peer.ask("kernel")["cpu_seconds"],
            }
            rows.append(
                {
                    "network": name,
                    "inputs": n,
                    "ntkscope, s": seconds["ntkscope"],
                    "neural-tangents, s": seconds["neural-tangents"],
                    "ours is faster by": faster,
                    "processor time": f"{details[name]['processor seconds']['neural-tangents'] / used:.2g}×",
                    "relative difference": f"{error:.1e}",
                }
            )
            holds = None if quick else faster.median >= target
            checks.append(Check(f"{name}: faster than neural-tangents", f"≥ {target:g}×", f"{faster}×", holds))
            if spec[0][0] == "Dense":
                products = _products(seconds["ntkscope"], n, size)
                checks.append(
                    Check(
                        f"{name}: plain matrix products", "≤ 2.5", f"{products:.2f}", None if quick else products <= 2.5
                    )
                )
    return Outcome(
        f"Infinite-width NTK, {THREADS} cores, float32",
        rows,
        checks,
        ("neural-tangents computes the whole kernel in one compiled call; compilation is not timed.",),
        details,
    )


def _products(ours: Spread, n: int, features: int) -> float:
    """How many plain products of the inputs with themselves our time is."""
    return ours.median / matmul_seconds(n, features, torch.float32)
