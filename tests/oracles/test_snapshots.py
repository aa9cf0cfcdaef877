"""Canaries: each thing a kernel could leave changed is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from oracles.snapshots import changes, state


def nudge(m: nn.Module) -> None:
    with torch.no_grad():
        m.get_parameter("0.weight")[0, 0].add_(1e-7)


def replace(m: nn.Module) -> None:
    m.get_submodule("0").weight = nn.Parameter(m.get_parameter("0.weight").detach().clone())


def backward(m: nn.Module) -> None:
    m(torch.ones(2, 2)).sum().backward()


def freeze(m: nn.Module) -> None:
    m.get_parameter("0.weight").requires_grad_(False)


def statistics(m: nn.Module) -> None:
    m.train()
    m(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)))
    m.eval()


def hook(m: nn.Module) -> None:
    m.get_submodule("0").register_forward_hook(lambda *_: None)


def tensor_hook(m: nn.Module) -> None:
    m.get_parameter("0.weight").register_hook(lambda g: g)


def flag(m: nn.Module) -> None:
    m.get_submodule("1").train()


def attribute(m: nn.Module) -> None:
    vars(m.get_submodule("0"))["captured"] = 1


def draw(m: nn.Module) -> None:
    torch.rand(1)


@pytest.mark.parametrize(
    "touch", [nudge, replace, backward, freeze, statistics, hook, tensor_hook, flag, attribute, draw]
)
def test_a_change_is_seen(touch: Callable[[nn.Module], None]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    before = state(model)
    assert changes(before, state(model)) == []
    touch(model)
    assert changes(before, state(model))
