"""The core: what every other package may import, and which imports none of them."""

from ntkscope.core.certificate import Certificate
from ntkscope.core.errors import NtkscopeError, NumericalError, UsageError
from ntkscope.core.progress import progress
from ntkscope.core.random import derive_seed, generator, numpy_generator
from ntkscope.core.records.claims import Claim
from ntkscope.core.records.record import Record
from ntkscope.core.registry import Registry
from ntkscope.core.types import Inputs, Params, Part, Snapshot, Split

__all__ = [
    "Certificate",
    "Claim",
    "Inputs",
    "NtkscopeError",
    "NumericalError",
    "Params",
    "Part",
    "Record",
    "Registry",
    "Snapshot",
    "Split",
    "UsageError",
    "derive_seed",
    "generator",
    "numpy_generator",
    "progress",
]
