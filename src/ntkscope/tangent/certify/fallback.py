"""Detours: the slower exact ways in which work begins again after a failed check.

Each avoids more than the one before: several threads, rules for the parameters concerned, then `vmap`. Where even sample by
sample fails, the call is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from ntkscope.core import UsageError
from ntkscope.tangent.certify.auditor import GraphMismatch

LOG = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Fallback:
    """What a run avoids after a check failed: rules for the parameters `func`, `vmap` (`loop`), several threads (`alone`)."""

    func: frozenset[str] = frozenset()
    loop: bool = False
    alone: bool = False

    def after(self, change: GraphMismatch, threads: int = 1) -> Fallback:
        """The next slower way; a refusal where there is none."""
        if change.suspect and threads > 1 and not self.alone:
            return replace(self, alone=True)
        if not change.names:  # once more: what was in the way has been switched off
            return self
        if change.names - self.func:
            return replace(self, func=self.func | change.names)
        if not self.loop:
            return replace(self, loop=True)
        raise UsageError(change.refusal)


def retried(
    work: Callable[[Fallback], Result],
    start: Fallback | None = None,
    *,
    threads: Callable[[Fallback], int],
    probe_again: Callable[[], bool] = lambda: False,
) -> Result:
    """`work(detour)`; where a check fails, once more with the next detour, after what `threads(detour)` threads did.

    `probe_again`: whether to try the first path once more, with a new probe.
    """
    fallback = start or Fallback()
    while True:
        try:
            return work(fallback)
        except GraphMismatch as change:
            if fallback != Fallback() or not probe_again():
                fallback = fallback.after(change, threads(fallback))
                failed = ", ".join(sorted(change.names)) or "a block"
                LOG.warning("a check failed (%s); the work begins again in a slower way", failed)
