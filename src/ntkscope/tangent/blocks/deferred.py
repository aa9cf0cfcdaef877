"""Gradients that are formed later: which parameters, and what is kept of a captured block until then.

The gradient of a layer's weight is an outer product summed over positions, `Σ_s b_s ⊗ a_s`. Where the two factors take fewer
bytes than their product, a block keeps the factors, and the gradient is formed when it is multiplied, and dropped. Everything
else (norms, biases, features that keep both sides apart, `torch.func`) is kept as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ntkscope.tangent.blocks.backward import BackwardPass
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.trace.parameter_blocks import ParameterBlock
from ntkscope.tangent.trace.tape import Call
from ntkscope.tangent.trace.terms import Outer, Term

WORTH = 1.0  # of a gradient's bytes, below which its factors are kept instead
LEAST = 2**15  # numbers of a gradient, for each head, that are formed at a time at least


@dataclass(frozen=True)
class Deferral:
    """The pieces whose factors are kept, and what a sample then takes.

    `kept`: bytes of a sample that stays: factors, and features of all other pieces. `largest`: bytes of the largest gradient
    among those formed later. `again`: multiply-adds of forming all of them once. `divided`: those of which some rows can be
    formed without the others; `placed`: those that can be formed where they are wanted. `least`: bytes of the largest gradient
    that is formed at a time, if as few rows are as may be.
    """

    pieces: frozenset[ParameterBlock]
    kept: int
    largest: int
    again: float
    divided: frozenset[ParameterBlock] = frozenset()
    placed: frozenset[ParameterBlock] = frozenset()
    least: int = 0

    def least_rows(self, piece: ParameterBlock) -> int:
        """Rows of a piece that are formed at a time at least."""
        rows = piece.stop - piece.start
        return min(rows, -(-LEAST * rows // max(1, piece.numbers))) if piece in self.divided else rows


def deferral(
    made: Sequence[ParameterBlock], calls: Sequence[Call], heads: int, n: int, precision: Precision
) -> Deferral:
    """What to defer of pieces that were probed with `n` samples: where the factors are smaller than the gradient.

    Factors that several pieces share (one input of three projections) are counted once.
    """
    storage = precision.storage.itemsize
    chosen: list[ParameterBlock] = []
    seen: dict[tuple[int, ...], int] = {}
    for piece in made:
        if piece.method != "direct" or not all(isinstance(calls[k].terms[t], Outer) for k, t in piece.members):
            continue
        factors = _factors(piece, calls, heads, n, precision)
        if sum(factors.values()) < WORTH * piece.feature_numbers(heads) * storage:
            chosen.append(piece)
            seen |= factors
    deferred = frozenset(chosen)
    rest = sum(piece.feature_numbers(heads) * storage for piece in made if piece not in deferred)
    largest = max((piece.feature_numbers(heads) * storage for piece in chosen), default=0)
    divided = frozenset(piece for piece in chosen if _divides(piece, calls))
    placed = frozenset(
        piece
        for piece in divided
        if len(piece.members) == 1 and not _term(piece, calls).flipped and precision.storage == precision.factors
    )
    again = sum(forming_cost(piece, heads) for piece in chosen)
    found = Deferral(deferred, rest + sum(seen.values()), largest, again, divided, placed)
    each = (found.least_rows(piece) * _row_numbers(piece) * heads * storage for piece in chosen)
    return replace(found, least=max(each, default=0))


def _term(piece: ParameterBlock, calls: Sequence[Call]) -> Term:
    k, t = piece.members[0]
    return calls[k].terms[t]


def _row_numbers(piece: ParameterBlock) -> int:
    return -(-piece.numbers // max(1, piece.stop - piece.start))


def _divides(piece: ParameterBlock, calls: Sequence[Call]) -> bool:
    """Whether the rows of a piece are one side of all the products that make its gradient."""
    terms = [calls[k].terms[t] for k, t in piece.members]
    if piece.groups != 1 or len({term.kind for term in terms}) > 1:
        return False
    rows = piece.stop - piece.start
    return all(
        isinstance(term, Outer)
        and (term.slot.start, term.slot.stop) == (piece.start, piece.stop)
        and term.divides(rows, piece.inside, piece.outside)
        for term in terms
    )


def forming_cost(piece: ParameterBlock, heads: int) -> float:
    """Multiply-adds of forming one sample's gradient from its factors."""
    if piece.method != "direct":
        return 0.0
    return float(heads * piece.forward_cost)


def _factors(
    piece: ParameterBlock, calls: Sequence[Call], heads: int, n: int, precision: Precision
) -> dict[tuple[int, ...], int]:
    """Bytes a sample of what each factor takes, by what identifies it."""
    found: dict[tuple[int, ...], int] = {}
    for k, t in piece.members:
        call = calls[k]
        x = call.terms[t].x
        assert x is not None
        itemsize = precision.factors.itemsize if call.outer else x.element_size()
        found[-1, k] = call.shape.numel() // n * heads * itemsize
        found[x.data_ptr(), *x.shape] = -(-x.numel() // n) * itemsize
    return found


def kept_factors(backward_pass: BackwardPass, deferred: Iterable[ParameterBlock]) -> BackwardPass:
    """What forming the gradients of some pieces needs, and nothing else.

    Inputs of layers are copied: they are the model's own tensors, and it may write to them when it runs again.
    """
    needed: dict[int, set[int]] = {}
    for piece in deferred:
        for k, t in piece.members:
            needed.setdefault(k, set()).add(t)
    copies: dict[tuple[object, ...], Tensor] = {}
    calls = []
    for k, call in enumerate(backward_pass.calls):
        terms = []
        for t, term in enumerate(call.terms):
            x = term.x
            if x is not None and t in needed.get(k, ()):
                dtype = backward_pass.arrived[k].dtype if term.only_multiplied else x.dtype
                x = _copied(x, dtype, copies)
            else:
                x = None
            terms.append(replace(term, x=x))
        calls.append(replace(call, terms=terms))
    arrived = {k: backward_pass.arrived[k] for k in needed}
    return replace(backward_pass, calls=calls, arrived=arrived, vectors={}, func={}, truth={})


def _copied(x: Tensor, dtype: torch.dtype, copies: dict[tuple[object, ...], Tensor]) -> Tensor:
    """A copy of a tensor, made once however many calls read it."""
    key = (x.data_ptr(), x.dtype, dtype, tuple(x.shape), x.stride())
    if key not in copies:
        copies[key] = x.detach().to(dtype, copy=True)
    return copies[key]
