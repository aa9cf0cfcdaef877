"""Captured: what a block of samples left on the tape, turned into features piece by piece."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import NtkscopeError, Params
from ntkscope.core.machine.tensor_cores import any_order, tensor_cores
from ntkscope.tangent.blocks.execution import PLAIN, ExecutionMode
from ntkscope.tangent.blocks.features import DenseFeature, FactoredFeature, Feature
from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.certify.auditor import NOISE, GraphMismatch
from ntkscope.tangent.certify.comparison import Check
from ntkscope.tangent.model.autograd import dense, pull
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.guards import SHAPED, first_outputs
from ntkscope.tangent.model.layout import Layout
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace import func_method
from ntkscope.tangent.trace.parameter_blocks import ParameterBlock
from ntkscope.tangent.trace.probe import Findings
from ntkscope.tangent.trace.tape import Call, Tape, cotangents, watch
from ntkscope.tangent.trace.terms import PLAINLY, Forming, Order, Outer, Term, Vector

SIDE_BY_SIDE: tuple[str, ...] = ("cuda",)  # devices where the cotangents of all heads of one position lie side by side


@dataclass
class BackwardPass:
    """The tape of one block with the cotangents of every head: (n, heads, q, …) for each call that is needed.

    Of biases and norms (`Vector`) the gradients are there instead: `vectors`, (n, heads, numbers) by call and term.
    """

    n: int
    calls: list[Call]
    layouts: list[Layout]
    arrived: dict[int, Tensor]
    outputs: Tensor  # (n, heads)
    vectors: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    func: Params = field(default_factory=dict)
    truth: Params = field(default_factory=dict)  # `Σ_ic w_ic ∂f_c(x_i)/∂θ` for the weights that were asked for
    check: Check | None = None
    mode: ExecutionMode = PLAIN  # how it was run

    def feature(self, piece: ParameterBlock, precision: Precision, out: Tensor | None = None) -> Feature:
        """The feature of every sample for one piece, on the piece's method; `out`: where a formed gradient may be written."""
        if piece.method == "func":
            return DenseFeature(*precision.store(self.func[piece.name]))
        if piece.method == "direct":
            how = Forming(self._mixed(piece), out, precision.multiply)
            return DenseFeature(*precision.store(self.gradient(piece, how)))
        sides = [self.sides(k, t) for k, t in piece.members]
        looked_up = not sides[0][0].is_floating_point()
        a = torch.cat([a for a, _ in sides], dim=1 if looked_up else 2)
        b = torch.cat([b for _, b in sides], dim=2)
        values, scale = precision.store(b)
        if looked_up:
            return FactoredFeature(a.unsqueeze(0), values.transpose(0, 1).contiguous(), scale)
        a, scale_a = precision.store(a)
        if scale is not None and scale_a is not None:
            scale = scale * scale_a
        return FactoredFeature(a.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous(), scale)

    def own_order(self, piece: ParameterBlock) -> Order | None:
        """The order of the numbers of a piece's features where that is not the parameter's."""
        if piece.method == "func" or (piece.method == "direct" and self._mixed(piece)):
            return None
        return self.calls[piece.members[0][0]].terms[piece.members[0][1]].order

    def _mixed(self, piece: ParameterBlock) -> bool:
        """Whether terms of several kinds add up, so that they must agree on the parameter's own order."""
        terms = [self.calls[k].terms[t] for k, t in piece.members]
        return len({(type(term), term.order is None or term.order.reorder is None) for term in terms}) > 1

    def gradient(self, piece: ParameterBlock, how: Forming = PLAINLY) -> Tensor:
        """The gradient of a piece, (n, heads, numbers)."""
        how = how if len(piece.members) == 1 else replace(how, out=None)
        total: Tensor | None = None
        for k, t in piece.members:
            term = self.calls[k].terms[t]
            if isinstance(term, Outer) and (term.slot.start < piece.start or piece.stop < term.slot.stop):
                term = term.part(piece.start, piece.stop)
            if (k, t) in self.vectors:
                part = self.vectors[k, t]
                part = part if len(piece.members) == 1 else part.clone()  # others are added to it
            else:
                part = term.gradient(self._input(k, term), self.arrived[k], how)
            if term.slot.start != piece.start or term.slot.stop != piece.stop:
                width = piece.numbers // (piece.stop - piece.start)
                whole = part.new_zeros(*part.shape[:2], piece.numbers)
                at = (term.slot.start - piece.start) * width
                whole[:, :, at : at + part.shape[2]] = part
                part = whole
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def sides(self, k: int, t: int) -> tuple[Tensor, Tensor]:
        """Activations (n, g, s, i), or indices (n, s), and cotangents (n, g, s, heads, o)."""
        term = self.calls[k].terms[t]
        return term.sides(self._input(k, term), self.arrived[k])

    def _input(self, k: int, term: Term) -> Tensor | None:
        return None if term.x is None else self.layouts[k].read(term.x, term.lead_x, self.n)

    def agrees(self, other: BackwardPass, tolerance: float) -> bool:
        """Whether outputs, inputs of calls and cotangents are those of the same samples run in another way, up to rounding."""
        mine, theirs = ({**one.arrived, **one.vectors} for one in (self, other))
        if mine.keys() != theirs.keys() or len(self.calls) != len(other.calls):
            return False
        pairs = [(self.outputs, other.outputs), *((mine[k], theirs[k]) for k in mine)]
        largest = max((float(value.double().norm()) for value in theirs.values()), default=0.0)
        for one, same in zip(self.calls, other.calls):
            if len(one.terms) != len(same.terms):
                return False
            pairs += [(a.x, b.x) for a, b in zip(one.terms, same.terms) if a.x is not None and b.x is not None]
        return all(_near(a, b, tolerance, largest) for a, b in pairs)


def _near(one: Tensor, other: Tensor, tolerance: float, largest: float) -> bool:
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    size = max(float(other.double().norm()), NOISE * largest)
    return float((one.double() - other.double()).norm()) <= tolerance * size


def capture(
    subject: Subject,
    batch: Batch,
    findings: Findings,
    made: list[ParameterBlock],
    heads: Heads,
    func: str,
    precision: Precision,
    weights: Tensor | None = None,
    mode: ExecutionMode = PLAIN,
    leaves: Params | None = None,
) -> BackwardPass:
    """One forward pass, one backward pass per head, and the func method for the parameters that need it.

    With `weights` (n, heads) one more backward pass gives `Σ_ic w_ic ∂f_c(x_i)/∂θ` of `leaves`, all chosen ones unless given
    (`truth`). `mode` changes memory formats and how many heads share a backward pass, and no numbers but for rounding.

    Where the head is a sum of outputs, which may cancel (the rows of a trained readout add up to nearly nothing), passes back
    are made in full float32 whatever the precision: rounded first and summed then, little but the rounding would be left.
    The pass that checks is made in full float32 too, except for bf16.
    """
    n = len(batch)
    calls: list[Call] = []
    arrived: dict[int, Tensor] = {}
    vectors: dict[tuple[int, int], Tensor] = {}
    if not any(piece.members for piece in made):  # nothing to watch for
        headed = heads(_as_many(subject(batch), subject, findings))
    else:
        with tensor_cores(False):
            outputs, tape = watched_pass(subject, batch, findings, mode)
        if not outputs.requires_grad:
            raise GraphMismatch(set(subject.leaves))
        check_path(tape.calls, tape.unruled, findings)
        headed = heads(outputs)
        together = 1 if tape.hooked or _hooked(subject) else mode.together  # hooks are to see one gradient at a time
        with _passes_back(heads):
            arrived, vectors = _arrived(subject, headed, tape.calls, findings, made, precision, together)
        calls = [replace(call, edge=None) for call in tape.calls]
        del outputs, tape
    short = precision.name == "bf16" and not heads.summed  # whose tolerance is far above what TF32 rounds
    truth = {} if weights is None else autograd_gradients(subject, headed, weights, leaves, short=short)
    values = headed.detach()
    del headed  # and with it the graph
    with _passes_back(heads):
        by_func = _func(subject, batch, made, heads, func)
    return BackwardPass(n, calls, findings.layouts, arrived, values, vectors, by_func, truth, mode=mode)


def _passes_back(heads: Heads) -> AbstractContextManager[None]:
    """In full float32 for a sum of outputs; as the precision says for outputs themselves."""
    return tensor_cores(False) if heads.summed else nullcontext()


def _arrived(
    subject: Subject,
    headed: Tensor,
    calls: list[Call],
    findings: Findings,
    made: list[ParameterBlock],
    precision: Precision,
    together: int,
) -> tuple[dict[int, Tensor], dict[tuple[int, int], Tensor]]:
    """The cotangents of every call that a piece needs, (n, heads, q, …), and the gradients of biases and norms, which need them
    once; `together` heads share a pass."""
    n = len(headed)
    members = {member for piece in made for member in piece.members}
    used = sorted({k for k, _ in members})
    vectors = _Vectors(calls, findings.layouts, members, n, headed.shape[1])
    kept = {k for k, t in members if (k, t) not in vectors.terms}
    arrived: dict[int, Tensor] = {}
    reached: set[int] = set()
    count = headed.shape[1]
    for start in range(0, count, together):
        heads = slice(start, min(count, start + together))
        weights = headed.new_zeros(heads.stop - start, *headed.shape)
        weights.diagonal(start, 0, 2).fill_(1)
        arriving = _of_heads(subject, headed, weights, [calls[k] for k in used])
        for position, k in enumerate(used):
            call, cotangent = calls[k], arriving[position]
            arriving[position] = None  # those of all calls and several heads are many numbers
            if cotangent is None:  # these heads do not see the call
                cotangent = headed.new_zeros(len(weights), *call.shape)
            else:
                reached.add(k)
            lead = len(call.lead)
            try:
                read = findings.layouts[k].written().read(cotangent.movedim(0, lead), lead, n)
                value = read.movedim(2, 1)  # (n, heads, q, …)
            except (RuntimeError, ValueError) as error:  # so many positions do not fall into n samples
                raise GraphMismatch({term.slot.name for term in call.terms}) from error
            vectors.take(k, heads, value)
            if k not in kept:
                continue
            if k not in arrived:
                arrived[k] = _space(call, value, count, precision)
            if arrived[k][:, heads].shape != value.shape:
                raise GraphMismatch({term.slot.name for term in call.terms})
            arrived[k][:, heads] = value
    lost = {term.slot.name for k in set(used) & findings.reached - reached for term in calls[k].terms}
    if lost:  # the probe's cotangents came there
        raise GraphMismatch(lost)
    return arrived, vectors.made


def _space(call: Call, value: Tensor, heads: int, precision: Precision) -> Tensor:
    """Room for the cotangents (n, heads, q, …) of a call of which those of some heads have arrived.

    Where gradients are products of matrices on a GPU, heads and outputs lie side by side, as those products read them.
    """
    n, _, *rest = value.shape
    how: Any = {"dtype": precision.factors if call.outer else value.dtype, "device": value.device}
    if value.device.type in SIDE_BY_SIDE and call.leading and len(rest) == 2:
        return torch.empty(n, rest[0], heads, rest[1], **how).transpose(1, 2)
    return torch.empty(n, heads, *rest, **how)


class _Vectors:
    """The gradients of biases and norms, made of cotangents as these arrive."""

    def __init__(
        self, calls: list[Call], layouts: list[Layout], members: set[tuple[int, int]], n: int, heads: int
    ) -> None:
        self.n, self.heads = n, heads
        self.made: dict[tuple[int, int], Tensor] = {}
        self.terms = {(k, t): calls[k].terms[t] for k, t in members if isinstance(calls[k].terms[t], Vector)}
        self.by_call: dict[int, list[int]] = {}
        for k, t in sorted(self.terms):
            self.by_call.setdefault(k, []).append(t)
        self.layouts = layouts
        self.prepared: dict[tuple[int, int], Tensor | None] = {}

    def take(self, k: int, heads: slice, value: Tensor) -> None:
        """The cotangents (n, some heads, q, …) of one call."""
        for t in self.by_call.get(k, ()):
            term = self.terms[k, t]
            assert isinstance(term, Vector)
            try:
                if (k, t) not in self.prepared:
                    x = None if term.x is None else self.layouts[k].read(term.x, term.lead_x, self.n)
                    self.prepared[k, t] = term.prepared(x)
                part = term.reduced(self.prepared[k, t], value)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError, IndexError) as error:  # an input that does not fall into n samples
                raise GraphMismatch({term.slot.name}) from error
            if (k, t) not in self.made:
                self.made[k, t] = part.new_empty(self.n, self.heads, *part.shape[2:])
            if self.made[k, t][:, heads].shape != part.shape:
                raise GraphMismatch({term.slot.name})
            self.made[k, t][:, heads] = part


def autograd_gradients(
    subject: Subject, headed: Tensor, weights: Tensor, leaves: Params | None = None, *, short: bool = False
) -> Params:
    """What autograd says of a weighted sum of all heads; calls made in another, equal way give their weights' share too.

    In full float32 unless `short`.
    """
    leaves = subject.leaves if leaves is None else leaves
    if not headed.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    with tensor_cores(short), any_order(subject.device):
        grads = pull(subject, headed, weights.to(headed), list(leaves.values()))
    wide = {name: torch.promote_types(leaf.dtype, torch.float32) for name, leaf in leaves.items()}
    return {name: dense(grad, leaf).to(wide[name]) for (name, leaf), grad in zip(leaves.items(), grads)}


def _of_heads(subject: Subject, headed: Tensor, weights: Tensor, calls: list[Call]) -> list[Tensor | None]:
    """Cotangents for weights (heads, n, c): (heads, …) of each call, those of several heads from one pass."""
    if len(weights) == 1:
        return [
            None if one is None else one.unsqueeze(0) for one in certain_cotangents(subject, headed, weights[0], calls)
        ]
    try:
        return cotangents(headed, weights, calls, several=True)
    except torch.OutOfMemoryError:
        raise
    except func_method.REFUSALS as error:  # an operation that cannot be batched
        raise GraphMismatch(set(subject.leaves)) from error


def certain_cotangents(subject: Subject, headed: Tensor, weights: Tensor, calls: list[Call]) -> list[Tensor | None]:
    """Where the pass back fails (recomputed calls that were made in another way), calls are made as the model makes them."""
    try:
        return cotangents(headed, weights, calls)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        names = set(subject.leaves) if not subject.quickly else set()
        subject.quickly = False
        raise GraphMismatch(names) from error


def _hooked(subject: Subject) -> bool:
    """Whether modules have hooks that see gradients."""
    everywhere = torch.nn.modules.module
    if everywhere._global_backward_hooks or everywhere._global_backward_pre_hooks:
        return True
    return any(module._backward_hooks or module._backward_pre_hooks for module in subject.model.modules())


def watched_pass(
    subject: Subject, batch: Batch, findings: Findings, mode: ExecutionMode = PLAIN
) -> tuple[Tensor, Tape]:
    """The watched pass; where it fails and a plain one does not, no rule can be used."""
    try:
        how = {"inner": mode.channels_last, "flipped": mode.flipped, "split": mode.split}
        outputs, tape = watch(subject, batch, findings.layouts, quickly=True, **how)
        return _as_many(outputs, subject, findings), tape
    except NtkscopeError:
        raise
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
        first_outputs(subject, batch)
        raise GraphMismatch(set(subject.leaves)) from error


def _as_many(outputs: Tensor, subject: Subject, findings: Findings) -> Tensor:
    """The outputs, which must be as many as the probe saw: the model may have another head now."""
    if outputs.dim() == 2 and outputs.shape[1] != findings.outputs:
        what = f"gives {outputs.shape[1]} outputs for some inputs, {findings.outputs} for others"
        raise GraphMismatch(set(subject.leaves), refusal=SHAPED.format(what=what))
    return outputs


def _func(subject: Subject, batch: Batch, made: list[ParameterBlock], heads: func_method.Heads, func: str) -> Params:
    names = [piece.name for piece in made if piece.method == "func"]
    return func_method.gradients(func, subject, batch, names, heads) if names else {}


def check_path(calls: list[Call], unruled: set[str], findings: Findings) -> None:
    """Every block must use the parameters as the probe did; the ones that changed are named."""
    signatures = [call.signature for call in calls]
    changed = unruled - findings.func
    if signatures != findings.signatures:
        longest = max(len(signatures), len(findings.signatures))
        pad = [()] * longest
        for now, then in zip([*signatures, *pad][:longest], [*findings.signatures, *pad][:longest]):
            if now != then:
                changed |= {slot.name for _, slot in (*now, *then)}
    if changed - findings.func:
        raise GraphMismatch(changed - findings.func)
