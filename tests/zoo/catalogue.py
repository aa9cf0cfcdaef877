"""All cases of the zoo, in one mapping; importing this file fills it."""

from __future__ import annotations

from zoo import (
    batch_dependent,
    changed,
    changed_hooks,
    deep,
    gadgets,
    inputs,
    last_layer,
    layouts,
    layouts_axes,
    number_kinds,
    options,
    recomputation,
    threads,
    unseen,
    unseen_blocks,
    unseen_layers,
    zeros,
)
from zoo.case import CASES, Case

FILES = (
    changed,
    changed_hooks,
    unseen,
    unseen_layers,
    unseen_blocks,
    layouts,
    layouts_axes,
    recomputation,
    number_kinds,
    batch_dependent,
    threads,
    zeros,
    last_layer,
    inputs,
    options,
    gadgets,
    deep,
)

__all__ = ["CASES", "FILES", "Case"]
