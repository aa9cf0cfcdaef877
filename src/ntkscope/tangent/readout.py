"""The readout: the last affine map a model applies, its input and its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ntkscope.core import UsageError
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.rules import RULES
from ntkscope.tangent.rules.registry import bind
from ntkscope.tangent.subject import Subject

WEIGHTS = {"weight", "mat2", "other"}
AFFINE = (F.linear, F.conv1d, F.conv2d, F.conv3d)  # always a layer; a matrix product only when it holds a parameter


@dataclass(frozen=True, eq=False)
class Readout:
    """The input of the last affine map, whether it adds a bias, and the names of its parameters."""

    x: Tensor
    bias: bool
    names: tuple[str, ...]


class _Last(TorchFunctionMode):
    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names
        self.found: Readout | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in RULES:
            bound = bind(RULES[func][1], args, kwargs)
            weight = next((bound[key] for key in WEIGHTS if key in bound), None)
            if func in AFFINE or (id(weight) in self.names and "mat1" in bound) or self._product(func, bound):
                x = bound["mat1"] if "mat1" in bound else bound["input"]
                bias = bound["input"] if "mat1" in bound else bound.get("bias")
                names = tuple(self.names[id(t)] for t in (weight, bias) if id(t) in self.names)
                self.found = Readout(x.detach(), bias is not None, names)
        return func(*args, **kwargs)

    def _product(self, func: Any, bound: dict[str, Any]) -> bool:
        return "other" in bound and id(bound["other"]) in self.names and bound["other"].dim() == 2


def find_readout(subject: Subject, batch: Batch) -> Readout:
    """Run the model once and look at the last affine map."""
    names = {id(value): name for name, value in (*subject.rest.items(), *subject.leaves.items())}
    mode = _Last(names)
    with torch.no_grad(), mode:
        subject(batch)
    if mode.found is None:
        raise UsageError(
            f"{type(subject.model).__name__} calls no affine map (Linear, Conv, a product with a parameter), so it has no"
            " readout; name a layer with layers= and use the 'em' kernel, or wrap the model with a linear head"
        )
    return mode.found
