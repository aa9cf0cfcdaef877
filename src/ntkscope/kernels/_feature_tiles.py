"""Kernels whose features are tensors that a forward pass, or one backward pass per output, gives at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import Certificate, NumericalError
from ntkscope.core.machine.peak import kind_of
from ntkscope.kernels._stored import stored
from ntkscope.kernels.registry import Request
from ntkscope.linalg import Gram
from ntkscope.linalg.grams.assembly import RowBlocks
from ntkscope.tangent.blocks.clock import StageClock
from ntkscope.tangent.blocks.features import DenseFeature
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.certify.fallback import Attempts, Fallback
from ntkscope.tangent.certify.features import AuditedFeatures, Compute
from ntkscope.tangent.certify.spot_check import Spot, settle
from ntkscope.tangent.kernel.coverage import Coverage
from ntkscope.tangent.kernel.in_memory import Products, multiplied
from ntkscope.tangent.kernel.plan import Footprint
from ntkscope.tangent.kernel.products import Maker
from ntkscope.tangent.kernel.store_source import Recipe
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.probed import probed

HELD = 6  # times its features, what a sample takes while they are made


class FeatureMaker(Maker):
    """Features (n, p) of several layers, whose products add up."""

    def __init__(self, audited: AuditedFeatures, sample: Batch) -> None:
        self.subject, self.audited = audited.subject, audited
        self.precision = Precision("exact", self.subject.dtype)
        self.timing, self.ran = StageClock(self.subject.device), 0
        probe = self.capture(sample[: min(3, len(sample))])
        self.pieces = tuple(range(len(probe)))
        self._numbers = sum(layer[0].numel() for layer in probe)
        self._inputs = sum(t[0].numel() * t.element_size() for t in sample.tensors())

    @property
    def footprint(self) -> Footprint:
        feature = self._numbers * self.dtype.itemsize
        cuda = self.device.type == "cuda"
        return Footprint(feature, HELD * (feature + self._inputs), self.dtype.itemsize, 1, self._numbers, cuda)

    def capture(self, batch: Batch) -> list[Tensor]:
        with self.clock("capture"):
            self.ran += len(batch)
            return self.audited(batch)

    def settle(self, backward_pass: list[Tensor]) -> None:
        """They were checked when they were made."""

    def spot(self, height: int, width: int) -> Spot | None:
        return self.audited.spots.choose(height, width, self.full)

    def settle_spot(self, spot: Spot, total: Tensor) -> None:
        self.audited.worst = max(self.audited.worst, settle(spot, total, self.audited.tolerance))

    def feature(self, backward_pass: list[Tensor], piece: int, out: Tensor | None = None) -> DenseFeature:
        return DenseFeature(backward_pass[piece].flatten(1).unsqueeze(1))

    def twin(self) -> FeatureMaker:
        """The same for another thread."""
        if self.subject.changes:
            raise ValueError("a model that keeps a state of its own is run by one thread")
        other = copy.copy(self)
        other.subject, other.timing, other.ran = self.subject.twin(), StageClock(self.subject.device), 0
        audited = self.audited
        other.audited = AuditedFeatures(
            other.subject, audited.compute, audited.certify, kinked=audited.kinked, seed=audited.seed + 1
        )
        return other

    def check_finite(self, values: Tensor, x: Batch) -> None:
        if not bool(torch.isfinite(values).all()):
            raise NumericalError(
                "the kernel holds NaN or infinity: some layer's output is not finite, is zero where it is normalised, or is so"
                f" large that its products are beyond the range of {str(self.dtype).removeprefix('torch.')}; look at the"
                " network's layers on these inputs, or use dtype=torch.float64"
            )

    def certificate(self) -> Certificate:
        return self.audited.certificate()

    def coverage(self) -> Coverage:
        spent = self.timing.read()
        how = {"device": str(self.device), "kind": kind_of("exact", self.dtype)}
        return Coverage({}, {}, {}, dict(spent.stages), self.ran, flops=dict(spent.flops), **how)


@dataclass(frozen=True, eq=False)
class FeatureRecipe(Recipe):
    """Features that a function of the subject and a batch gives; it pickles."""

    compute: Compute
    certify: str | bool = "every"
    kinked: bool = False

    def make(self, sample: Batch, fallback: Fallback) -> FeatureMaker:
        subject = Subject(self.model, dtype=self.dtype, device=self.device, still=True)
        return FeatureMaker(AuditedFeatures(subject, self.compute, self.certify, kinked=self.kinked), sample)


def stored_features(
    request: Request, compute: Compute, options: Mapping[str, str], meta: Mapping[str, Any], *, kinked: bool = False
) -> Gram:
    """The kernel of features in the request's store; `options`: what else the numbers depend on."""
    recipe = FeatureRecipe(request.model, request.dtype, request.device, compute, request.certify, kinked)
    return stored(request, recipe, options, meta=meta)


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """The features of all inputs in memory, of each set (n, width); None where there is one set."""

    sides: tuple[Tensor, Tensor | None]
    audited: AuditedFeatures

    @property
    def width(self) -> int:
        return self.sides[0].shape[1]

    def certificate(self) -> Certificate:
        return self.audited.certificate()


def feature_rows(audited: AuditedFeatures, request: Request, few: Batch, block: int) -> FeatureRows:
    """The features of one layer for all inputs of a request, `block` samples at a time; `few`: some of the inputs."""
    (layer,) = audited.compute(audited.subject, few)

    def rows(x: Batch) -> Tensor:
        def compute(at: slice) -> Tensor:
            return audited(x[at])[0].flatten(1)

        blocks = RowBlocks(compute, len(x), layer[0].numel(), block, layer.dtype, layer.device)
        return blocks.stacked("features", request.progress)

    return FeatureRows((rows(request.x1), None if request.x2 is None else rows(request.x2)), audited)


def feature_products(request: Request, audited: AuditedFeatures) -> Products:
    """The products of features, summed over layers, as one matrix in memory."""
    maker = FeatureMaker(audited, probed(request.x1, request.x2))
    threads = torch.get_num_threads() if maker.device.type == "cpu" else 1

    attempts = Attempts()
    while True:
        with attempts:
            attempts.threads = threads
            most = 1 if attempts.fallback.alone else threads
            return multiplied([maker], request.x1, request.x2, request.memory, most, progress=request.progress)
