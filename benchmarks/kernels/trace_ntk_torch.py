"""`trace_ntk` against torch.func alone: minutes, where the libraries' kernels of ResNet-20 take the better part of an hour."""

from __future__ import annotations

from benchmarks.kernels import trace_ntk
from benchmarks.outcome import Outcome


def run(quick: bool = False) -> Outcome:
    return trace_ntk.run(quick, libraries=())
