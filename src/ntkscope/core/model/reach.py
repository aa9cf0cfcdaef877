"""What a model reaches: everything its forward pass could read or write, each with a name a person would give it."""

from __future__ import annotations

import array
import dis
import gc
import io
import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core.identity.libraries import top
from ntkscope.core.identity.pieces import content

MOST = 50_000  # objects followed: a model that holds a whole program (a trainer, a data set) is not walked for ever
PLAIN = {"types", "collections", "argparse", "queue", "weakref", "_weakrefset", "_thread"}  # hold what they are given
PROGRAMS = {"lightning", "pytorch_lightning", "accelerate", "datasets", "wandb", "ntkscope"}  # never looked into
FOREIGN = set(sys.stdlib_module_names) - {"__main__", *PLAIN} | PROGRAMS
FOREIGN |= {"torch", "numpy", "scipy", "sklearn", "pandas", "PIL", "tokenizers", "dask", "distributed", "matplotlib"}
FOREIGN |= {"tensorboard"}  # whose objects are not the model's own
NOT_ITS_CLASSES = FOREIGN | PLAIN
MARK = "_belongs_to_ntkscope"  # an attribute of hooks of this package's own, which are no part of the model
ATOMS = {type(None), bool, int, float, complex, str, bytes, range, torch.dtype, torch.device, torch.Size}
WHOLE: tuple[type, ...] = (array.array, bytearray, io.IOBase, np.ndarray, np.random.Generator, np.random.RandomState)
WHOLE += (random.Random, torch.Generator)  # types of objects that are looked at as a whole
CUT = (ModuleType, CodeType, FrameType, GeneratorType, *WHOLE)  # which the garbage collector is not asked about
GLOBAL = {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"}
Named = tuple[str, Any]


def marked(value: Any) -> bool:
    """Whether this is a function of the package itself, which the model holds for a while."""
    return isinstance(value, FunctionType) and getattr(value, MARK, False) is True


class Globals(NamedTuple):
    """Variables of a Python module, and which of them the model's own code names."""

    variables: dict[str, Any]
    names: set[str]


class Reach:
    """What a model reaches, breadth first, each object once, with its name.

    >>> [name for name, value in Reach(nn.Linear(1, 1)) if isinstance(value, Tensor)]
    ['weight', 'bias']
    """

    def __init__(self, model: nn.Module, *, classes: bool = True, foreign: bool = False) -> None:
        """`classes`: those of the model's own objects too, and what their methods use; `foreign`: what objects of libraries
        hold."""
        self.classes, self.foreign = classes, foreign
        self._queue: deque[Named] = deque([("", model)])
        self._methods: dict[str, list[Named]] = {}  # that no code was seen to name yet
        self._globals: dict[int, Globals] = {}

    def __iter__(self) -> Iterator[Named]:
        seen: dict[int, Any] = {}
        while self._queue and len(seen) < MOST:
            name, value = self._queue.popleft()
            if type(value) not in ATOMS and id(value) not in seen and self._wanted(value):
                seen[id(value)] = value
                yield name, value
                self._queue.extend(self._members(name, value))
        yield from ((found.variables.get("__name__", ""), found) for found in self._globals.values())

    def _members(self, name: str, value: Any) -> Iterable[Named]:
        if isinstance(value, type):
            return self._class_members(value)
        kind: Any = type(value)
        look, inside = _way(kind)
        members = look(name, value) if look is not None else []
        if isinstance(value, FunctionType):
            members += self._mentioned(value)
        if inside:
            members += attributes(name, value)
            members.append((kind.__qualname__, kind))
        elif look is None and self.foreign and not isinstance(value, CUT) and gc.is_tracked(value):
            known = top(kind.__module__) in PROGRAMS
            members = [] if known else attributes(name, value) + [(name, each) for each in gc.get_referents(value)]
        return members

    def _wanted(self, value: Any) -> bool:
        if isinstance(value, type):
            return self.classes and top(value.__module__) not in NOT_ITS_CLASSES
        return not marked(value)

    def _class_members(self, kind: type) -> Iterator[Named]:
        yield from ((base.__qualname__, base) for base in kind.__mro__[1:])
        for key, member in vars(kind).items():
            name = f"{kind.__qualname__}.{key}"
            code = getattr(member, "__func__", getattr(member, "fget", member))
            if not isinstance(code, FunctionType):
                if not key.startswith("__") and not hasattr(member, "__get__"):
                    yield name, member
            elif key == "forward" or (key.startswith("__") and key != "__init__"):
                yield name, code
            elif _own(code):
                self._methods.setdefault(key, []).append((name, code))

    def _mentioned(self, function: FunctionType) -> Iterator[Named]:
        """What a function of the caller's own names: globals, variables of modules, methods."""
        if not self.classes or not _own(function):
            return
        here, names = mentioned(function.__code__)
        for key in names:
            yield from self._methods.pop(key, ())
        modules = [vars(m) for m in map(function.__globals__.get, here) if isinstance(m, ModuleType)]
        for variables in (function.__globals__, *modules):
            module = str(variables.get("__name__", ""))
            if top(module) not in FOREIGN:
                known = self._globals.setdefault(id(variables), Globals(variables, set())).names
                fresh = (here if variables is function.__globals__ else names & variables.keys()) - known
                known |= fresh
                yield from ((f"{module}.{key}", variables[key]) for key in fresh & variables.keys())


def _entries(name: str, value: Any) -> list[Named]:
    return [(joined(name, key), member) for key, member in value.items() if type(member) not in ATOMS]


def _sequence(name: str, value: Any) -> list[Named]:
    return [(joined(name, k), member) for k, member in enumerate(value) if type(member) not in ATOMS]


def _array(name: str, value: Any) -> list[Named]:
    return _sequence(name, value.flat) if value.dtype.hasobject else []


def _function(name: str, value: Any) -> list[Named]:
    members = [(joined(name, "closure"), cell) for cell in value.__closure__ or ()]
    members += [(joined(name, "default"), m) for m in (*(value.__defaults__ or ()), value.__kwdefaults__)]
    return [*members, (name, vars(value))]


def _tensor(name: str, value: Any) -> list[Named]:
    return [(name, vars(value)), (joined(name, "_backward_hooks"), value._backward_hooks)]


WAYS: list[tuple[Any, Callable[[str, Any], list[Named]]]] = [  # to look into what objects of these types hold
    (dict, _entries),
    ((list, tuple, set, frozenset, deque), _sequence),
    (np.ndarray, _array),
    (FunctionType, _function),
    (CellType, lambda name, value: [(name, content(value))]),
    (partial, lambda name, value: [(name, value.func), (name, value.args), (name, value.keywords)]),
    (MethodType, lambda name, value: [(name, value.__self__), (name, value.__func__)]),
    (
        BuiltinFunctionType,
        lambda name, value: [] if isinstance(value.__self__, ModuleType) else [(name, value.__self__)],
    ),
    (weakref.ref, lambda name, value: [(name, value())]),
    (memoryview, lambda name, value: [(name, value.obj)]),
    (Tensor, _tensor),
]


@lru_cache(1024)
def _way(kind: Any) -> tuple[Callable[[str, Any], list[Named]] | None, bool]:
    return next((look for kinds, look in WAYS if issubclass(kind, kinds)), None), followed(kind)


def attributes(name: str, value: Any) -> list[Named]:
    """What an object keeps under names."""
    kind: Any = type(value)
    members = [(name, vars(value))] if hasattr(value, "__dict__") else []
    return members + [(joined(name, key), getattr(value, key, None)) for key in slots(kind)]


@lru_cache(1024)
def followed(kind: Any) -> bool:
    """Whether objects of a class are looked into: those of the caller's own classes, and those that only hold things."""
    if issubclass(kind, (nn.Module, torch.optim.Optimizer)):
        return True
    if issubclass(kind, (type, ModuleType, FunctionType, CellType, MethodType, weakref.ref, *WHOLE)):
        return False
    held = issubclass(kind, dict | deque) and kind.__module__ == "collections"
    return not held and top(kind.__module__) not in FOREIGN


@lru_cache(1024)
def slots(kind: Any) -> tuple[str, ...]:
    """The attributes that objects of a class keep outside of `__dict__`."""
    return tuple(k for base in kind.__mro__ for k, m in vars(base).items() if isinstance(m, MemberDescriptorType))


@lru_cache(4096)
def mentioned(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that a function and those inside it read or write, and all names that they look up anywhere."""
    inner = [mentioned(const) for const in code.co_consts if isinstance(const, CodeType)]
    here = frozenset(each.argval for each in dis.get_instructions(code) if each.opname in GLOBAL)
    return here.union(*(a for a, _ in inner)), frozenset(code.co_names).union(*(b for _, b in inner))


def joined(name: str, key: Any) -> str:
    if key in ("_parameters", "_buffers", "_modules"):
        return name
    return f"{name}.{key}" if name else str(key)


def _own(function: FunctionType) -> bool:
    """Whether a function is the caller's own: not of a library that was installed."""
    return top(function.__module__ or "") not in FOREIGN and "-packages" not in function.__code__.co_filename
