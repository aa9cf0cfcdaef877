"""Small problems and networks that the tests of training share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ntkscope import models
from ntkscope.core import Part, Snapshot, generator
from ntkscope.training import SnapshotStore

TESTS = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])}
ALL_OPTIMIZERS = {
    "gd": {"lr": 0.05},
    "sgd": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    "adam": {"lr": 0.01, "weight_decay": 1e-3},
    "adamw": {"lr": 0.01, "weight_decay": 0.1},
    "adagrad": {"lr": 0.05},
    "adadelta": {"lr": 1.0},
}


def classes_part(n: int = 23, d: int = 5, classes: int = 3, dtype: torch.dtype = torch.float32) -> Part:
    """Gaussian inputs with labels of a random linear teacher."""
    draw = generator(0, "classes")
    x = torch.randn(n, d, generator=draw, dtype=dtype)
    return Part(x, (x @ torch.randn(d, classes, generator=draw, dtype=dtype)).argmax(1))


def regression_part(n: int = 12, d: int = 4, dtype: torch.dtype = torch.float64) -> Part:
    """Gaussian inputs with noisy linear targets."""
    draw = generator(1, "regression")
    x = torch.randn(n, d, generator=draw, dtype=dtype)
    return Part(x, x @ torch.randn(d, generator=draw, dtype=dtype) + torch.randn(n, generator=draw, dtype=dtype))


def small_net(
    seed: int = 0, *, dropout: float = 0.0, norm: bool = False, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """5 inputs, 7 hidden units, 3 outputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(5, 7), nn.BatchNorm1d(7) if norm else nn.Identity(), nn.Tanh(), nn.Dropout(dropout)]
        return nn.Sequential(*layers, nn.Linear(7, 3)).to(dtype)


def net(seed: int) -> nn.Module:
    """`small_net` in double precision."""
    return small_net(seed, dtype=torch.float64)


def chain_net(seed: int) -> nn.Module:
    """The same sizes, as linear layers in a row, which ensembles differentiate by hand."""
    return models.build("mlp", in_features=5, classes=3, widths=[7], activation="tanh", seed=seed).double()


def image_net(seed: int) -> nn.Module:
    """For images (n, 2, 6, 5)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)).double()


def norm_net(seed: int) -> nn.Module:
    """Double precision; without a bias before the normalisation, whose gradient is rounding alone, of which adam makes steps of
    full size."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3)]
        return nn.Sequential(*layers).double()


PART = classes_part(dtype=torch.float64)
HELD = Part(PART.x.flip(0) + 0.3, PART.y.flip(0))
IMAGES = Part(torch.randn(14, 2, 6, 5, generator=generator(0, "images"), dtype=torch.float64), torch.arange(14) % 3)


def cases(quick: list[tuple[Any, ...]], *axes: Iterable[Any]) -> list[Any]:
    """Every combination; those that are not `quick` run with `make guard`."""
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.guard) for case in product(*axes)]


def killed(script: str, folder: Path, slow: str) -> Snapshot:
    """Run `script` (its arguments: a folder and how slow to be) in a process that is killed at its first checkpoint, which is
    returned."""
    process = subprocess.Popen([sys.executable, "-c", script, str(folder), slow], env=ENVIRONMENT)
    deadline = time.monotonic() + 120
    while not (folder / "latest.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    latest = SnapshotStore(folder).latest()
    assert latest is not None
    return latest
