"""A small network on a small task, X-rayed in a second or two; what the tests of this room look at."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ntkscope as ns
from ntkscope.core import Part, Record, generator


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


def xrayed(folder: Path, **options: Any) -> Record:
    """The X-ray of such a network."""
    train, test = blobs()
    initial, model = trained(train)
    return ns.xray(model, train, test, folder, **{"initial": initial, "progress": False, **options})
