"""Fallbacks: the slower exact ways in which work begins again after a failed check.

Each avoids more than the one before: several threads, rules for the parameters concerned, then `vmap`. Where even sample by
sample fails, the call is refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from ntkscope.core import UsageError
from ntkscope.tangent.certify.auditor import GraphMismatch

LOG = logging.getLogger(__name__)


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


class Attempts:
    """Attempts at one piece of work, each slower than the one whose check failed: `while True: with attempts: return …`.

    >>> attempts = Attempts()
    >>> for _ in range(2):
    ...     with attempts:
    ...         if not attempts.fallback.func:
    ...             raise GraphMismatch({"weight"})
    >>> attempts.fallback.func
    frozenset({'weight'})
    """

    def __init__(self, start: Fallback | None = None) -> None:
        self.fallback = start or Fallback()
        self.threads = 1  # that worked side by side

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, GraphMismatch):
            return False
        if self.fallback != Fallback() or not self.probe_again():
            self.fallback = self.fallback.after(error, self.threads)
            failed = ", ".join(sorted(error.names)) or "a block"
            LOG.warning("a check failed (%s); the work begins again in a slower way", failed)
        return True

    def probe_again(self) -> bool:
        """Whether to try the first path once more, with a new probe."""
        return False
