"""Inputs as the engine sees them: positional and keyword tensors that share their first axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ntkscope.core import Part, Split, UsageError
from ntkscope.core.model.calling import arguments, without_labels
from ntkscope.core.model.loading import collect, joined
from ntkscope.core.model.tree import from_arrays, is_branch, map_tensors, move, named, tensors


@dataclass(frozen=True)
class Batch:
    """What a model is called with: `model(*args, **kwargs)`, every tensor of length `n` along its first axis.

    >>> batch = Batch((torch.arange(6).reshape(3, 2),), {})
    >>> len(batch), batch[1:].args[0].tolist()
    (3, [[2, 3], [4, 5]])
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[Tensor]:
        return tensors((self.args, self.kwargs))

    def entry(self, name: str) -> Any:
        """The input of that name, also one in a mapping or dataclass that is passed whole; None where there is none."""
        sources = (self.kwargs, *(named(argument) or {} for argument in self.args))
        return next((source[name] for source in sources if name in source), None)

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _count(self) -> int:
        return len(self.tensors()[0])

    def __getitem__(self, index: slice | Tensor) -> Batch:
        return self.map(lambda t: t[index])

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with `function` applied to every tensor."""
        return Batch(map_tensors(function, self.args), map_tensors(function, self.kwargs))

    def to(self, device: torch.device, dtype: torch.dtype | None) -> Batch:
        """On `device`, floating-point tensors as `dtype` unless it is None."""
        return Batch(move(self.args, device, dtype), move(self.kwargs, device, dtype))


def as_batch(x: Any, model: nn.Module, *, graph: bool = False) -> Batch:
    """A `Batch` from a tensor or NumPy array, a tuple, mapping or dataclass of tensors, a `Part`, a Dataset or a DataLoader.

    `core.calling` has the rule: what goes by position, what by name, and what is a label. Tensors lose the caller's autograd
    graph unless `graph` is set.
    """
    if isinstance(x, Split):
        raise UsageError("got a whole Split as input; expected one part of it: pass split.train or split.test")
    if isinstance(x, Part):
        x = x.x
    elif isinstance(x, DataLoader | Dataset):
        x = joined(without_labels(model, collect(x), batched=isinstance(x, DataLoader)), x)
    x = from_arrays(x, next((p.dtype for p in model.parameters() if p.is_floating_point()), None))
    if not isinstance(x, Tensor | tuple) and not is_branch(x):
        raise UsageError(
            f"got inputs of type {type(x).__name__}; expected a tensor or array, a tuple, mapping or dataclass of them, a"
            " Dataset or a DataLoader (stack a list of tensors with torch.stack; turn text into token ids with the"
            " model's tokenizer)"
        )
    batch = checked(Batch(*arguments(model, x)))
    return batch if graph else batch.map(_plain)


def _plain(tensor: Tensor) -> Tensor:
    """Numbers alone: no graph of the caller's, no inference tensor, which autograd refuses."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()


def checked(batch: Batch) -> Batch:
    """The batch, if it has samples and the same number in every tensor."""
    tensors = batch.tensors()
    if not tensors:
        raise UsageError("got inputs without any tensor; expected at least one, samples along its first axis")
    if any(t.is_nested or t.layout != torch.strided for t in tensors):
        raise UsageError(
            "got a sparse or nested tensor as input; expected dense ones: pass x.to_dense(), or padded ones and a mask"
        )
    lengths = {len(t) if t.dim() else None for t in tensors}
    if len(lengths) != 1 or None in lengths:
        raise UsageError(
            f"got input tensors of shapes {[tuple(t.shape) for t in tensors]}; expected the same number of samples along"
            " the first axis of each"
        )
    if lengths == {0}:
        raise UsageError("got no samples; expected at least one")
    return batch
