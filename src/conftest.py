"""What the examples in docstrings share."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import Part
from ntkscope.measures import MEASURES

# All rooms before pytest imports their files one by one, and leaves the file `infinite.sphere` where its function was.
for _name in ns.__all__:
    getattr(ns, _name)


@cache
def _trained() -> tuple[nn.Module, Tensor, Tensor]:
    """A small classifier after training, its training inputs (12, 2) and their labels (12,)."""
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    model = ns.models.mlp(2, classes=2, widths=[4])
    ns.training.fit(model, Part(x, y), lr=0.5, steps=20).final()
    return model.eval(), x, y


def namespace(folder: str) -> dict[str, Any]:
    """What examples find without importing it, copies of their own; `folder` is a path where nothing is yet."""
    model, x, y = copy.deepcopy(_trained())
    return {"np": np, "torch": torch, "nn": nn, "ns": ns, "model": model, "x": x, "y": y, "folder": folder}


@pytest.fixture(autouse=True)
def shared_names(doctest_namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in namespace(str(tmp_path / "out")).items():
        monkeypatch.setitem(doctest_namespace, name, value)
    for entries in ("_entries", "_spelling"):  # what an example registers is gone after it
        monkeypatch.setattr(MEASURES, entries, dict(getattr(MEASURES, entries)))
