"""Finite-width kernels of a network, one per file; each makes a `Gram`."""

from __future__ import annotations

from ntkscope.core.checked import check_room

# One name per kernel: importing its file registers it.
from ntkscope.kernels import conjugate as conjugate
from ntkscope.kernels import embedding as embedding
from ntkscope.kernels import entk as entk
from ntkscope.kernels import preactivation as preactivation
from ntkscope.kernels import projected as projected
from ntkscope.kernels import pseudo as pseudo
from ntkscope.kernels import trace as trace
from ntkscope.kernels._projected_store import extend
from ntkscope.kernels.registry import KERNELS
from ntkscope.kernels.tangent_machine import Tangent, kernel
from ntkscope.tangent.blocks.heads import OutputSketch

__all__ = ["KERNELS", "OutputSketch", "Tangent", "extend", "kernel"]

check_room(__name__, classes="OutputSketch Tangent", but="kernel")  # what it passes on is checked there
