"""Features that a forward pass gives, checked against what single samples give alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from ntkscope.core import NtkscopeError, UsageError, generator
from ntkscope.tangent.certify.auditor import KINK, SAMPLED
from ntkscope.tangent.certify.comparison import Account
from ntkscope.tangent.certify.spot_check import Spots
from ntkscope.tangent.model.autograd import compare
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.guards import MIXED, SHAPED
from ntkscope.tangent.model.subject import Subject

Compute: TypeAlias = Callable[[Subject, Batch], list[Tensor]]
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 2e-2}


class AuditedFeatures(Account):
    """Features (n, …) of several layers; of every block some samples, drawn at random, must have the same ones alone.

    `kinked`: they are gradients, which jump where an activation is on the other side of a kink.
    """

    against = "single samples"

    def __init__(
        self, subject: Subject, compute: Compute, certify: str | bool = "every", *, kinked: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        self.subject, self.compute, self.certify, self.seed = subject, compute, certify, seed
        self.kinked = kinked
        self.spots = Spots(certify is not False, seed)

    @property
    def tolerance(self) -> float:
        tolerance = self.subject.loosest(TOLERANCE)
        return max(KINK, tolerance) if self.kinked and tolerance > TOLERANCE[torch.float64] else tolerance

    def __call__(self, batch: Batch) -> list[Tensor]:
        batch = self.subject.placed(batch)
        layers = self.compute(self.subject, batch)
        self.blocks += 1
        if self.certify is not False and (self.certify == "every" or self.blocks % SAMPLED == 1):
            began = time.perf_counter()
            self._check(batch, layers)
            self.seconds += time.perf_counter() - began
        return layers

    def _check(self, batch: Batch, layers: list[Tensor]) -> None:
        draw = generator(self.seed, "features alone", self.blocks)
        for i in torch.randperm(len(batch), generator=draw)[:2].tolist():
            try:
                alone = self.compute(self.subject, batch[i : i + 1])
            except NtkscopeError:
                raise
            except (RuntimeError, ValueError, IndexError) as error:
                what = f"cannot be run on one sample alone ({error})"
                raise UsageError(SHAPED.format(what=what)) from error
            if len(alone) != len(layers):
                raise UsageError(MIXED)
            for one, together in zip(alone, layers):
                difference, scale = _apart(one[0], together[i])
                if not difference <= self.tolerance * scale:
                    raise UsageError(MIXED)
                self.worst = max(self.worst, difference / scale if scale else 0.0)
            self.alone += 1
            if self.subject.wary:
                compare(self.subject, batch[i : i + 1])
        self.checked += 1


def _apart(one: Tensor, other: Tensor) -> tuple[float, float]:
    if one.shape != other.shape:
        return float("inf"), 1.0
    one, other = one.double(), other.double()
    return float((one - other).norm()), max(float(one.norm()), float(other.norm()))
