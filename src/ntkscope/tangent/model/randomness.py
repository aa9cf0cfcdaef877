"""Chance: whether what a model draws at random reaches its outputs.

Drawing is not enough to refuse a model (some draw a number that evaluation mode never looks at), and running it a few times
is not enough to accept it (dropout may be rare). So it is run with every random number at its least and at its largest value:
if the outputs are the same, they do not depend on chance.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

DROPOUTS = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
    torch.alpha_dropout,
    torch.feature_dropout,
}
UNIFORM = {torch.rand, torch.rand_like}
NORMAL = {torch.randn, torch.randn_like, torch.normal}
WHOLE = {torch.randint, torch.randint_like, torch.multinomial, torch.randperm}
FILLS = {"uniform_", "normal_", "random_", "exponential_", "cauchy_", "log_normal_", "geometric_"}
DRAWING = {*DROPOUTS, *UNIFORM, *NORMAL, *WHOLE, F.scaled_dot_product_attention}
FAR = 6.0  # standard deviations


class Draws(TorchFunctionMode):
    """While open, notes the states of the global generator that random numbers are drawn from."""

    def __init__(self) -> None:
        super().__init__()
        self.states: set[bytes] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if func in DRAWING or name in FILLS or "bernoulli" in name:
            self.states.add(_state())
        return func(*args, **(kwargs or {}))


def _state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


class Extreme(TorchFunctionMode):
    """While open, random numbers are the least they can be, or (`high`) the largest.

    Those drawn from one of the `known` states are left alone: a model that seeds the generator itself draws the same ones
    whenever it is run.
    """

    def __init__(self, high: bool, known: Collection[bytes] = ()) -> None:
        super().__init__()
        self.high, self.known = high, known

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.known and _state() in self.known:
            return func(*args, **kwargs)
        if func in DROPOUTS:
            return self._dropped(func, args, kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attended(func, args, kwargs)
        if func in (torch.bernoulli, Tensor.bernoulli) or name == "bernoulli_":
            return self._bernoulli(func, name, args, kwargs)
        if func in UNIFORM:
            return self._filled(func(*args, **kwargs), 0.0, 1.0 - 2**-24)
        if func in NORMAL:
            return self._filled(func(*args, **kwargs), -FAR, FAR)
        if func in WHOLE:
            drawn = func(*args, **kwargs)
            return drawn.flip(-1) if self.high and drawn.dim() else drawn
        if name in FILLS and args and isinstance(args[0], Tensor):
            drawn = func(*args, **kwargs)
            return self._filled(drawn, 0.0, 1.0) if name != "normal_" else self._filled(drawn, -FAR, FAR)
        return func(*args, **kwargs)

    def _filled(self, drawn: Tensor, low: float, high: float) -> Tensor:
        if not drawn.is_floating_point():
            return drawn
        with torch.no_grad():
            return drawn.fill_(high if self.high else low)

    def _dropped(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        named = dict(zip(("input", "p", "training"), args)) | kwargs
        p = float(named.get("p", 0.5))
        active = bool(named.get("training", named.get("train", True)))
        if not active or p == 0:
            return named["input"]
        return named["input"] * (0.0 if not self.high or p >= 1 else 1.0 / (1.0 - p))

    def _attended(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        named = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args)) | kwargs
        p = float(named.get("dropout_p") or 0.0)
        output = func(**{**named, "dropout_p": 0.0})
        return output if p == 0 or self.high else output * 0.0

    def _bernoulli(self, func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        drawn = func(*args, **kwargs)
        p = args[0] if name != "bernoulli_" else (args[1] if len(args) > 1 else kwargs.get("p", 0.5))
        possible = (p > 0 if self.high else p >= 1) if isinstance(p, Tensor) else bool(p > 0 if self.high else p >= 1)
        with torch.no_grad():
            value = torch.as_tensor(possible, device=drawn.device).to(drawn.dtype).expand_as(drawn)
            return drawn.copy_(value) if name == "bernoulli_" else value.clone()
