"""The stream behind `feature_matrices`: blocks of samples, one forward pass and one cotangent pass per output for all sites.

Of each block only covariances `Σ b bᵀ` of the sites' cotangents stay, in float64. The cotangents themselves are checked as the
engine's are (`audit`): a random sum of them, over samples and passes, times the inputs of the calls, must be the gradient of
the weights that plain autograd gives.
"""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from ntkscope.core import Certificate, UsageError, generator
from ntkscope.core.machine.tensor_cores import tensor_cores
from ntkscope.tangent.blocks.backward import autograd_gradients, certain_cotangents, check_path, watched_pass
from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.certify.auditor import Auditor, GraphMismatch
from ntkscope.tangent.certify.comparison import Check, Sizes
from ntkscope.tangent.matrices.sites import INPUT, Site
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.guards import MIXED
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.probe import Findings
from ntkscope.tangent.trace.probed import Probed
from ntkscope.tangent.trace.tape import Call
from ntkscope.tangent.trace.terms import Lookup, Outer, Term, lookup_gradient, outer_gradient

PANEL = 512  # columns of a covariance that are computed at once; with several, only one triangle is
SQUARED = 2.0**-40, 2.0**40  # largest numbers whose squares and their sums float32 holds without loss


@dataclass
class Sum:
    """A covariance on its way: `total` (k, k) float64, upper triangle by panels; of a sketch, squares of its errors too."""

    total: Float[Tensor, "k k"]
    squares: Float[Tensor, "k k"] | None = None
    seconds: float = 0.0

    def value(self, n: int) -> Float[Tensor, "k k"]:
        """The covariance of n samples."""
        upper = torch.triu(self.total)
        return (upper + torch.triu(self.total, 1).T) / n

    def error(self, n: int) -> Float[Tensor, "k k"] | None:
        """Its standard error, entry by entry."""
        if self.squares is None:
            return None
        upper = torch.triu(self.squares)
        return (upper + torch.triu(self.squares, 1).T).clamp_min(0).sqrt() / n


def add_covariance(total: Float[Tensor, "k k"], rows: Float[Tensor, "m k"]) -> None:
    """Add `rowsᵀ rows` to a float64 total; of more than one panel, the upper triangle alone.

    Rows whose squares would leave the range of float32 are brought to unit size first; shorter numbers become float32.
    """
    rows, unit = _squarable(rows)
    columns = rows.shape[1]
    for at in range(0, columns, PANEL):
        part = rows[:, at : at + PANEL].T @ rows[:, at:]
        total[at : at + PANEL, at:] += part if unit is None else part.to(total.dtype) * unit**2


def _squarable(rows: Float[Tensor, "m k"]) -> tuple[Float[Tensor, "m k"], Float[Tensor, ""] | None]:
    """Rows over a power of two, and that number in float64; None where it is 1."""
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    if not rows.numel():
        return rows, None
    low, high = torch.aminmax(rows)
    largest = torch.maximum(-low, high).double()
    odd = (largest < SQUARED[0]) | (largest > SQUARED[1])
    if rows.device.type == "cpu" and not bool(odd):  # elsewhere the answer would have to be waited for
        return rows, None
    odd = odd & (largest > 0) & torch.isfinite(largest)
    power = torch.where(odd, torch.floor(torch.log2(largest.clamp_min(1e-300))), 0.0)
    half = torch.floor(power / 2)  # in two steps, since 2¹⁴⁹ is no float32
    return rows * torch.exp2(-half).to(rows) * torch.exp2(half - power).to(rows), torch.exp2(power)


def as_rows(term: Outer, cotangent: Tensor) -> Float[Tensor, "m out"]:
    """A cotangent (n, q, …) of a call, one row for each sample and position: what multiplies the weight."""
    canonical = term.cotangents(cotangent)  # (n, g, o, s)
    n, g, o, s = canonical.shape
    if canonical.stride(3) == 1 and s > 1:  # copied in runs of positions, then read the other way round
        return canonical.permute(1, 2, 0, 3).reshape(g * o, n * s).T
    return canonical.permute(0, 3, 1, 2).reshape(n * s, g * o)


@dataclass(frozen=True, eq=False)
class Directions:
    """What is differentiated: each of some outputs, or `passes` random sign combinations of all, drawn for every sample."""

    outputs: tuple[int, ...]
    passes: int = 0
    seed: int = 0

    @property
    def count(self) -> int:
        return self.passes or len(self.outputs)

    def of(self, outputs: Tensor, k: int, block: int) -> Tensor:
        """The cotangent (n, c) of the outputs for pass k."""
        made = torch.zeros_like(outputs)
        if not self.passes:
            made[:, self.outputs[k]] = 1
            return made
        drawn = generator(self.seed, "feature sketch", block, k)
        signs = torch.randint(0, 2, (len(outputs), len(self.outputs)), generator=drawn, dtype=torch.float64) * 2 - 1
        made[:, list(self.outputs)] = (signs * self.passes**-0.5).to(outputs)
        return made


@dataclass
class Runner:
    """One network in the stream: probed, with its audit."""

    subject: Subject
    probed: Probed
    auditor: Auditor
    used: list[int]  # calls whose cotangents are needed

    @property
    def findings(self) -> Findings:
        return self.probed.findings

    def begin(self, batch: Batch, differentiate: bool) -> Block:
        """The watched forward pass of a block."""
        batch = self.subject.placed(batch)
        if differentiate:
            batch = batch.map(lambda t: t.detach().requires_grad_())
        with tensor_cores(False):
            outputs, tape = watched_pass(self.subject, batch, self.findings)
        if not outputs.requires_grad:
            raise GraphMismatch(set(self.subject.leaves))
        check_path(tape.calls, tape.unruled, self.findings)
        calls = [tape.calls[k] for k in self.used]
        if differentiate:
            leaf = batch.tensors()[0]
            calls = [*calls, Call([], get_gradient_edge(leaf), leaf.shape, (len(leaf),))]
        return Block(self, batch, outputs, calls, {k: tape.calls[k] for k in self.used})


@dataclass
class Block:
    """A block of samples after its forward pass."""

    runner: Runner
    batch: Batch
    outputs: Tensor
    watched: list[Call]
    calls: dict[int, Call]
    check: Check | None = None
    weighted: dict[int, Tensor] = field(default_factory=dict)  # random sums of the cotangents over passes
    reached: set[int] = field(default_factory=set)
    inputs: Tensor | None = None  # the same sums of the gradients by the inputs

    def pull(self, direction: Tensor, weights: Tensor | None) -> tuple[dict[int, Tensor], Tensor | None]:
        """The cotangents (n, q, …) of every call for one direction, and that of the inputs where it was asked for."""
        n = len(self.outputs)
        arriving = certain_cotangents(self.runner.subject, self.outputs, direction, self.watched)
        found: dict[int, Tensor] = {}
        for k, cotangent in zip(self.calls, arriving):
            call = self.calls[k]
            if cotangent is None:
                continue
            self.reached.add(k)
            try:
                value = self.runner.findings.layouts[k].written().read(cotangent, len(call.lead), n)
            except (RuntimeError, ValueError) as error:
                raise GraphMismatch({term.slot.name for term in call.terms}) from error
            found[k] = value
            if weights is not None:
                self.weighted[k] = _weighted(self.weighted.get(k), value, weights)
        gradient = arriving[-1] if len(arriving) > len(self.calls) else None
        if gradient is not None and weights is not None:
            self.inputs = _weighted(self.inputs, gradient, weights)
        return found, gradient

    def draw(self, directions: Directions, block: int) -> Tensor | None:
        """Random weights (n, passes) of the check of this block, if it is to be checked."""
        auditor = self.runner.auditor
        self.check = auditor.draw(len(self.outputs), directions.count)
        if self.check is None:
            return None
        weights = self.check.weights
        total = torch.zeros_like(self.outputs)
        for k in range(directions.count):
            total += weights[:, k : k + 1].to(total) * directions.of(self.outputs, k, block)
        self.check.weights = total  # of the outputs themselves, which the audit differentiates
        return weights

    def settle(self) -> None:
        """After the last pass: cotangents and inputs must give the gradients that autograd gives, or a rule is not used."""
        findings, subject, auditor = self.runner.findings, self.runner.subject, self.runner.auditor
        lost = set(self.calls) & findings.reached - self.reached
        if lost:
            raise GraphMismatch({term.slot.name for k in lost for term in self.calls[k].terms})
        check = self.check
        if check is None:
            return
        truth = autograd_gradients(subject, self.outputs, check.weights)
        with tensor_cores(False):
            batch = self.batch.map(torch.Tensor.detach)
            auditor.begin(check, batch, self.outputs.detach(), truth)
        began = time.perf_counter()
        for sizes, known, rows in (
            (check.block, check.truth, slice(None)),
            (check.own, check.alone, slice(check.one, check.one + 1)),
        ):
            formed = self.gradients(rows)
            for name, exact in known.items():
                ours = formed.get(name, torch.zeros_like(exact)).to(exact.dtype)
                sizes.append(Sizes.of(name, ours, exact))
        check.covered = {name: [(0, len(leaf))] for name, leaf in subject.leaves.items()}
        self._check_inputs(check)
        auditor.seconds += time.perf_counter() - began
        auditor.finish(check, False)
        self.check, self.weighted, self.inputs = None, {}, None

    def _check_inputs(self, check: Check) -> None:
        """The gradient by the input of one sample, alone and unwatched, must be the one it has in the block."""
        if self.inputs is None:
            return
        subject, auditor, one = self.runner.subject, self.runner.auditor, slice(check.one, check.one + 1)
        batch = self.batch[one].map(lambda t: t.detach().requires_grad_())
        values = subject(batch)
        (alone,) = torch.autograd.grad(values, batch.tensors()[0], check.weights[one].to(values), allow_unused=True)
        alone = torch.zeros_like(self.inputs[one]) if alone is None else alone
        held_out = (alone - self.inputs[one]).norm()
        scale = torch.maximum(alone.norm(), self.inputs[one].norm())
        if not bool(held_out <= auditor.kink * scale):
            raise UsageError(MIXED)

    def gradients(self, rows: slice) -> dict[str, Tensor]:
        """`Σ_i w_i ∂f/∂θ` over some samples of the block, from the terms."""
        leaves, n = self.runner.subject.leaves, len(self.outputs)
        made: dict[str, Tensor] = {}
        for k, weighted in self.weighted.items():
            for term in self.calls[k].terms:
                name = term.slot.name
                if name not in leaves:
                    continue
                x = None if term.x is None else self.runner.findings.layouts[k].read(term.x, term.lead_x, n)[rows]
                try:
                    part = summed_gradient(term, x, weighted[rows])
                except (RuntimeError, ValueError, IndexError) as error:
                    raise GraphMismatch({name}) from error
                total = made.setdefault(name, torch.zeros_like(leaves[name]))
                total[term.slot.start : term.slot.stop] += part.view_as(total[term.slot.start : term.slot.stop])
        return made


def _weighted(total: Tensor | None, value: Tensor, weights: Tensor) -> Tensor:
    """`total + weights ∘ value`, one weight for each sample; the total is overwritten."""
    weight = weights.to(value.dtype).view(-1, *[1] * (value.dim() - 1))
    return value * weight if total is None else total.addcmul_(value, weight.expand_as(value))


def summed_gradient(term: Term, x: Tensor | None, cotangent: Tensor) -> Tensor:
    """What a term adds to a gradient summed over samples, (numbers,), for cotangents (n, q, …): samples are positions."""
    if isinstance(term, Outer):
        assert x is not None
        a, b = term.activations(x.to(cotangent.dtype)), term.cotangents(cotangent)
        a = a.transpose(0, 1).flatten(1, 2).unsqueeze(0)  # (1, g, n·s, i)
        b = b.permute(1, 2, 0, 3).flatten(2)[None, None]  # (1, 1, g, o, n·s)
        return outer_gradient(a, b, term.transposed, term.reorder)[0, 0]
    if isinstance(term, Lookup):
        ids, b = term.sides(x, cotangent.unsqueeze(1))
        return lookup_gradient(ids.reshape(1, -1), b[:, 0, :, 0].flatten(0, 1).T[None, None], term.rows)[0, 0]
    return term.gradient(x, cotangent.unsqueeze(1))[:, 0].sum(0)


@dataclass
class Part:
    """What one block adds to a sum, pass by pass; passes of a sketch are independent estimates, and their spread its error."""

    into: Sum
    count: int = 0
    here: Tensor | None = None
    mean: Tensor | None = None
    squares: Tensor | None = None
    began: float = 0.0

    def __enter__(self) -> Part:
        self.began = time.perf_counter()
        if self.into.squares is not None:
            self.here = torch.zeros_like(self.into.total)
        return self

    def __exit__(self, *_: object) -> None:
        if self.here is not None:
            self.into.total += self.here
            self.count += 1
            if self.mean is None or self.squares is None:
                self.mean, self.squares = self.here, torch.zeros_like(self.here)
            else:
                step = self.here - self.mean
                self.mean += step / self.count
                self.squares += step * (self.here - self.mean)
        self.into.seconds += time.perf_counter() - self.began

    def add(self, rows: Tensor) -> None:
        add_covariance(self.into.total if self.here is None else self.here, rows)

    def close(self) -> None:
        """The variance of the sum over passes, added to that of the blocks before."""
        if self.into.squares is not None and self.squares is not None and self.count > 1:
            self.into.squares += self.squares * (self.count / (self.count - 1))


@dataclass(frozen=True, eq=False)
class Stream:
    """Networks that run side by side (the trained one and, for centred tangents, the initial one), and their sums."""

    runners: Sequence[Runner]
    sites: Mapping[str, Site]
    directions: Directions
    sums: Mapping[str, Sum]
    centred: Mapping[str, Sum]
    inputs: Sum | None

    def add(self, batch: Batch, number: int) -> None:
        """One block: a forward pass of each network, one pass back per direction, then the checks."""
        blocks = [runner.begin(batch, self.inputs is not None and k == 0) for k, runner in enumerate(self.runners)]
        weights = [block.draw(self.directions, number) for block in blocks]
        totals = self.sums if self.inputs is None else {**self.sums, INPUT: self.inputs}
        parts = {name: Part(total) for name, total in totals.items()}
        for k in range(self.directions.count):
            direction = self.directions.of(blocks[0].outputs, k, number)
            found, gradient = blocks[0].pull(direction, None if weights[0] is None else weights[0][:, k])
            initial = None
            if len(blocks) > 1:
                initial = blocks[1].pull(direction, None if weights[1] is None else weights[1][:, k])[0]
            for name, site in self.sites.items():
                self._add(parts[name], self.centred.get(name), site, blocks[0].calls, found, initial)
            if self.inputs is not None and gradient is not None:
                with parts[INPUT] as part:
                    part.add(gradient.flatten(1))
        for part in parts.values():
            part.close()
        for block in blocks:
            block.settle()

    def _add(
        self,
        part: Part,
        centred: Sum | None,
        site: Site,
        calls: Mapping[int, Call],
        found: Mapping[int, Tensor],
        initial: Mapping[int, Tensor] | None,
    ) -> None:
        with part:
            for k, t in site.members:
                term = calls[k].terms[t]
                assert isinstance(term, Outer)
                if k in found:
                    part.add(as_rows(term, found[k]))
                if initial is not None and centred is not None and (k in found or k in initial):
                    held_out = found[k] - initial[k] if k in found and k in initial else found.get(k, initial.get(k))
                    assert held_out is not None
                    add_covariance(centred.total, as_rows(term, held_out))

    def weights(self, runner: int) -> dict[str, Tensor]:
        """The sites' weights in one of the networks; none where it does not run."""
        leaves = [each.subject.leaves for each in self.runners[runner : runner + 1]]
        return {name: site.weight(own[site.parameter]).double() for own in leaves for name, site in self.sites.items()}

    @property
    def certificate(self) -> Certificate:
        return functools.reduce(operator.add, [runner.auditor.certificate() for runner in self.runners])


def auditor_of(subject: Subject, certify: str | bool) -> Auditor:
    return Auditor(subject, Heads(), certify, "exact")
