"""Fingerprints of what a kernel's numbers depend on: the network, its inputs, the code that computes them."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from ntkscope.core import fingerprint
from ntkscope.core.environment import package_version
from ntkscope.tangent.batches import Batch

DIGITS = 24  # hexadecimal ones, of a sha256: 96 bits
SHOWN = 6  # names a list shows before its fingerprint speaks for the rest
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def model_fingerprint(model: nn.Module) -> str:
    """Of the structure of a network and of names, dtypes and bytes of its parameters and buffers, but for the counts of
    batches that normalisation layers keep.

    >>> a, b = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> model_fingerprint(a) == model_fingerprint(a), model_fingerprint(a) == model_fingerprint(b)
    (True, False)
    """
    state = {
        name: value
        for name, value in (*model.named_parameters(), *model.named_buffers())
        if not name.endswith("num_batches_tracked")
    }
    return fingerprint(ADDRESS.sub("", repr(model)), state)[:DIGITS]


def forward_fingerprint(model: nn.Module) -> str:
    """Of the code of the network's own classes, PyTorch's left out: a changed `forward` is another network.

    It is taken from the compiled code, so comments and line numbers do not matter, but Python's version does.
    """
    hasher = hashlib.sha256()
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind is not object and not kind.__module__.startswith("torch."):
                hasher.update(kind.__qualname__.encode())
                _hash_functions(hasher, vars(kind))
        _hash_functions(hasher, vars(module))
    return hasher.hexdigest()[:DIGITS]


def inputs_fingerprint(batch: Batch | None) -> str:
    """Of every tensor's bytes; of a side that is left out, the words for it."""
    return "the same inputs" if batch is None else fingerprint(batch.args, batch.kwargs)[:DIGITS]


def names_fingerprint(names: Sequence[str]) -> str:
    """A list of names, the first few of them to be read.

    >>> names_fingerprint(["a", "b"])
    'a, b'
    """
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:SHOWN])} … ({len(names)} in all, {fingerprint(list(names))[:8]})"


@functools.cache
def code_fingerprint(*places: str) -> str:
    """The version of ntkscope, and the bytes of the source files below `places` (folders or files in the package), as they
    were when this process first asked."""
    package = Path(__file__).resolve().parents[1]
    hasher = hashlib.sha256()
    for path in sorted(set(_sources(package, places))):
        hasher.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{package_version()}, {hasher.hexdigest()[:DIGITS]}"


def _sources(package: Path, places: Iterable[str]) -> Iterator[Path]:
    for place in places:
        found = package / place
        yield from found.rglob("*.py") if found.is_dir() else package.glob(place)


def _hash_functions(hasher: Any, members: Mapping[str, Any]) -> None:
    for name in sorted(members):
        value = members[name]
        value = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)) or value)
        if isinstance(value, FunctionType):
            hasher.update(name.encode() + b"\0")
            _hash_code(hasher, value.__code__)


def _hash_code(hasher: Any, code: CodeType) -> None:
    hasher.update(code.co_code + repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _hash_code(hasher, constant)
        else:  # a set's order changes from process to process
            text = sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)
            hasher.update(str(text).encode() + b"\0")
