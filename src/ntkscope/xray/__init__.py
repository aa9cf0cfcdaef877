"""The main job: a trained network and its data in, a record out that says which kernel machine it is.

`ns.xray(model, train, test, out=…)` computes the record, `ns.report.write_page(out)` makes the page of it, and
`ntkscope xray` does both. This room is called like the function it holds: `ns.xray(...)` is `ns.xray.xray(...)`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ntkscope.xray.budget import Budget
from ntkscope.xray.job import xray
from ntkscope.xray.registry import SECTIONS, Finding, Section, Skip
from ntkscope.xray.verdict import Observations, Verdict, judge, linearisation_error

__all__ = [
    "SECTIONS",
    "Budget",
    "Finding",
    "Observations",
    "Section",
    "Skip",
    "Verdict",
    "judge",
    "linearisation_error",
    "xray",
]


class _Room(ModuleType):
    """A room that can be called: importing `ntkscope.xray` makes `ns.xray` this module, whatever ns says."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return xray(*arguments, **options)


sys.modules[__name__].__class__ = _Room
