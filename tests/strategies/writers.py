"""Models that write while they run: they count, cache, log, append and draw, wherever Python lets them keep something."""

from __future__ import annotations

import array
import itertools
import queue
import types
import weakref
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO, StringIO
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from strategies.networks import randomize

CALLS = 0
LOG: list[int] = []
TABLE = {"calls": 0}
SEEN = np.zeros(3)
TENSOR = torch.zeros(2)
TICKS = itertools.count()


class Slotted:
    __slots__ = ("__hidden", "late", "n")

    def __init__(self) -> None:
        self.n = 0
        self.__hidden: list[int] = []

    def tick(self) -> None:
        self.n, self.late = self.n + 1, True
        self.__hidden.append(self.n)


@dataclass(slots=True)
class SlottedRecord:
    n: int = 0
    members: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    n: int = 0


@dataclass
class Record:
    n: int = 0


class Named(list[int]):
    """A list with attributes."""


class Registry:
    calls = 0
    names: list[str] = []  # noqa: RUF012 - shared on purpose


class Writer(nn.Module):
    """Two layers, and a `write` that each model below has of its own."""

    total = 0
    shared: list[int] = []  # noqa: RUF012

    def __init__(self, setup: Callable[[Any], Any], write: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
        self.write = write
        self.breaks: Callable[[], None] | None = None
        setup(self)

    def forward(self, x: Tensor) -> Tensor:
        self.write(self, x)
        if self.breaks is not None:
            self.breaks()
        made: Tensor = self.b(torch.tanh(self.a(x)))
        return made


class Other(Writer):
    """What `__class__` may be swapped with."""


WRITERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Tensor], Any]]] = {}


def writer(name: str, setup: Callable[[Any], Any] = lambda m: None) -> Callable[[Callable[[Any, Tensor], Any]], Any]:
    def register(write: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Any]:
        WRITERS[name] = setup, write
        return write

    return register


def keeps(value: Callable[[], Any]) -> Callable[[Any], None]:
    return lambda m: setattr(m, "kept", value())


def buffer(value: Tensor) -> Callable[[Any], None]:
    return lambda m: m.register_buffer("kept", value.clone())


writer("an attribute", keeps(lambda: 0))(lambda m, x: setattr(m, "kept", m.kept + 1))
writer("a new attribute")(lambda m, x: setattr(m, "cache", x.detach() * 2))
writer("a list", keeps(list))(lambda m, x: m.kept.append(len(x)))
writer("a dict", keeps(dict))(lambda m, x: m.kept.__setitem__(len(m.kept), x))
writer("a dict in another order", keeps(lambda: OrderedDict(a=1, b=2)))(lambda m, x: m.kept.move_to_end("a"))
writer("a set", keeps(lambda: {8, 1, 16}))(lambda m, x: m.kept.add(len(m.kept)))
writer("a Counter", keeps(Counter))(lambda m, x: m.kept.update("calls"))
writer("a defaultdict", keeps(lambda: defaultdict(list)))(lambda m, x: m.kept["n"].append(1))
writer("a deque", keeps(lambda: deque([1, 2, 3], maxlen=3)))(lambda m, x: m.kept.append(len(x)))
writer("a UserDict", keeps(UserDict))(lambda m, x: m.kept.update(n=len(x)))
writer("a UserList", keeps(UserList))(lambda m, x: m.kept.append(1))
writer("a list with attributes", keeps(Named))(lambda m, x: setattr(m.kept, "n", len(x)))
writer("a queue", keeps(queue.Queue))(lambda m, x: m.kept.put(1))
writer("numpy", keeps(lambda: np.zeros(3)))(lambda m, x: m.kept.__iadd__(1))
writer("numpy objects", keeps(lambda: np.array([None, [1]], dtype=object)))(
    lambda m, x: m.kept.__setitem__(0, [len(x)])
)
writer("a large array", keeps(lambda: np.zeros(2**18)))(lambda m, x: m.kept.__setitem__(0, 7.0))
writer("a bytearray", keeps(bytearray))(lambda m, x: m.kept.append(1))
writer("an array", keeps(lambda: array.array("d", [0.0])))(lambda m, x: m.kept.append(2.0))
writer("a StringIO", keeps(StringIO))(lambda m, x: m.kept.write("called"))
writer("a BytesIO", keeps(lambda: BytesIO(b"a")))(lambda m, x: m.kept.write(b"called"))
writer("a SimpleNamespace", keeps(lambda: types.SimpleNamespace(n=0)))(lambda m, x: setattr(m.kept, "n", m.kept.n + 1))
writer("slots", keeps(Slotted))(lambda m, x: m.kept.tick())
writer("a slotted dataclass", keeps(SlottedRecord))(lambda m, x: m.kept.members.append(1))
writer("a frozen dataclass", keeps(Frozen))(lambda m, x: object.__setattr__(m.kept, "n", m.kept.n + 1))
writer("a dataclass", keeps(Record))(lambda m, x: setattr(m.kept, "n", m.kept.n + 1))
writer("itertools.count", keeps(itertools.count))(lambda m, x: next(m.kept))
writer("a count in a list", keeps(lambda: [itertools.count(3, 2)]))(lambda m, x: next(m.kept[0]))
writer("a global count")(lambda m, x: next(TICKS))
writer("a buffer", buffer(torch.zeros(2)))(lambda m, x: m.kept.add_(1))
writer("a buffer through .data", buffer(torch.zeros(2)))(lambda m, x: m.kept.data.add_(1))
writer("a buffer through numpy", buffer(torch.zeros(2)))(lambda m, x: m.kept.numpy().__iadd__(1))
writer("another buffer", buffer(torch.zeros(2)))(lambda m, x: setattr(m, "kept", m.kept + 1))
writer("a plain tensor", keeps(lambda: torch.zeros(2)))(lambda m, x: m.kept.add_(1))
writer("an attribute of a tensor", buffer(torch.zeros(2)))(
    lambda m, x: setattr(m.kept, "n", getattr(m.kept, "n", 0) + 1)
)
writer("a gradient")(lambda m, x: setattr(m.a.bias, "grad", torch.ones(4, dtype=m.a.bias.dtype)))
writer("a hook")(lambda m, x: m.a.register_forward_hook(lambda *_: None))
writer("a hook of a parameter")(lambda m, x: m.a.weight.register_hook(lambda g: g))
writer("a hook that counts", lambda m: m.a.register_forward_hook(counting_hook()))(lambda m, x: None)
writer("the mode of a layer")(lambda m, x: m.b.train(not m.b.training))
writer("a class attribute")(lambda m, x: setattr(type(m), "total", type(m).total + 1))
writer("a list of the class")(lambda m, x: m.shared.append(1))
writer("another class")(lambda m, x: setattr(Registry, "calls", Registry.calls + 1))
writer("a list of another class")(lambda m, x: Registry.names.append("called"))
writer("the class of an object", keeps(Record))(lambda m, x: setattr(m.kept, "__class__", Recorded))
writer("a global list")(lambda m, x: LOG.append(1))
writer("a global dict")(lambda m, x: TABLE.update(calls=TABLE["calls"] + 1))
writer("a global array")(lambda m, x: SEEN.__iadd__(1))
writer("a global tensor")(lambda m, x: TENSOR.add_(1))
writer("a function's attribute")(lambda m, x: setattr(helper, "calls", getattr(helper, "calls", 0) + 1))
writer("a function that counts")(lambda m, x: helper(x))
writer("a default", keeps(lambda: appender))(lambda m, x: m.kept())
writer("a partial", keeps(lambda: partial(grow, [])))(lambda m, x: m.kept())
writer("a weak reference", lambda m: vars(m).update(owner=(made := Record()), kept=weakref.ref(made)))(
    lambda m, x: setattr(m.kept(), "n", m.kept().n + 1)
)
writer("draws and forgets", keeps(lambda: np.random.default_rng(0)))(lambda m, x: m.kept.random())
writer("draws from torch and forgets", keeps(lambda: torch.Generator().manual_seed(0)))(
    lambda m, x: torch.rand(1, generator=m.kept)
)
writer("draws globally")(lambda m, x: (torch.rand(1), np.random.rand()))  # noqa: NPY002


class Recorded(Record):
    """What a record becomes."""


@writer("a global number")
def _(m: Any, x: Tensor) -> None:
    global CALLS
    CALLS += 1


@writer("a new global")
def _(m: Any, x: Tensor) -> None:
    global FRESH
    FRESH = [len(x)]


@writer("the default dtype")
def _(m: Any, x: Tensor) -> None:
    torch.set_default_dtype(torch.float64)


def helper(x: Tensor) -> None:
    LOG.append(len(x))


def appender(kept: list[int] = []) -> None:  # noqa: B006 - what is tested
    kept.append(1)


def grow(kept: list[int]) -> None:
    kept.append(1)


def counting_hook() -> Callable[..., None]:
    calls = 0

    def hook(*_: Any) -> None:
        nonlocal calls
        calls += 1

    return hook


def build(name: str) -> Writer:
    """A model that writes, in float64."""
    setup, write = WRITERS[name]
    return randomize(Writer(setup, write))
