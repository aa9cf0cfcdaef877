"""The identity of a network: its numbers, its structure with everything attached to it, and its code."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core.identity.libraries import DIGITS
from ntkscope.core.identity.pieces import room, tensor_bytes
from ntkscope.core.identity.walk import Walk

COUNTER = "num_batches_tracked"  # of normalisation layers, which only counts


def identity(*values: Any) -> str:
    """One string for any values, by structure and contents: two that differ in a digit, a default argument, a closure's
    variable or the body of a helper function differ here; the same in every process.

    >>> identity(0.1, lambda x: x + 1) == identity(0.1, lambda x: x + 1)
    True
    >>> identity(0.1, lambda x: x + 1) == identity(0.1, lambda x: x + 2)
    False
    """
    walk = Walk()
    hasher = hashlib.sha256()
    with room():
        for value in values:
            hasher.update(walk.digest(value))
    return hasher.hexdigest()[:DIGITS]


def network_identity(model: nn.Module) -> dict[str, str]:
    """What a network is, by name: "model", its parameters and buffers; "structure of the model", its modules with all their
    attributes, hooks, flags and shared parameters; "code of the model", the code of its classes and of every function they
    reach. O(numbers): tens of milliseconds for ResNet-18.

    >>> a, b = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> one, two = network_identity(a), network_identity(b)
    >>> one == network_identity(a), one["model"] == two["model"], one["structure of the model"] == two["structure of the model"]
    (True, False, True)
    """
    walk = Walk()
    numbers = hashlib.sha256()
    for name, value in _numbers(model):
        walk.register(name, value)
        if not name.endswith(COUNTER):
            shape = "" if nn.parameter.is_lazy(value) else f"{value.dtype} {tuple(value.shape)}"
            numbers.update(f"{name}\0{shape}\0".encode() + tensor_bytes(value))
    with room():
        structure = hashlib.sha256(walk.digest(model))
    structure.update(repr(_overlaps(model)).encode())
    return {
        "model": numbers.hexdigest()[:DIGITS],
        "structure of the model": structure.hexdigest()[:DIGITS],
        "code of the model": walk.code.hexdigest()[:DIGITS],
    }


def code_identity(model: nn.Module) -> str:
    """The "code of the model" alone."""
    return network_identity(model)["code of the model"]


def _numbers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _overlaps(model: nn.Module) -> list[tuple[str, str]]:
    """Names of different parameters and buffers that lie on the same memory, so that changing one changes the other."""
    spans = []
    for name, value in _numbers(model):
        if nn.parameter.is_lazy(value) or value.is_meta or value.layout is not torch.strided or not value.numel():
            continue
        reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride())) + 1
        start = value.data_ptr()
        spans.append((str(value.device), start, start + reach * value.element_size(), name))
    spans.sort()
    found = [(a[3], b[3]) for a, b in itertools.pairwise(spans) if a[0] == b[0] and b[1] < a[2]]
    return sorted((min(pair), max(pair)) for pair in found)
