"""Copies of a model that are the model: functions are copied too, and whatever still leads back to the original is found.

`copy.deepcopy` leaves functions as they are, so a hook or a lambda over a parameter would go on using the original's. Here the
functions that a model holds are copied with cells of their own, and the gradient hooks and attributes of its tensors with them.
What a copy cannot have of its own (a global, a weak reference) is named by `shared`.
"""

from __future__ import annotations

import array
import copy
import ctypes
import gc
import io
import random
import sys
import weakref
from collections.abc import Iterator
from functools import lru_cache
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core.errors import UsageError

UNCOPIED = (RuntimeError, TypeError, AttributeError, ValueError, NotImplementedError, RecursionError)
MOST = 50_000  # objects followed: a model that holds a whole program (a trainer, a data set) is not walked for ever
LARGE = 2**22  # numbers of a tensor that is no parameter, above which its version alone tells whether it was written to
MARK = "_belongs_to_ntkscope"  # an attribute of hooks of this package's own, which are no part of the model
CUT = (ModuleType, CodeType, FrameType, GeneratorType, BuiltinFunctionType, torch.optim.Optimizer)
OPAQUE: tuple[type, ...] = (
    torch.jit.ScriptModule,
    torch.optim.Optimizer,
    random.Random,
    io.IOBase,
    array.array,
    bytearray,
    memoryview,
)
OPAQUE += (ctypes.Array, ctypes.Structure, ctypes._SimpleCData, torch.UntypedStorage, torch.storage.TypedStorage)
ATOMS: tuple[type, ...] = (type(None), bool, int, float, complex, str, bytes, tuple, dict, slice, range, type(...))
ATOMS += (torch.dtype, torch.device, torch.layout, torch.memory_format, np.generic, np.dtype)  # which never change
ELSEWHERE = {
    "logging",
    "threading",
    "_thread",
    "lightning",
    "pytorch_lightning",
    "accelerate",
    "datasets",
    "wandb",
    "ntkscope",
}


class Stale:
    """Stands in a copy where the model keeps the result of an earlier pass with its graph, which cannot be copied.

    Most models make it anew in every pass (pruning, the old `weight_norm`) and never see this.
    """

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise UsageError(
            "the model uses a tensor that it computed earlier and kept with its graph, so a copy of it would not be the model;"
            " expected a forward pass that computes it anew, or a model converted with model.to(...) and no dtype= or device="
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__torch_function__(name, ())


def duplicate(model: nn.Module, *, share: bool = False) -> nn.Module:
    """A deep copy, functions that hold something included; a model that cannot be copied is refused.

    `share`: its parameters are others, but hold the very numbers of the model's.
    """
    functions, tensors, buffers = [], [], {id(buffer) for buffer in model.buffers()}
    for value in reached(model, code=False):
        if (
            isinstance(value, FunctionType)
            and MARK not in vars(value)
            and (value.__closure__ or any(map(gc.is_tracked, _defaults(value))))
        ):
            functions.append(value)
        elif isinstance(value, Tensor):
            tensors.append(value)
    memo: dict[int, Any] = {id(t): Stale() for t in tensors if not t.is_leaf and id(t) not in buffers}
    if share:
        memo |= {id(p): nn.Parameter(p.data, p.requires_grad) for p in model.parameters() if type(p) is nn.Parameter}
    try:
        try:
            return _copied(model, functions, tensors, dict(memo))
        except (
            UNCOPIED
        ):  # something that a function holds: then as deepcopy does it, and what that shares is looked for
            return _copied(model, [], tensors, memo)
    except UNCOPIED as error:
        raise UsageError(
            f"{type(model).__name__} cannot be copied ({error}); a copy is needed to compute in another dtype or on another"
            " device, and to linearise: convert the model itself with model.to(...), and leave dtype= and device= out, or"
            " remove what cannot be copied (tensors with a graph, locks, open files)"
        ) from error


def _copied(model: nn.Module, functions: list[FunctionType], tensors: list[Tensor], memo: dict[int, Any]) -> nn.Module:
    cells: dict[int, tuple[CellType, CellType]] = {}
    for function in functions:
        closure = [cells.setdefault(id(cell), (cell, CellType()))[1] for cell in function.__closure__ or ()]
        made = FunctionType(function.__code__, function.__globals__, function.__name__, None, tuple(closure))
        made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
        memo[id(function)] = made
    with torch.no_grad():  # a scripted module clones its parameters, which must stay leaves
        result: nn.Module = copy.deepcopy(model, memo)
    for mine, theirs in zip(result.parameters(), model.parameters(), strict=True):
        mine.requires_grad_(theirs.requires_grad)
    for function in functions:
        made = memo[id(function)]
        made.__defaults__ = copy.deepcopy(function.__defaults__, memo)
        made.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
        vars(made).update(copy.deepcopy(vars(function), memo))
    for cell, fresh in cells.values():
        if cell != CellType():  # an empty one stays empty
            fresh.cell_contents = copy.deepcopy(cell.cell_contents, memo)
    for tensor in tensors:
        other = memo.get(id(tensor))
        if isinstance(other, Tensor) and other is not tensor:
            vars(other).update(copy.deepcopy(vars(tensor), memo))
            for hook in list((tensor._backward_hooks or {}).values()) if other.requires_grad else ():
                other.register_hook(copy.deepcopy(hook, memo))
    for value in list(memo.values()) if functions else ():  # deepcopy binds the old function to the new object
        slots = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        for key, method in slots.items():
            if isinstance(method, MethodType) and id(method.__func__) in memo:
                slots[key] = MethodType(memo[id(method.__func__)], method.__self__)
    return result


def shared(made: nn.Module, model: nn.Module) -> list[str]:
    """The names of the original's parameters and buffers that a copy still reaches, by whatever way."""
    own = {id(tensor): name for name, tensor in (*model.named_buffers(), *model.named_parameters())}
    return sorted({own[id(value)] for value in reached(made) if id(value) in own})


def differing(made: nn.Module, model: nn.Module) -> list[str]:
    """What modules of a copy do not hold as the model's do: numbers, texts, tensors, patched methods, how many hooks."""
    found = sorted(
        dict(made.named_parameters()).keys() ^ dict(model.named_parameters()).keys()
    )  # a tied one has one name
    for (name, one), (_, other) in zip(model.named_modules(), made.named_modules()):
        if not isinstance(one, torch.jit.ScriptModule) and type(one).__name__ != "OptimizedModule":
            mine, theirs = ({**vars(each), **each._parameters, **each._buffers} for each in (one, other))
            keys = [key for key in {**mine, **theirs} if not _same(mine.get(key), theirs.get(key))]
            found += [f"{name}.{key}".lstrip(".") for key in keys + ["__class__"] * (_kind(one) is not _kind(other))]
    return found


def _kind(module: nn.Module) -> type:
    """The class of a module; every traced graph has one of its own."""
    return torch.fx.GraphModule if isinstance(module, torch.fx.GraphModule) else type(module)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.layout is not torch.strided or one.is_meta or one.is_quantized:
            return True
        return one.shape == other.shape and bool(((one == other) | (one != one)).all())
    if isinstance(one, dict):
        return isinstance(other, dict) and len(one) == len(other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and (one.dtype.hasobject or one.tobytes() == other.tobytes())
    if callable(one) or callable(other):
        return callable(one) == callable(other)
    return not isinstance(one, int | float | str) or _alike(one, other)


def reached(*roots: Any, code: bool = True) -> Iterator[Any]:
    """What `roots` hold: attributes, members, closures, hooks; with `code`, also what their functions read by name."""
    seen: dict[int, Any] = {}
    stack = list(roots)
    while stack and len(seen) < MOST:
        value = stack.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            yield value
            stack.extend(_held(value, code))


def address(tensor: Tensor) -> int:
    """Where the numbers of a tensor lie; of one without a storage, what tells it from others."""
    try:
        return tensor.data_ptr() or id(tensor)
    except RuntimeError:
        return id(tensor)


def trainable(outputs: Tensor) -> Iterator[Tensor]:
    """The tensors by which autograd would differentiate `outputs`."""
    nodes, seen = [outputs.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [each for each, _ in node.next_functions]
            if hasattr(node, "variable"):
                yield node.variable


class Identity:
    """Everything a model is made of at one moment, but for the numbers of its parameters and buffers.

    >>> model = nn.Linear(1, 1)
    >>> before = Identity(model)
    >>> model.scale = 2.0
    >>> before == Identity(model)
    False
    """

    def __init__(self, model: nn.Module) -> None:
        state = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self.parts = [(value, _held(value, True), _numbers(value, state)) for value in reached(model)]
        self.opaque = any(
            _opaque(value, state) for value, _, _ in self.parts
        )  # whether more may change than is seen here

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Identity)
            and len(self.parts) == len(other.parts)
            and all(
                mine is theirs and len(held) == len(now) and all(map(_alike, held, now)) and numbers == after
                for (mine, held, numbers), (theirs, now, after) in zip(self.parts, other.parts)
            )
        )

    __hash__ = None  # type: ignore[assignment]


def _alike(one: Any, other: Any) -> bool:
    """The same thing, or an equal number or text."""
    if one is other or type(one) is not type(other):
        return one is other
    return isinstance(one, int | float | complex | str | bytes | np.generic) and (one == other or one != one != other)


def _opaque(value: Any, state: set[int]) -> bool:
    """Whether something holds numbers that `_held` and `_numbers` do not tell."""
    if isinstance(value, Tensor):
        return id(value) not in state and (value.is_inference() or value.numel() > LARGE)
    if isinstance(value, np.ndarray | np.void):
        return isinstance(value, np.void) or value.dtype.hasobject
    return isinstance(value, OPAQUE) or not (gc.is_tracked(value) or isinstance(value, ATOMS))


def _numbers(value: Any, state: set[int]) -> Any:
    """What tells whether a tensor or an array is still the same; None for what has no numbers."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes()
    if not isinstance(value, Tensor):
        return None
    kind = value.shape, value.dtype, value.device, value.requires_grad
    if id(value) in state or value.is_inference():
        return kind
    plain = value.layout == torch.strided and not value.is_quantized and value.numel() <= LARGE
    written = (
        value.detach().cpu().resolve_conj().reshape(-1).view(torch.uint8).numpy().tobytes() if plain else value._version
    )
    return *kind, written


def _held(value: Any, code: bool) -> list[Any]:
    """What a value refers to."""
    if isinstance(value, Tensor):
        return [*vars(value).values(), *(value._backward_hooks or {}).values()]
    if isinstance(value, FunctionType):
        if MARK in vars(value):
            return []
        return [*(value.__closure__ or ()), *_defaults(value), *(_read(value) if code else ())]
    if isinstance(value, type):
        return _methods(value) if code and issubclass(value, nn.Module) else []
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, tuple):  # which the garbage collector may stop to track
        return [*value]
    if isinstance(value, weakref.ref):
        return [value()]
    foreign = isinstance(value, CUT) or _package(type(value).__module__) in ELSEWHERE
    if not gc.is_tracked(value) or (foreign and not isinstance(value, nn.Module)):
        return []
    if hasattr(value, "__dict__"):
        vars(value)  # which makes a mapping of its attributes, once and for all
    return gc.get_referents(value)


def _defaults(function: FunctionType) -> list[Any]:
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values()]


def _read(function: FunctionType) -> list[Any]:
    """The globals that a function names, and of modules and classes among them the attributes that it names."""
    if _library(function.__module__):
        return []
    names = _names(function.__code__)
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    inside = [each for each in found if isinstance(each, type | ModuleType) and not _library(each.__name__)]
    return found + [vars(each)[name] for each in inside for name in names if name in vars(each)]


def _methods(kind: type) -> list[Any]:
    """The attributes of a module's class that its forward pass names."""
    names, found = ["forward", "__call__", "__getattr__", "__getattribute__"], []
    for name in names:
        for each in kind.__mro__:
            if name in vars(each) and not _library(each.__module__):
                member = vars(each)[name]
                member = getattr(member, "fget", None) or getattr(member, "__func__", member)
                found.append(member)
                if isinstance(member, FunctionType):
                    names += [other for other in _names(member.__code__) if other not in names]
                break
    return found


@lru_cache(4096)
def _names(code: CodeType) -> tuple[str, ...]:
    inner = [name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


def _package(name: str | None) -> str:
    return (name or "").partition(".")[0]


@lru_cache(4096)
def _library(name: str | None) -> bool:
    """Whether a Python module is installed rather than the caller's own, so that it holds nothing of a model."""
    file = getattr(sys.modules.get(name or ""), "__file__", None) or ""
    package = _package(name)
    return (
        (package in sys.stdlib_module_names and package != "__main__") or package == "ntkscope" or "-packages" in file
    )
