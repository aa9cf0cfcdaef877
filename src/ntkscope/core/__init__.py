"""The leaf: what every other room may use and which uses none of them."""

from ntkscope.core.errors import (
    DataCorrupt,
    DataNotFound,
    DuplicateName,
    MemoryBudgetError,
    NtkscopeError,
    NumericalError,
    RecordError,
    UnknownName,
    UnsafeData,
    UsageError,
)
from ntkscope.core.random import derive_seed, generator, numpy_generator
from ntkscope.core.registry import Registry
from ntkscope.core.types import Inputs, Params, Part, Snapshot, Split, fingerprint

__all__ = [
    "DataCorrupt",
    "DataNotFound",
    "DuplicateName",
    "Inputs",
    "MemoryBudgetError",
    "NtkscopeError",
    "NumericalError",
    "Params",
    "Part",
    "RecordError",
    "Registry",
    "Snapshot",
    "Split",
    "UnknownName",
    "UnsafeData",
    "UsageError",
    "derive_seed",
    "fingerprint",
    "generator",
    "numpy_generator",
]
