"""Class subsets and stratified samples; from the bytes of a whole data set to the requested `Split`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor

from ntkscope.core import Part, Split, UsageError, generator, numpy_generator
from ntkscope.core.errors import UnknownName
from ntkscope.data.normalise import MeanStd, Normalise, constants, to_float
from ntkscope.data.registry import DATASETS

Classes: TypeAlias = Sequence[int | str] | None
Labelled: TypeAlias = tuple[UInt8[np.ndarray, "_ c h w"], Shaped[np.ndarray, " _"]]  # two of them differ in length


@dataclass(frozen=True, eq=False)
class Images:
    """Images as bytes with their labels; `limit`: how many of them to draw; `extras`: arrays, one entry per image."""

    images: UInt8[np.ndarray, "_ c h w"]
    y: Shaped[np.ndarray, " _"]
    limit: int | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subset:
    """What is asked for of a data set: by which constants images are normalised, which classes, drawn by which seed."""

    standard: MeanStd
    seed: int
    classes: Classes = None
    normalise: Normalise = "standard"


def resolve_classes(classes: Classes, names: Sequence[str]) -> tuple[int, ...]:
    """The labels `classes` means, given as labels or as names, in that order; all of them for `None`.

    >>> resolve_classes(["dog", 0], ["cat", "dog"])
    (1, 0)
    """
    if classes is None:
        return tuple(range(len(names)))
    if isinstance(classes, str):
        raise UsageError(
            f"classes={classes!r} is one string; expected several classes, such as classes=({names[0]!r},)"
        )
    found = []
    for item in classes:
        if isinstance(item, str):
            if item not in names:
                near = difflib.get_close_matches(item, names, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise UnknownName(f"unknown class {item!r}; {hint}known: {', '.join(names)}")
            found.append(list(names).index(item))
        elif 0 <= item < len(names):
            found.append(int(item))
        else:
            raise UsageError(
                f"got class {item!r}; expected a label 0 ... {len(names) - 1} or one of {', '.join(names)}"
            )
    if not found or len(set(found)) != len(found):
        raise UsageError(f"got classes={tuple(classes)!r}; expected at least one class and none of them twice")
    return tuple(found)


def keep_classes(
    y: Shaped[np.ndarray, " n"], classes: Sequence[int]
) -> tuple[Int64[np.ndarray, " k"], Int64[np.ndarray, " k"]]:
    """Where `y` is in `classes`, and those labels renamed 0, 1, ... in the order of `classes`.

    >>> keep_classes(np.array([3, 5, 3, 8]), [8, 3])
    (array([0, 2, 3]), array([1, 1, 0]))
    """
    table = np.full(max(int(y.max(initial=0)), *classes) + 1, -1, np.int64)
    table[list(classes)] = np.arange(len(classes))
    renamed = table[y]
    index = np.flatnonzero(renamed >= 0)
    return index, renamed[index]


def _shares(counts: Int64[np.ndarray, " k"], limit: int) -> Int64[np.ndarray, " k"]:
    """`limit` places shared in proportion to `counts` by largest remainders, at least one place each."""
    exact = limit * counts / counts.sum()
    shares = np.maximum(np.floor(exact).astype(np.int64), 1)
    while shares.sum() < limit:
        shares[np.argmax(np.where(shares < counts, exact - shares, -np.inf))] += 1
    while shares.sum() > limit:
        shares[np.argmax(np.where(shares > 1, shares - exact, -np.inf))] -= 1
    return shares


def stratified(y: Int64[np.ndarray, " n"], limit: int | None, seed: int, *stream: str) -> Int64[np.ndarray, " k"]:
    """The places of at most `limit` items, every class in its proportion, in the original order.

    Each class is shuffled by its own random stream, so of two samples with one seed and proportional limits the
    smaller lies in the larger.

    >>> y = np.array([0, 0, 0, 0, 1, 1])
    >>> y[stratified(y, 3, 0, "doctest")]
    array([0, 0, 1])
    """
    if limit is None or limit >= len(y):
        return np.arange(len(y), dtype=np.int64)
    labels, counts = np.unique(y, return_counts=True)
    if limit < len(labels):
        raise UsageError(f"got a sample of {limit} for {len(labels)} classes; expected at least one item per class")
    chosen = []
    for label, share in zip(labels, _shares(counts.astype(np.int64), limit)):
        members = np.flatnonzero(y == label)
        order = numpy_generator(seed, *stream, "subsample", int(label)).permutation(len(members))
        chosen.append(members[order[:share]])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def spread(y: Tensor, fraction: float, seed: int) -> tuple[Int64[Tensor, " a"], Int64[Tensor, " b"]]:
    """Two ascending index sets, the second with `fraction` of the items: every 1/`fraction`-th in the order of their labels.

    So each class, and each range of real targets, has its share, up to one item; for several targets, by the first.

    >>> rest, held = spread(torch.tensor([1, 0, 1, 0, 0, 1, 2]), 3 / 7, seed=0)
    >>> len(rest), sorted(torch.tensor([1, 0, 1, 0, 0, 1, 2])[held].tolist())[:2]
    (4, [0, 1])
    """
    random = generator(seed, "split")
    order = torch.randperm(len(y), generator=random)
    order = order[(y if y.ndim == 1 else y.flatten(1)[:, 0])[order].argsort(stable=True)]
    count = round(fraction * len(y))
    start = float(torch.rand((), generator=random, dtype=torch.float64))
    held = torch.zeros(len(y), dtype=torch.bool)
    held[order[[int((k + start) * len(y) / count) for k in range(count)]]] = True
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def image_split(name: str, train: Images, test: Images, names: Sequence[str], chosen: Subset) -> Split:
    """Select classes and samples while the images are bytes, then make float32 images of what is left.

    The `Split`'s extras hold `mean` and `std`, with which `x * std + mean` are the images in [0, 1].
    """
    kept = resolve_classes(chosen.classes, names)
    mean, std = constants(chosen.normalise, train.images.shape[1], chosen.standard)

    def part(which: str, all_of: Images) -> Part:
        index, renamed = keep_classes(all_of.y, kept)
        sample = stratified(renamed, all_of.limit, chosen.seed, name, which)
        index, renamed = index[sample], renamed[sample]
        more = {key: _entries(value[index]) for key, value in all_of.extras.items()}
        images = all_of.images[index]
        x = torch.from_numpy(images).float() if chosen.normalise is None else to_float(images, mean, std)
        return Part(x, torch.from_numpy(renamed), more)

    return Split(
        train=part("train", train),
        test=part("test", test),
        classes=tuple(names[k] for k in kept),
        name=name,
        extras={"mean": mean, "std": std},
    )


def _entries(values: np.ndarray) -> Any:
    """Numbers as a tensor, texts as a list."""
    return values.tolist() if values.dtype.kind == "U" else torch.from_numpy(values)


def class_subset(name: str, loader: Callable[..., Split], classes: tuple[int, ...], doc: str) -> Callable[..., Split]:
    """Register `loader` under another name and with `classes` in place of all; it takes the same options."""
    narrowed = partial(loader, classes=classes)

    def load(**options: Any) -> Split:
        return narrowed(**options).replace(name=name)

    load.__name__, load.__doc__, load.__module__ = name, doc, loader.__module__
    load.__dict__["__signature__"] = inspect.signature(narrowed)
    DATASETS.add(name, load)
    return load
