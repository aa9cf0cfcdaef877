"""Seeded construction: a seed gives a network, whatever was drawn before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ntkscope.core import derive_seed


@contextmanager
def seeded(seed: int | None, name: str) -> Iterator[None]:
    """Modules built inside draw PyTorch's own default initialisation from the stream `name` of `seed`.

    The caller's generator is left where it was. `seed=None` means that generator itself, as in any PyTorch code.

    >>> with seeded(0, "example"):
    ...     first = torch.nn.Linear(2, 3)
    >>> with seeded(0, "example"):
    ...     second = torch.nn.Linear(2, 3)
    >>> torch.equal(first.weight, second.weight)
    True
    """
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):  # CPU only: parameters are drawn there and moved afterwards
        torch.default_generator.manual_seed(derive_seed(seed, "models", name))
        yield


def widened(size: int, width: float) -> int:
    """`size` channels times the width factor, rounded; every layer keeps at least one.

    >>> widened(6, 4), widened(6, 0.5)
    (24, 3)
    """
    return max(1, round(size * width))
