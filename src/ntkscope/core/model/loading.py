"""Reading a Dataset or DataLoader once, in a fixed order: row i of every result must mean the same item each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)

from ntkscope.core.errors import UsageError
from ntkscope.core.model.tree import Inputs, join, map_leaves, tensors
from ntkscope.core.random import kept_randomness, reseed

PASSES = 16  # over the data set; a sampler that yields more batches than this is taken to be endless
BATCH = 64  # items read at a time where a loader's own batches have no fixed size


def collect(
    data: Dataset[Any] | DataLoader[Any],
    part: Callable[[Any], Any] = lambda item: item,
    what: str = "the input",
    *,
    augmented: bool = False,
) -> list[Any]:
    """`part` of every batch of a DataLoader, or of every item of a Dataset; `joined` makes one tree of them.

    A loader that shuffles is refused, and so are items drawn anew at each access, unless `augmented`: then they use
    a fixed seed. Global random states are left as they were.
    """
    with kept_randomness(also=_streams(data)):
        source = data.dataset if isinstance(data, DataLoader) else data
        if not isinstance(source, IterableDataset) and not hasattr(source, "__len__"):
            raise UsageError(
                f"got {type(source).__name__} without a length as {what}; expected to know how many items there are: give it"
                " __len__, or make it an IterableDataset"
            )
        if isinstance(data, DataLoader):
            refuse_shuffling(data, what)
        if not augmented and not isinstance(source, IterableDataset):
            _refuse_random_items(source, what)
        reseed(0)
        items = [part(item) for item in _items(data)]
    if not items:
        raise UsageError(f"{what} is empty; expected at least one sample")
    return items


def joined(
    items: list[Inputs],
    data: Dataset[Any] | DataLoader[Any],
    what: str = "the input",
    prepare: Callable[[list[Tensor]], list[Tensor]] = list,
) -> Inputs:
    """What `collect` read, as one tree: a loader's batches are concatenated, a data set's items stacked."""
    how: Callable[..., Tensor] = torch.cat if isinstance(data, DataLoader) else torch.stack
    return join(items, lambda values: how(prepare(values)), f"the items of {what}")


def refuse_shuffling(loader: DataLoader[Any], what: str = "the input") -> None:
    """Raise an error when the loader yields its items in a different order each time."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    random = isinstance(sampler, RandomSampler) or (isinstance(sampler, DistributedSampler) and sampler.shuffle)
    if not random and not isinstance(loader.dataset, IterableDataset):
        batches = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        most = PASSES * len(loader.dataset) + 1  # type: ignore[arg-type]
        orders = []
        for seed in (0, 1):
            reseed(seed)
            orders.append(list(islice(batches, most)))
        random = orders[0] != orders[1]
        if not random and len(orders[0]) == most:
            raise UsageError(
                f"the sampler of {what} yielded more than {most - 1} batches of {len(loader.dataset)} items and does not end;"  # type: ignore[arg-type]
                " expected one that visits the items once: pass the loader's dataset"
            )
    if random:
        raise UsageError(
            f"{what} is a shuffling DataLoader, so its rows would have no fixed meaning; expected a fixed order: pass"
            " loader.dataset, or DataLoader(loader.dataset, batch_size, shuffle=False); for some of the items,"
            " torch.utils.data.Subset(loader.dataset, indices)"
        )


def in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The items a loader visits, each once, in the order of its data set and in this process; its `collate_fn` is kept.

    A sampler that visits some items only, such as `SubsetRandomSampler`, still chooses them.

    >>> in_order(DataLoader(range(5), batch_size=2, shuffle=True, drop_last=True)).dataset
    range(0, 5)
    """
    data = loader.dataset
    if isinstance(data, IterableDataset):  # its order is its own
        return loader
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    size = len(data)  # type: ignore[arg-type]
    if not isinstance(sampler, RandomSampler | WeightedRandomSampler | DistributedSampler):  # which draw from all items
        own = getattr(loader.batch_sampler, "sampler", None)
        batched = own is None and loader.batch_sampler is not None
        with kept_randomness(also=_streams(loader)):
            reseed(0)
            drawn = list(islice(loader.batch_sampler if batched else sampler, PASSES * size))  # type: ignore[arg-type]
        visited = sorted({int(i) for some in drawn for i in (some if batched else [some])})
        data = data if len(visited) == size else Subset(data, visited)
    return DataLoader(data, batch_size=loader.batch_size or BATCH, shuffle=False, collate_fn=loader.collate_fn)


def _streams(data: Any) -> list[torch.Generator]:
    """The random generators that a loader, its samplers and its data set hold."""
    batches = getattr(data, "batch_sampler", None)
    holders = (
        data,
        getattr(data, "dataset", None),
        getattr(data, "sampler", None),
        batches,
        getattr(batches, "sampler", None),
    )
    return [v for each in holders for v in getattr(each, "__dict__", {}).values() if isinstance(v, torch.Generator)]


def _items(data: Any) -> Iterable[Any]:
    if isinstance(data, DataLoader | IterableDataset):
        return data
    return (data[i] for i in range(len(data)))


def _refuse_random_items(dataset: Any, what: str) -> None:
    """Items that are drawn anew at each access (random augmentation) have no kernel."""
    for i in sorted({0, len(dataset) // 2, len(dataset) - 1} if len(dataset) else ()):
        first, second = (list(_numbers(dataset[i])) for _ in range(2))
        if any(a.shape != b.shape or not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second)):
            raise UsageError(
                f"item {i} of {what} is different each time it is read (random augmentation), so its rows would have no fixed"
                " meaning; expected fixed items: leave the random transforms out"
            )


def _numbers(item: Any) -> Iterator[Tensor]:
    def tensor(leaf: Any) -> Any:
        if isinstance(leaf, list | tuple):
            return [map_leaves(tensor, member) for member in leaf]
        return torch.as_tensor(leaf) if isinstance(leaf, Tensor | np.ndarray | int | float) else leaf

    return iter(tensors(map_leaves(tensor, item)))
