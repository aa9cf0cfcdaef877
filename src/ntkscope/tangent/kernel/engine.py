"""The engine: one probed model with a choice of outputs and parameters, that turns blocks of samples into features.

Every block is checked against plain autograd (`audit`). Where that fails, or the model takes another path than the probe saw,
the work begins again with an engine that takes another `Fallback`.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ntkscope.core import Certificate, NumericalError
from ntkscope.core.machine.peak import kind_of
from ntkscope.core.machine.tensor_cores import any_order, tensor_cores
from ntkscope.tangent.blocks import split_products
from ntkscope.tangent.blocks.backward import BackwardPass, capture
from ntkscope.tangent.blocks.clock import StageClock
from ntkscope.tangent.blocks.convolution import flipped_bytes
from ntkscope.tangent.blocks.deferred import deferral, forming_cost
from ntkscope.tangent.blocks.execution import PLAIN, Execution, ExecutionMode, Stopwatch
from ntkscope.tangent.blocks.features import Feature, self_products
from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.certify.auditor import Auditor, GraphMismatch
from ntkscope.tangent.certify.comparison import LEAST, Check
from ntkscope.tangent.certify.fallback import Fallback
from ntkscope.tangent.certify.spot_check import Spot, Spots
from ntkscope.tangent.kernel.coverage import Coverage
from ntkscope.tangent.kernel.plan import Footprint
from ntkscope.tangent.kernel.products import Maker
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.arithmetic import unit_for
from ntkscope.tangent.model.autograd import answer, differing
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace import func_method
from ntkscope.tangent.trace.parameter_blocks import ParameterBlock, pieces
from ntkscope.tangent.trace.probed import Probed
from ntkscope.tangent.trace.terms import Slot, Vector

LOG = logging.getLogger(__name__)
HALVED = 4  # times the size of what is split: its halves, zeros around small images, and the other side in parts
LIVE = 6  # cotangents of the largest call's size that a backward pass holds at a time


class Engine(Maker):
    """One model, one choice of outputs and parameters; then contracts."""

    pieces: list[ParameterBlock]

    def __init__(
        self,
        subject: Subject,
        sample: Batch | Probed,
        heads: Heads,
        *,
        full: bool,
        precision: Precision,
        fallback: Fallback | None = None,
        profile: bool = False,
        certify: str | bool = "every",
        names: Collection[str] | None = None,
    ) -> None:
        """`names`: the parameters whose products are made, all that were chosen unless given."""
        self.subject, self.heads, self.full, self.precision = subject, heads, full, precision
        self.leaves = {name: leaf for name, leaf in subject.leaves.items() if names is None or name in names}
        fallback = fallback or Fallback()
        self.profile, self.fallback, self.certify = profile, fallback, certify
        self.probed = sample if isinstance(sample, Probed) else Probed.of(subject, sample)
        few, found = self.probed.few, self.probed.findings
        self.chosen = heads.count(self.probed.findings.outputs)
        if heads.unit is None:
            self.heads = heads = replace(heads, unit=unit_for(self.probed.size, subject.dtype))
        if heads.summed:
            guards.check_sum(subject, few, heads)
        self.width = heads.width(self.probed.findings.outputs)
        self.findings = replace(found, func=found.func | fallback.func)
        self.input_bytes = sum(t[0].numel() * t.element_size() for t in few.tensors())
        ruled = self.leaves.keys() - self.findings.func
        calls = [call for call in self.probed.calls if any(term.slot.name in ruled for term in call.terms)]
        self.arrived_bytes = sum(
            call.shape.numel() // len(few) * (precision.factors if call.outer else subject.dtype).itemsize
            for call in calls
            if call.kept
        )
        vectors = [term for call in calls for term in call.terms if isinstance(term, Vector)]
        self.arrived_bytes += sum(_slot_numbers(subject, term.slot) for term in vectors) * subject.dtype.itemsize
        norms = [  # what cotangents of every head are multiplied with
            call.shape.numel() // len(few) * subject.dtype.itemsize
            for call in calls
            if any(isinstance(term, Vector) and term.prepare is not None for term in call.terms)
        ]
        self.prepared_bytes = sum(norms) + max(norms, default=0)  # and one such product
        made = pieces(subject, self.probed.calls, self.findings, self.width, full, len(few))
        self.pieces = [piece for piece in made if piece.name in self.leaves]
        lowest = min((k for piece in self.pieces for k, _ in piece.members), default=0)
        self.forward_cost = sum(piece.forward_cost for piece in made)
        self.backward_cost = sum(  # of a pass that goes no deeper than to these parameters
            piece.forward_cost for piece in made if max((k for k, _ in piece.members), default=lowest) >= lowest
        )
        self.deferral = deferral(self.pieces, self.probed.calls, self.width, len(few), precision)
        others = sorted(self.findings.func & self.leaves.keys())
        self.func = ""
        if others:
            self.func = (
                "loop"
                if fallback.loop
                else func_method.choose(subject, few, others, heads.part(0, min(2, self.width)))[0]
            )
        self.spots = Spots(certify is not False)
        splits = precision.splits_calls(subject.dtype, subject.device)
        self.execution = Execution.of(subject.device, bool(self._kernels), self.width, certify == "every", splits)
        self.reset()

    def reset(self) -> None:
        """Begin a new account of times and checks; which shapes of tiles were spot-checked is remembered."""
        self.timing = self._new_clock()
        self.ran = 0
        self.execution.threads = 1
        self.spare = 0.0  # bytes that an execution mode may take besides what the plan counts
        self.auditor = self._auditor(0)

    def _auditor(self, seed: int) -> Auditor:
        auditor = Auditor(self.subject, self.heads, self.certify, self.precision.name, seed, self.leaves)
        auditor.spots = self.spots
        if self.fallback.func:
            auditor.fell_back = [f"{name} ({self.func})" for name in sorted(self.fallback.func)]
        return auditor

    def capture(self, batch: Batch) -> BackwardPass:
        batch = self.subject.placed(batch)
        self.ran += len(batch)
        check = self.auditor.draw(len(batch), self.width)
        mode = self.execution.next(len(batch), self._vet) if self.spare else PLAIN
        fitting = mode if mode == PLAIN else self._fitting(mode, len(batch))
        try:
            return self._captured(batch, check, mode, fitting)
        except (GraphMismatch, torch.OutOfMemoryError):
            if fitting == PLAIN:
                raise
            LOG.info("a block could not be run with %s; the next ones are run otherwise", fitting)
            self.execution.refuse(mode)
        return self._captured(batch, check, PLAIN, PLAIN)

    @property
    def threads(self) -> int:
        """How many threads work with copies of this at present."""
        return self.execution.threads

    def begin(self, blocks: int, spare: float, threads: int) -> None:
        self.spare, self.execution.threads = spare, threads
        self.execution.begin(blocks)

    def longest(self, samples: int) -> int:
        return self.execution.longest(samples)

    def compare_modes(self, x: Batch, room: float) -> None:
        """Where further calls are to come: time the execution modes on some of `x`, in `room` bytes."""
        watched = any(piece.members for piece in self.pieces)
        if not (self.execution.patient and self.execution.tries and watched) or self.execution.settled:
            return
        passing = self.footprint.passing
        count = self.execution.compared(len(x), int(room / passing))
        if count < min(len(x), LEAST):
            return
        few, self.spare = self.subject.placed(x[:count]), room - count * passing
        weights = torch.ones(count, self.width, dtype=torch.float64, device=self.device)  # certified, as blocks are

        def run(mode: ExecutionMode) -> Callable[[], float] | None:
            watch = Stopwatch(self.device)
            try:
                with self.clock("trial"):
                    self._run(few, self._fitting(mode, count), weights)
            except (GraphMismatch, torch.OutOfMemoryError):
                return None
            watch.stop()
            return watch.seconds

        self.execution.compare(count, self._vet, run)

    def _captured(self, batch: Batch, check: Check | None, mode: ExecutionMode, fitting: ExecutionMode) -> BackwardPass:
        """A block, run in as much of a mode as fits into the memory there is."""
        n = len(batch)
        watch = Stopwatch(self.device)
        with self.clock("capture"):
            backward_pass = self._run(batch, fitting, None if check is None else check.weights)
        watch.stop()
        self.count("capture", 2.0 * n * self._capture_cost(check is not None))
        if check is not None:
            self.count("certificate", 2.0 * self.forward_cost * (3 + n / (8 if n > LEAST else 1)))
            with self.clock("certificate"), tensor_cores(False), any_order(self.device):
                self.auditor.begin(check, batch, backward_pass.outputs, backward_pass.truth)
            backward_pass.check, backward_pass.truth = check, {}
        if self.spare:
            self.execution.took(mode, n, watch.seconds)
        return backward_pass

    def _capture_cost(self, checked: bool) -> float:
        """Multiply-adds of running a sample and back; a pass more checks it."""
        return float(self.forward_cost + (self.width + 2 * checked) * self.backward_cost)

    def _run(self, batch: Batch, mode: ExecutionMode, weights: Tensor | None = None) -> BackwardPass:
        parts = self.findings, self.pieces, self.heads, self.func, self.precision
        return capture(self.subject, batch, *parts, weights, mode, self.leaves)

    def _vet(self, mode: ExecutionMode) -> float | None:
        """Seconds that the probed samples take in the plain mode; None where another mode has other factors for them."""
        with self.clock("trial"):
            watch = Stopwatch(self.device)
            plain = self._run(self.probed.few, PLAIN)
            watch.stop()
            try:
                same = self._run(self.probed.few, mode).agrees(plain, self.auditor.kink)
            except (GraphMismatch, torch.OutOfMemoryError):
                same = False
        return watch.seconds() if same else None

    @property
    def _kernels(self) -> list[Tensor]:
        """The kernels of convolutions of images."""
        names = {piece.name for piece in self.pieces if piece.members}
        return [leaf for name, leaf in self.leaves.items() if leaf.dim() == 4 and name in names]

    def _fitting(self, mode: ExecutionMode, n: int) -> ExecutionMode:
        """As much of a mode as the memory besides the plan's allows: converted kernels, passes back of several heads."""
        kernels = sum(kernel.numel() * kernel.element_size() for kernel in self._kernels)
        largest = max((leaf.numel() * leaf.element_size() for leaf in self.subject.leaves.values()), default=0)
        halves = 2 * largest + n * self._split_bytes if mode.split else 0
        if mode.split and halves > self.spare:
            return self._fitting(replace(mode, split=False), n)
        return mode.within(self.spare - halves, kernels, n * (self._another + self._split_bytes * mode.split))

    @property
    def _split_bytes(self) -> int:
        """Bytes a sample of what is split at a time, and of what the pass that checks keeps in parts."""
        terms = (term.x for call in self.probed.calls for term in call.terms if term.x is not None)
        inputs = (x.numel() // len(self.probed.few) * self.dtype.itemsize for x in terms)
        return HALVED * max((*self._sizes, *inputs), default=0)

    @property
    def _sizes(self) -> list[int]:
        """Bytes a sample of every call's output."""
        return [call.shape.numel() // len(self.probed.few) * self.dtype.itemsize for call in self.probed.calls]

    @property
    def _another(self) -> int:
        """Bytes a sample that one more head of a pass back takes."""
        return sum(self._sizes) + LIVE * max(self._sizes, default=0)

    @property
    def sharing(self) -> int:
        """Bytes a sample that the execution mode takes besides, once it was chosen: several heads that share a pass."""
        mode = self.execution.mode if self.execution.settled else PLAIN
        return (mode.together - 1) * self._another + mode.together * self._split_bytes * mode.split

    @property
    def loops(self) -> bool:
        """Whether samples are run one by one."""
        return self.func == "loop" and not any(piece.members for piece in self.pieces)

    def settle(self, backward_pass: BackwardPass) -> None:
        """After the last feature of a block: they must be what autograd says, or a slower method is used."""
        if backward_pass.check is None:
            return
        with self.judging(backward_pass):
            self.auditor.finish(backward_pass.check, self.loops)

    @contextlib.contextmanager
    def judging(self, backward_pass: BackwardPass) -> Iterator[None]:
        """While a block is compared with autograd; where it differs, the work begins again, as the model itself runs if this
        block was run otherwise."""
        try:
            with self.clock("certificate"):
                yield
        except GraphMismatch as change:
            if backward_pass.mode == PLAIN:
                raise
            self.execution.abandon()
            raise GraphMismatch(set()) from change
        backward_pass.check = None

    def spot(self, height: int, width: int) -> Spot | None:
        return self.auditor.spots.choose(height, width, self.full)

    def settle_spot(self, spot: Spot, total: Tensor) -> None:
        with self.clock("certificate"):
            self.auditor.settle_spot(spot, total)

    @property
    def footprint(self) -> Footprint:
        """What one sample takes."""
        return self.footprint_on(self.device)

    def footprint_on(self, device: torch.device) -> Footprint:
        """What one sample would take there."""
        itemsize, storage, factors = (
            kind.itemsize for kind in (self.dtype, self.precision.storage, self.precision.factors)
        )
        forming = {piece: _forming_bytes(piece, self.width, itemsize, storage, factors) for piece in self.pieces}
        checks = 0 if self.certify is False else 3 * sum(leaf.numel() for leaf in self.leaves.values()) * itemsize
        model = self.subject.model
        added_up = (self.heads.summed or self.heads.sketch is not None) and self.dtype != torch.float64
        # a copy in float64, which may have to tell rounding from samples that mix
        double = 8 * sum(t.numel() for t in (*model.parameters(), *model.buffers())) if checks and added_up else 0
        cuda, capture = device.type == "cuda", self.probed.graph_bytes + self.input_bytes + self.prepared_bytes
        capture += self.arrived_bytes * self.width
        late = [  # whose gradients have room of their own
            piece.forming_numbers(self.width) * factors if piece in self.deferral.placed else forming[piece]
            for piece in self.pieces
        ]
        return Footprint(
            sum(piece.feature_numbers(self.width) for piece in self.pieces) * storage,
            capture + max(forming.values(), default=0),
            itemsize,
            pairs=self.width**2 if self.full else 1,
            pair_cost=sum(piece.pair_cost(self.width, self.full) for piece in self.pieces),
            cuda=cuda,
            worker=flipped_bytes(self.subject.leaves.values(), device) + checks + double,
            kept=self.deferral.kept,
            formed=self.deferral.largest,
            least=self.deferral.least,
            caching=capture + max(late, default=0) if cuda else 0,
            check=checks * 2 // 3,  # of the block, and of one sample alone
            made_of="16 bit" if storage == 2 else "halves" if self._halves(device) else "float32",
            capture_cost=self._capture_cost(bool(checks * 2 // 3)),
            forming_cost=sum(forming_cost(piece, self.width) for piece in self.pieces),
            again_cost=self.deferral.again,
        )

    def _halves(self, device: torch.device) -> bool:
        return self.precision.name == "exact" and self.dtype == torch.float32 and split_products.available(device)

    def groups(self, heads: int) -> list[Engine]:
        if not 0 < heads < self.width:
            return [self]
        return [self.part(at, min(self.width, at + heads)) for at in range(0, self.width, heads)]

    def group_footprint(self, heads: int) -> Footprint:
        return self.part(0, heads).footprint if 0 < heads < self.width else self.footprint

    def part(self, start: int, stop: int) -> Engine:
        """The same for some of the heads; the account of its checks is this one's."""
        return self._of(self.heads.part(start, stop), self.leaves)

    def layers(self, count: int) -> list[Engine]:
        """The same for `count` groups of parameters, in the order of the layers that use them, about equal in what factors
        take; fewer where there are not so many layers."""
        first: dict[str, int] = {name: len(self.probed.calls) for name in self.leaves}
        for k, call in enumerate(self.probed.calls):
            for term in call.terms:
                first[term.slot.name] = min(k, first.get(term.slot.name, k))
        kept = dict.fromkeys(self.leaves, 0)
        for piece in self.pieces:
            numbers = piece.feature_numbers(self.width)
            late = piece in self.deferral.pieces
            kept[piece.name] += min(numbers, piece.forming_numbers(self.width) // 2) if late else numbers
        groups: list[set[str]] = [set() for _ in range(count)]
        reached, total = 0, max(1, sum(kept.values()))
        for name in sorted(self.leaves, key=first.__getitem__):
            groups[min(count - 1, reached * count // total)].add(name)
            reached += kept[name]
        return [self._of(self.heads, group) for group in groups if group]

    def _of(self, heads: Heads, names: Collection[str]) -> Engine:
        other = Engine(
            self.subject,
            self.probed,
            heads,
            full=self.full,
            precision=self.precision,
            fallback=self.fallback,
            profile=self.profile,
            certify=self.certify,
            names=names,
        )
        other.chosen, other.execution, other.spare = self.chosen, self.execution, self.spare
        return other

    def feature(self, backward_pass: BackwardPass, piece: ParameterBlock, out: Tensor | None = None) -> Feature:
        with self.clock("features", piece):
            try:
                made = backward_pass.feature(piece, self.precision, out)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError, IndexError) as error:  # an input that does not fall into n samples
                raise GraphMismatch({piece.name}) from error
        self.count("features", 2.0 * backward_pass.n * forming_cost(piece, self.width))
        if backward_pass.check is not None:
            with self.clock("certificate"):
                self.auditor.add(backward_pass.check, piece, backward_pass.own_order(piece), made, stays=out is None)
        return made

    def _new_clock(self) -> StageClock:
        return StageClock(self.subject.device, self.profile, seconds=dict.fromkeys(self.leaves, 0.0))

    def twin(self) -> Engine:
        """The same engine for another thread: its own modules, the parameters shared.

        A copy whose gradients are not those of the original is refused.
        """
        if self.subject.changes:
            raise ValueError("a model that keeps a state of its own is run by one thread")
        other = copy.copy(self)
        other.subject = self.subject.twin()
        other.leaves = {name: other.subject.leaves[name] for name in self.leaves}
        if differing(answer(self.subject, self.probed.few), answer(other.subject, self.probed.few)):
            raise ValueError("a copy of the model does not do what the model does")
        other.timing, other.ran = other._new_clock(), 0
        other.auditor = other._auditor(self.auditor.seed + 1)
        other.auditor.fell_back = []
        return other

    def check_finite(self, values: Tensor, x: Batch) -> None:
        """Products that are not finite are an error that names the layers, if the first of `x` show them."""
        if not bool(torch.isfinite(values).all()):
            raise NumericalError(
                "the kernel holds NaN or infinity though the outputs are finite: a gradient overflowed or is undefined at"
                f" some input (layers: {_guilty(self, x)}); use dtype=torch.float64 or look at those layers"
            )

    def certificate(self) -> Certificate:
        return self.auditor.certificate()

    def coverage(self) -> Coverage:
        methods: dict[str, str] = dict.fromkeys(self.leaves, "unused")
        for piece in self.pieces:
            known = methods[piece.name]
            methods[piece.name] = piece.method if known in ("unused", piece.method) else f"{known}+{piece.method}"
        numbers = {name: leaf.numel() for name, leaf in self.leaves.items()}
        spent = self.timing.read()
        return Coverage(
            methods,
            numbers,
            dict(spent.seconds),
            dict(spent.stages),
            self.ran,
            self.func,
            flops=dict(spent.flops),
            device=str(self.device),
            kind=kind_of(self.precision.name, self.dtype),
            execution=str(self.execution),
        )


def _slot_numbers(subject: Subject, slot: Slot) -> int:
    leaf = subject.leaves[slot.name]
    return leaf.numel() // max(1, len(leaf) if leaf.dim() else 1) * (slot.stop - slot.start)


def _forming_bytes(piece: ParameterBlock, heads: int, itemsize: int, storage: int, factors: int) -> int:
    """Bytes a sample needs while a feature is made: its factors, the gradient, and the gradient as it is stored."""
    feature = piece.feature_numbers(heads)
    func = 2 * heads * piece.numbers * itemsize * (piece.method == "func")
    return piece.forming_numbers(heads) * factors + feature * factors + feature * storage + func


def _guilty(engine: Engine, x: Batch) -> str:
    backward_pass = engine.capture(x[: min(len(x), 8)])
    names = [
        engine.subject.layer_of(piece.name)
        for piece in engine.pieces
        if not bool(torch.isfinite(self_products(backward_pass.feature(piece, engine.precision))).all())
    ]
    return ", ".join(dict.fromkeys(names)) or "not among the first samples"
