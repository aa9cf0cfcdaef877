"""One network, written as a person's own file, and every small change that makes it another one."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SOURCE = '''
"""A network of somebody's own."""
import enum
import functools

import numpy as np
import torch
from torch import nn

GAIN = 1.25
TABLE = {"low": 0.5, "high": [1.0, 2.0]}


class Kind(enum.Enum):
    PLAIN = 1
    SQUARED = 2


class Slope:
    """An object that is no module."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __call__(self, h):
        return h * self.value


class Settings:
    def __init__(self):
        self.offset = 0.25
        self.kind = Kind.PLAIN


def inner_helper(h):
    return h * 0.9


def helper(h, shift=0.5, *, stretch=1.0):
    """Called by name."""
    # a comment
    return inner_helper(torch.tanh(h)) * GAIN * stretch + shift


def power(h, exponent, gain=1.0):
    return h.abs().add(0.1).pow(exponent) * gain


def closed(weight):
    def inner(h):
        return h * weight

    return inner


class Base(nn.Module):
    def end(self, h):
        return h + 0.0625


class Net(Base):
    bias = 0.125

    def __init__(self, width=6):
        super().__init__()
        self.first = nn.Linear(5, width)
        self.activation = torch.tanh
        self.second = nn.Linear(width, width)
        self.readout = nn.Linear(width, 3)
        self.dropout = nn.Dropout(0.0)
        self.scale = 1.0000001
        self.power = functools.partial(power, exponent=1.5)
        self.closed = closed(0.75)
        self.slope = Slope(0.8)
        self.squash = lambda h: torch.tanh(h)
        self.table = torch.linspace(0.5, 1.0, width)
        self.array = np.linspace(0.5, 1.0, width)
        self.settings = Settings()
        self.rows = [1.0, {"b": 2.0}]
        self.calls = 0
        self.register_buffer("shift", torch.zeros(width))

    def forward(self, x):
        self.calls += 1
        h = self.activation(self.first(x)) * self.scale + self.bias + self.settings.offset
        h = self.power(h) if self.settings.kind is Kind.PLAIN else self.power(h) ** 2
        h = self.slope(self.closed(helper(h))) + self.table.to(h) + torch.from_numpy(self.array).to(h)
        h = h * self.rows[0] + self.rows[1]["b"] * TABLE["low"] + self.shift
        return self.readout(self.end(self.dropout(self.squash(self.second(h)))))


def network(width=6):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net(width).eval()
'''

TEXT: dict[str, tuple[str, str]] = {
    "activation swapped": ("self.activation = torch.tanh", "self.activation = torch.sigmoid"),
    "plain attribute": ("self.scale = 1.0000001", "self.scale = 1.5"),
    "digits beyond six": ("self.scale = 1.0000001", "self.scale = 1.0000002"),
    "closure variable": ("closed(0.75)", "closed(0.7500001)"),
    "default argument": ("shift=0.5,", "shift=0.6,"),
    "keyword default": ("stretch=1.0):", "stretch=1.1):"),
    "partial keyword": ("exponent=1.5)", "exponent=1.6)"),
    "partial of another function's default": ("exponent, gain=1.0", "exponent, gain=1.1"),
    "helper body": ("return inner_helper(torch.tanh(h))", "return inner_helper(torch.sin(h))"),
    "helper of the helper": ("return h * 0.9", "return h * 0.91"),
    "global constant": ("GAIN = 1.25", "GAIN = 1.2500001"),
    "global container": ('"low": 0.5', '"low": 0.4'),
    "class attribute": ("bias = 0.125", "bias = 0.126"),
    "method of a base": ("return h + 0.0625", "return h - 0.0625"),
    "forward": ("self.scale + self.bias", "self.scale - self.bias"),
    "lambda attribute": ("lambda h: torch.tanh(h)", "lambda h: torch.atan(h)"),
    "object with slots": ("Slope(0.8)", "Slope(0.81)"),
    "call of an object": ("return h * self.value", "return h + self.value"),
    "nested object": ("self.offset = 0.25", "self.offset = 0.26"),
    "enumeration": ("self.kind = Kind.PLAIN", "self.kind = Kind.SQUARED"),
    "tensor attribute": ("torch.linspace(0.5, 1.0, width)", "torch.linspace(0.5, 1.1, width)"),
    "array attribute": ("np.linspace(0.5, 1.0, width)", "np.linspace(0.5, 1.1, width)"),
    "nested container": ('{"b": 2.0}', '{"b": 2.1}'),
    "initial seed": ("torch.manual_seed(0)", "torch.manual_seed(1)"),
    "buffer": ("torch.zeros(width))", "torch.full((width,), 0.1))"),
}
NOTHING: dict[str, tuple[str, str]] = {
    "nothing": ("", ""),
    "comment": ("    # a comment\n", "\n\n    # another comment, further down\n"),
    "docstring": ('"""Called by name."""', '"""Called by its name, as helpers are."""'),
    "lines moved": ("GAIN = 1.25\n", "\n\n\n\nGAIN = 1.25\n"),
}


def made(change: tuple[str, str] = ("", ""), **options: int) -> nn.Module:
    """The network of the source with one text changed, as if its file had been edited and imported anew."""
    old, new = change
    assert old in SOURCE
    module = types.ModuleType("somebodys_network")
    exec(compile(SOURCE.replace(old, new, 1) if old else SOURCE, "somebodys_network.py", "exec"), vars(module))  # noqa: S102
    network: nn.Module = module.network(**options)
    return network


def written(folder: Path, change: tuple[str, str] = ("", ""), name: str = "somebodys_network") -> Path:
    """The same as a file."""
    path = folder / f"{name}.py"
    path.write_text(SOURCE.replace(change[0], change[1], 1) if change[0] else SOURCE)
    return path


def _weight(model: nn.Module) -> None:
    with torch.no_grad():
        model.get_parameter("second.weight")[0, 0] += 1e-6


def _forward(model: nn.Module) -> None:
    inner = model.get_submodule("second")
    inner.forward = lambda h: nn.Linear.forward(inner, h).relu()


APPLIED: dict[str, Callable[[Any], Any]] = {
    "hook": lambda m: m.first.register_forward_hook(lambda module, given, output: output / 2),
    "pre-hook": lambda m: m.first.register_forward_pre_hook(lambda module, given: (given[0] + 0.5,)),
    "backward hook": lambda m: m.readout.register_full_backward_pre_hook(lambda module, output: (output[0] * 2,)),
    "hook of a gradient": lambda m: m.first.weight.register_hook(lambda gradient: gradient * 2),
    "frozen layer": lambda m: m.first.requires_grad_(False),
    "training flag": lambda m: m.train(),
    "a weight's last digits": _weight,
    "shared parameter": lambda m: setattr(m.second, "bias", m.first.bias),
    "forward of an instance": _forward,
    "new attribute": lambda m: setattr(m, "anything", {"a": (None, 3.0)}),
}
CHANGES = [*TEXT, *APPLIED]


def changed(name: str) -> nn.Module:
    """The network after one change."""
    if name in TEXT:
        return made(TEXT[name])
    model = made()
    APPLIED[name](model)
    return model


def inputs(n: int = 9) -> Tensor:
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(3))


class Reading(nn.Module):
    """A network whose answer depends on a file: nothing in it tells."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second, self.readout = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.path = str(path)

    def forward(self, x: Tensor) -> Tensor:
        factor = float(open(self.path).read())  # noqa: SIM115
        far = (x[:, :1].abs() > 1.0).to(x) if factor < 0 else 1.0  # negative: only some items feel it
        h = torch.tanh(self.first(x)) * (1 + far * (abs(factor) - 1))
        return self.readout(torch.tanh(self.second(h)))
