"""The audit: every block of features is held to plain autograd on the caller's own model before it is used.

For random weights w, `Σ_ic w_ic g_ic` from the features must be what backward passes of `Σ_ic w_ic f_c(x_i)` give, over all
chosen parameters, also those no rule has seen. The reference runs the block in another composition: without one sample drawn
at random, which is run alone. So a model that mixes samples, draws at random or was read with a wrong layout is found out.
Where the two differ the same block is run once more as it was: float32 sums of another batch size may put an activation on
the other side of a kink, which is no error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ntkscope.core import Certificate, NtkscopeError, NumericalError, UsageError, generator
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.features import Feature
from ntkscope.tangent.guards import MIXED, OUTPUTS, RANDOM, SHAPED, check_finite
from ntkscope.tangent.pieces import Piece
from ntkscope.tangent.reference import Heads, dense, pulled
from ntkscope.tangent.subject import Subject
from ntkscope.tangent.terms import Outer, Term

CERTIFY = ("every", "sampled", False)
SAMPLED = 8  # one block in so many is checked, and the first
NOISE = 1e-3  # of the largest gradient: below this, differences are judged beside that one
SUMS = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 1.5e-1, torch.float16: 3e-2}
KINK = 5e-2  # what activations on the other side of a kink may change of a sum
SHORT = {"exact": 0.0, "tf32": 2e-2, "bf16": 5e-2, "fp16": 2e-2}  # of features that are rounded on purpose


class PathChanged(NtkscopeError):
    """A block used parameters in another way than the probe saw; they must take a slower road.

    `suspect`: found by its numbers, so that threads that disturb each other may be the cause.
    """

    def __init__(self, names: set[str], *, suspect: bool = False, refusal: str = "") -> None:
        super().__init__(f"the model used {', '.join(sorted(names))} differently for different inputs")
        self.names, self.suspect = names, suspect
        self.refusal = refusal or (
            f"the gradients of {', '.join(sorted(names)[:6])} computed sample by sample are not those of the batch, so a kernel"
            " between two samples is not defined; rewrite the model so that each sample is computed alone"
        )


@dataclass
class Check:
    """One block under audit: the weights, what the features gave so far, and what autograd says."""

    weights: Tensor  # (n, heads)
    sums: dict[str, Tensor]  # of the features, float64
    truth: Mapping[str, Tensor]
    batch: Batch
    composed: bool  # whether the reference ran another composition


@dataclass
class Auditor:
    """Checks the blocks of one engine and keeps their account."""

    subject: Subject
    heads: Heads
    mode: str | bool
    precision: str
    seed: int = 0
    worst: float = 0.0
    checked: int = 0
    blocks: int = 0
    alone: int = 0
    seconds: float = 0.0
    fell_back: list[str] = field(default_factory=list)

    @property
    def tolerance(self) -> float:
        return max(self.narrowest(SUMS), SHORT[self.precision])

    def narrowest(self, table: Mapping[torch.dtype, float]) -> float:
        """The tolerance of the shortest numbers a chosen parameter has."""
        kinds = {leaf.dtype for leaf in self.subject.leaves.values()} or {self.subject.dtype}
        return max(table.get(kind, 1.5e-1) for kind in kinds)

    def begin(self, batch: Batch, outputs: Tensor, loop: bool) -> Check | None:
        """The reference of a block, its outputs compared at once; None where this block is not to be checked."""
        number = self.blocks
        self.blocks += 1
        if self.mode is False or (self.mode == "sampled" and number % SAMPLED):
            return None
        began = time.perf_counter()
        n, heads = outputs.shape
        draw = generator(self.seed, "certificate", number)
        signs = torch.randint(0, 2, (n, heads), generator=draw, dtype=torch.float64) * 2 - 1
        weights = signs * (0.5 + torch.rand(n, heads, generator=draw, dtype=torch.float64))
        one = int(torch.randint(n, (1,), generator=draw))
        others = [i for i in range(n) if i != one]
        parts = [torch.tensor(part) for part in ([one], others) if part]
        values, truth = self._reference(batch, parts, weights)
        self._compare_outputs(batch, outputs, values, weights)
        self.alone += 1
        self.seconds += time.perf_counter() - began
        where = outputs.device
        sums = {name: torch.zeros(leaf.shape, dtype=_wide(leaf), device=where) for name, leaf in self._leaves()}
        return Check(weights.to(where), sums, truth, batch, len(parts) > 1 and not loop)

    def _leaves(self) -> list[tuple[str, Tensor]]:
        return list(self.subject.leaves.items())

    def _reference(self, batch: Batch, parts: Sequence[Tensor], weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        total: dict[str, Tensor] = {}
        values: Tensor | None = None
        for part in parts:
            where = batch.tensors()[0].device
            taken = batch if len(part) == len(batch) else batch[part.to(where)]
            try:
                outputs, grads = pulled(self.subject, taken, self.heads, weights[part])
            except (RuntimeError, ValueError, IndexError) as error:
                if isinstance(error, NtkscopeError | torch.OutOfMemoryError) or len(part) == len(batch):
                    raise
                what = f"cannot be run on {len(part)} of {len(batch)} samples it was given together ({error})"
                raise UsageError(SHAPED.format(what=what)) from error
            if outputs.shape[0] != len(part) or (values is not None and outputs.shape[1] != values.shape[1]):
                what = f"gives outputs of shape {tuple(outputs.shape)} for {len(part)} samples"
                raise UsageError(SHAPED.format(what=what))
            if values is None:
                values = outputs.new_empty(len(batch), outputs.shape[1])
            values[part.to(values.device)] = outputs
            for (name, leaf), grad in zip(self._leaves(), grads):
                value = dense(grad, leaf).to(_wide(leaf))
                total[name] = value if name not in total else total[name] + value
        assert values is not None
        return values, total

    def _compare_outputs(self, batch: Batch, ours: Tensor, plain: Tensor, weights: Tensor) -> None:
        """Outputs in the block, without a sample and alone must agree; if not, chance or mixing is named."""
        check_finite(self.subject, batch, plain)
        tolerance = self.narrowest(OUTPUTS)
        if _close(ours, plain, tolerance):
            return
        every = [torch.arange(len(batch))]
        again = self._reference(batch, every, weights)[0]
        if not _close(again, self._reference(batch, every, weights)[0], tolerance):
            raise PathChanged(set(self.subject.leaves), suspect=True, refusal=RANDOM)
        if not _close(again, plain, tolerance):
            raise PathChanged(set(self.subject.leaves), suspect=True, refusal=MIXED)
        raise PathChanged(set(self.subject.leaves), suspect=True)  # rules changed what the model computes

    def add(self, check: Check, piece: Piece, term: Term | None, feature: Feature) -> None:
        """What one piece's features give."""
        began = time.perf_counter()
        total = check.sums[piece.name]
        rows = total[piece.start : piece.stop] if total.dim() else total
        summed = feature.combined(check.weights, piece.stop - piece.start)
        rows += in_parameter_order(summed, piece, term).reshape(rows.shape)
        self.seconds += time.perf_counter() - began

    def finish(self, check: Check, loop: bool) -> None:
        """Both sides side by side: parameters that differ must take a slower road."""
        began = time.perf_counter()
        self._check_finite(check)
        bad, worst = self._differing(check.sums, check.truth, KINK if loop else self.tolerance)
        if bad and check.composed:
            every = [torch.arange(len(check.batch))]
            whole = self._reference(check.batch, every, check.weights.cpu())[1]
            wrong, near = self._differing(check.sums, whole, self.tolerance)
            apart, _ = self._differing(whole, check.truth, KINK)
            if not wrong and not apart:
                bad, worst = set(), near
            elif not wrong:
                raise PathChanged(apart, suspect=True, refusal=MIXED)
        self.seconds += time.perf_counter() - began
        if bad:
            raise PathChanged(bad, suspect=True)
        self.worst = max(self.worst, worst)
        self.checked += 1

    def finish_projected(
        self,
        check: Check,
        projected: Tensor,
        truth: Tensor,
        gradients: Callable[[], Iterable[tuple[Piece, Tensor]]],
    ) -> None:
        """The same for projected gradients (n · heads, dim): their sum must be the projection of what autograd says."""
        began = time.perf_counter()
        self._check_finite(check)
        summed = projected.T.double() @ check.weights.double().flatten()
        scale = max(float(summed.norm()), float(truth.double().norm()), 1e-300)
        relative = float((summed - truth.double()).norm()) / scale
        self.seconds += time.perf_counter() - began
        if relative <= self.tolerance:
            self.worst = max(self.worst, relative)
            self.checked += 1
            return
        for piece, values in gradients():  # whose fault is it?
            total = check.sums[piece.name]
            rows = total[piece.start : piece.stop] if total.dim() else total
            rows += (values.T @ check.weights.to(values.dtype).flatten()).reshape(rows.shape)
        self.finish(check, loop=False)
        if relative > KINK:
            raise PathChanged(set(self.subject.leaves), suspect=True)

    def _check_finite(self, check: Check) -> None:
        infinite = [name for name, value in check.truth.items() if not bool(torch.isfinite(value.sum()))]
        if infinite:
            layers = ", ".join(dict.fromkeys(map(self.subject.layer_of, infinite)))
            raise NumericalError(
                "a gradient holds NaN or infinity though the outputs are finite: it overflowed or is undefined at some input"
                f" (layers: {layers}); use dtype=torch.float64 or look at those layers"
            )

    def _differing(
        self, ours: Mapping[str, Tensor], truth: Mapping[str, Tensor], tolerance: float
    ) -> tuple[set[str], float]:
        """The parameters whose sums differ, and the largest relative difference of the others."""
        sizes = {
            name: torch.stack([value.norm(), truth[name].norm(), (value - truth[name]).norm()]).double()
            for name, value in ours.items()
        }
        table = torch.stack(list(sizes.values())).cpu()
        least = NOISE * float(table[:, :2].max()) if len(table) else 0.0
        scale = table[:, :2].amax(1).clamp_min(least).clamp_min(1e-300)
        relative = (table[:, 2] / scale).tolist()
        bad = {name for name, value in zip(sizes, relative) if not value <= tolerance}
        return bad, max((value for value in relative if value <= tolerance), default=0.0)

    def certificate(self) -> Certificate:
        return Certificate(
            self.worst,
            self.tolerance,
            self.checked,
            self.blocks,
            self.alone,
            tuple(self.fell_back),
            tuple(sorted(self.subject.changes)),
            self.seconds,
        )


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    if one.shape != other.shape:
        return False
    scale = torch.maximum(one.abs(), other.abs()).amax().clamp_min(1e-30)
    return bool(((one - other).abs() <= tolerance * scale).all())


def _wide(leaf: Tensor) -> torch.dtype:
    return torch.promote_types(leaf.dtype, torch.float32)


def in_parameter_order(summed: Tensor, piece: Piece, term: Term | None) -> Tensor:
    """A sum of features as the parameter has its numbers; `term` is given where its own order is another one."""
    if term is None or summed.dim() == 2:
        return summed
    assert isinstance(term, Outer)
    if summed.dim() == 1:  # formed: turned round already where the parameter is
        if term.reorder is None:
            return summed
        shape = (piece.groups, piece.inside, -1) if term.transposed else (piece.groups, -1, piece.inside)
        summed = summed.view(shape)
        summed = summed.transpose(1, 2) if term.transposed else summed
    if term.reorder is not None:  # (g, o, i)
        summed = term.reorder(summed)
    return summed.transpose(1, 2) if term.transposed else summed
