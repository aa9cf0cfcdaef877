"""What a model is made of before it is run, put back after every forward pass.

A forward pass may write: caches filled on first use, counters, running statistics, `Embedding(max_norm)`, modules cast with
`.to`. Here every slot of what a model reaches (`reach`: attributes, containers, parameters, buffers, hooks, closures, its own
classes and globals) is remembered by identity, every tensor by version and address, and by value what has no such mark
(arrays, random streams, small tensors). So each pass starts from the same model, and the caller gets it back.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from operator import is_, methodcaller
from types import CellType, FunctionType
from typing import Any

import numpy as np
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.model.copies import alike
from ntkscope.core.model.reach import MARK, Globals, Named, Reach, followed, joined, marked, slots
from ntkscope.tangent.model.held import KEPT, HeldObject, HeldTensor, kind_of, opaque, size_of

_MISSING = object()
_type: Callable[[Any], Any] = type
_values = methodcaller("values")


def ours(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of this package's own, which is not taken for a change of the model."""
    setattr(hook, MARK, True)
    return hook


class ModelState:
    """What a model reaches, as it is now.

    >>> model = nn.Linear(1, 1)
    >>> before = ModelState(model)
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
        self._tensors: list[HeldTensor] = []
        self._states: list[HeldObject] = []
        self._values: dict[int, Any] | None = None
        self._state = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self.opaque = False  # whether more may change than is seen here
        for name, value in Reach(model, classes=classes, foreign=foreign) if reached is None else self._reached:
            self._keep(name, value)
            self.opaque |= foreign and opaque(value)
        self._numbers: list[HeldTensor | HeldObject] = [*self._tensors, *self._states]
        self._keep_values(model, parameters=classes and not foreign and reached is None)
        self.opaque |= any(held.value is None and not held.weight for held in self._tensors)
        self._flatten()
        for held in self._tensors:
            if written and held.name in written:
                held.value, held.written = held.read(), True

    def _keep(self, name: str, value: Any) -> None:
        kind = _type(value)
        base, inside, keys = _shape(kind)
        state = kind_of(value)
        if state is not None:
            self._states.append(HeldObject(name, value, state))
        elif base is Tensor:
            self._tensors.append(HeldTensor(name, value, id(value) in self._state))
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
        if parameters and sum(size_of(parameter) for parameter in model.parameters()) <= KEPT:
            weights = set()
        for held in self._tensors:
            if (id(held.object) not in weights and size_of(held.alias) <= KEPT) or id(held.object) in tables:
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
        >>> before = ModelState(model, reached=Reach(model))
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
            if (isinstance(kept, HeldTensor) or kept.kind.shared) and kept.changed():
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
            kept.other_kind() if isinstance(kept, HeldTensor) and kept.weight else kept.changed()
            for kept in self._numbers
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


def _all_held(maps: list[Any], sizes: list[int], keys: list[Any], values: list[Any]) -> bool:
    """Whether mappings hold the very same things in the same places."""
    return (
        list(map(len, maps)) == sizes
        and all(map(is_, chain.from_iterable(map(_values, maps)), values))
        and list(chain.from_iterable(maps)) == keys
    )


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
