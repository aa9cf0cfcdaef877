"""The core: what every other package may import, and which imports none of them."""

from ntkscope.core.certificate import Certificate
from ntkscope.core.errors import (
    DamagedTile,
    DataCorrupt,
    DataNotFound,
    DuplicateName,
    MemoryBudgetError,
    NtkscopeError,
    NumericalError,
    RecordError,
    StoreError,
    UnknownName,
    UnsafeData,
    UsageError,
)
from ntkscope.core.machine.environment import environment
from ntkscope.core.progress import Progress, progress
from ntkscope.core.random import derive_seed, generator, numpy_generator
from ntkscope.core.records.claims import Claim
from ntkscope.core.records.record import Record
from ntkscope.core.records.series import Series
from ntkscope.core.records.stage import Stage
from ntkscope.core.registry import Registry
from ntkscope.core.types import Inputs, Params, Part, Snapshot, Split, fingerprint

__all__ = [
    "Certificate",
    "Claim",
    "DamagedTile",
    "DataCorrupt",
    "DataNotFound",
    "DuplicateName",
    "Inputs",
    "MemoryBudgetError",
    "NtkscopeError",
    "NumericalError",
    "Params",
    "Part",
    "Progress",
    "Record",
    "RecordError",
    "Registry",
    "Series",
    "Snapshot",
    "Split",
    "Stage",
    "StoreError",
    "UnknownName",
    "UnsafeData",
    "UsageError",
    "derive_seed",
    "environment",
    "fingerprint",
    "generator",
    "numpy_generator",
    "progress",
]
