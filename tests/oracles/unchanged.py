"""Nothing moved: a model, its inputs and the process compared before and after a call, as deep as Python lets one look.

`snapshot(model, inputs)` describes everything a caller could notice: parameters and buffers (identity, bytes,
`requires_grad`, `.grad`), every attribute of every module with what its containers hold, hooks, class attributes of the
user's classes, the inputs' bytes, random states and switches. `differences(before, after)` names what is not as it was.
`trained(model, …)` is what a few optimiser steps make of a model: a model that was only looked at trains as a fresh one.
"""

from __future__ import annotations

import copy
import functools
import random
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.utils.data import Dataset

DEPTH = 8
PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, type(Ellipsis))


def snapshot(model: nn.Module, inputs: Any = None) -> dict[str, Any]:
    """All that counts, as a flat mapping of names to comparable values."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        where = f"model.{name}" if name else "model"
        found[f"{where} (identity)"] = (id(module), type(module))
        if isinstance(module, torch.jit.ScriptModule):
            found[f"{where}.state_dict"] = describe(dict(module.state_dict()))
            continue
        for key, value in vars(module).items():
            registered = key in ("_parameters", "_buffers", "_modules")
            found[f"{where}.{key}"] = describe(value, registered=registered)
    for kind in {type(module) for module in model.modules()}:
        for owner in kind.__mro__:
            if not _foreign(owner):
                for key, value in list(vars(owner).items()):
                    if (
                        not key.startswith("__")
                        and not callable(value)
                        and not isinstance(value, classmethod | property)
                    ):
                        found[f"class {owner.__name__}.{key}"] = describe(value)
    found["inputs"] = describe(inputs, registered=True)
    found.update(process())
    return found


def process() -> dict[str, Any]:
    """Random states and switches of this process."""
    found = {
        "torch random state": describe(torch.get_rng_state()),
        "numpy random state": repr(np.random.get_state()),  # noqa: NPY002 - the global state is what is watched
        "default dtype": torch.get_default_dtype(),
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "num threads": torch.get_num_threads(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "global hooks": {
            name: list(value)
            for name, value in vars(torch.nn.modules.module).items()
            if name.startswith("_global") and isinstance(value, dict)
        },
    }
    if not type_checked():  # the run-time type checks of the tests draw from that state themselves
        found["python random state"] = hash(random.getstate())
    return found


def type_checked() -> bool:
    """Whether the run-time type checks of the tests are on; they draw from Python's random state."""
    return "beartype" in sys.modules and "pytest" in sys.modules


def _foreign(owner: type) -> bool:
    """Whether a class is Python's or a library's, not the user's."""
    return owner.__module__.partition(".")[0] in ("builtins", "torch", "abc", "typing", "transformers", "numpy", "enum")


def describe(value: Any, *, registered: bool = False, depth: int = 0, seen: frozenset[int] = frozenset()) -> Any:
    """Something comparable with `==` that tells two states of `value` apart; `registered`: identity counts too."""
    if isinstance(value, PLAIN):
        return repr(value) if isinstance(value, float) else value  # NaN equals itself here
    if id(value) in seen or depth > DEPTH:
        return ("again", type(value).__name__)
    inner = functools.partial(describe, registered=registered, depth=depth + 1, seen=seen | {id(value)})
    if isinstance(value, Tensor):
        return _tensor(value, registered)
    if isinstance(value, nn.Module):
        return ("module", id(value))
    if isinstance(value, Mapping):
        return (type(value).__name__, [(inner(key), inner(member)) for key, member in list(value.items())])
    if isinstance(value, list | tuple):
        return (type(value).__name__, [inner(member) for member in value])
    if isinstance(value, set | frozenset):
        return (type(value).__name__, sorted(repr(inner(member)) for member in value))
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tobytes())
    return _object(value, inner)


def _object(value: Any, inner: Callable[[Any], Any]) -> Any:
    if isinstance(value, torch.Generator):
        return ("generator", inner(value.get_state()))
    if isinstance(value, np.random.Generator):
        return ("numpy generator", repr(value.bit_generator.state))
    if isinstance(value, random.Random):
        return ("python generator", hash(value.getstate()))
    if isinstance(value, functools.partial):
        return ("partial", inner(value.func), inner(value.args), inner(value.keywords))
    if isinstance(value, types.MethodType):
        return ("method", value.__func__.__qualname__, inner(value.__self__))
    if isinstance(value, types.FunctionType):
        if value.__module__.startswith("torch."):
            return ("function", value.__qualname__)
        cells = [_cell(cell, inner) for cell in value.__closure__ or ()]
        return ("function", id(value), cells, inner(vars(value)), inner(value.__defaults__))
    if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
        return ("named", getattr(value, "__name__", ""))
    if hasattr(value, "__dict__") and (not _foreign(type(value)) or isinstance(value, Dataset)):
        return ("object", type(value).__name__, id(value), inner(vars(value)))
    return ("object", type(value).__name__)


def _cell(cell: types.CellType, inner: Callable[[Any], Any]) -> Any:
    try:
        return inner(cell.cell_contents)
    except ValueError:  # empty: its variable was never set
        return "empty"


def _tensor(value: Tensor, registered: bool) -> tuple[Any, ...]:
    if isinstance(value, UninitializedTensorMixin):
        return ("uninitialised", id(value))
    shape: tuple[Any, ...] = (
        str(value.dtype),
        tuple(value.shape),
        value.requires_grad,
        value.is_leaf,
        value.is_inference(),
    )
    if registered:
        hooks = getattr(value, "_backward_hooks", None) if value.is_leaf else None
        grad = None if not value.is_leaf or value.grad is None else (id(value.grad), bits(value.grad))
        shape = (*shape, id(value), value.data_ptr(), type(value).__name__, value.stride(), grad, list(hooks or ()))
    return (*shape, bits(value))


def bits(value: Tensor) -> bytes:
    """The bytes of a tensor's values."""
    value = value.detach()
    if value.layout != torch.strided:
        value = value.to_dense()
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    return value.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of what was added, removed or changed.

    >>> model = nn.Linear(1, 1)
    >>> before = snapshot(model)
    >>> model.calls = 1
    >>> differences(before, snapshot(model))
    ['model.calls']
    """
    names = [*before, *(name for name in after if name not in before)]
    return [name for name in names if name not in before or name not in after or before[name] != after[name]]


def state(model: nn.Module) -> dict[str, Any]:
    """A snapshot without Python's random state, which run-time type checks draw from."""
    return {name: value for name, value in snapshot(model).items() if name != "python random state"}


def assert_unchanged(model: nn.Module, before: Mapping[str, Any]) -> None:
    """Fail, and say what, when anything of the state `before` is no longer so."""
    found = differences(before, state(model))
    if found:
        raise AssertionError(f"changed: {', '.join(found)}")


def optimiser(model: nn.Module) -> torch.optim.Optimizer | None:
    """SGD with momentum on what the model says are its parameters; None when there are none."""
    chosen = [
        p
        for p in model.parameters()
        if not isinstance(p, UninitializedTensorMixin) and p.requires_grad and not p.is_inference()
    ]
    return torch.optim.SGD(chosen, lr=0.1, momentum=0.9) if chosen else None


def trained(model: nn.Module, step: torch.optim.Optimizer | None, run: Callable[[nn.Module], Tensor]) -> Any:
    """The bytes of the model after two steps on the mean square of `run(model)`, or the error that training raises."""
    if step is None:
        return "nothing to train"
    try:
        for _ in range(2):
            step.zero_grad()
            run(model).float().square().mean().backward()
            step.step()
    except Exception as error:  # whatever training raises is compared with what it raises for a fresh model
        return f"{type(error).__name__}: {error}"
    return {name: bits(value) for name, value in model.state_dict().items()}


def copies(model: nn.Module) -> str:
    """ "copies" when the model deep-copies and the copy takes its state, else the error's type."""
    try:
        other = copy.deepcopy(model)
        other.load_state_dict(model.state_dict())
    except Exception as error:  # compared with what a fresh model raises
        return type(error).__name__
    return "copies"
