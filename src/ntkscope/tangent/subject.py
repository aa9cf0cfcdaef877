"""A model held still: its parameters as fresh leaves, its outputs as a function of them and of the inputs.

The model itself is never changed. Each call swaps detached copies in for its length (`torch.func.functional_call`), so
parameters, gradients and buffers stay as they were, also when the call fails; the random state is restored by whoever
opens `quiet()`.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ntkscope.core import Params, UsageError
from ntkscope.tangent.batches import Batch

Selection: TypeAlias = str | Sequence[str] | Callable[[str], bool] | None


class Subject:
    """`f(θ, x)` of a model with `θ` split into the chosen parameters (`leaves`, which ask for gradients) and the rest.

    A tied parameter is one leaf, under its first name. Parameters that do not require a gradient are never chosen.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        params: Selection = None,
        last: Sequence[str] = (),
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        still: bool = False,
    ) -> None:
        """`still`: no parameter is asked for a gradient, whatever the model says."""
        self.model = model
        own = next((p for p in model.parameters() if p.is_floating_point()), None)
        self.dtype = dtype or (own.dtype if own is not None else torch.get_default_dtype())
        self.device = (
            torch.device(device) if device is not None else (own.device if own is not None else torch.device("cpu"))
        )
        self.native = own is None or (own.dtype == self.dtype and own.device == self.device)
        self.moved = device is not None
        self.cast = dtype is not None
        chosen = {} if still else select(model, params, last)
        self.leaves: Params = {name: self._held(p).requires_grad_() for name, p in chosen.items()}
        self.rest: Params = {name: self._held(p) for name, p in model.named_parameters() if name not in chosen}
        self.rest.update({name: self._held(b).clone() for name, b in model.named_buffers()})

    def _held(self, value: Tensor) -> Tensor:
        value = value.detach()
        held = value.to(device=self.device, dtype=self.dtype if value.is_floating_point() else None)
        return held.clone() if held.is_inference() else held.contiguous()

    def __call__(self, batch: Batch, leaves: Mapping[str, Tensor] | None = None) -> Tensor:
        """The outputs, (n, c)."""
        state = {**self.rest, **(self.leaves if leaves is None else leaves)}
        value = torch.func.functional_call(self.model, state, batch.args, batch.kwargs)
        return logits(value)

    def placed(self, batch: Batch) -> Batch:
        """A batch where this is, in its dtype, as far as the caller asked for that."""
        return batch.to(self.device, self.dtype) if self.cast or self.moved else batch

    def twin(self) -> Subject:
        """The same for another thread: modules of its own, since a call swaps parameters into them; the numbers are shared."""
        other = copy.copy(self)
        state = {id(t): t for t in (*self.model.parameters(), *self.model.buffers())}
        other.model = copy.deepcopy(self.model, memo=dict(state))
        other.leaves = {name: leaf.detach().requires_grad_() for name, leaf in self.leaves.items()}
        buffers = {name for name, _ in self.model.named_buffers()}
        other.rest = {name: value.clone() if name in buffers else value for name, value in self.rest.items()}
        return other

    @property
    def parameters(self) -> int:
        """How many numbers the chosen parameters hold."""
        return sum(p.numel() for p in self.leaves.values())

    def layer_of(self, name: str) -> str:
        """The module a parameter belongs to, as a person would name it."""
        return name.rpartition(".")[0] or "(the model itself)"


def logits(value: Any) -> Tensor:
    """The tensor of outputs in whatever a model returned: a tensor, or something that carries `logits`."""
    if isinstance(value, Tensor):
        return value
    found = value.get("logits") if isinstance(value, Mapping) else getattr(value, "logits", None)
    if isinstance(found, Tensor):
        return found
    raise UsageError(
        f"the model returned {type(value).__name__}; expected a tensor of shape (n, c), or an object with .logits;"
        " wrap the model in a module whose forward returns the outputs alone"
    )


def select(model: nn.Module, params: Selection, last: Sequence[str] = ()) -> dict[str, nn.Parameter]:
    """The trainable parameters that `params` names: a glob or globs, "last", a predicate on the name, or None for all."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad and p.is_floating_point()}
    if not trainable:
        raise UsageError(
            f"{type(model).__name__} has no trainable parameter; a tangent kernel needs at least one: build the model with"
            " parameters, or unfreeze some with model.requires_grad_(True)"
        )
    if params is None:
        return trainable
    if params == "last":
        chosen = {name: p for name, p in trainable.items() if name in set(last)}
        wanted = "the last affine layer"
    elif callable(params):
        chosen = {name: p for name, p in trainable.items() if params(name)}
        wanted = "the predicate"
    else:
        globs = [params] if isinstance(params, str) else list(params)
        chosen = {name: p for name, p in trainable.items() if any(fnmatchcase(name, glob) for glob in globs)}
        unmatched = [glob for glob in globs if not any(fnmatchcase(name, glob) for name in trainable)]
        wanted = ", ".join(map(repr, unmatched))
        if not unmatched:
            return chosen
        chosen = {}
    if not chosen:
        raise UsageError(f"no trainable parameter matches {wanted}; there are: {', '.join(trainable)}")
    return chosen


@contextlib.contextmanager
def quiet(device: torch.device) -> Iterator[None]:
    """Gradients on, mixed precision off, the caller's random state kept, whatever happens inside."""
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),  # threads of their own know nothing of the caller's
        warnings.catch_warnings(),  # here, for threads that would set filters side by side lose the caller's
    ):
        warnings.filterwarnings("ignore", message=".*performance drop", category=UserWarning)  # of vmap's slower rules
        yield
