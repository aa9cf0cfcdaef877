"""The Jacobian of a network's outputs by its parameters as an operator, and tangent kernels that are never formed.

`J v` by forward-mode differentiation, `Jᵀ u` by one backward pass, so `K v = J₁ (J₂ᵀ v)` costs about two passes over the
data whatever the number of samples: the road to solvers that need `K @ v` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import Params, UsageError
from ntkscope.linalg import OperatorGram
from ntkscope.tangent import guards
from ntkscope.tangent.batches import Batch, as_batch
from ntkscope.tangent.engine import Heads
from ntkscope.tangent.func_road import dense
from ntkscope.tangent.subject import Selection, Subject, quiet


class Jacobian:
    """`J = ∂f/∂θ` at the inputs `x`: (n·c) × p, never formed.

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
        outputs: Sequence[int] | None = None,
        params: Selection = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        block: int = 256,
    ) -> None:
        guards.check_mode(model)
        self.subject = Subject(model, params=params, dtype=dtype, device=device)
        self.batch: Batch = as_batch(x, model)
        guards.check_placement(self.subject, self.batch)
        self.heads = Heads(outputs)
        self.block = block
        with quiet(self.subject.device):
            self.width = self.heads.count(guards.first_outputs(self.subject, self._placed(slice(0, 1))).shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.batch) * self.width, self.subject.parameters

    def vjp(self, cotangent: Tensor) -> Params:
        """`Jᵀ u` for `u` of shape (n, c): a gradient for every chosen parameter. One forward and one backward pass."""
        if cotangent.shape != (len(self.batch), self.width):
            raise UsageError(
                f"a cotangent of shape {tuple(cotangent.shape)} came; expected (n, c) = ({len(self.batch)}, {self.width})"
            )
        total = {name: torch.zeros_like(leaf) for name, leaf in self.subject.leaves.items()}
        leaves = list(self.subject.leaves.values())
        with quiet(self.subject.device):
            for rows in self._blocks():
                values = self.heads(self.subject(self._placed(rows)))
                weights = cotangent[rows].to(values)
                grads = torch.autograd.grad(values, leaves, grad_outputs=weights, allow_unused=True)
                for name, grad in zip(total, grads):
                    total[name] += dense(grad, total[name])
        return {name: value.detach() for name, value in total.items()}

    def jvp(self, direction: Params) -> Tensor:
        """`J v` for `v` a direction in parameter space (missing parameters stand still): (n, c)."""
        unknown = sorted(set(direction) - set(self.subject.leaves))
        if unknown:
            raise UsageError(
                f"no chosen parameter is called {', '.join(unknown)}; there are: {', '.join(self.subject.leaves)}"
            )
        leaves = {name: leaf.detach() for name, leaf in self.subject.leaves.items()}
        moving = {
            name: direction[name].to(leaf) if name in direction else torch.zeros_like(leaf)
            for name, leaf in leaves.items()
        }
        with quiet(self.subject.device):
            return torch.cat([self._push(self._placed(rows), leaves, moving) for rows in self._blocks()])

    def _push(self, batch: Batch, leaves: Params, moving: Params) -> Tensor:
        try:
            pushed = torch.func.jvp(lambda state: self.heads(self.subject(batch, state)), (leaves,), (moving,))[1]
            return pushed.detach()
        except (NotImplementedError, RuntimeError):  # an operation without forward mode: differentiate Jᵀu by u instead
            return self._push_by_two_backward_passes(batch, moving)

    def _push_by_two_backward_passes(self, batch: Batch, moving: Params) -> Tensor:
        values = self.heads(self.subject(batch))
        dummy = torch.zeros_like(values, requires_grad=True)
        pulled = torch.autograd.grad(
            values, list(self.subject.leaves.values()), grad_outputs=dummy, create_graph=True, allow_unused=True
        )
        pairs = [(grad, moving[name]) for name, grad in zip(self.subject.leaves, pulled) if grad is not None]
        (pushed,) = torch.autograd.grad([grad for grad, _ in pairs], [dummy], grad_outputs=[v for _, v in pairs])
        return pushed.detach()

    def _blocks(self) -> Iterator[slice]:
        for start in range(0, len(self.batch), self.block):
            yield slice(start, min(len(self.batch), start + self.block))

    def _placed(self, rows: slice) -> Batch:
        batch = self.batch[rows]
        moved = self.subject.cast or self.subject.moved
        return batch.to(self.subject.device, self.subject.dtype) if moved else batch


def entk_operator(model: nn.Module, x1: Any, x2: Any = None, **options: Any) -> OperatorGram:
    """The empirical NTK, row `i*c + k`, as `K @ v` alone: two passes over the data a vector, O(p) memory.

    `options` as for `Jacobian`.

    >>> K = entk_operator(nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    >>> K @ torch.tensor([1.0, 1.0])
    tensor([2., 3.])
    """
    left = Jacobian(model, x1, **options)
    right = left if x2 is None else Jacobian(model, x2, **options)

    def through(source: Jacobian, target: Jacobian, v: Tensor) -> Tensor:
        columns = v.reshape(len(source.batch), source.width, -1)
        made = [target.jvp(source.vjp(columns[..., k])).flatten() for k in range(columns.shape[-1])]
        return torch.stack(made, dim=1).reshape(target.shape[0], *v.shape[1:])

    return OperatorGram(
        (left.shape[0], right.shape[0]),
        lambda v: through(right, left, v),
        None if x2 is None else lambda v: through(left, right, v),
        symmetric=x2 is None,
        name="entk",
        rows=f"sample*{left.width} + output",
        outputs=left.width,
        dtype=left.subject.dtype,
        device=left.subject.device,
    )


def trace_operator(model: nn.Module, x1: Any, x2: Any = None, **options: Any) -> OperatorGram:
    """The unnormalised trace-NTK as `K @ v` alone: `Σ_c J_c (J_cᵀ v)`, two passes an output and vector."""
    left = Jacobian(model, x1, **options)
    right = left if x2 is None else Jacobian(model, x2, **options)

    def through(source: Jacobian, target: Jacobian, v: Tensor) -> Tensor:
        columns = v.reshape(len(source.batch), -1)
        result = torch.zeros(len(target.batch), columns.shape[1], dtype=columns.dtype, device=columns.device)
        for k in range(columns.shape[1]):
            for c in range(source.width):
                cotangent = torch.zeros(len(source.batch), source.width, dtype=columns.dtype, device=columns.device)
                cotangent[:, c] = columns[:, k]
                result[:, k] += target.jvp(source.vjp(cotangent))[:, c]
        return result.reshape(len(target.batch), *v.shape[1:])

    return OperatorGram(
        (len(left.batch), len(right.batch)),
        lambda v: through(right, left, v),
        None if x2 is None else lambda v: through(left, right, v),
        symmetric=x2 is None,
        name="trntk0",
        dtype=left.subject.dtype,
        device=left.subject.device,
    )
