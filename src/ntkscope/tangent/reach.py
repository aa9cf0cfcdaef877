"""What a model reaches: everything its forward pass could write to, each with a name a person would give it."""

from __future__ import annotations

import array
import io
import random
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

MOST = 50_000  # objects followed: a model that holds a whole program (a trainer, a data set) is not walked for ever
PLAIN = {"types", "collections", "argparse", "queue", "weakref", "_weakrefset", "_thread"}  # hold what they are given
FOREIGN = set(sys.stdlib_module_names) - {"__main__", *PLAIN} | {
    *(
        "torch",
        "numpy",
        "scipy",
        "sklearn",
        "pandas",
        "PIL",
        "lightning",
        "pytorch_lightning",
        "accelerate",
        "datasets",
    ),
    *("tokenizers", "dask", "distributed", "matplotlib", "wandb", "tensorboard", "ntkscope"),
}  # whose objects are not the model's own
MARK = "_belongs_to_ntkscope"
ATOMS = {type(None), bool, int, float, complex, str, bytes, range, torch.dtype, torch.device, torch.Size}
WHOLE: tuple[type, ...] = (array.array, bytearray, io.IOBase, np.ndarray, np.random.Generator, np.random.RandomState)
WHOLE += (random.Random, torch.Generator)  # types of objects that are looked at as a whole


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

    def __init__(self, model: nn.Module, *, classes: bool = True) -> None:
        """`classes`: those of the model's own objects too, and what their methods use."""
        self.classes = classes
        self._queue: deque[tuple[str, Any]] = deque([("", model)])
        self._methods: dict[str, list[tuple[str, Any]]] = {}  # that no code was seen to name yet
        self._globals: dict[int, Globals] = {}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        while self._queue and len(seen) < MOST:
            name, value = self._queue.popleft()
            if type(value) not in ATOMS and id(value) not in seen and self._wanted(value):
                seen.add(id(value))
                yield name, value
                self._queue.extend(self._members(name, value))
        yield from ((found.variables.get("__name__", ""), found) for found in self._globals.values())

    def _members(self, name: str, value: Any) -> Iterable[tuple[str, Any]]:
        if isinstance(value, type):
            return self._class_members(value)
        kind: Any = type(value)
        members: list[tuple[str, Any]] = []
        if isinstance(value, dict):
            members = [(joined(name, key), member) for key, member in value.items() if type(member) not in ATOMS]
        elif isinstance(value, list | tuple | set | deque) or (isinstance(value, np.ndarray) and value.dtype.hasobject):
            flat = value.flat if isinstance(value, np.ndarray) else value
            members = [(joined(name, k), member) for k, member in enumerate(flat) if type(member) not in ATOMS]
        elif isinstance(value, FunctionType):
            members = [(joined(name, "closure"), cell) for cell in value.__closure__ or ()]
            members += [(joined(name, "default"), m) for m in (*(value.__defaults__ or ()), value.__kwdefaults__)]
            members += [(name, vars(value)), *self._mentioned(value)]
        elif isinstance(value, CellType):
            members = [(name, content(value))]
        elif isinstance(value, partial):
            members = [(name, value.func), (name, value.args), (name, value.keywords)]
        elif isinstance(value, MethodType):
            members = [(name, value.__self__), (name, value.__func__)]
        elif isinstance(value, weakref.ref):
            members = [(name, value())]
        elif isinstance(value, memoryview):
            members = [(name, value.obj)]
        elif isinstance(value, Tensor):
            members = [(name, vars(value)), (joined(name, "_backward_hooks"), value._backward_hooks)]
        if followed(kind):
            if hasattr(value, "__dict__"):
                members.append((name, vars(value)))
            members += [(joined(name, key), getattr(value, key, None)) for key in slots(kind)]
            members.append((kind.__qualname__, kind))
        return members

    def _wanted(self, value: Any) -> bool:
        if isinstance(value, type):
            return (
                self.classes and _package(value.__module__) not in FOREIGN and _package(value.__module__) not in PLAIN
            )
        return not marked(value)

    def _class_members(self, kind: type) -> Iterator[tuple[str, Any]]:
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

    def _mentioned(self, function: FunctionType) -> Iterator[tuple[str, Any]]:
        """What a function of the caller's own names: globals, variables of modules, methods."""
        if not self.classes or not _own(function):
            return
        names = mentioned(function.__code__)
        for key in names:
            yield from self._methods.pop(key, ())
        modules = [vars(m) for m in map(function.__globals__.get, names) if isinstance(m, ModuleType)]
        for variables in (function.__globals__, *modules):
            module = str(variables.get("__name__", ""))
            if _package(module) not in FOREIGN:
                known = self._globals.setdefault(id(variables), Globals(variables, set())).names
                fresh = names - known
                known |= fresh if variables is function.__globals__ else fresh & variables.keys()
                yield from ((f"{module}.{key}", variables[key]) for key in fresh & variables.keys())


@lru_cache(1024)
def followed(kind: Any) -> bool:
    """Whether objects of a class are looked into: those of the caller's own classes, and those that only hold things."""
    if issubclass(kind, nn.Module):
        return True
    if issubclass(kind, (type, ModuleType, FunctionType, CellType, MethodType, weakref.ref, *WHOLE)):
        return False
    held = issubclass(kind, dict | deque) and kind.__module__ == "collections"
    return not held and _package(kind.__module__) not in FOREIGN


@lru_cache(1024)
def slots(kind: Any) -> tuple[str, ...]:
    """The attributes that objects of a class keep outside of `__dict__`."""
    return tuple(k for base in kind.__mro__ for k, m in vars(base).items() if isinstance(m, MemberDescriptorType))


@lru_cache(4096)
def mentioned(code: CodeType) -> frozenset[str]:
    """All names that a function and those inside it look up outside of themselves."""
    inner = (mentioned(const) for const in code.co_consts if isinstance(const, CodeType))
    return frozenset(code.co_names).union(*inner)


def content(cell: CellType) -> Any:
    """What a closure holds; None where there is nothing in it yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def joined(name: str, key: Any) -> str:
    if key in ("_parameters", "_buffers", "_modules"):
        return name
    return f"{name}.{key}" if name else str(key)


def _package(module: object) -> str:
    return str(module).partition(".")[0]  # some built-in types have a descriptor there


def _own(function: FunctionType) -> bool:
    """Whether a function is the caller's own: not of a library that was installed."""
    return _package(function.__module__ or "") not in FOREIGN and "-packages" not in function.__code__.co_filename
