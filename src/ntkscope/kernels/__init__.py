"""Finite-width kernels of a network, one per file; each makes a `Gram`."""

from __future__ import annotations

from ntkscope.core.checked import check_room
from ntkscope.core.registry import import_parts
from ntkscope.kernels._projected_store import extend
from ntkscope.kernels.registry import KERNELS
from ntkscope.kernels.tangent_machine import Tangent, kernel
from ntkscope.tangent.blocks.heads import OutputSketch

__all__ = ["KERNELS", "OutputSketch", "Tangent", "extend", "kernel"]

import_parts(__name__, __path__)
check_room(__name__, classes="OutputSketch Tangent", but="kernel")  # what it passes on is checked there
