"""A small network on a small task, X-rayed in a second or two; what the tests of this room look at."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.core import Part, Record, Registry, generator
from ntkscope.kernels.costs import Rates
from ntkscope.xray import registry
from ntkscope.xray.registry import SECTIONS, Section
from ntkscope.xray.task import recorded_task
from ntkscope.xray.workload import Workload

SECTIONS_OF_A_CLASSIFIER = [
    "summary",
    "confusion",
    "surrogates",
    "explain",
    "problems",
    "shift",
    "kernel",
    "tangent",
    "layers",
    "representations",
    "layer_features",
    "weight_spectra",
    "computed",
]


def blobs(n: int = 60, classes: int = 3, seed: int = 0) -> tuple[Part, Part]:
    """Gaussian classes in five dimensions that overlap a little: a training and a test part."""
    draw = generator(seed, "blobs")
    centres = 1.5 * torch.randn(classes, 5, generator=draw)
    y = torch.arange(2 * n) % classes
    x = centres[y] + torch.randn(2 * n, 5, generator=draw)
    return Part(x[:n], y[:n]), Part(x[n:], y[n:])


def network(classes: int = 3, seed: int = 0) -> nn.Module:
    return ns.models.build("mlp", in_features=5, classes=classes, widths=16, depth=1, seed=seed)


def trained(train: Part, classes: int = 3, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """A network before and after a short training."""
    model = network(classes, seed)
    initial = copy.deepcopy(model)
    ns.training.fit(model, train, lr=1e-2, optimizer="adam", steps=60, measure=False).final()
    return initial, model


def waves(n: int = 60, outputs: int = 1, seed: int = 0) -> tuple[Part, Part]:
    """Real targets of five inputs: smooth, not linear, a little noisy; (n,) for one output. The second has another unit."""
    draw = generator(seed, "waves")
    x = torch.randn(2 * n, 5, generator=draw)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3] + 0.05 * torch.randn(2 * n, 1, generator=draw)
    if outputs == 2:
        y = torch.cat([y, 100 + 20 * x[:, 3:4]], dim=1)
    y = y[:, 0] if outputs == 1 else y
    return Part(x[:n], y[:n]), Part(x[n:], y[n:])


def regressed(train: Part, width: int = 24, steps: int = 150, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """A network that predicts these targets, before and after a short training."""
    y = (train.y[:, None] if train.y.ndim == 1 else train.y).float()
    model = ns.models.build("mlp", in_features=5, classes=y.shape[1], widths=width, depth=1, seed=seed)
    initial = copy.deepcopy(model)
    mean, spread = y.mean(0), y.std(0).clamp_min(1e-6)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        ((model(train.x) * spread + mean - y) / spread).square().mean().backward()
        optimizer.step()
    for net in (initial, model):
        with torch.no_grad():  # the unit of the targets goes into the last layer
            net.readout.weight *= spread[:, None]
            net.readout.bias.mul_(spread).add_(mean)
    return initial, model


def xrayed(folder: Path, **options: Any) -> Record:
    """The X-ray of such a network."""
    train, test = blobs()
    initial, model = trained(train)
    return ns.xray(model, train, test, folder, **{"initial": initial, "progress": False, **options})


_MADE: list[Path] = []


def copied(folder: Path, made_in: pytest.TempPathFactory) -> Record:
    """The X-ray with the conjugate kernel alone: made once in a process, and copied."""
    if not _MADE:
        _MADE.append(xrayed(made_in.mktemp("small") / "ck", kernels=["ck"]).folder)
    shutil.copytree(_MADE[0], folder)
    return Record.open(folder)


def found_in(section: Section[Any], record: Record) -> Any:
    """What a section found, in the form it has for the record's task."""
    return section.of(recorded_task(record.metrics)).read(record.metrics)


def workload(rates: Rates, train: int = 200, test: int = 50, *, initial: bool = False, **options: Any) -> Workload:
    """The work on so many items of ten classes."""
    first = (train, test) if initial else (0, 0)
    return Workload(train, test, *first, **{"classes": 10, "rates": rates, **options})


@contextmanager
def only(*sections: Section[Any]) -> Iterator[None]:
    """X-rays have these sections and those they come after, and nobody waits for the others."""
    few: Registry[Section[Any]] = Registry("section")
    for section in (SECTIONS[name] for name in sorted(_needed(sections))):
        few.add(section.name, section)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "SECTIONS", few)
        yield


def _needed(sections: tuple[Section[Any], ...]) -> set[str]:
    return {section.name for section in sections} | {name for each in sections for name in _needed(each.after)}
