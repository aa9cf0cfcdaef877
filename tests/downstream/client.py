"""A program of somebody who uses the package and checks types strictly: what is public has types that they can rely on."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import torch
from torch import Tensor, nn

import ntkscope as ns


def similar(model: nn.Module, x: Tensor, folder: Path) -> tuple[Tensor, float]:
    kernel = ns.kernel("trntk", model, x, memory="1GiB", store=folder)
    assert_type(kernel, ns.Gram)
    matrix = kernel.dense()
    assert_type(matrix, Tensor)
    split = ns.data.load("digits")
    assert_type(split, ns.Split)
    record = ns.xray(model, split.train, split.test, folder / "xray", kernels=["trntk"])
    assert_type(record, ns.Record)
    try:
        ns.models.build("lenet")
    except ns.NtkscopeError as error:
        print(error)
    return matrix, float(torch.trace(matrix))
