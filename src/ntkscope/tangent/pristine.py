"""What a model is made of before it is run, put back after every forward pass.

A forward pass may write: caches filled on first use, counters, running statistics, `Embedding(max_norm)`, modules cast with
`.to`. Here every slot that a model's modules hold (attributes, containers, parameters, buffers, hooks, class attributes of
its own classes, private random generators) is remembered by identity, every tensor by version and address, and those that
the first pass was seen to write also by value. So each pass starts from the same model, and the caller gets it back.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import is_
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import UsageError

MOST = 50_000  # containers followed: a model that holds a whole program (a trainer, a data set) is not walked for ever
FOREIGN = (set(sys.stdlib_module_names) - {"__main__"}) | {
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
KEPT = 2**26  # bytes: a larger tensor that is no parameter is kept by value only if the first pass wrote to it
MARK = "_belongs_to_ntkscope"
_MISSING = object()


def ours(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of this package's own, which is not taken for a change of the model."""
    setattr(hook, MARK, True)
    return hook


def _marked(value: Any) -> bool:
    return isinstance(value, FunctionType) and getattr(value, MARK, False) is True


class Pristine:
    """A model's slots and tensors as they are now.

    >>> model = nn.Linear(1, 1)
    >>> before = Pristine(model)
    >>> model.cache = 3
    >>> before.restore(), hasattr(model, "cache")
    (['cache'], False)
    """

    def __init__(self, model: nn.Module, *, classes: bool = True, written: frozenset[str] | None = frozenset()) -> None:
        """`written`: tensors that a pass is known to write to."""
        self._mappings: list[tuple[str, dict[Any, Any], list[Any], list[Any]]] = []
        self._sequences: list[tuple[str, Any, list[Any]]] = []
        self._tensors: list[_Held] = []
        self._generators: list[tuple[str, Any, Any]] = []
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._cells: list[tuple[str, CellType, Any]] = []
        self._values: dict[int, Tensor] | None = None
        self._names = {id(module): name for name, module in model.named_modules(remove_duplicate=True)}
        kinds: set[type] = set()
        if classes:
            kinds = {k for module in model.modules() for k in type(module).__mro__ if _package(k) not in FOREIGN}
            self._classes = [(kind, _plain(kind)) for kind in sorted(kinds, key=lambda k: k.__qualname__)]
        shared = [(f"{kind.__qualname__}.{key}", value) for kind, data in self._classes for key, value in data.items()]
        self._walk([("", model), *shared])
        self._keep_values(model)
        for held in self._tensors:
            if written and held.name in written:
                held.value, held.written = held.alias.clone(), True

    def _walk(self, roots: list[tuple[str, Any]]) -> None:
        seen: set[int] = set()
        queue: deque[tuple[str, Any]] = deque(roots)
        while queue and len(seen) < MOST:
            name, value = queue.popleft()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, Tensor):
                self._tensors.append(_Held(name, value))
            elif isinstance(value, torch.Generator):
                self._generators.append((name, value, value.get_state()))
            elif isinstance(value, random.Random):
                self._generators.append((name, value, value.getstate()))
            elif isinstance(value, np.random.Generator):
                self._generators.append((name, value, value.bit_generator.state))
            elif isinstance(value, np.random.RandomState):
                self._generators.append((name, value, value.get_state()))
            elif isinstance(value, dict):
                kept = {key: member for key, member in value.items() if not _marked(member)}
                self._mappings.append((name, value, list(kept), list(kept.values())))
                queue.extend((_joined(name, key), member) for key, member in kept.items())
            elif isinstance(value, list | set | deque | tuple):
                if not isinstance(value, tuple):
                    self._sequences.append((name, value, list(value)))
                queue.extend((_joined(name, k), member) for k, member in enumerate(value))
            elif isinstance(value, FunctionType):
                for cell in value.__closure__ or ():
                    self._cells.append((_joined(name, "closure"), cell, _content(cell)))
                    queue.append((_joined(name, "closure"), _content(cell)))
                queue.extend((_joined(name, "default"), member) for member in value.__defaults__ or ())
            elif isinstance(value, partial):
                queue.extend([(name, value.func), (name, value.args), (name, value.keywords)])
            elif isinstance(value, MethodType):
                queue.append((name, value.__self__))
            elif hasattr(value, "__dict__") and (isinstance(value, nn.Module) or _followed(value)):
                slots = vars(value)
                self._mappings.append((name, slots, list(slots), list(slots.values())))
                queue.extend((_joined(name, key), member) for key, member in slots.items())

    def _keep_values(self, model: nn.Module) -> None:
        """Copies of what may be written by some inputs only: buffers, other tensors, tables with a largest norm."""
        weights = {id(parameter) for parameter in model.parameters()}
        tables = {id(module.weight) for module in model.modules() if getattr(module, "max_norm", None) is not None}
        for held in self._tensors:
            small = id(held.tensor) not in weights and held.alias.numel() * held.alias.element_size() <= KEPT
            if small or id(held.tensor) in tables:
                held.value = held.alias.clone()

    def watch_values(self) -> None:
        """Keep a copy of every tensor until `writers` is asked: writing through `.data` leaves no other trace."""
        self._values = {id(held.tensor): held.alias.clone() for held in self._tensors}

    def settle(self) -> list[str]:
        """After a first pass: the tensors it wrote to, which are kept by value from now on; the other copies go."""
        assert self._values is not None
        written = []
        for held in self._tensors:
            kept = self._values[id(held.tensor)]
            if not _same(held.alias, kept):
                held.value, held.written = kept, True
                written.append(held.name)
        self._values = None
        return written

    def restore(self, *, numbers: bool = True) -> list[str]:
        """Put everything back; the names of what had changed.

        Without `numbers`, tensors that were written to keep what was written: a backward pass may still need it.
        """
        changed: list[str] = []
        for name, mapping, keys, values in self._mappings:
            if (mapping or keys) and not _held(mapping, keys, values):
                before = dict(zip(keys, values))
                before |= {key: value for key, value in mapping.items() if _marked(value)}
                changed += [_joined(name, key) for key in (*before, *mapping) if _differs(before, mapping, key)]
                mapping.clear()
                mapping.update(before)
        for name, sequence, members in self._sequences:
            if len(sequence) != len(members) or not all(map(is_, sequence, members)):
                changed.append(name)
                sequence.clear()
                (sequence.update if isinstance(sequence, set) else sequence.extend)(members)
        for held in self._tensors:
            if held.restore(numbers):
                changed.append(held.name)
        for name, generator, state in self._generators:
            if not _same_state(_state(generator), state):
                changed.append(name)
                _set_state(generator, state)
        for name, cell, content in self._cells:
            if _content(cell) is not content and content is not _MISSING:
                changed.append(name)
                cell.cell_contents = content
        for kind, data in self._classes:
            now = _plain(kind)
            for key in {**data, **now}:
                if now.get(key, _MISSING) is not data.get(key, _MISSING):
                    changed.append(f"{kind.__qualname__}.{key}")
                    if key in data:
                        setattr(kind, key, data[key])
                    else:
                        delattr(kind, key)
        return list(dict.fromkeys(changed))

    def follow(self) -> bool:
        """Take the numbers as they are now, where nothing but numbers has changed; False where more has."""
        same = all(_held(mapping, keys, values) for _, mapping, keys, values in self._mappings if mapping or keys)
        same = same and all(
            len(sequence) == len(members) and all(map(is_, sequence, members))
            for _, sequence, members in self._sequences
        )
        same = same and all(_content(cell) is content for _, cell, content in self._cells)
        for kind, data in self._classes:
            now = _plain(kind)
            same = same and now.keys() == data.keys() and all(map(is_, now.values(), data.values()))
        if same:
            self._generators = [(name, generator, _state(generator)) for name, generator, _ in self._generators]
            for held in self._tensors:
                held.follow()
        return same

    def drew(self) -> list[str]:
        """The private generators that have moved since."""
        return [name for name, generator, state in self._generators if not _same_state(_state(generator), state)]


class _Held:
    """A tensor: its storage, dtype, version, flags and gradient; its bytes too where a pass was seen to write them."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name, self.tensor = name, tensor
        self.alias = tensor.detach()
        self.versioned = not tensor.is_inference()
        self.version = tensor._version if self.versioned else 0
        self.address = _address(tensor)
        self.leaf = tensor.is_leaf
        self.asks = tensor.requires_grad
        self.grad = tensor.grad if tensor.is_leaf else None
        self.value: Tensor | None = None
        self.written = False

    def follow(self) -> None:
        """Take the tensor as it is now."""
        kept, written = self.value is not None, self.written
        self.__init__(self.name, self.tensor)  # type: ignore[misc]
        if kept:
            self.value, self.written = self.alias.clone(), written

    def restore(self, numbers: bool) -> bool:
        tensor, changed = self.tensor, False
        if _address(tensor) != self.address:  # cast or moved: `.data` was put in its place
            tensor.data = self.alias
            changed = True
        touched = self.versioned and tensor._version != self.version
        if touched and self.value is None:
            raise UsageError(
                f"the model wrote to {self.name} during a forward pass, for these inputs only, so it could not be kept as it"
                " was; expected a forward pass that leaves parameters alone: move the update out of forward"
            )
        if not numbers:
            changed |= touched
        elif self.value is not None and (touched or self.written) and not _same(self.alias, self.value):
            with torch.no_grad():
                self.alias.copy_(self.value)
            changed = True
        if numbers and self.versioned:
            self.version = tensor._version
        if self.leaf:
            if tensor.requires_grad != self.asks:
                tensor.requires_grad_(self.asks)
                changed = True
            if tensor.grad is not self.grad:
                tensor.grad = self.grad
                changed = True
        return changed


def _address(tensor: Tensor) -> tuple[Any, ...]:
    try:
        return tensor.data_ptr(), tensor.dtype
    except RuntimeError:  # a tensor without a storage of its own
        return tensor.dtype, tensor.shape


def _held(mapping: dict[Any, Any], keys: list[Any], values: list[Any]) -> bool:
    """Whether a mapping holds the very same things in the same places."""
    return len(mapping) == len(keys) and all(map(is_, mapping.values(), values)) and list(mapping) == keys


def _same(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.layout != torch.strided or one.is_quantized:
        return torch.equal(one, other)
    bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]  # -0 and NaN are numbers like others
    return torch.equal(*bits)


def _package(kind: type) -> str:
    return kind.__module__.split(".")[0]


def _followed(value: Any) -> bool:
    """Objects of the caller's own classes; classes, modules and other libraries' objects are left alone."""
    return not isinstance(value, type | ModuleType) and _package(type(value)) not in FOREIGN


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing in it yet
        return _MISSING


def _plain(kind: type) -> dict[str, Any]:
    """The attributes of a class that are data."""
    return {
        key: value
        for key, value in vars(kind).items()
        if not key.startswith("__") and not callable(value) and not hasattr(value, "__get__")
    }


def _joined(name: str, key: Any) -> str:
    if key in ("_parameters", "_buffers", "_modules"):
        return name
    return f"{name}.{key}" if name else str(key)


def _differs(before: dict[Any, Any], now: dict[Any, Any], key: Any) -> bool:
    return before.get(key, _MISSING) is not now.get(key, _MISSING)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _same_state(one: Any, other: Any) -> bool:
    return list(map(str, _flat(one))) == list(map(str, _flat(other)))


def _flat(state: Any) -> Iterator[Any]:
    if isinstance(state, Tensor | np.ndarray):
        yield bytes(np.asarray(state))
    elif isinstance(state, dict):
        for key in state:
            yield from _flat(state[key])
    elif isinstance(state, tuple | list):
        for member in state:
            yield from _flat(member)
    else:
        yield state
