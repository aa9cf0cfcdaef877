"""The engines of one subject, kept from call to call: probed once, and again where what was found no longer holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.certify.fallback import Fallback, retried
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.probed import Probed

Result = TypeVar("Result")


class Engines:
    """The engines of one subject: what a probe found is kept, until the model or its inputs show that it no longer holds.

    `lasting`: whether they are to answer further calls, so that what takes time once may pay.
    """

    def __init__(self, subject: Subject, *, certify: str | bool = "every", lasting: bool = False) -> None:
        self.subject, self.certify, self.lasting = subject, certify, lasting
        self.kept: Probed | None = None
        self._plainly = False  # whether a check failed on blocks that were run in another way than the model's own
        self._made: dict[Any, Engine] = {}  # of what the probe found

    def probe(self, sample: Batch) -> Probed:
        if self.kept is None:
            self.kept, self._made = Probed.of(self.subject, sample), {}
        return self.kept

    def engine(self, sample: Batch, heads: Heads, fallback: Fallback, **options: Any) -> Engine:
        """An engine for these heads: a new one, or one that was made for an earlier call."""
        found = self.probe(sample)
        key = heads, fallback, self.certify, options["full"], options["precision"].name, options.get("profile", False)
        if key in self._made:
            self._made[key].reset()
        else:
            self._made[key] = Engine(self.subject, found, heads, fallback=fallback, certify=self.certify, **options)
            self._made[key].execution.patient = self.lasting
            if self._plainly:
                self._made[key].execution.abandon()
        return self._made[key]

    def run(self, work: Callable[[Engine], Result], sample: Batch, heads: Heads, **options: Any) -> Result:
        """`work` with an engine; where a check fails, once more on the next slower path."""
        old, threads = False, 1

        def attempt(fallback: Fallback) -> Result:
            nonlocal old, threads
            old = self.kept is not None
            engine = self.engine(sample, heads, fallback, **options)
            try:
                return work(engine)
            finally:
                threads = engine.threads
                self._plainly |= engine.execution.abandoned

        def probe_again() -> bool:
            if old:  # found with other inputs, or other weights
                self.kept = None
            return old

        return retried(attempt, threads=lambda _: threads, probe_again=probe_again)
