"""Everything of a model and of the process a kernel must leave as it found it.

Python's own random state is not here: the run-time type checks of the test command draw from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

HOOKS = [name for name in vars(nn.Module()) if "hook" in name]


def state(model: nn.Module) -> dict[str, Any]:
    """Parameters, gradients, buffers, flags, hooks and attributes of every module; random states and switches."""
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found[f"parameter {name}"] = (id(parameter), parameter.data_ptr(), parameter.requires_grad, parameter.dtype)
        found[f"value of {name}"] = parameter.detach().clone()
        found[f"gradient of {name}"] = (id(parameter.grad), None if parameter.grad is None else parameter.grad.clone())
        found[f"hooks of {name}"] = repr(parameter._backward_hooks)
    for name, buffer in model.named_buffers(remove_duplicate=False):
        found[f"buffer {name}"] = (id(buffer), buffer.clone())
    for name, module in model.named_modules(remove_duplicate=False):
        found[f"module {name!r}"] = (id(module), type(module), module.training, sorted(vars(module)))
        found[f"hooks of {name!r}"] = {
            hook: list(vars(module)[hook].items()) for hook in HOOKS if _counts(module, hook)
        }
    found["torch random"] = torch.get_rng_state()
    found["numpy random"] = repr(np.random.get_state())  # noqa: NPY002 - the global state is what is watched
    found["global hooks"] = {
        name: list(value) for name, value in vars(torch.nn.modules.module).items() if _is_global_hooks(name, value)
    }
    found["switches"] = (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
    )
    return found


def _counts(module: nn.Module, hook: str) -> bool:
    return isinstance(vars(module).get(hook), dict)


def _is_global_hooks(name: str, value: Any) -> bool:
    return name.startswith("_global") and isinstance(value, dict)


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what differs between two states.

    >>> model = nn.Linear(1, 1)
    >>> before = state(model)
    >>> _ = model.eval()
    >>> changes(before, state(model))
    ["module ''"]
    """
    names = sorted({*before, *after})
    return [name for name in names if name not in before or name not in after or not _same(before[name], after[name])]


def assert_unchanged(model: nn.Module, before: dict[str, Any]) -> None:
    """Fail, and say what, when anything of the state `before` is no longer so."""
    found = changes(before, state(model))
    if found:
        raise AssertionError(f"changed: {', '.join(found)}")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and _bits(a) == _bits(b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    return bool(a == b)


def _bits(a: Tensor) -> bytes:
    return a.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if a.ndim else repr(a.item()).encode()
