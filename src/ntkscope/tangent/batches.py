"""Inputs as the engine sees them: positional and keyword tensors that share their first axis."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from ntkscope.core import Part, Split, UsageError
from ntkscope.tangent.chance import kept_randomness, reseed

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

    def to(self, device: torch.device, dtype: torch.dtype | None) -> Batch:
        """On `device`, floating-point tensors as `dtype` unless it is None."""
        return self.map(lambda t: t.to(device=device, dtype=dtype if dtype and t.is_floating_point() else t.dtype))


def as_batch(x: Any, model: nn.Module, *, graph: bool = False) -> Batch:
    """A `Batch` from a tensor, a tuple or mapping of tensors, a `Part`, a Dataset or a DataLoader.

    A tuple becomes positional arguments. A mapping (a tokenizer's output) becomes keyword arguments when `model.forward`
    takes those names, else it is passed whole. Labels are dropped unless `forward` takes them: the last member of a tuple of
    a Dataset or DataLoader, the entries `label`, `labels`, `target`, `y` of a mapping. Tensors lose the caller's autograd
    graph unless `graph` is set.
    """
    with kept_randomness():
        batch = _as_batch(x, model)
    return batch if graph else batch.map(_plain)


def _as_batch(x: Any, model: nn.Module) -> Batch:
    if isinstance(x, Split):
        raise UsageError("got a whole Split as input; expected one part of it: pass split.train or split.test")
    if isinstance(x, Part):
        x = x.x
    elif isinstance(x, DataLoader):
        _check_order(x)
        x = _join((_without_labels(batch, model) for batch in x), torch.cat)
    elif isinstance(x, IterableDataset):
        items = (_without_labels(item, model) for item in x)
        x = _join(items, lambda parts: torch.stack([torch.as_tensor(part) for part in parts]))
    elif isinstance(x, Dataset) and not isinstance(x, Tensor):
        _check_items(x)
        items = (_without_labels(x[i], model) for i in range(len(x)))  # type: ignore[arg-type]
        x = _join(items, lambda parts: torch.stack([torch.as_tensor(part) for part in parts]))
    return _checked(_arguments(x, model))


def _plain(tensor: Tensor) -> Tensor:
    """Numbers alone: no graph of the caller's, no inference tensor, which autograd refuses."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()


def _check_order(loader: DataLoader[Any]) -> None:
    """The rows of a kernel mean the loader's items, so these must come in the same order every time."""
    random = isinstance(loader.sampler, RandomSampler)
    if not random and not isinstance(loader.dataset, IterableDataset):
        batches = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        orders = [list(_with_seed(batches, seed)) for seed in (0, 1)]
        random = orders[0] != orders[1]
    if random:
        raise UsageError(
            "got a shuffling DataLoader as input, so the rows of the kernel would have no fixed meaning; build it with"
            " shuffle=False and a sampler that keeps its order, or pass its dataset"
        )
    if not isinstance(loader.dataset, IterableDataset):
        _check_items(loader.dataset)


def _with_seed(batches: Iterable[Any], seed: int) -> Iterable[Any]:
    reseed(seed)
    yield from batches


def _check_items(dataset: Dataset[Any]) -> None:
    """Items that are drawn anew each time they are asked for (random augmentation) have no kernel."""
    for i in sorted({0, len(dataset) // 2, len(dataset) - 1} if len(dataset) else ()):  # type: ignore[arg-type]
        first, second = (list(_tensors(_tensored(dataset[i]))) for _ in range(2))
        if any(a.shape != b.shape or not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second)):
            raise UsageError(
                f"item {i} of the dataset is another one each time it is asked for (random augmentation), so the rows of the"
                " kernel would have no fixed meaning; expected fixed items: leave the random transforms out"
            )


def _tensored(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {key: _tensored(value) for key, value in item.items()}
    if isinstance(item, tuple | list):
        return tuple(_tensored(value) for value in item)
    return torch.as_tensor(item) if isinstance(item, Tensor | np.ndarray | int | float | bool) else item


def _arguments(x: Any, model: nn.Module) -> Batch:
    if isinstance(x, Tensor):
        return Batch((x,), {})
    if isinstance(x, Mapping):
        named, anything = _takes(model)
        values = {str(key): value for key, value in x.items() if key not in LABEL_KEYS or anything or str(key) in named}
        return Batch((), values) if anything or all(key in named for key in values) else Batch((values,), {})
    if isinstance(x, tuple):
        return Batch(x, {})
    raise UsageError(
        f"got inputs of type {type(x).__name__}; expected a tensor, a tuple or mapping of tensors, a Dataset or a"
        " DataLoader (stack a list of tensors with torch.stack; turn text into token ids with the model's tokenizer)"
    )


def _takes(model: nn.Module) -> tuple[set[str], bool]:
    """The names `model.forward` takes, and whether it takes any."""
    parameters = inspect.signature(model.forward).parameters
    return set(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _required(model: nn.Module) -> int:
    """How many positional arguments `model.forward` cannot do without."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in inspect.signature(model.forward).parameters.values())


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


def _without_labels(item: Any, model: nn.Module) -> Any:
    if isinstance(item, Mapping):
        named = _takes(model)[0]
        return {key: value for key, value in item.items() if key not in LABEL_KEYS or str(key) in named}
    if isinstance(item, tuple | list):
        kept = tuple(item) if len(item) == 1 or _required(model) >= len(item) else tuple(item[:-1])
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
