"""The audit: every block of features is checked against plain autograd on the caller's own model before it is used.

Three things are asked of each block. For random weights w, `Σ_ic w_ic g_ic` from the features must be what one backward pass of
`Σ_ic w_ic f_c(x_i)` gives, over all chosen parameters, also those no rule has seen: a lost use, a wrong layout, samples that
mix. One sample drawn at random, run alone and unwatched, must have the gradients it had in the block, and where a copy is run,
those of the original. And the outputs of others, run once more without it, must be the same: batch statistics, chance, threads
that disturb each other.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, TypeAlias

import torch
from torch import Tensor

from ntkscope.core import NtkscopeError, NumericalError, Params, UsageError, generator
from ntkscope.tangent.blocks.features import DenseFeature, FactoredFeature, Feature, bundle, joined, small
from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.certify.comparison import (
    Account,
    Check,
    HeldOut,
    Pending,
    Sizes,
    Some,
    Squares,
    Table,
    squares,
    stacked,
)
from ntkscope.tangent.certify.spot_check import Spot, Spots, settle
from ntkscope.tangent.model.autograd import compare, dense, pulled
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.guards import BROKEN, MIXED, OUTPUTS, RANDOM, SHAPED, check_finite
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.parameter_blocks import ParameterBlock
from ntkscope.tangent.trace.terms import Order

LOG = logging.getLogger(__name__)
CERTIFY = ("every", "sampled", False)
Certify: TypeAlias = Annotated[str | bool, CERTIFY]
SAMPLED = 8  # one block in so many is checked, and the first
NOISE = 1e-3  # of the largest gradient: below this, differences are judged beside that one
SUMS = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 1.5e-1, torch.float16: 3e-2}
KINK = 5e-2  # what an activation on the other side of a kink may change of a gradient, in numbers shorter than float64
SHORT = {"tf32": 2e-2, "bf16": 3e-2, "fp16": 2e-2}  # of features that are rounded on purpose
DRAWS = 8  # of weights and vectors: the first is compared with autograd, all of them say how large such sums are
# of the size that random sums have: what rounding may leave of one in which the samples cancel
ROUNDED = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
SHORTENED = {"tf32": 2e-3, "bf16": 1e-2, "fp16": 4e-3}


class GraphMismatch(NtkscopeError):
    """A block used parameters in another way than the probe saw; they need a slower method.

    `suspect`: found by its numbers, so that threads that disturb each other may be the cause. `refusal`: what to say if no
    method is left.
    """

    def __init__(self, names: set[str], *, suspect: bool = False, refusal: str = "") -> None:
        super().__init__(f"the model used {', '.join(sorted(names))} differently for different inputs")
        self.names, self.suspect = names, suspect
        self.refusal = refusal or (
            f"the gradients of {', '.join(sorted(names)[:6])} computed sample by sample are not those of the batch, so a kernel"
            " between two samples is not defined; rewrite the model so that each sample is computed alone"
        )

    @classmethod
    def raise_all(cls, changed: Sequence[GraphMismatch]) -> None:
        """One of several, where there are any."""
        if changed:
            names = {name for change in changed for name in change.names}
            suspect = all(change.suspect for change in changed)
            raise cls(names, suspect=suspect, refusal=changed[0].refusal)


@dataclass
class Small:
    """Small features of one block, which are compared together."""

    check: Check
    features: list[tuple[ParameterBlock, DenseFeature]] = field(default_factory=list)
    numbers: int = 0


@dataclass
class Auditor(Account):
    """Checks the blocks of one engine and keeps their account."""

    subject: Subject
    heads: Heads
    mode: str | bool
    precision: str
    seed: int = 0
    leaves: Params = field(default_factory=dict)  # whose gradients are compared, where they are not all
    vectors: dict[int, Tensor] = field(default_factory=dict)
    pending: Pending = field(default_factory=Pending)
    small: Small | None = None

    def __post_init__(self) -> None:
        self.spots = Spots(self.mode is not False, self.seed)
        self.leaves = self.leaves or self.subject.leaves

    @property
    def tolerance(self) -> float:
        return max(self.narrowest(SUMS), SHORT.get(self.precision, 0.0))

    @property
    def rounding(self) -> float:
        """What rounding may make of a sum, as a share of the size that such sums have."""
        return max(self.narrowest(ROUNDED), SHORTENED.get(self.precision, 0.0))

    @property
    def kink(self) -> float:
        """What a gradient alone may differ from that in a block, whose sums are rounded otherwise."""
        return max(self.tolerance, KINK if self.narrowest(SUMS) > 1e-8 else 0.0)

    def narrowest(self, table: Mapping[torch.dtype, float]) -> float:
        """The tolerance of the shortest numbers the model computes with."""
        return self.subject.loosest(table, 1.5e-1)

    def draw(self, n: int, heads: int) -> Check | None:
        """Weights and a sample for the next block; None where it is not to be checked."""
        number = self.blocks
        self.blocks += 1
        if self.mode is False or (self.mode == "sampled" and number % SAMPLED):
            return None
        device = self.subject.device
        drawn = generator(self.seed, "certificate", number)
        one = int(torch.randint(n, (1,), generator=drawn))
        if device.type == "cuda":  # where it is quicker to draw many numbers than to send them
            drawn = generator(self.seed, "certificate", number, device=device)
        how: dict[str, Any] = {"generator": drawn, "dtype": torch.float64, "device": drawn.device}
        signs = torch.randint(0, 2, (DRAWS, n, heads), **how) * 2 - 1
        weights = signs * (0.5 + torch.rand((DRAWS, n, heads), **how))  # no two alike
        if self.precision == "bf16":  # as the numbers they are multiplied with; one pair in a hundred is alike then
            weights = weights.bfloat16().double()
        weights = weights.to(device)
        return Check(weights, weights[0], one)

    def begin(self, check: Check, batch: Batch, outputs: Tensor, truth: Mapping[str, Tensor]) -> None:
        """Take what autograd said of the block, and run the one alone and the others without it."""
        began = time.perf_counter()
        check.truth = truth
        one = Some((slice(check.one, check.one + 1),))
        check.alone, alone = self._run(batch, one, check.weights)
        if self.subject.wary:
            compare(self.subject, batch.map(one))
        held_out = [alone]
        if len(batch) > 1:
            held_out.append(self._outputs(batch, Some.others(check.one, len(batch))))
        scale = outputs.abs().amax()
        same = [self._same(outputs, each, scale) for each in held_out]
        if not bool(torch.stack([torch.isfinite(outputs).all(), *same]).all()):  # waits once
            check_finite(self.subject, batch, outputs)
            for each, good in zip(held_out, same):
                if not good:
                    self._explain(batch, outputs, each, scale)
        self.alone += 1
        self.seconds += time.perf_counter() - began

    def _run(self, batch: Batch, rows: Some, weights: Tensor) -> tuple[dict[str, Tensor], HeldOut]:
        """Weighted gradient sums of some of a batch, by plain autograd, and what was computed for them."""
        seen: list[Tensor] = []

        def heads(outputs: Tensor) -> Tensor:
            seen.append(outputs.detach())
            return self.heads(outputs)

        with _told(rows.count(len(batch)), len(batch)):
            values, grads = pulled(self.subject, batch.map(rows), heads, rows(weights), self.leaves)
        sums = {name: dense(grad, leaf).to(_wide(leaf)) for (name, leaf), grad in zip(self.leaves.items(), grads)}
        return sums, HeldOut(rows, values, seen[0])

    def _outputs(self, batch: Batch, rows: Some | None = None) -> HeldOut:
        """The heads of some of a batch, or of all."""
        some = rows or Some((slice(0, len(batch)),))
        with _told(some.count(len(batch)), len(batch)):
            outputs = self.subject(batch if rows is None else batch.map(some)).detach()
            return HeldOut(some, self.heads(outputs), outputs)

    def _same(self, outputs: Tensor, held_out: HeldOut, scale: Tensor) -> Tensor:
        """Whether outputs of some samples, run apart, are those they had in the block; not waited for."""
        expected = (held_out.rows.count(len(outputs)), outputs.shape[1])
        if held_out.values.shape != expected:
            what = f"gives outputs of shape {tuple(held_out.values.shape)} for {expected[0]} samples"
            raise UsageError(SHAPED.format(what=what))
        return _close(held_out.rows(outputs), held_out.values, self.narrowest(OUTPUTS), scale)

    def _explain(self, batch: Batch, outputs: Tensor, held_out: HeldOut, scale: Tensor) -> None:
        """Outputs that differ where samples are run apart: chance or mixing is named.

        A head that adds outputs up may be so small beside its terms (`Heads.sizes`) that a difference can be rounding. Then
        float64 decides, in which it cannot.
        """
        tolerance, names = self.narrowest(OUTPUTS), set(self.subject.leaves)
        if self._same(outputs, held_out, self.heads.sizes(held_out.outputs).amax()) and self._alone_in_double(
            batch, held_out.rows
        ):
            return
        plain, again = self._outputs(batch).values, self._outputs(batch).values
        if plain.shape != again.shape or not _close(plain, again, tolerance, scale):
            raise GraphMismatch(names, suspect=True, refusal=RANDOM)
        if plain.shape != outputs.shape or not self._same(plain, held_out, scale):
            raise GraphMismatch(names, suspect=True, refusal=MIXED)
        raise GraphMismatch(names, suspect=True)  # watching changed what the model computes

    def _alone_in_double(self, batch: Batch, rows: Some) -> bool:
        """Whether the heads of some of a batch are the same without the others in float64; False where that fails."""
        if self.subject.dtype == torch.float64:
            return False
        try:
            double = Subject(self.subject.model, dtype=torch.float64, device=self.subject.device, still=True)
            with torch.no_grad():
                together, held_out = (double(double.placed(part)).detach() for part in (batch, batch.map(rows)))
        except torch.OutOfMemoryError:
            raise
        except (NtkscopeError, RuntimeError, TypeError, ValueError, IndexError) as error:
            LOG.info("the model cannot be run in float64 to tell rounding from samples that mix (%r)", error)
            return False
        scale, one, other = self.heads.sizes(together).amax(), rows(self.heads(together)), self.heads(held_out)
        return one.shape == other.shape and bool(_close(one, other, OUTPUTS[torch.float64], scale))

    def add(
        self, check: Check, piece: ParameterBlock, order: Order | None, feature: Feature, *, stays: bool = True
    ) -> None:
        """What one piece's features give, beside what autograd says. `stays`: nothing else is written in its place.

        Where a feature keeps the two sides of an outer product apart, both matrices are compared by what they do to a random
        vector: that costs in + out instead of in · out per position. Gradients that nearly cancel in a random sum, or lie at
        nearly a right angle to the vector, leave little more than rounding; as much as rounding can make of the size that such
        sums have over several draws is allowed besides. Terms that cancel within the gradient of one sample excuse nothing.
        """
        began = time.perf_counter()
        check.covered.setdefault(piece.name, []).append((piece.start, piece.stop))
        if stays and isinstance(feature, DenseFeature) and small(feature) and (order is None or order.reorder is None):
            self._wait(check, piece, feature)
            self.seconds += time.perf_counter() - began
            return
        along = inner = None
        if isinstance(feature, FactoredFeature) and feature.a.is_floating_point():
            assert order is not None
            along = self._along(piece.inside, feature.a.device)
            inner = order.inner(along.T).T
        rows, one, weights = piece.stop - piece.start, slice(check.one, check.one + 1), check.weights_for(feature)
        for part, drawn_for, known, into in (
            (feature, weights, check.truth, check.block),
            (feature[one], weights[:, one], check.alone, check.own),
        ):
            first, drawn = part.combined(drawn_for, rows, inner)
            theirs = piece.rows_of(known[piece.name])
            if order is not None and along is None:
                first = order.arranged(first, piece.groups, piece.inside)
            elif order is not None and along is not None:
                theirs = order.through(theirs, piece.groups, piece.inside, along[0].to(theirs.dtype))
            self.pending.add(piece.name, first, theirs, drawn, into)
        self.seconds += time.perf_counter() - began

    def _wait(self, check: Check, piece: ParameterBlock, feature: DenseFeature) -> None:
        """Keep a small feature until others of its block have come."""
        if self.small is not None and self.small.check is not check:
            self._add_small()
        if self.small is None:
            self.small = Small(check)
        self.small.features.append((piece, feature))
        self.small.numbers += max(feature.values.numel(), 2 * DRAWS * feature.values.shape[2])  # sums are numbers too
        if self.small.numbers > bundle(feature):
            self._add_small()

    def _add_small(self) -> None:
        """The same for small features, in their own order, all of them side by side."""
        if self.small is None:
            return
        check, several, self.small = self.small.check, self.small.features, None
        whole, one = joined([feature for _, feature in several]), slice(check.one, check.one + 1)
        names, weights = [piece.name for piece, _ in several], check.weights_for(whole)
        for part, drawn_for, known, into in (
            (whole, weights, check.truth, check.block),
            (whole[one], weights[:, one], check.alone, check.own),
        ):
            theirs = [piece.rows_of(known[piece.name]) for piece, _ in several]
            into.append(Table.of(names, part.sums(drawn_for), theirs))

    def _along(self, size: int, device: torch.device) -> Tensor:
        """Random vectors (DRAWS, size), the same ones whenever they are asked for."""
        if size not in self.vectors:
            drawn = generator(self.seed, "along", size, device=device)
            how: dict[str, Any] = {"generator": drawn, "dtype": torch.float64, "device": device}
            self.vectors[size] = torch.randn(DRAWS, size, **how)
        return self.vectors[size]

    def _unseen(self, check: Check) -> None:
        """Rows of parameters that no piece answers for must have no gradient."""
        for sizes, truth in ((check.block, check.truth), (check.own, check.alone)):
            for name, value in truth.items():
                covered = check.covered.get(name, [])
                rows = len(value) if value.dim() else 1
                if sum(stop - start for start, stop in covered) >= rows:
                    continue
                rest = value.clone()
                for start, stop in covered:
                    rest[start:stop] = 0
                norm = rest.norm()
                sizes.append(Sizes(name, [torch.zeros_like(norm), norm, norm, norm]))

    def finish(self, check: Check, loop: bool) -> None:
        """Both sides side by side: parameters that differ need a slower method. `loop`: samples were run one by one."""
        began = time.perf_counter()
        self._add_small()
        self.pending.compare()
        self._unseen(check)
        found = squares([*check.block, *check.own])  # waits once
        of_block, of_one = list(chain(*found[: len(check.block)])), chain(*found[len(check.block) :])
        if not all(math.isfinite(theirs) for _, (_, theirs, *_) in of_block):
            self._check_finite(check)
        bad, worst = self._judged(of_block, self.kink if loop else self.tolerance)
        held_out, near = self._judged(of_one, self.kink)
        self.seconds += time.perf_counter() - began
        if bad or held_out:
            mixed = loop or (not bad and bool(held_out))
            raise GraphMismatch(bad | held_out, suspect=True, refusal=MIXED if mixed else "")
        self.worst = max(self.worst, worst, near if self.kink == self.tolerance else 0.0)
        self.checked += 1

    def finish_projected(
        self,
        check: Check,
        projected: Tensor,
        truth: Tensor,
        gradients: Callable[[], Iterable[tuple[ParameterBlock, Tensor]]],
        loop: bool,
    ) -> None:
        """The same for projected gradients (n · heads, dim): their sum, and that of the one, must be the projections of what
        autograd says of the block and of the one alone, `truth` (2, dim)."""
        self._check_finite(check)
        projected = projected.unflatten(0, check.weights.shape)
        whole = check.draws.double().flatten(1) @ projected.flatten(0, 1).double()
        own = check.draws[:, check.one].double() @ projected[check.one].double()
        relative, held_out = (
            self._off(sums, known.double(), tolerance)
            for sums, known, tolerance in ((whole, truth[0], self.tolerance), (own, truth[1], self.kink))
        )
        if not (relative <= self.tolerance and held_out <= self.kink):
            for piece, values in gradients():  # whose fault is it?
                self.add(check, piece, None, DenseFeature(values.unflatten(0, check.weights.shape)))
            self._add_small()
            self.pending.compare()
            self._unseen(check)
            bad = self.differing(check.block, self.kink if loop else self.tolerance)[0]
            alone = self.differing(check.own, self.kink)[0]
            if bad or alone or not max(relative, held_out) <= self.kink:
                names, mixed = bad | alone or set(self.subject.leaves), loop or (not bad and bool(alone))
                raise GraphMismatch(names, suspect=True, refusal=MIXED if mixed else "")
        self.worst = max(self.worst, relative)
        self.checked += 1

    def _off(self, sums: Tensor, known: Tensor, tolerance: float) -> float:
        """How far the first of several random sums is off what it should be, beside its size and that of such sums."""
        usual = float(sums.norm()) / DRAWS**0.5
        own = max(float(sums[0].norm()), float(known.norm()))
        return float((sums[0] - known).norm()) / max(own + self.rounding / tolerance * usual, 1e-300)

    def settle_spot(self, spot: Spot, total: Tensor) -> None:
        """An entry of a finished tile beside the same product of formed gradients."""
        began = time.perf_counter()
        self.worst = max(self.worst, settle(spot, total, self.tolerance))
        self.seconds += time.perf_counter() - began

    def _check_finite(self, check: Check) -> None:
        if not check.truth:
            return
        finite = torch.isfinite(stacked([value.sum() for value in check.truth.values()])).tolist()  # waits once
        infinite = [name for name, good in zip(check.truth, finite) if not good]
        if infinite:
            layers = ", ".join(dict.fromkeys(map(self.subject.layer_of, infinite)))
            raise NumericalError(
                "a gradient holds NaN or infinity though the outputs are finite: it overflowed or is undefined at some input"
                f" (layers: {layers}); use dtype=torch.float64 or look at those layers"
            )

    def differing(self, sizes: Sequence[Sizes | Table], tolerance: float) -> tuple[set[str], float]:
        """The parameters that differ, and the largest relative difference of the others."""
        return self._judged(chain(*squares(sizes)), tolerance)

    def _judged(self, found: Iterable[tuple[str, Squares]], tolerance: float) -> tuple[set[str], float]:
        sums: dict[str, list[float]] = {}
        for name, each in found:
            sums[name] = [a + b for a, b in zip(sums.get(name, [0.0] * 4), each)]
        if not sums:
            return set(), 0.0
        names, total = list(sums), torch.tensor(list(sums.values()), dtype=torch.float64).sqrt()
        own, usual = total[:, :2].amax(1), total[:, 3]
        floor = NOISE * float(total[:, [0, 1, 3]].max())
        scale = (own.clamp_min(floor) + self.rounding / tolerance * usual).clamp_min(1e-300)
        relative = torch.where(total.isfinite().all(1), total[:, 2] / scale, torch.inf).tolist()
        bad = {name for name, value in zip(names, relative) if not value <= tolerance}
        return bad, max((value for value in relative if value <= tolerance), default=0.0)


class _told:
    """A failure on some of a batch is told as what it is."""

    def __init__(self, few: int, all_of: int) -> None:
        self.few, self.all_of = few, all_of

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NtkscopeError | torch.OutOfMemoryError):
            return
        if isinstance(error, BROKEN) and self.few < self.all_of:
            what = f"cannot be run on {self.few} of {self.all_of} samples it was given together ({error})"
            raise UsageError(SHAPED.format(what=what)) from error


def _wide(leaf: Tensor) -> torch.dtype:
    return torch.promote_types(leaf.dtype, torch.float32)


def _close(one: Tensor, other: Tensor, tolerance: float, scale: Tensor) -> Tensor:
    return ((one - other).abs() <= tolerance * scale.clamp_min(1e-30)).all()
