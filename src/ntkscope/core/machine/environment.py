"""The environment of a computation: versions, machine, device, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("ntkscope", "torch", "numpy", "scipy", "scikit-learn", "transformers")


def environment(device: torch.device | str | None = None) -> dict[str, Any]:
    """Everything about this machine that a recorded number may depend on; nothing that identifies it or its user."""
    return {
        "python": platform.python_version(),
        "packages": _versions(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_count": _cpus(),
        "threads": torch.get_num_threads(),
        "device": device_name(device),
        "commit": source_commit(),
    }


def device_name(device: torch.device | str | None = None) -> str:
    """The device in words: `cpu`, or a GPU's own name.

    >>> device_name("cpu")
    'cpu'
    """
    device = torch.device("cpu" if device is None else device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def source_commit() -> str | None:
    """The git commit of this package's source, with `+changes` when the tree differs; None for an installed wheel."""
    here = Path(__file__).resolve()
    # A wheel installed inside another repository lies in that repository's folder without being part of it.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    commit = _git(here.parent, "rev-parse", "HEAD")
    changed = _git(here.parents[1], "status", "--porcelain", "--", ".")
    return f"{commit}+changes" if commit and changed else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]  # the repository is only read
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpus() -> int:
    """The cores this process may use, which a container often makes fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
