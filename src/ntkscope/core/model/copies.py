"""Copies of a model that are the model: functions are copied too, and whatever still leads back to the original is found.

`copy.deepcopy` leaves functions as they are, so a hook or a lambda over a parameter would go on using the original's. Here the
functions that a model holds are copied with cells of their own, and the gradient hooks and attributes of its tensors with them.
What a copy cannot have of its own (a global, a weak reference) is named by `shared`.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core.errors import UsageError
from ntkscope.core.model.reach import MARK, Reach

UNCOPIED = (RuntimeError, TypeError, AttributeError, ValueError, NotImplementedError, RecursionError)


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


def duplicate(model: nn.Module, *, share: bool = False, functions: list[FunctionType] | None = None) -> nn.Module:
    """A deep copy, functions that hold something included; a model that cannot be copied is refused.

    `share`: its parameters are others, but hold the very numbers of the model's. `functions` gets those that are copied.
    """
    functions = [] if functions is None else functions
    tensors, buffers = [], {id(buffer) for buffer in model.buffers()}
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
        except UNCOPIED:  # of what a function holds: then as deepcopy does it, and what that shares is looked for
            return _copied(model, [], tensors, memo)
    except UNCOPIED as error:
        raise UsageError(
            f"{type(model).__name__} cannot be copied ({error}); a copy is needed to compute in another dtype or on another"
            " device, and to linearise: convert the model itself with model.to(...), and leave dtype= and device= out, or"
            " remove what cannot be copied (tensors with a graph, locks, open files)"
        ) from error


def _defaults(function: FunctionType) -> list[Any]:
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values()]


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
    names, others = (dict(each.named_parameters()).keys() for each in (made, model))  # a tied one has one name
    found = sorted(names ^ others)
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
        return one.shape == other.shape and (torch.equal(one, other) or bool(((one == other) | (one != one)).all()))
    if isinstance(one, dict):
        return isinstance(other, dict) and len(one) == len(other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and (one.dtype.hasobject or one.tobytes() == other.tobytes())
    if callable(one) or callable(other):
        return callable(one) == callable(other)
    return not isinstance(one, int | float | str) or alike(one, other)


def reached(model: nn.Module, *, code: bool = True) -> Iterator[Any]:
    """What a model holds, objects of libraries included; with `code`, also what its classes and functions read by name."""
    return (value for _, value in Reach(model, classes=code, foreign=True))


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


def alike(one: Any, other: Any) -> bool:
    """The same thing, or an equal number or text."""
    if one is other or type(one) is not type(other):
        return one is other
    return isinstance(one, int | float | complex | str | bytes | np.generic) and (one == other or one != one != other)


def own_copy(model: nn.Module, purpose: str) -> nn.Module:
    """A copy that uses nothing of the model's own parameters and buffers; refused, saying what for, where there is none."""
    made = duplicate(model)
    lost = shared(made, model)
    if lost:
        raise UsageError(
            f"a copy of {type(model).__name__} would still use {', '.join(lost)} of the model itself (a function reads a"
            f" global or a weak reference), and {purpose}; expected functions that reach the model by what they are given"
        )
    return made
