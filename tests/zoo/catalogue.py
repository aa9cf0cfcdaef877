"""All cases of the zoo, in one mapping; importing this file fills it."""

from __future__ import annotations

import importlib

from zoo.case import CASES, Case

__all__ = ["CASES", "Case"]

FILES = (
    "changed changed_hooks unseen unseen_layers unseen_blocks layouts layouts_axes recomputation number_kinds"
    " batch_dependent threads zeros last_layer inputs options gadgets deep"
)
for _file in FILES.split():
    importlib.import_module(f"zoo.{_file}")
