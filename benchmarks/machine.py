"""Where a figure was measured: processor, cores, versions, commit; and keeping everyone to the same cores."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
THREADS = int(os.environ.get("BENCH_THREADS", "2"))
"""Threads, and cores, of everyone who is compared; children inherit the variable."""


def keep_to_cores(threads: int = THREADS) -> None:
    """Pin this process, and every peer it starts, to the first `threads` of the cores it may use.

    Peers size their thread pools from the affinity mask, so all of them get exactly these cores.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(threads)


def processor() -> str:
    """The processor's own name where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    try:
        lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Model name")), platform.machine())


def commit() -> str:
    """The commit checked out, with `+` when tracked files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from its source
        return "source"


def describe(threads: int = THREADS) -> dict[str, object]:
    """The environment every result carries."""
    import torch

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": processor(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": load,
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "ntkscope": _version("ntkscope"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "commit": commit(),
        "when": time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime()),
    }
