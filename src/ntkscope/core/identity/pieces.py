"""What descriptions are made of: hashes of parts, a value's own attributes, a tensor's bytes."""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core.identity.libraries import is_followed

DEEPEST = 300  # values inside values; further down the kind of a value counts, and what the network answers
FRAMES = 12 * DEEPEST  # calls of Python that takes, checked ones


@contextmanager
def room() -> Iterator[None]:
    """Room for a deep walk on Python's stack."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def is_foreign(item: Any, kind: type) -> bool:
    """Whether a member of a library's class was put there by somebody else: a method replaced at run time."""
    function = getattr(item, "__func__", getattr(item, "fget", item))
    return isinstance(function, types.FunctionType) and is_followed(function.__globals__.get("__name__"))


def tensor_bytes(value: Tensor) -> bytes:
    """A sha256 of a tensor's numbers as they lie in memory; nothing of one that has none."""
    if value.is_meta or nn.parameter.is_lazy(value):
        return b"no numbers"
    value = value.detach()
    if value.is_quantized:
        return tag("quantized", str(value.qscheme()), tensor_bytes(value.dequantize()))
    if value.layout is not torch.strided:
        value = value.to_dense()
    plain = value.resolve_conj().resolve_neg().cpu().contiguous()
    return hashlib.sha256(plain.reshape(-1).view(torch.uint8).numpy().data).digest()


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object holds: its `__dict__` and its slots, without asking properties; nothing if its class says that what it
    holds is `of_this_process`, like a view of the caller's globals."""
    if getattr(type(value), "of_this_process", False):
        return {}
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:  # it has none
        found = {}
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, types.MemberDescriptorType) and is_followed(kind.__module__):
                try:
                    found[name] = member.__get__(value)
                except AttributeError:  # never assigned
                    continue
    return found


def content(cell: types.CellType) -> Any:
    """What a variable of a closure holds; None before it is assigned."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def name_of(value: Any) -> str:
    return str(getattr(value, "__qualname__", getattr(value, "__name__", "")))


def plain(value: Any) -> bytes:
    if isinstance(value, float):
        return tag("float", value.hex())
    return tag(type(value).__name__, value if isinstance(value, bytes) else repr(value))


def tag(kind: str, *parts: Any) -> bytes:
    """A sha256 over the parts, each with its length, so that no two lists of parts look alike."""
    hasher = hashlib.sha256(kind.encode())
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        hasher.update(b"%d:" % len(raw))
        hasher.update(raw)
    return hasher.digest()
