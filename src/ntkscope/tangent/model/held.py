"""What is remembered of a tensor, and of other objects that hold numbers inside: arrays, random streams, iterators."""

from __future__ import annotations

import array
import ast
import copy
import ctypes
import gc
import io
import itertools
import pickle
import random
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter, is_not
from types import GeneratorType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ntkscope.core.model.reach import ATOMS

# bytes: larger tensors, arrays or sets of parameters are kept by value only if the first pass wrote to them
KEPT = 2**26
SMALL = 2**20  # bytes: arrays up to this size are compared after every pass, others when a call ends
# not all of them is seen
OPAQUE = (torch.jit.ScriptModule, torch.UntypedStorage, torch.storage.TypedStorage, np.void, memoryview)
CLEAR = (dict, tuple, frozenset, slice, type(...), torch.layout, torch.memory_format, np.generic, np.dtype)
_type: Callable[[Any], Any] = type
_hooks = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")


class HeldTensor:
    """A tensor: its storage, dtype, version, flags, hooks and gradient; its bytes too where they are kept."""

    def __init__(self, name: str, tensor: Tensor, weight: bool) -> None:
        self.name, self.weight = name, weight  # whether it is a parameter or buffer
        self.object = self.instead = tensor
        self.value: Tensor | None = None
        self.written = self.lost = False  # whether passes were seen to write to it; whether that cannot be put back
        self._take()

    def _take(self) -> None:
        tensor = self.object
        self.alias = tensor.detach()
        self.versioned = not tensor.is_inference()
        self.version = tensor._version if self.versioned else 0
        self.address = _address(tensor)
        self.leaf = tensor.is_leaf
        self.asks = tensor.requires_grad
        self.grad = tensor.grad if tensor.is_leaf else None
        self.hooks = _hooks(tensor)

    def read(self) -> Tensor:
        return self.alias.clone()

    def fresh(self) -> Tensor | None:
        """Another tensor with the numbers that were kept."""
        return None if self.value is None else self.value.clone().requires_grad_(self.asks)

    def holds(self, value: Tensor) -> bool:
        return _same(self.alias, value)

    def follow(self) -> None:
        """Take the tensor as it is now."""
        self._take()
        if self.value is not None:
            self.value = self.read()

    def changed(self) -> bool:
        """Whether numbers, dtype or place are other ones."""
        if _address(self.object) != self.address or (self.versioned and self.object._version != self.version):
            return True
        return self.value is not None and not self.holds(self.value)

    def other_kind(self) -> bool:
        """Whether shape, dtype, device, flags or hooks are other ones."""
        now, before = self.object, self.alias
        kinds = [(t.shape, t.dtype, t.device) for t in (now, before)]
        return kinds[0] != kinds[1] or now.requires_grad != self.asks or any(map(is_not, _hooks(now), self.hooks))

    def restore(self, numbers: bool, every: bool) -> bool:
        tensor, changed = self.object, False
        if _address(tensor) != self.address:  # cast or moved: `.data` was put in its place
            tensor.data = self.alias
            changed = True
        touched = self.versioned and tensor._version != self.version
        self.lost |= touched and self.value is None
        if not numbers:
            changed |= touched
        elif self.value is not None and (touched or every or self.written) and not self.holds(self.value):
            with torch.no_grad():
                self.alias.copy_(self.value)
            changed = True
        if numbers and self.versioned:
            self.version = tensor._version
        if self.leaf:
            if tensor.requires_grad != self.asks:
                (tensor if tensor.is_leaf else tensor.detach_()).requires_grad_(self.asks)
                changed = True
            if tensor.grad is not self.grad:
                tensor.grad = self.grad
                changed = True
        hooks = _hooks(tensor)
        if hooks[0] is not self.hooks[0] or hooks[1] is not self.hooks[1]:
            tensor._backward_hooks, tensor._post_accumulate_grad_hooks = self.hooks
            changed = True
        return changed


class _Kind(NamedTuple):
    """How to copy what an object of some type holds inside, and how to write it back."""

    read: Callable[[Any], Any]
    # None: cannot be put back; its result, if any, takes the object's place
    write: Callable[[Any, Any], Any] | None = None
    draws: bool = False  # whether it is a stream of random numbers
    shared: bool = False  # whether tensors may share its memory


class HeldObject:
    """What an object that is no tensor holds inside: numbers of an array, a random stream, how far an iterator has come."""

    weight = False

    def __init__(self, name: str, value: Any, kind: _Kind) -> None:
        self.name = name if kind.write is not None else f"{name} (cannot be put back)"
        self.object = self.instead = value
        self.kind, self.size, self.written = kind, int(getattr(value, "nbytes", 0)), False
        self.value = kind.read(value) if self.size <= KEPT else None

    def read(self) -> Any:
        return self.kind.read(self.object)

    def fresh(self) -> Any:
        return copy.copy(self.value)

    def holds(self, value: Any) -> bool:
        return pickle.dumps(self.read()) == pickle.dumps(value)  # arrays among them; NaN is a number like others

    def follow(self) -> None:
        """Take what it holds now."""
        if self.value is not None:
            self.value = self.read()

    def changed(self) -> bool:
        return self.value is not None and not self.holds(self.value)

    def restore(self, numbers: bool, every: bool) -> bool:
        if (self.size > SMALL and not (every or self.written)) or not self.changed():
            return False
        if self.kind.write is None:
            self.value = self.read()  # named once, then left as it is
        elif numbers or not self.kind.shared:
            self.instead = self.kind.write(self.object, self.value) or self.object
        return True


def kind_of(value: Any) -> _Kind | None:
    """How to look into an object that is neither a container nor a tensor; None where there is nothing to see."""
    if isinstance(value, np.ndarray) and (value.dtype.hasobject or not value.flags.writeable):
        return None
    return _kind_of_type(_type(value))


@lru_cache(1024)
def _kind_of_type(kind: Any) -> _Kind | None:
    iterates = kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__")
    return next((found for kinds, found in _KINDS if issubclass(kind, kinds)), _Kind(_progress) if iterates else None)


def opaque(value: Any) -> bool:
    """Whether something holds numbers that are not looked at."""
    return isinstance(value, OPAQUE) or not (gc.is_tracked(value) or isinstance(value, CLEAR) or kind_of(value))


def _script_attributes(module: Any) -> dict[str, Any]:
    """The attributes of a scripted module that are numbers, texts or containers of them."""
    names = module._concrete_type.get_attributes() if getattr(module, "_concrete_type", None) is not None else ()
    values = {name: module._c.getattr(name) for name in names if module._c.hasattr(name)}
    return {name: value for name, value in values.items() if isinstance(value, int | float | str | list | tuple | dict)}


def _write_script(module: Any, kept: dict[str, Any]) -> None:
    for name, value in kept.items():
        module._c.setattr(name, value)


def _write_text(owner: Any, kept: tuple[Any, int]) -> None:
    owner.seek(0)
    owner.truncate()
    owner.write(kept[0])
    owner.seek(kept[1])


def _progress(value: Any) -> Any:
    """How far an iterator has come, as far as it tells."""
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return frame and (frame.f_lasti, [_progress(member) for member in frame.f_locals.values()])
    if type(value) in ATOMS or isinstance(value, tuple):
        return [_progress(member) for member in value] if isinstance(value, tuple) else value
    if isinstance(value, list):
        return len(value)
    try:
        return _progress(value.__reduce__()) if kind_of(value) is not None else None
    except TypeError:
        return None


_KINDS: list[tuple[Any, _Kind]] = [
    (np.ndarray, _Kind(np.copy, lambda a, kept: a.__setitem__(..., kept), shared=True)),
    (array.array | bytearray, _Kind(copy.copy, lambda a, kept: a.__setitem__(slice(None), kept), shared=True)),
    (torch.Generator, _Kind(lambda g: g.get_state(), lambda g, kept: g.set_state(kept), draws=True)),
    (random.Random, _Kind(lambda g: g.getstate(), lambda g, kept: g.setstate(kept), draws=True)),
    (np.random.RandomState, _Kind(lambda g: g.get_state(), lambda g, kept: g.set_state(kept), draws=True)),
    (
        np.random.Generator,
        _Kind(lambda g: g.bit_generator.state, lambda g, kept: setattr(g.bit_generator, "state", kept), draws=True),
    ),
    (io.StringIO | io.BytesIO, _Kind(lambda f: f.closed or (f.getvalue(), f.tell()), _write_text)),
    (io.IOBase, _Kind(lambda f: f.closed or not f.seekable() or f.tell())),
    (torch.jit.ScriptModule, _Kind(_script_attributes, _write_script)),
    ((ctypes.Array, ctypes.Structure, ctypes._SimpleCData), _Kind(bytes)),
    (type(lru_cache(id)), _Kind(lambda f: f.cache_info().currsize)),
    (itertools.count, _Kind(repr, lambda _, kept: itertools.count(*ast.literal_eval(f"({kept[6:-1]},)")))),
]


def _address(tensor: Tensor) -> tuple[Any, ...]:
    try:
        return tensor.data_ptr(), tensor.dtype
    except RuntimeError:  # a tensor without a storage of its own
        return tensor.dtype, tensor.shape


def size_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _same(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.is_quantized:
        return torch.equal(one, other)
    if one.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]  # -0 and NaN are numbers like others
    return torch.equal(*bits)
