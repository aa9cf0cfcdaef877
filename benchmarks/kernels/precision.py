"""What every precision of the engine costs in digits: the trace-NTK of LeNet and ResNet-20 against float64.

Errors of entries are relative to `sqrt(K_ii K_jj)`, that is errors of the cosines; the smallest eigenvalue is that of the
kernel of cosines, where float64's own is what the others should find. On a CPU there is no TF32: `exact`, `bf16` and `fp16`
are run there, the last two once, for their rounding: a CPU has no units for them. On a CUDA device all four are timed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import ntkscope as ns
from benchmarks import networks
from benchmarks.networks import relative_error
from benchmarks.outcome import Check, Outcome
from benchmarks.timing import interleaved, wall

SIZES = {"cpu": {"lenet": 1024, "resnet20": 6}, "cuda": {"lenet": 2048, "resnet20": 512}}
MEMORY = {"cpu": "2GiB", "cuda": "64GiB"}
QUICK_SIZES = {"lenet": 24, "resnet20": 2}
ROADS = {"cpu": ("exact", "bf16", "fp16"), "cuda": ("exact", "tf32", "bf16", "fp16")}
TARGETS = {"exact": 1e-3, "tf32": 1e-3, "bf16": 5e-3, "fp16": 1e-3}  # of the Frobenius norm


def errors(K: Tensor, reference: Tensor) -> dict[str, float]:
    """Errors of `K` against a float64 kernel, and the smallest eigenvalue of its cosines.

    >>> found = errors(torch.eye(2), torch.eye(2).double())
    >>> found["largest error"], found["smallest eigenvalue"]
    (0.0, 1.0)
    """
    scale = reference.diagonal().rsqrt()
    gaps = (K.double() - reference).abs() * scale[:, None] * scale
    health = ns.linalg.psd_health(ns.linalg.as_gram(K).normalized())
    return {
        "relative error (Frobenius)": relative_error(K, reference),
        "largest error": float(gaps.max()),
        "median error": float(gaps.median()),
        "smallest eigenvalue": health.smallest_eigenvalue,
        "negative mass": health.negative_mass,
    }


def compare(name: str, n: int, device: str, rounds: int) -> tuple[list[dict[str, Any]], str]:
    """All precisions of one network."""
    case = networks.case(name, n)
    model, x = case.model.to(device), case.x.to(device)
    roads: dict[str, dict[str, Any]] = {"float64": {"dtype": torch.float64}}
    roads |= {road: {"precision": road} for road in ROADS[device]}
    kernels: dict[str, Tensor] = {}

    def run(road: str) -> None:
        kernels[road] = ns.kernel("trntk0", model, x, memory=MEMORY[device], **roads[road]).dense().cpu()

    for road in roads:  # the first call of a road is not timed: libraries load what they need
        run(road)
    timed = [road for road in roads if device == "cuda" or road in ("float64", "exact")]
    seconds = interleaved({road: wall(lambda road=road: run(road)) for road in timed}, rounds=rounds)  # type: ignore[misc]
    rows = [
        {
            "network": f"{name}, {n} inputs",
            "precision": "float32 (exact)" if road == "exact" else road,
            **{key: f"{value:.1e}" for key, value in errors(kernels[road], kernels["float64"]).items()},
            "seconds": seconds.get(road),
            "road": road,
        }
        for road in roads
    ]
    return rows, case.source


def run(quick: bool = False) -> Outcome:
    """Both networks on the best device there is."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows: list[dict[str, Any]] = []
    sources: list[str] = []
    for name, n in (QUICK_SIZES if quick else SIZES[device]).items():
        found, source = compare(name, n, device, 1 if quick else 3)
        rows, sources = rows + found, [*sources, f"{name}: {source}"]
    checks = [
        Check(
            f"{row['network']}, {row['precision']}: relative error (Frobenius)",
            f"≤ {TARGETS[row['road']]:g}",
            row["relative error (Frobenius)"],
            float(row["relative error (Frobenius)"]) <= TARGETS[row["road"]],
        )
        for row in rows
        if row["road"] in TARGETS
    ]
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return Outcome(
        title=f"Precision of the trace-NTK on {where}",
        rows=[{key: value for key, value in row.items() if key != "road"} for row in rows],
        checks=checks,
        notes=(
            "; ".join(sources),
            "Errors of entries are relative to sqrt(K_ii K_jj); eigenvalues are those of the kernel of cosines.",
            *(() if device == "cuda" else ("TF32 is a road of CUDA devices; bf16 and fp16 are only rounded here.",)),
        ),
    )
