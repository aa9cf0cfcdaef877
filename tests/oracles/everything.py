"""Everything that can be reached from a model, and the switches of the process, as plain data that can be compared.

Written with `gc.get_referents` and `inspect.getclosurevars`, not with what the package itself uses: objects get numbers in the
order in which they are met, and each is described by its type, its own bytes, and the numbers of what it refers to.
"""

from __future__ import annotations

import array
import gc
import inspect
import io
import itertools
import sys
import types
import warnings
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, complex, str, bytes, type(None), range, torch.dtype, torch.device, torch.Size)
NAMED = (types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.FrameType, torch.Generator)


def everything(model: nn.Module, *more: Any) -> list[str]:
    """One line per object that the model (or something else that is the caller's) reaches."""
    numbers: dict[int, int] = {}
    met: list[Any] = []

    def number(value: Any) -> str:
        if isinstance(value, PLAIN):
            return repr(value)
        if id(value) not in numbers:
            numbers[id(value)] = len(met)
            met.append(value)
        return f"#{numbers[id(value)]}"

    number(model)
    number(list(more))
    return [f"{type(value).__name__} {_described(value, number)}" for value in met]  # which grows meanwhile


def _described(value: Any, number: Any) -> Any:
    own = _own(value if isinstance(value, type | types.FunctionType) else type(value))
    if isinstance(value, type):
        skipped = ("__dict__", "__weakref__", "__doc__", "__slotnames__")  # the last is what Python itself found out
        return [(k, number(v)) for k, v in vars(value).items() if k not in skipped] if own else value.__qualname__
    if isinstance(value, Tensor):
        hooks = number(value._backward_hooks), number(vars(value))
        return value.dtype, tuple(value.shape), _bits(value), value.requires_grad, number(_grad(value)), hooks
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, array.array | bytearray):
        return bytes(value)
    if isinstance(value, torch.Generator):
        return _bits(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, io.StringIO | io.BytesIO):
        return value.getvalue(), value.tell()
    if isinstance(value, itertools.count):
        return repr(value)
    if isinstance(value, types.FunctionType):
        if not own:
            return value.__qualname__
        seen = inspect.getclosurevars(value)
        names = sorted({**seen.globals, **seen.nonlocals}.items())
        missing = sorted(seen.unbound & vars(sys.modules[value.__module__]).keys())
        return [(k, number(v)) for k, v in names], missing, number(value.__dict__), number(value.__defaults__)
    if isinstance(value, NAMED) or type(value).__module__.startswith(("torch._C", "ntkscope", "weakref")):
        return type(value).__name__
    if isinstance(value, dict):
        return [(number(k), number(v)) for k, v in value.items()], number(getattr(value, "__dict__", None))
    if isinstance(value, set | frozenset):
        return sorted(number(member) for member in value)
    if isinstance(value, list | tuple | deque):
        return [number(member) for member in value], number(getattr(value, "__dict__", None))
    kept = getattr(value, "__dict__", None)  # first: it makes the dictionary, which is referred to from then on
    return number(kept), [number(each) for each in gc.get_referents(value) if not isinstance(each, dict)]


def _own(value: Any) -> bool:
    """Whether a class or function is the caller's: from a file of these tests."""
    file = getattr(sys.modules.get(value.__module__ or ""), "__file__", None) or ""
    return "/tests/" in file


def _grad(value: Tensor) -> Tensor | None:
    return value.grad if value.is_leaf else None


def _bits(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def switches() -> dict[str, Any]:
    """What a call could leave behind in the process; Python's own random state is drawn from by run-time type checks."""
    hooks = {
        name: list(value)
        for name, value in vars(nn.modules.module).items()
        if name.startswith("_global") and isinstance(value, dict)
    }
    return {
        "torch random": _bits(torch.get_rng_state()),
        "numpy random": repr(np.random.get_state()),  # noqa: NPY002 - the global state is what is watched
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "dtype": torch.get_default_dtype(),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic),
        "threads": torch.get_num_threads(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "fast paths": (
            torch.backends.mha.get_fastpath_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.flash_sdp_enabled(),
        ),
        "filters": list(warnings.filters),
        "hooks of all modules": hooks,
        "patched": (nn.Module._apply, nn.Module.__call__),
        "modules": sorted(
            name for name in sys.modules if "state" in name and not name.startswith(("torch", "ntkscope", "numpy"))
        ),
    }


def differences(before: Any, after: Any) -> list[str]:
    """What is in one and not in the other.

    >>> model = nn.Linear(1, 1)
    >>> before = everything(model)
    >>> model.calls = 1
    >>> len(differences(before, everything(model)))
    1
    """
    if isinstance(before, dict):
        return [key for key in before if before[key] != after[key]]
    lines = [f"{one[:300]} -> {other[:300]}" for one, other in zip(before, after) if one != other]
    return lines + [f"lines: {len(before)} -> {len(after)}"] * (len(before) != len(after))
