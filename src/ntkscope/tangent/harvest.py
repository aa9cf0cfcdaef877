"""Harvest: what a block of samples left on the tape, turned into features piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ntkscope.core import NtkscopeError, Params
from ntkscope.tangent import func_road
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.capture import Call, cotangents, watch
from ntkscope.tangent.features import Feature, Formed, Near
from ntkscope.tangent.layout import Layout
from ntkscope.tangent.pieces import Piece
from ntkscope.tangent.precision import Precision, tensor_cores
from ntkscope.tangent.probe import Findings, masked_cotangent
from ntkscope.tangent.subject import Subject
from ntkscope.tangent.terms import Lookup, Outer, Vector, lookup_gradient, outer_gradient


class PathChanged(NtkscopeError):
    """A later block used parameters in another way than the probe saw; they must take the func road."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(f"the model used {', '.join(sorted(names))} differently for different inputs")
        self.names = names


@dataclass
class Harvest:
    """The tape of one block with the cotangents of every head: (n, heads, q, …) for each call that is needed."""

    n: int
    calls: list[Call]
    layouts: list[Layout]
    arrived: dict[int, Tensor]
    func: Params = field(default_factory=dict)

    def feature(self, piece: Piece, precision: Precision) -> Feature:
        """The feature of every sample for one piece, on the piece's road."""
        if piece.road == "func":
            return Formed(*precision.store(self.func[piece.name]))
        if piece.road == "direct":
            return Formed(*precision.store(self.gradient(piece, ordered=self._mixed(piece))))
        sides = [self.sides(k, t) for k, t in piece.members]
        looked_up = not sides[0][0].is_floating_point()
        a = torch.cat([a for a, _ in sides], dim=1 if looked_up else 2)
        b = torch.cat([b for _, b in sides], dim=2)
        values, scale = precision.store(b)
        if looked_up:
            return Near(a.unsqueeze(0), values.transpose(0, 1).contiguous(), scale)
        a, scale_a = precision.store(a)
        if scale is not None and scale_a is not None:
            scale = scale * scale_a
        return Near(a.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous(), scale)

    def _mixed(self, piece: Piece) -> bool:
        """Whether terms of several kinds add up, so that they must agree on the parameter's own order."""
        terms = [self.calls[k].terms[t] for k, t in piece.members]
        return len({(type(term), getattr(term, "reorder", None) is None) for term in terms}) > 1

    def gradient(self, piece: Piece, *, ordered: bool = True) -> Tensor:
        """The gradient of a piece, (n, heads, numbers), in the parameter's own order, or in any if not `ordered`."""
        total: Tensor | None = None
        for k, t in piece.members:
            term = self.calls[k].terms[t]
            part = self._gradient(k, t, ordered)
            if term.slot.start != piece.start or term.slot.stop != piece.stop:
                width = piece.numbers // (piece.stop - piece.start)
                whole = part.new_zeros(*part.shape[:2], piece.numbers)
                at = (term.slot.start - piece.start) * width
                whole[:, :, at : at + part.shape[2]] = part
                part = whole
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def _gradient(self, k: int, t: int, ordered: bool) -> Tensor:
        term, arrived = self.calls[k].terms[t], self.arrived[k]
        if isinstance(term, Vector):
            if term.x is not None and term.prepare is not None:
                hat = term.prepare(self.layouts[k].read(term.x, term.lead_x, self.n))
                arrived = arrived * hat.unsqueeze(1)
            return term.reduce(arrived.flatten(0, 1)).unflatten(0, arrived.shape[:2])
        if isinstance(term, Lookup):
            ids, b = self.sides(k, t)
            return lookup_gradient(ids, b[:, 0].permute(0, 2, 3, 1), term.rows)
        x = self.layouts[k].read(term.x, term.lead_x, self.n).to(arrived.dtype)
        return outer_gradient(
            term.activations(x), _canonical(term, arrived), term.transposed, term.reorder if ordered else None
        )

    def sides(self, k: int, t: int) -> tuple[Tensor, Tensor]:
        """Activations (n, g, s, i), or indices (n, s), and cotangents (n, g, s, heads, o)."""
        term, arrived = self.calls[k].terms[t], self.arrived[k]
        assert not isinstance(term, Vector)
        x = self.layouts[k].read(term.x, term.lead_x, self.n)
        if isinstance(term, Lookup):
            masked = torch.stack([masked_cotangent(term, x, head) for head in arrived.unbind(1)], dim=2)
            return x, masked.unsqueeze(1)
        return term.activations(x.to(arrived.dtype)), _canonical(term, arrived).permute(0, 2, 4, 1, 3)


def _canonical(term: Outer, arrived: Tensor) -> Tensor:
    """(n, heads, q, …) to the canonical (n, heads, g, o, s)."""
    n, heads = arrived.shape[:2]
    return term.cotangents(arrived.flatten(0, 1)).unflatten(0, (n, heads))


def harvest(
    subject: Subject,
    batch: Batch,
    findings: Findings,
    made: list[Piece],
    heads: func_road.Heads,
    func: str,
    precision: Precision,
) -> Harvest:
    """One forward pass, one backward pass a head, and the func road for the parameters that need it."""
    n = len(batch)
    with tensor_cores(False):
        outputs, tape = watch(subject, batch, findings.layouts, quickly=True)
    _same_path(tape.calls, tape.unruled, findings)
    headed = heads(outputs)
    used = sorted({k for piece in made for k, _ in piece.members})
    arrived: dict[int, Tensor] = {}
    reached: set[int] = set()
    count = headed.shape[1]
    weights = torch.zeros_like(headed)
    for head in range(count if used else 0):
        weights.zero_()
        weights[:, head] = 1
        edges = [tape.calls[k].edge for k in used]
        for k, cotangent in zip(used, cotangents(headed, weights, edges, keep=head + 1 < count)):
            call = tape.calls[k]
            if cotangent is None:  # this head does not see the call
                cotangent = headed.new_zeros(call.shape)
            else:
                reached.add(k)
            value = findings.layouts[k].written().read(cotangent, len(call.lead), n)
            if k not in arrived:
                dtype = precision.factors if call.outer else value.dtype
                arrived[k] = torch.empty(n, count, *value.shape[1:], dtype=dtype, device=value.device)
            arrived[k][:, head] = value
    lost = {term.slot.name for k in set(used) & findings.reached - reached for term in tape.calls[k].terms}
    if lost:  # the probe's cotangents came there
        raise PathChanged(lost)
    gradients: Params = {}
    names = [piece.name for piece in made if piece.road == "func"]
    if names:
        gradients = func_road.gradients(func, subject, batch, names, heads)
    return Harvest(n, tape.calls, findings.layouts, arrived, gradients)


def _same_path(calls: list[Call], unruled: set[str], findings: Findings) -> None:
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
        raise PathChanged(changed - findings.func)
