"""The Jacobian of a network's outputs by its parameters as an operator.

`J v` by forward-mode differentiation, `Jᵀ u` by one backward pass, so `K v = J₁ (J₂ᵀ v)` costs about two passes over the
data whatever the number of samples: the method to solvers that need `K @ v` alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import Certificate, Params, UsageError, generator
from ntkscope.core.checked import Count, checked
from ntkscope.tangent.blocks.heads import Heads, as_heads
from ntkscope.tangent.certify.auditor import Auditor, GraphMismatch
from ntkscope.tangent.certify.comparison import Sizes
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.autograd import dense, pulled
from ntkscope.tangent.model.batches import Batch, as_batch
from ntkscope.tangent.model.selection import Selection
from ntkscope.tangent.model.subject import Subject, place, quiet
from ntkscope.tangent.operators.forward_mode import MATH, jvp, twice_back
from ntkscope.tangent.trace.func_method import one_by_one

LOG = logging.getLogger(__name__)


@checked
class Jacobian:
    """`J = ∂f/∂θ` at the inputs `x`: (n·c) × p, never formed.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> J = Jacobian(model, torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
        >>> J.vjp(torch.tensor([[1.0], [1.0]]))["weight"]
        tensor([[1., 5.]])
        >>> J.jvp({"weight": torch.tensor([[1.0, 1.0]])})
        tensor([[3.],
                [3.]])
    """

    def __init__(
        self,
        model: nn.Module,
        x: Any,
        *,
        outputs: Sequence[int] | int | None = None,
        params: Selection = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        block: Count = 256,
        certify: str | bool = "every",
    ) -> None:
        guards.check_mode(model)
        batch = as_batch(x, model)
        guards.check_placement(place(model, device), device is not None, batch)
        with quiet(place(model, device), model):
            subject = Subject(model, params=params, dtype=dtype, device=device)
            self._begin(subject, batch, as_heads(outputs), block, certify)

    @classmethod
    def of(
        cls, subject: Subject, batch: Batch, heads: Heads, *, block: int = 256, certify: str | bool = "every"
    ) -> Jacobian:
        """The same for a subject that is there already."""
        made = cls.__new__(cls)
        made._begin(subject, batch, heads, block, certify)
        return made

    def _begin(self, subject: Subject, batch: Batch, heads: Heads, block: int, certify: str | bool) -> None:
        self.subject, self.batch, self.heads, self.block, self.certify = subject, batch, heads, block, certify
        self._auditor = Auditor(subject, heads, certify, "exact")
        self._pulled: set[int] = set()  # blocks that were checked
        self._pushed: set[int] = set()
        self._forward = not subject.casts  # whether forward mode gives what it must
        with quiet(subject.device, subject.original):
            few = self._placed(slice(0, min(3, len(batch))))
            outputs = guards.first_outputs(subject, few)
            guards.check_differentiable(subject, outputs)
            guards.check_randomness(subject, few, outputs)
            guards.check_independence(subject, few, outputs)
            self.width = heads.count(outputs.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.batch) * self.width, self.subject.parameters

    def certificate(self) -> Certificate:
        """How products were checked against plain autograd: every block once."""
        return self._auditor.certificate()

    def vjp(self, cotangent: Tensor) -> Params:
        """`Jᵀ u` for `u` of shape (n, c): a gradient for every chosen parameter. One forward and one backward pass."""
        if cotangent.shape != (len(self.batch), self.width):
            raise UsageError(
                f"got a cotangent of shape {tuple(cotangent.shape)}; expected (n, c) = ({len(self.batch)}, {self.width})"
            )
        total = {name: torch.zeros_like(leaf) for name, leaf in self.subject.leaves.items()}
        with quiet(self.subject.device, self.subject.original):
            for rows in self._blocks():
                batch = self._placed(rows)
                values, grads = pulled(self.subject, batch, self.heads, cotangent[rows])
                if rows.start not in self._pulled:
                    self._check_pulled(batch, values)
                    self._pulled.add(rows.start)
                for name, grad in zip(total, grads):
                    total[name] += dense(grad, total[name])
        return {name: value.detach() for name, value in total.items()}

    def _check_pulled(self, batch: Batch, values: Tensor) -> None:
        """Gradients of the whole block must be those of its samples without one, and of that one alone."""
        auditor = self._auditor
        check = auditor.draw(*values.shape)
        if check is None:
            return
        leaves = self.subject.leaves
        grads = pulled(self.subject, batch, self.heads, check.weights)[1]
        whole = {name: dense(grad, leaf) for (name, leaf), grad in zip(leaves.items(), grads)}
        total = {name: torch.zeros_like(value) for name, value in whole.items()}
        try:
            auditor.begin(check, batch, values, whole)
            for rows in ([check.one], [i for i in range(len(batch)) if i != check.one]):
                part = batch[torch.tensor(rows, device=batch.tensors()[0].device)] if rows else None
                found = pulled(self.subject, part, self.heads, check.weights[rows])[1] if part is not None else []
                for (name, leaf), grad in zip(leaves.items(), found):
                    total[name] += dense(grad, leaf)
        except GraphMismatch as change:
            raise UsageError(change.refusal) from change
        sizes = [Sizes.of(name, total[name], value) for name, value in whole.items()]
        bad, worst = auditor.differing(sizes, auditor.kink)
        if bad:
            raise UsageError(guards.MIXED)
        auditor.worst = max(auditor.worst, worst)
        auditor.checked += 1

    def jvp(self, direction: Params) -> Tensor:
        """`J v` for `v` a direction in parameter space (missing parameters stand still): (n, c)."""
        unknown = sorted(set(direction) - set(self.subject.leaves))
        if unknown:
            raise UsageError(
                f"no chosen parameter is called {', '.join(unknown)}; there are: {', '.join(self.subject.leaves)}"
            )
        moving = {
            name: direction[name].detach().to(leaf) if name in direction else torch.zeros_like(leaf)
            for name, leaf in self.subject.leaves.items()
        }
        with quiet(self.subject.device, self.subject.original), MATH:  # fused attention has first derivatives alone
            return torch.cat([self._push(rows, moving) for rows in self._blocks()])

    def _push(self, rows: slice, moving: Params) -> Tensor:
        batch = self._placed(rows)
        if self._forward:
            leaves = {name: leaf.detach() for name, leaf in self.subject.leaves.items()}
            try:
                pushed = jvp(lambda state: self.heads(self.subject(batch, state)), leaves, moving)[1]
                if rows.start in self._pushed or self._adjoint(batch, moving, pushed):
                    self._pushed.add(rows.start)
                    return pushed.detach()
            except torch.OutOfMemoryError:
                raise
            except (NotImplementedError, RuntimeError, UsageError) as error:  # or a model that cannot be copied
                LOG.info("no forward mode, so two backward passes instead (%r)", error)
            self._forward = False
        try:
            pushed = self._by_two_backward_passes(batch, moving)
            if self._adjoint(batch, moving, pushed):
                return pushed.detach()
        except torch.OutOfMemoryError:
            raise
        except (NotImplementedError, RuntimeError) as error:
            LOG.info("no second derivatives, so one backward pass per sample and output instead (%r)", error)
        gradients = one_by_one(self.subject, batch, list(moving), self.heads)
        return sum((gradients[name] @ v.flatten() for name, v in moving.items()), torch.tensor(0.0)).detach()

    def _adjoint(self, batch: Batch, moving: Params, pushed: Tensor) -> bool:
        """`<u, J v> = <Jᵀ u, v>` for a random u, with `Jᵀ u` from plain autograd on the model itself."""
        if self.certify is False:
            return True
        draw = generator(0, "adjoint", len(self._pushed))
        weights = torch.randn(pushed.shape, generator=draw, dtype=torch.float64).to(pushed)
        grads = pulled(self.subject, batch, self.heads, weights)[1]
        pairs = [(g, moving[name]) for name, g in zip(self.subject.leaves, grads) if g is not None]
        right = sum(float((dense(g, v).double() * v.double()).sum()) for g, v in pairs)
        left = float((weights.double() * pushed.double()).sum())
        scale = float((weights.double() * pushed.double()).norm()) + abs(right)
        self._auditor.checked += 1
        self._auditor.blocks += 1
        return abs(left - right) <= self._auditor.tolerance * (scale or 1.0)

    def _by_two_backward_passes(self, batch: Batch, moving: Params) -> Tensor:
        """Differentiate `Jᵀ u` by u, on the model itself."""
        values, leaves = self.heads(self.subject(batch)), self.subject.leaves
        return twice_back(values, list(leaves.values()), [moving[name] for name in leaves])

    def _blocks(self) -> Iterator[slice]:
        for start in range(0, len(self.batch), self.block):
            yield slice(start, min(len(self.batch), start + self.block))

    def _placed(self, rows: slice) -> Batch:
        return self.subject.placed(self.batch[rows])
