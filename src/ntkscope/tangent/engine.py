"""The engine: one model with a choice of outputs and parameters, probed once, that turns blocks of samples into features."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, generator
from ntkscope.tangent import func_road, guards
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.capture import watch
from ntkscope.tangent.coverage import Coverage
from ntkscope.tangent.features import Feature, self_products
from ntkscope.tangent.func_road import dense
from ntkscope.tangent.harvest import Harvest, harvest
from ntkscope.tangent.pieces import Piece, pieces
from ntkscope.tangent.plan import Footprint, Plan, footprint, make_plan
from ntkscope.tangent.precision import Precision, tensor_cores
from ntkscope.tangent.probe import SAMPLES, TOLERANCE, Findings, probe
from ntkscope.tangent.quick_convolution import flipped_bytes
from ntkscope.tangent.subject import Subject


@dataclass(frozen=True)
class Heads:
    """Which outputs are differentiated: each of `outputs` (all when None), or their sum."""

    outputs: Sequence[int] | None = None
    summed: bool = False

    def __call__(self, values: Tensor) -> Tensor:
        if self.outputs is not None:
            values = values[:, list(self.outputs)]
        return values.sum(1, keepdim=True) if self.summed else values

    def count(self, width: int) -> int:
        """How many outputs are chosen of `width`; a wrong choice is refused."""
        chosen = list(range(width)) if self.outputs is None else list(self.outputs)
        bad = [k for k in chosen if not 0 <= k < width]
        if bad or not chosen:
            raise UsageError(
                f"outputs={chosen} came for a model with {width} outputs; expected some of 0 … {width - 1}"
            )
        return len(chosen)


class Engine:
    """One model, one choice of outputs and parameters; probes once, then contracts."""

    def __init__(
        self,
        subject: Subject,
        sample: Batch,
        heads: Heads,
        *,
        full: bool,
        precision: Precision,
        func: frozenset[str] = frozenset(),
        profile: bool = False,
    ) -> None:
        self.subject, self.heads, self.full, self.precision = subject, heads, full, precision
        self.profile = profile
        few = self.few = subject.placed(_few(sample))
        self.input_bytes = sum(t[0].numel() * t.element_size() for t in few.tensors())
        with tensor_cores(False):
            outputs = guards.first_outputs(subject, few)
            self.chosen = heads.count(outputs.shape[1])
            self.width = 1 if heads.summed else self.chosen
            guards.check_independence(subject, few, outputs)
            found = probe(subject, few)
        self.findings = replace(found, func=found.func | func)
        self.graph_bytes, calls = _graph_bytes(subject, few, self.findings)
        self.arrived_bytes = sum(
            call.shape.numel() // len(few) * (precision.factors if call.outer else subject.dtype).itemsize
            for call in calls
            if any(term.slot.name not in self.findings.func for term in call.terms)
        )
        self.pieces = pieces(subject, calls, self.findings, self.width, full, len(few))
        names = sorted(self.findings.func)
        self.func = func_road.choose(subject, few, names, heads)[0] if names else ""
        self.seconds = dict.fromkeys(subject.leaves, 0.0)
        self.stages: dict[str, float] = {}
        self.harvested = 0

    def harvest(self, batch: Batch) -> Harvest:
        batch = self.subject.placed(batch)
        self.harvested += len(batch)
        with self.clock("harvest"):
            return harvest(self.subject, batch, self.findings, self.pieces, self.heads, self.func, self.precision)

    @property
    def device(self) -> torch.device:
        return self.subject.device

    @property
    def dtype(self) -> torch.dtype:
        return self.subject.dtype

    def plan(self, n: int, m: int | None, memory: int, kept: int = 1, threads: int | None = None) -> Plan:
        """How a kernel of n inputs with themselves (m None) or with m others is cut to fit `memory` bytes."""
        most = torch.get_num_threads() if self.device.type == "cpu" else 1
        return make_plan(n, m, self.footprint, memory, kept, most if threads is None else threads)

    @property
    def footprint(self) -> Footprint:
        """What one sample takes."""
        return footprint(
            self.pieces,
            heads=self.width,
            full=self.full,
            graph_bytes=self.graph_bytes,
            input_bytes=self.input_bytes,
            arrived_bytes=self.arrived_bytes,
            itemsize=self.subject.dtype.itemsize,
            storage=self.precision.storage.itemsize,
            factors=self.precision.factors.itemsize,
            cuda=self.subject.device.type == "cuda",
            worker=flipped_bytes(self.subject.leaves.values(), self.subject.device),
        )

    def feature(self, crop: Harvest, piece: Piece) -> Feature:
        with self.clock("features", piece):
            return crop.feature(piece, self.precision)

    @contextlib.contextmanager
    def clock(self, stage: str, piece: Piece | None = None) -> Iterator[None]:
        """Adds the time of its block to a stage and a parameter; a profiled run waits for the device on both ends."""
        began = self._now()
        yield
        spent = self._now() - began
        self.stages[stage] = self.stages.get(stage, 0.0) + spent
        if piece is not None:
            self.seconds[piece.name] += spent

    def _now(self) -> float:
        if self.profile and self.subject.device.type == "cuda":
            torch.cuda.synchronize(self.subject.device)
        return time.perf_counter()

    def twin(self) -> Engine:
        """The same engine for another thread: its own modules, the parameters shared.

        A copy whose gradients are not those of the original is refused: functions that a model keeps (hooks, a patched
        forward) are not copied and go on using the original's modules.
        """
        other = copy.copy(self)
        other.subject = self.subject.twin()
        if not _alike(_answer(self.subject, self.few), _answer(other.subject, self.few)):
            raise ValueError("a copy of the model does not do what the model does")
        other.seconds, other.stages, other.harvested = dict.fromkeys(self.seconds, 0.0), {}, 0
        return other

    def check_finite(self, values: Tensor, x: Batch) -> None:
        """Products that are not finite are an error that names the layers, if the first of `x` show them."""
        if not bool(torch.isfinite(values).all()):
            raise NumericalError(
                "the kernel holds NaN or infinity though the outputs are finite: a gradient overflowed or is undefined at"
                f" some input (layers: {_guilty(self, x)}); use dtype=torch.float64 or look at those layers"
            )

    def coverage(self) -> Coverage:
        roads: dict[str, str] = dict.fromkeys(self.subject.leaves, "unused")
        for piece in self.pieces:
            known = roads[piece.name]
            roads[piece.name] = piece.road if known in ("unused", piece.road) else f"{known}+{piece.road}"
        numbers = {name: leaf.numel() for name, leaf in self.subject.leaves.items()}
        return Coverage(roads, numbers, dict(self.seconds), dict(self.stages), self.harvested, self.func)


def _answer(subject: Subject, batch: Batch) -> list[Tensor | None]:
    """The outputs of a batch, and the gradients of a random sum of them."""
    outputs = subject(batch)
    weights = torch.randn(outputs.shape, generator=generator(0, "twins"), dtype=torch.float64).to(outputs)
    leaves = list(subject.leaves.values())
    return [outputs.detach(), *torch.autograd.grad(outputs, leaves, weights, allow_unused=True)]


def _alike(ours: Sequence[Tensor | None], theirs: Sequence[Tensor | None]) -> bool:
    tolerance = TOLERANCE.get(next(t.dtype for t in ours if t is not None), 1e-3)
    for one, other in zip(ours, theirs, strict=True):
        if one is None or other is None:
            if one is not other:
                return False
        elif not bool((dense(one, one) - dense(other, other)).abs().max() <= tolerance * dense(one, one).abs().max()):
            return False
    return True


def _few(sample: Batch) -> Batch:
    """The probed samples: the first three, repeated if there are fewer."""
    index = torch.arange(SAMPLES, device=sample.tensors()[0].device) % len(sample)
    return sample.map(lambda t: t[index.to(t.device)])


def probed(x1: Batch, x2: Batch | None) -> Batch:
    """Samples to probe from: of the first side, and of the second when the first is short and alike."""
    if x2 is None or len(x1) >= SAMPLES:
        return x1
    return x2 if len(x2) >= SAMPLES else x1


def _graph_bytes(subject: Subject, batch: Batch, findings: Findings) -> tuple[int, list]:
    """What autograd keeps for a sample between the forward and the backward pass, and the probed calls."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    own = {leaf.untyped_storage().data_ptr() for leaf in (*subject.leaves.values(), *subject.rest.values())}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        _, tape = watch(subject, batch, findings.layouts)
    size = sum(nbytes for pointer, nbytes in kept.items() if pointer not in own)
    return 2 * size // len(batch), tape.calls


def _guilty(engine: Engine, x: Batch) -> str:
    crop = engine.harvest(x[: min(len(x), 8)])
    names = [
        engine.subject.layer_of(piece.name)
        for piece in engine.pieces
        if not bool(torch.isfinite(self_products(crop.feature(piece, engine.precision))).all())
    ]
    return ", ".join(dict.fromkeys(names)) or "not among the first samples"
