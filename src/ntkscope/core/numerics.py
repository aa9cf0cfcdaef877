"""Versions of the numbers: what a store keeps of ntkscope itself, so that it is resumed by code that computes the same.

`NUMERICS` has a version for each room and kernel whose numbers end up in a store. **Raise it by one, by hand, in the commit
that makes the same call return different numbers**: another formula, summation order, default or random stream, if only in the
last digits (a resumed store compares one of its tiles to the bit). Do not raise it for anything else: comments, names, speed,
memory and new options leave every store on every disk valid. Raise the smallest entry that covers the change: `trntk` for that
kernel alone, `tangent` for everything the engine computes. A kernel that is not listed has version 1.

`tests/core/test_numerics.py` pins values for every entry, and fails when numbers change but the version does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NUMERICS: Mapping[str, int] = MappingProxyType(
    {
        "tangent": 3,  # the engine: gradients and their products
        "projection": 1,  # random projections of gradients: the maps and their streams
        "infinite": 1,
        "training": 1,
        **dict.fromkeys(("entk", "trntk", "trntk0", "pntk", "ck", "em", "ptk"), 1),
        **dict.fromkeys(("proj-trntk", "proj-pntk"), 2),
    }
)


def numerics(*names: str) -> str:
    """The versions of some rooms and kernels, in words; 1 for one that was never raised.

    >>> numerics("tangent", "mine")
    'numerics of tangent 3, mine 1'
    """
    return f"numerics of {', '.join(f'{name} {NUMERICS.get(name, 1)}' for name in names)}"


def names_numerics(label: object) -> bool:
    """Whether a store's label is one of `numerics`; earlier versions kept a hash of their source files."""
    return isinstance(label, str) and label.startswith("numerics of ")
