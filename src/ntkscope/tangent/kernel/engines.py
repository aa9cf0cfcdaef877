"""The engines of one subject, kept from call to call: probed once, and again where what was found no longer holds."""

from __future__ import annotations

from typing import Any

from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.certify.fallback import Attempts, Fallback
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.probed import Probed


class Engines:
    """The engines of one subject: what a probe found is kept, until the model or its inputs show that it no longer holds.

    `lasting`: whether they are to answer further calls, so that what takes time once may pay.
    """

    def __init__(self, subject: Subject, *, certify: str | bool = "every", lasting: bool = False) -> None:
        self.subject, self.certify, self.lasting = subject, certify, lasting
        self.kept: Probed | None = None
        self.plainly = False  # whether a check failed on blocks that were run in another mode than the model's own
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
            if self.plainly:
                self._made[key].execution.abandon()
        return self._made[key]

    def attempts(self, sample: Batch, heads: Heads, **options: Any) -> EngineAttempts:
        """Attempts at work with an engine; where a check fails, the next is on a slower path."""
        return EngineAttempts(self, sample, heads, options)


class EngineAttempts(Attempts):
    """`while True: with attempts: return work(attempts.engine())`."""

    def __init__(self, engines: Engines, sample: Batch, heads: Heads, options: dict[str, Any]) -> None:
        super().__init__()
        self._engines, self._sample, self._heads, self._options = engines, sample, heads, options
        self._probed_before = False  # with other inputs, or other weights
        self._engine: Engine | None = None

    def engine(self) -> Engine:
        self._probed_before = self._engines.kept is not None
        self._engine = self._engines.engine(self._sample, self._heads, self.fallback, **self._options)
        return self._engine

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if self._engine is not None:
            self.threads = self._engine.threads
            self._engines.plainly |= self._engine.execution.abandoned
        return super().__exit__(kind, error, trace)

    def probe_again(self) -> bool:
        if self._probed_before:
            self._engines.kept = None
        return self._probed_before
