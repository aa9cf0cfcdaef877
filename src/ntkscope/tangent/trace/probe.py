"""The probe: three samples decide where samples sit in each call, and which parameters the rules account for.

The gradient of each probed sample is computed twice, by plain autograd and from the terms. A parameter whose two answers
differ, for whatever reason (a use no rule saw, an exotic layout, a subclass with another forward), takes the `func` method.
Nothing is taken on trust.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ntkscope.core import NtkscopeError, generator
from ntkscope.tangent.model.autograd import dense, pull
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.layout import Layout, candidates
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.tape import Call, Tape, cotangents, watch
from ntkscope.tangent.trace.terms import Term

LOG = logging.getLogger(__name__)
SAMPLES = 3
NOISE = 1e-3  # of the largest gradient: below this, differences are judged beside that one
TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3, torch.bfloat16: 1e-1, torch.float16: 2e-2}


@dataclass(frozen=True)
class Findings:
    """What the probe learned: how many outputs there are, the layout of every call, in order, the parameters left to the `func`
    method, and the calls that a cotangent reached."""

    outputs: int
    layouts: list[Layout]
    signatures: list[tuple[object, ...]]
    func: frozenset[str]
    reached: frozenset[int] = frozenset()


def probe(subject: Subject, batch: Batch, outputs: int) -> Findings:
    """Run the probe of a model with so many outputs; at worst every parameter ends on the `func` method."""
    try:
        return _probe(subject, batch)
    except (NtkscopeError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, LookupError, TypeError, AssertionError) as error:
        LOG.info("a watched pass cannot be differentiated through, so no rule is used (%r)", error)
        return Findings(outputs, [], [], frozenset(subject.leaves))


def _probe(subject: Subject, batch: Batch) -> Findings:
    n = len(batch)
    first, tape = watch(subject, batch)
    outputs = first
    shared: dict[int, bool] = {}  # calls whose output no sample changes: whether widening it is harmless
    while True:
        layouts, reached = _layouts(outputs, tape.calls, n)
        fresh = [k for k, layout in enumerate(layouts) if layout.axis is None and k not in shared]
        if not fresh:
            break
        kept = [k for k, good in shared.items() if good]
        widened = _unchanged(subject, batch, _widening([*kept, *fresh]), first, tape)
        if widened is None and len(fresh) > 1:  # perhaps one of them is harmful: the first half alone
            fresh = fresh[: len(fresh) // 2]
            widened = _unchanged(subject, batch, _widening([*kept, *fresh]), first, tape)
        shared.update(dict.fromkeys(fresh, widened is not None))
        if widened is not None:
            outputs, tape = widened
    chosen = [_decided(k, layout, shared) for k, layout in enumerate(layouts)]
    func = set(tape.unruled)
    for call, layout in zip(tape.calls, chosen):
        if layout is None:
            func |= {term.slot.name for term in call.terms}
    func |= _mismatches(subject, outputs, tape.calls, chosen, set(subject.leaves) - func)
    final = [layout or Layout(0) for layout in chosen]
    return Findings(first.shape[1], final, [call.signature for call in tape.calls], frozenset(func), reached)


def _decided(k: int, layout: Layout, shared: Mapping[int, bool]) -> Layout | None:
    """The layout of a call; a shared one is widened if that is harmless, and has none if it is not."""
    if k not in shared:
        return layout
    return Layout(None) if shared[k] else None


def _widening(calls: Sequence[int]) -> list[Layout]:
    return [Layout(None if k in calls else 0) for k in range(max(calls) + 1)]


def _unchanged(
    subject: Subject, batch: Batch, trial: list[Layout], outputs: Tensor, tape: Tape
) -> tuple[Tensor, Tape] | None:
    """The pass with shared outputs widened, if its outputs and its calls are what they were."""
    try:
        widened, again = watch(subject, batch, trial)
    except NtkscopeError:
        raise
    except (RuntimeError, LookupError, ValueError, TypeError, AttributeError, AssertionError) as error:
        LOG.info("outputs shared by samples cannot be widened (%r)", error)
        return None
    if widened.shape != outputs.shape or [c.signature for c in again.calls] != [c.signature for c in tape.calls]:
        return None
    tolerance = subject.loosest(TOLERANCE)
    return (widened, again) if bool((widened - outputs).abs().max() <= tolerance * outputs.abs().max()) else None


def _layouts(outputs: Tensor, calls: list[Call], n: int) -> tuple[list[Layout], frozenset[int]]:
    """For each call the first layout under which a sample's cotangent touches that sample's slots alone; the calls reached."""
    options = [_options(call.lead, n) for call in calls]
    reached = set()
    for i in range(n):
        for k, cotangent in enumerate(cotangents(outputs, _mask(outputs, i), calls)):
            if cotangent is not None:
                reached.add(k)
                lead = len(calls[k].lead)
                options[k] = [c for c in options[k] if c.axis is None or _only(c.read(cotangent, lead, n), i)]
    return [option[0] for option in options], frozenset(reached)


def _options(lead: tuple[int, ...], n: int) -> list[Layout]:
    return [*candidates(lead, n), Layout(None)]  # at worst every sample shares it, to be confirmed


def _only(value: Tensor, i: int) -> bool:
    others = torch.ones(len(value), dtype=torch.bool, device=value.device)
    others[i] = False
    return not bool(value[others].any())


def _mask(outputs: Tensor, i: int) -> Tensor:
    """A random cotangent of sample i alone."""
    weights = torch.randn(outputs.shape[1], generator=generator(0, "probe", i), dtype=torch.float64)
    mask = torch.zeros_like(outputs)
    mask[i] = weights.to(outputs)
    return mask


def _mismatches(
    subject: Subject, outputs: Tensor, calls: list[Call], layouts: Sequence[Layout | None], names: set[str]
) -> set[str]:
    """The parameters among `names` whose gradient from the terms is not that of autograd."""
    ordered = sorted(names)
    leaves = [subject.leaves[name] for name in ordered]
    tolerance = subject.loosest(TOLERANCE)
    worst = dict.fromkeys(ordered, 0.0)
    largest = dict.fromkeys(ordered, 0.0)
    n = len(outputs)
    for i in range(n if leaves else 0):
        weights = _mask(outputs, i)
        # two sweeps: asking for leaves and edges at once would stop the first at the second
        truth = pull(subject, outputs, weights, leaves)
        arrived = cotangents(outputs, weights, calls)
        formed = {name: torch.zeros_like(leaf) for name, leaf in zip(ordered, leaves)}
        for call, layout, cotangent in zip(calls, layouts, arrived):
            for term in call.terms if layout is not None and cotangent is not None else ():
                if term.slot.name in formed:
                    rows = formed[term.slot.name]
                    if rows.dim():
                        rows = rows[term.slot.start : term.slot.stop]
                    part = _formed(term, layout, cotangent, len(call.lead), n)
                    if part is None or part[i].numel() != rows.numel():
                        worst[term.slot.name] = float("inf")
                    else:
                        rows += part[i].view_as(rows)
        for name, exact in zip(ordered, truth):
            exact = dense(exact, formed[name])
            worst[name] = max(worst[name], float((formed[name] - exact).abs().max()))
            largest[name] = max(largest[name], float(exact.abs().max()), float(formed[name].abs().max()))
    # a gradient that is zero up to rounding (the bias of an attention's keys) has no digits of its own to compare
    least = NOISE * max(largest.values(), default=0.0)
    return {name for name in ordered if not worst[name] <= tolerance * max(largest[name], least)}


def _formed(term: Term, layout: Layout | None, cotangent: Tensor | None, lead: int, n: int) -> Tensor | None:
    """A gradient, or None where the numbers do not fit together (mixed kinds, odd shapes)."""
    if layout is None or cotangent is None:
        return None
    try:
        return gradient(term, layout, cotangent, lead, n)
    except (RuntimeError, ValueError, IndexError) as error:
        LOG.info("the rule for %s does not fit this call (%r)", term.slot.name, error)
        return None


def gradient(term: Term, layout: Layout, cotangent: Tensor, lead: int, n: int) -> Tensor:
    """What a term adds to the gradient of its slot, for one cotangent of the call: (n, numbers in the slot)."""
    arrived = layout.written().read(cotangent, lead, n)
    x = None if term.x is None else layout.read(term.x, term.lead_x, n)
    return term.gradient(x, arrived.unsqueeze(1))[:, 0]
