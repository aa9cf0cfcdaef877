"""Inputs as the engine sees them: positional and keyword tensors that share their first axis."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from ntkscope.core import Part, Split, UsageError

LABEL_KEYS = ("label", "labels", "label_ids", "target", "targets", "y")


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
        return list(_tensors([*self.args, *self.kwargs.values()]))

    def __len__(self) -> int:
        return len(self.tensors()[0])

    def __getitem__(self, index: slice | Tensor) -> Batch:
        return self.map(lambda t: t[index])

    def map(self, function: Any) -> Batch:
        """The batch with `function` applied to every tensor."""
        return Batch(
            tuple(_map(value, function) for value in self.args),
            {key: _map(value, function) for key, value in self.kwargs.items()},
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """On `device`, floating-point tensors as `dtype`."""
        return self.map(lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None))


def as_batch(x: Any, model: nn.Module) -> Batch:
    """A `Batch` from a tensor, a tuple or mapping of tensors, a `Part`, a Dataset or a DataLoader.

    A tuple becomes positional arguments. A mapping (a tokenizer's output) becomes keyword arguments when `model.forward`
    takes those names, else it is passed whole. Of a Dataset's or DataLoader's items the labels are dropped: the last
    member of a tuple of two or more, the entries `label`, `labels`, `target`, `y` of a mapping.
    """
    if isinstance(x, Split):
        raise UsageError("a whole Split came as input; expected one part of it: pass split.train or split.test")
    if isinstance(x, Part):
        x = x.x
    elif isinstance(x, DataLoader):
        if isinstance(x.sampler, RandomSampler):
            raise UsageError(
                "a shuffling DataLoader came as input, so the rows of the kernel would have no fixed meaning;"
                " build it with shuffle=False or pass its dataset"
            )
        x = _join((_without_labels(batch) for batch in x), torch.cat)
    elif isinstance(x, Dataset) and not isinstance(x, Tensor):
        items = (_without_labels(x[i]) for i in range(len(x)))  # type: ignore[arg-type]
        x = _join(items, lambda parts: torch.stack([torch.as_tensor(part) for part in parts]))
    return _checked(_arguments(x, model))


def _arguments(x: Any, model: nn.Module) -> Batch:
    if isinstance(x, Tensor):
        return Batch((x,), {})
    if isinstance(x, Mapping):
        values = {str(key): value for key, value in x.items() if key not in LABEL_KEYS}
        return Batch((), values) if _takes(model, values) else Batch((values,), {})
    if isinstance(x, tuple):
        return Batch(x, {})
    raise UsageError(
        f"inputs of type {type(x).__name__} came; expected a tensor, a tuple or mapping of tensors, a Dataset or a"
        " DataLoader (stack a list of tensors with torch.stack; turn text into token ids with the model's tokenizer)"
    )


def _takes(model: nn.Module, values: Mapping[str, Any]) -> bool:
    parameters = inspect.signature(model.forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return True
    return all(key in parameters for key in values)


def _checked(batch: Batch) -> Batch:
    tensors = batch.tensors()
    if not tensors:
        raise UsageError("inputs without any tensor came; expected at least one, samples along its first axis")
    lengths = {len(t) if t.dim() else None for t in tensors}
    if len(lengths) != 1 or None in lengths:
        raise UsageError(
            f"input tensors of shapes {[tuple(t.shape) for t in tensors]} came; expected the same number of samples along"
            " the first axis of each"
        )
    if lengths == {0}:
        raise UsageError("no samples came; expected at least one")
    return batch


def _without_labels(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {key: value for key, value in item.items() if key not in LABEL_KEYS}
    if isinstance(item, tuple | list):
        kept = tuple(item) if len(item) == 1 else tuple(item[:-1])
        return kept[0] if len(kept) == 1 else kept
    return item


def _join(items: Iterable[Any], join: Any) -> Any:
    """One value from many of the same structure, joined tensor by tensor."""
    items = list(items)
    if not items:
        raise UsageError("an empty Dataset or DataLoader came; expected at least one sample")
    first = items[0]
    try:
        if isinstance(first, Mapping):
            return {key: join([torch.as_tensor(item[key]) for item in items]) for key in first}
        if isinstance(first, tuple):
            return tuple(join([torch.as_tensor(item[i]) for item in items]) for i in range(len(first)))
        return join([torch.as_tensor(item) for item in items])
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"the items of the Dataset or DataLoader do not join into one batch ({error}); expected tensors of one shape:"
            " pad texts to one length, resize images to one size"
        ) from error


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from _tensors(member)
    elif isinstance(value, tuple | list):
        for member in value:
            yield from _tensors(member)


def _map(value: Any, function: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _map(member, function) for key, member in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_map(member, function) for member in value)
    return value
