"""Other tensors in the place of a model's parameters for the length of a call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only


class _Replaced(TorchFunctionMode):
    """Every function is called with others in the place of some tensors."""

    def __init__(self, new: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.new = new

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Tensor, lambda t: self.new.get(id(t), t), (args, kwargs or {}))
        return function(*args, **kwargs)


@contextlib.contextmanager
def swapped(model: nn.Module, state: Mapping[str, Tensor], *, everywhere: bool = False) -> Iterator[None]:
    """While open, the tensors of `state` stand in for the parameters of those names, where modules hold them.

    `everywhere`: also where functions or containers hold them: the arguments of every call are looked at, which takes time.
    """
    parameters = dict(model.named_parameters())
    new = {id(parameters[name]): value for name, value in state.items()}
    if everywhere:
        with _Replaced(new):
            yield
        return
    undo: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if id(parameter) in new:
                    undo.append((module._parameters, name, parameter))
                    module._parameters[name] = new[id(parameter)]  # type: ignore[assignment]
            for name, value in list(vars(module).items()):
                if isinstance(value, list | tuple) and any(id(member) in new for member in value):
                    undo.append((vars(module), name, value))
                    vars(module)[name] = type(value)(new.get(id(member), member) for member in value)
        yield
    finally:
        for slots, name, value in undo:
            slots[name] = value
