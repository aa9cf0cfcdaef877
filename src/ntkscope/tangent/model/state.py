"""What a model is made of before it is run, put back after every forward pass.

A forward pass may write: caches filled on first use, counters, running statistics, `Embedding(max_norm)`, modules cast with
`.to`. Here every slot of what a model reaches (`reach`: attributes, containers, parameters, buffers, hooks, closures, its own
classes and globals) is remembered by identity, every tensor by version and address, and by value what has no such mark
(arrays, random streams, small tensors). So each pass starts from the same model, and the caller gets it back.
"""

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
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from operator import attrgetter, is_, is_not, methodcaller
from types import CellType, FunctionType, GeneratorType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.model.copies import alike
from ntkscope.core.model.reach import ATOMS, MARK, Globals, Named, Reach, followed, joined, marked, slots

KEPT = (
    2**26
)  # bytes: larger tensors, arrays or sets of parameters are kept by value only if the first pass wrote to them
SMALL = 2**20  # bytes: arrays up to this size are compared after every pass, others when a call ends
OPAQUE = (
    torch.jit.ScriptModule,
    torch.UntypedStorage,
    torch.storage.TypedStorage,
    np.void,
    memoryview,
)  # not all is seen
CLEAR = (dict, tuple, frozenset, slice, type(...), torch.layout, torch.memory_format, np.generic, np.dtype)
_MISSING = object()
_type: Callable[[Any], Any] = type
_values = methodcaller("values")
_hooks = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")


def ours(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of this package's own, which is not taken for a change of the model."""
    setattr(hook, MARK, True)
    return hook


class ModelState:
    """What a model reaches, as it is now.

    >>> model = nn.Linear(1, 1)
    >>> before = Pristine(model)
    >>> model.cache = 3
    >>> before.changed()
    ['cache']
    >>> before.restore(), hasattr(model, "cache")
    (['cache'], False)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        classes: bool = True,
        foreign: bool = False,
        written: frozenset[str] | None = frozenset(),
        reached: Iterable[Named] | None = None,
    ) -> None:
        """`written`: tensors that a pass is known to write to. Without `classes`, the model is a copy that shares parameters
        and classes with another one, where they are looked after. `foreign`: only to be asked whether it is the `same`, so
        objects of libraries are looked into, and the numbers of parameters are not kept. `reached`: remembered instead."""
        self.model, self._reached = model, list(reached or ())
        self._mappings: list[tuple[str, Any, Any, list[Any], list[Any]]] = []  # name, owner, slots, keys, values
        self._sequences: list[tuple[str, Any, list[Any]]] = []
        self._fields: list[tuple[str, Any, list[str], list[Any]]] = []
        self._typed: list[tuple[str, Any, type]] = []
        self._tensors: list[_Held] = []
        self._states: list[_State] = []
        self._values: dict[int, Any] | None = None
        self._state = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self.opaque = False  # whether more may change than is seen here
        for name, value in Reach(model, classes=classes, foreign=foreign) if reached is None else self._reached:
            self._keep(name, value)
            self.opaque |= foreign and _opaque(value)
        self._numbers: list[_Held | _State] = [*self._tensors, *self._states]
        self._keep_values(model, parameters=classes and not foreign and reached is None)
        self.opaque |= any(held.value is None and not held.weight for held in self._tensors)
        self._flatten()
        for held in self._tensors:
            if written and held.name in written:
                held.value, held.written = held.read(), True

    def _keep(self, name: str, value: Any) -> None:
        kind = _type(value)
        base, inside, keys = _shape(kind)
        state = _kind_of(value)
        if state is not None:
            self._states.append(_State(name, value, state))
        elif base is Tensor:
            self._tensors.append(_Held(name, value, id(value) in self._state))
        elif base is dict or base is type:
            mapping = vars(value) if base is type else value
            kept = {k: m for k, m in mapping.items() if _type(m) is not FunctionType or not marked(m)}
            self._mappings.append((name, value, mapping, list(kept), list(kept.values())))
        elif base is not None:
            sequence = value.reshape(-1) if base is np.ndarray else value
            self._sequences.append((name, sequence, list(sequence)))
        if inside:
            self._typed.append((name, value, kind))
        keys = sorted(value.names) if kind is Globals else keys
        if keys:
            self._fields.append((name, value, list(keys), [_read(value, key) for key in keys]))

    def _flatten(self) -> None:
        """All mappings in a row, so that they are looked at in one go."""
        self._empty = [mapping for _, _, mapping, keys, _ in self._mappings if not keys]
        full = [each for each in self._mappings if each[3]]
        keys, values = (list(chain.from_iterable(each[k] for each in full)) for k in (3, 4))
        self._flat = [each[2] for each in full], [len(each[3]) for each in full], keys, values

    def _keep_values(self, model: nn.Module, parameters: bool) -> None:
        """Copies of what may be written by some inputs only, or in ways that leave no trace: buffers, other tensors, tables
        with a largest norm, parameters of models of an ordinary size."""
        weights = {id(parameter) for parameter in model.parameters()}
        tables = {id(module.weight) for module in model.modules() if getattr(module, "max_norm", None) is not None}
        if parameters and sum(_bytes(parameter) for parameter in model.parameters()) <= KEPT:
            weights = set()
        for held in self._tensors:
            if (id(held.object) not in weights and _bytes(held.alias) <= KEPT) or id(held.object) in tables:
                held.value = held.alias.clone()

    def watch_values(self) -> None:
        """Keep a copy of everything until `settle` is asked: writing through `.data` leaves no other trace."""
        self._values = {id(kept): kept.read() for kept in self._numbers if kept.value is None}

    def settle(self) -> list[str]:
        """After a first pass: the tensors it wrote to, which are kept by value from now on; the other copies go."""
        assert self._values is not None
        for kept in self._numbers:
            value = self._values.get(id(kept))
            if value is not None and not kept.holds(value):
                kept.value = value
        self._values = None
        for kept in self._numbers:
            kept.written = kept.changed()
        return [held.name for held in self._tensors if held.written]

    def restore(self, *, numbers: bool = True, every: bool = False) -> list[str]:
        """Put everything back; the names of what had changed.

        Without `numbers`, tensors and arrays that were written to keep what was written: a backward pass may still need it.
        With `every`, numbers are compared that nothing is known to have written to: something may have without a trace.
        """
        changed = self._put_back(numbers, numbers, every)
        lost = [held.name for held in self._tensors if held.lost]
        if lost:
            raise UsageError(
                f"the model wrote to {', '.join(lost)} during a forward pass, for these inputs only, so it could not be kept as"
                " it was; expected a forward pass that leaves parameters alone: move the update out of forward"
            )
        return list(dict.fromkeys(changed))

    def _put_back(self, numbers: bool, weights: bool, every: bool) -> list[str]:
        """Put back slots and, if wanted, numbers, or those of parameters and buffers too (`weights`)."""
        changed = self._slots_changed(put=True)
        for kept in self._numbers:
            if kept.restore(weights if kept.weight else numbers, every):
                changed.append(kept.name)
        for state in self._states:
            if state.instead is not state.object:
                self._exchange(state.object, state.instead)
                state.object = state.instead
        return changed

    @contextmanager
    def as_it_was(self, *, aside: bool = False) -> Iterator[None]:
        """While open, all that was `reached` is as it was, but for numbers of parameters and buffers; then as it is now.

        `aside`: a graph may keep tensors and arrays for later, so others stand in for those that were written to.

        >>> model = nn.Linear(1, 1)
        >>> before = Pristine(model, reached=Reach(model))
        >>> model.scale = 2.0
        >>> with before.as_it_was():
        ...     hasattr(model, "scale")
        False
        >>> model.scale
        2.0
        """
        now = ModelState(self.model, reached=self._reached) if self.changed() else None
        try:
            if now is not None:
                if aside:
                    self._replace_written()
                self._put_back(True, False, True)
            yield
        finally:
            if now is not None:
                now._put_back(True, False, True)

    def _replace_written(self) -> None:
        for kept in self._numbers:
            if (isinstance(kept, _Held) or kept.kind.shared) and kept.changed():
                fresh = kept.fresh()
                if fresh is None or not self._exchange(kept.object, fresh):
                    raise UsageError(
                        f"{kept.name} was written to since the network was linearised, which reads it and has to stay what it"
                        " was; expected a copy of it in the network, or a network that is linearised again"
                    )
                kept.object = kept.instead = fresh
                kept.follow()

    def changed(self) -> list[str]:
        """The names of what is no longer as it was, numbers among them; nothing is put back."""
        return self._slots_changed(put=False) + [k.name for k in self._numbers if k.changed()]

    def follow(self) -> bool:
        """Take the numbers as they are now, where nothing but numbers has changed; False where more has."""
        if self._slots_changed(put=False):
            return False
        for kept in self._numbers:
            kept.follow()
        return True

    def same(self) -> bool:
        """Whether nothing has changed but the numbers of parameters and buffers, as far as can be seen."""
        return not self._slots_changed(put=False) and not any(
            kept.other_kind() if isinstance(kept, _Held) and kept.weight else kept.changed() for kept in self._numbers
        )

    def drew(self) -> list[str]:
        """The private generators that have moved since."""
        return [state.name for state in self._states if state.kind.draws and state.changed()]

    def _slots_changed(self, put: bool) -> list[str]:
        """The names of slots that hold something else than they did; with `put`, they get it back."""
        changed: list[str] = []
        for name, owner, mapping, keys, values in (
            () if not any(self._empty) and _all_held(*self._flat) else self._mappings
        ):
            if (mapping or keys) and not _all_held([mapping], [len(keys)], keys, values):
                before = dict(zip(keys, values))
                before |= {key: value for key, value in mapping.items() if marked(value) and key not in before}
                names = [
                    key
                    for key in {**before, **mapping}
                    if not alike(before.get(key, _MISSING), mapping.get(key, _MISSING))
                ]
                changed += [joined(name, key) for key in names] or ([name] if list(before) != list(mapping) else [])
                if put:
                    _refill(owner, before, names)
        for name, sequence, members in self._sequences:
            if len(members) != len(sequence) or not all(map(is_, sequence, members)):
                changed.append(name)
                if put:
                    _refill_members(sequence, members)
                    members[:] = sequence  # the order of a set may be another one now
        for name, owner, kind in self._typed:
            if type(owner) is not kind:
                changed.append(joined(name, "__class__"))
                if put:
                    object.__setattr__(owner, "__class__", kind)
        for name, owner, keys, values in self._fields:
            for key, value in zip(keys, values):
                if _read(owner, key) is not value:
                    changed.append(name if isinstance(owner, CellType) else joined(name, key))
                    if put:
                        _write(owner, key, value)
        return changed

    def _exchange(self, old: Any, new: Any) -> int:
        """Another object takes the place of one that cannot be put back, wherever the model holds it; in how many places."""
        count = 0
        for _, sequence, members in self._sequences:
            if any(member is old for member in members):
                members[:] = [new if member is old else member for member in members]
                _refill_members(sequence, members)
                count += 1
        for owner, keys, values in (*((m[1], *m[3:]) for m in self._mappings), *(f[1:] for f in self._fields)):
            for k in [k for k, value in enumerate(values) if value is old]:
                values[k] = new
                _write(owner, keys[k], new)
                count += 1
        self._flatten()
        return count


class _Held:
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
    write: Callable[[Any, Any], Any] | None = (
        None  # None: cannot be put back; its result, if any, takes the object's place
    )
    draws: bool = False  # whether it is a stream of random numbers
    shared: bool = False  # whether tensors may share its memory


class _State:
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


def _kind_of(value: Any) -> _Kind | None:
    """How to look into an object that is neither a container nor a tensor; None where there is nothing to see."""
    if isinstance(value, np.ndarray) and (value.dtype.hasobject or not value.flags.writeable):
        return None
    return _kind_of_type(_type(value))


@lru_cache(1024)
def _kind_of_type(kind: Any) -> _Kind | None:
    iterates = kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__")
    return next((found for kinds, found in _KINDS if issubclass(kind, kinds)), _Kind(_progress) if iterates else None)


def _opaque(value: Any) -> bool:
    """Whether something holds numbers that are not looked at."""
    return isinstance(value, OPAQUE) or not (gc.is_tracked(value) or isinstance(value, CLEAR) or _kind_of(value))


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
        return _progress(value.__reduce__()) if _kind_of(value) is not None else None
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


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _all_held(maps: list[Any], sizes: list[int], keys: list[Any], values: list[Any]) -> bool:
    """Whether mappings hold the very same things in the same places."""
    return (
        list(map(len, maps)) == sizes
        and all(map(is_, chain.from_iterable(map(_values, maps)), values))
        and list(chain.from_iterable(maps)) == keys
    )


def _same(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.is_quantized:
        return torch.equal(one, other)
    if one.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]  # -0 and NaN are numbers like others
    return torch.equal(*bits)


def _refill(owner: Any, before: dict[Any, Any], names: list[Any]) -> None:
    if isinstance(owner, type):
        for key in names:
            _write(owner, key, before.get(key, _MISSING))
    else:
        base = OrderedDict if isinstance(owner, OrderedDict) else dict
        base.clear(owner)
        base.update(owner, before)


def _refill_members(sequence: Any, members: list[Any]) -> None:
    if isinstance(sequence, np.ndarray):
        for k, member in enumerate(members):
            sequence[k] = member
    else:
        base: Any = next(kind for kind in (list, set, deque) if isinstance(sequence, kind))
        base.clear(sequence)
        (base.update if base is set else base.extend)(sequence, members)


@lru_cache(1024)
def _shape(kind: Any) -> tuple[type | None, bool, Sequence[str]]:
    """What objects of a type are to be kept as, whether they are looked into, and their slots that are in no mapping."""
    base = next((base for base in (Tensor, dict, type, list, set, deque, np.ndarray) if issubclass(kind, base)), None)
    inside = followed(kind)
    return base, inside, ("cell_contents",) if kind is CellType else slots(kind) if inside else ()


def _read(owner: Any, key: str) -> Any:
    if isinstance(owner, Globals):
        return owner.variables.get(key, _MISSING)
    try:
        return object.__getattribute__(owner, key)
    except (AttributeError, ValueError):  # not there; nothing in a closure yet
        return _MISSING


def _write(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, Globals | dict):
        variables = owner.variables if isinstance(owner, Globals) else owner
        if value is _MISSING:
            variables.pop(key, None)
        else:
            variables[key] = value
    else:
        base = type if isinstance(owner, type) else object
        if value is _MISSING:
            base.__delattr__(owner, key)
        else:
            base.__setattr__(owner, key, value)
