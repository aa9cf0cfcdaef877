"""What the transforms share: images as tensors, items known by number, a random number for each item."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ntkscope.core import Part, UsageError, derive_seed, generator

_MASK = (1 << 64) - 1


def images_of(part: Part) -> Tensor:
    """The images of a part, (n, channels, height, width); anything else is an error."""
    x = part.x
    if not isinstance(x, Tensor) or x.ndim != 4 or not x.is_floating_point():
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise UsageError(f"inputs are {got}; expected floating-point images of shape (n, channels, height, width)")
    return x


def item_numbers(part: Part) -> Int64[Tensor, " n"]:
    """`extras["index"]` where the part has it (an item keeps its number in every subset), else 0, 1, 2, …"""
    return torch.as_tensor(part.extras.get("index", torch.arange(len(part)))).long()


def _wrap(value: int) -> int:
    """An integer of 64 bits as torch counts: two's complement."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def item_draws(numbers: Int64[Tensor, " n"], below: int, seed: int, *names: str | int) -> Int64[Tensor, " n"]:
    """For each item a random integer in [0, below) that depends on its number and the stream alone.

    >>> a = item_draws(torch.arange(5), 100, 0, "shift")
    >>> torch.equal(item_draws(torch.tensor([3, 1]), 100, 0, "shift"), a[[3, 1]])
    True
    """
    return keyed_draws(numbers, below, derive_seed(seed, *names))


def keyed_draws(
    numbers: Int64[Tensor, " *shape"], below: int, key: int | Int64[Tensor, " *keys"]
) -> Int64[Tensor, " *shape"]:
    """splitmix64 of each number and a key (one, or one per number), reduced to [0, below); the same on every device."""
    z = (numbers + 1) * _wrap(0x9E3779B97F4A7C15) + (_wrap(key) if isinstance(key, int) else key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        low = (1 << (64 - shift)) - 1  # torch shifts copy the sign; a hash needs zeros
        z = (z ^ ((z >> shift) & low)) * _wrap(factor)
    return ((z >> 1) & (_MASK >> 1)) % below


def chosen(n: int, fraction: float, candidates: Bool[Tensor, " n"], seed: int, *names: str) -> Bool[Tensor, " n"]:
    """The mask of round(fraction · n) items drawn without replacement among the `candidates`."""
    wanted, items = round(fraction * n), candidates.nonzero().flatten()
    if wanted > len(items):
        raise UsageError(f"fraction={fraction} asks for {wanted} of {n} items, but {len(items)} may be taken; lower it")
    mask = torch.zeros(n, dtype=torch.bool)
    mask[items[torch.randperm(len(items), generator=generator(seed, *names))[:wanted]]] = True
    return mask
