"""Named, seeded random generators: one seed and one purpose give one stream, whatever else was drawn before."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ntkscope.core.arguments import as_device, whole


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream `names` of `seed`; the same on every machine and in every process.

    Examples:
        >>> derive_seed(0, "split") == derive_seed(0, "split")
        True
        >>> derive_seed(0, "split") == derive_seed(0, "noise")
        False
    """
    text = "/".join([str(whole(seed, "seed")), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A `torch.Generator` for the named stream of `seed`; what a stream holds depends on the kind of device.

    Examples:
        >>> torch.equal(torch.rand(3, generator=generator(0, "a")), torch.rand(3, generator=generator(0, "a")))
        True
    """
    try:
        return torch.Generator(device=device).manual_seed(derive_seed(seed, *names))
    except (RuntimeError, TypeError):
        as_device(device, auto=False)  # which says what is wrong with it
        raise


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    """A NumPy `Generator` (Philox, counter-based) for the named stream of `seed`.

    Examples:
        >>> first, again, other = (numpy_generator(0, name).random(3) for name in ("noise", "noise", "split"))
        >>> np.array_equal(first, again), np.array_equal(first, other)
        (True, False)
    """
    return np.random.Generator(np.random.Philox(derive_seed(seed, *names)))


@contextlib.contextmanager
def kept_randomness(devices: Sequence[torch.device] = (), also: Sequence[torch.Generator] = ()) -> Iterator[None]:
    """The caller's random states (torch, numpy, python, and of the generators `also`) are the same afterwards, whatever is
    drawn inside."""
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
    streams = [each.get_state() for each in also]
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)  # noqa: NPY002
            for each, state in zip(also, streams):
                each.set_state(state)


def reseed(seed: int) -> None:
    """All global random states as seeded by `seed`."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # that would format the call stack three times and keep it, for devices that will never be there
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
