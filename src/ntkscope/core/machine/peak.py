"""The most floating-point operations a second that a device can do: from its data sheet, or by a short trial."""

from __future__ import annotations

import time
from functools import lru_cache

import torch

# dense matrix products, flop/s: (float64, float32, TF32, bfloat16 and float16)
SHEETS = {
    "H200": (67e12, 67e12, 494.7e12, 989.4e12),
    "H100 PCIe": (51e12, 51e12, 378e12, 756e12),
    "H100": (67e12, 67e12, 494.7e12, 989.4e12),
    "A100": (19.5e12, 19.5e12, 156e12, 312e12),
}
KINDS = ("float64", "float32", "tf32", "bf16")
TRIAL = {"cpu": 512, "cuda": 8192}  # rows of the matrices of a trial


def kind_of(precision: str, dtype: torch.dtype) -> str:
    """What the products of a run are computed in: one of `KINDS`.

    >>> kind_of("exact", torch.float32), kind_of("fp16", torch.float32), kind_of("exact", torch.float64)
    ('float32', 'bf16', 'float64')
    """
    if precision in ("bf16", "fp16") or dtype in (torch.bfloat16, torch.float16):
        return "bf16"
    if precision == "tf32":
        return "tf32"
    return "float64" if dtype == torch.float64 else "float32"


def sheet_peak(name: str, kind: str) -> float | None:
    """What the data sheet of a device with this name says; None for a device that is not listed.

    >>> sheet_peak("NVIDIA H200", "bf16"), sheet_peak("NVIDIA A100-SXM4-80GB", "tf32"), sheet_peak("GeForce 256", "bf16")
    (989400000000000.0, 156000000000000.0, None)
    """
    for listed, peaks in SHEETS.items():
        if listed in name:
            return peaks[KINDS.index(kind)]
    return None


def peak(device: torch.device, kind: str) -> tuple[float, str]:
    """Flop/s of the device for products in `kind`, and where that is from: its data sheet, or a trial (which is kept)."""
    if device.type == "cuda":
        found = sheet_peak(torch.cuda.get_device_name(device), kind)
        if found is not None:
            return found, "data sheet"
    return measured_peak(device.type, device.index, kind, torch.get_num_threads()), "trial"


@lru_cache
def measured_peak(type_: str, index: int | None, kind: str, threads: int) -> float:
    """Flop/s of a large square product: the best of three."""
    from ntkscope.core.machine.tensor_cores import tensor_cores

    device = torch.device(type_) if index is None else torch.device(type_, index)
    dtype = {"float64": torch.float64, "bf16": torch.bfloat16 if type_ == "cuda" else torch.float32}
    size = TRIAL.get(type_, 512)
    left = torch.ones(size, size, dtype=dtype.get(kind, torch.float32), device=device)
    best = float("inf")
    with tensor_cores(kind in ("tf32", "bf16")):
        for _ in range(4):  # the first loads the library
            begun = _now(device)
            left @ left
            spent = _now(device) - begun
            best = min(best, spent)
    return 2.0 * size**3 / max(best, 1e-9)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
