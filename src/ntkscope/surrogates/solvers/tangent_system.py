"""The least-squares system of a linearised network, `√W J v = √W b`, as products, as a matrix, or as its kernel."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.core import NumericalError, Params, Part, UsageError
from ntkscope.core.arguments import one_hot
from ntkscope.core.model.tree import take
from ntkscope.kernels import Tangent, kernel
from ntkscope.linalg import Gram, OperatorGram
from ntkscope.tangent.model.batches import as_batch
from ntkscope.tangent.model.subject import place, quiet
from ntkscope.tangent.operators.jacobian import Jacobian
from ntkscope.training.evaluation import Weights, item_weights
from ntkscope.training.losses import check_class_numbers

T = TypeVar("T")
BLOCK = {"cpu": 256, "cuda": 4096}  # samples that pass through the network at a time
ROWS = 64  # samples whose gradients are formed at a time


@dataclass(frozen=True, eq=False)
class Problem:
    """What is solved: `Σ_i w_i ‖f₀(x_i) + J(x_i) u - y_i‖²` over the parameters `names` of `model` at w₀.

    `origin`: w₀ where the unknown is w = w₀ + u, None where it is u. Without `offset`, f₀ counts as 0.
    """

    model: nn.Module
    names: tuple[str, ...]
    part: Part
    weights: Weights
    offset: bool
    origin: Params | None
    dtype: torch.dtype


class TangentSystem:
    """`A = √W J`, (n c) × p, and `b = √W (y - f₀)` (plus `√W J w₀` where the unknown is w); row `i c + k`: output k of item i.

    A `LinearMap`: `matvec` is one forward-mode pass over the data, `rmatvec` one backward pass, both in the problem's dtype and
    returned in float64.
    """

    def __init__(self, problem: Problem) -> None:
        if not isinstance(problem.part, Part):
            raise UsageError(
                f"got data of type {type(problem.part).__name__}; expected a Part, inputs with their targets:"
                " ntkscope.core.Part(x, y)"
            )
        if not problem.dtype.is_floating_point:
            raise UsageError(f"got dtype={problem.dtype}; expected a floating-point one such as torch.float64")
        if len(problem.part) == 0:
            raise UsageError("got no items to solve for; expected at least one")
        self.problem = problem
        self.where = place(problem.model)
        self.batch = as_batch(problem.part.x, problem.model)
        self.jacobian = Jacobian(
            problem.model,
            problem.part.x,
            params=set(problem.names).__contains__,
            dtype=problem.dtype,
            device=self.where,
            block=BLOCK.get(self.where.type, 256),
        )
        self.leaves = self.jacobian.subject.leaves
        self.shape = self.jacobian.shape
        self.outputs = self.jacobian.width
        scale = item_weights(problem.part, problem.weights)
        self.weights = torch.ones(len(problem.part)) if scale is None else scale
        self.weights = self.weights.detach().to(self.where, torch.float64)
        if not bool(torch.isfinite(self.weights).all() and (self.weights >= 0).all() and (self.weights > 0).any()):
            raise UsageError(
                "got item weights that are not finite, negative or all zero; expected finite ones, some above 0"
            )
        self.roots: Float[Tensor, " rows"] = self.weights.sqrt().repeat_interleave(self.outputs)
        targets = regression_targets(problem.part.y, self.outputs).to(self.where)
        start = self._in_blocks(self._outputs) if problem.offset else torch.zeros_like(targets)
        self.gap: Float[Tensor, " rows"] = (targets - start).flatten()
        """y - f₀: what J u is to be."""
        self.b = self.roots * self.gap
        if problem.origin is not None:
            self.b = self.b + self.matvec(self.flat(problem.origin)[:, None])[:, 0]

    def _outputs(self) -> Float[Tensor, "n c"]:
        subject, size = self.jacobian.subject, self.jacobian.block
        with quiet(subject.device, subject.original), torch.no_grad():
            found = [subject(subject.placed(self.batch[i : i + size])) for i in range(0, len(self.batch), size)]
        outputs = torch.cat(found).to(torch.float64)
        if not bool(torch.isfinite(outputs).all()):
            bad = (~torch.isfinite(outputs)).any(1).nonzero().flatten()
            raise NumericalError(
                f"the network gives NaN or infinity for {len(bad)} items, the first at index {int(bad[0])}; drop them"
            )
        return outputs

    # -- vectors of parameters ----------------------------------------------------------------------------------------

    def flat(self, values: Params) -> Float[Tensor, " p"]:
        return torch.cat([values[name].detach().to(self.where, torch.float64).flatten() for name in self.leaves])

    def unflat(self, vector: Float[Tensor, " p"]) -> Params:
        pieces = vector.split([leaf.numel() for leaf in self.leaves.values()])
        return {name: piece.reshape(leaf.shape) for (name, leaf), piece in zip(self.leaves.items(), pieces)}

    # -- products -----------------------------------------------------------------------------------------------------

    def matvec(self, V: Float[Tensor, "p k"]) -> Float[Tensor, "rows k"]:
        columns = [
            self._in_blocks(partial(self.jacobian.jvp, self.unflat(column))).flatten().to(torch.float64)
            for column in V.T
        ]
        return self.roots[:, None] * torch.stack(columns, dim=1)

    def rmatvec(self, U: Float[Tensor, "rows k"]) -> Float[Tensor, "p k"]:
        weighted = (self.roots[:, None] * U).T.reshape(-1, len(self.batch), self.outputs)
        pulled = [self._in_blocks(partial(self.jacobian.vjp, column)) for column in weighted]
        return torch.stack([self.flat(column) for column in pulled], dim=1)

    def _in_blocks(self, work: Callable[[], T]) -> T:
        """The work on blocks of samples, smaller ones where the device's memory does not hold them."""
        while True:
            try:
                return work()
            except torch.OutOfMemoryError:
                if self.jacobian.block == 1:
                    raise
            self.jacobian.block = max(1, self.jacobian.block // 2)
            torch.cuda.empty_cache()

    # -- matrices -----------------------------------------------------------------------------------------------------

    def dense(self) -> Float[Tensor, "rows p"]:
        """J itself, without the weights, rows formed a few samples at a time."""
        tangent = Tangent(self.problem.model, **self._how())
        matrix = torch.empty(self.shape, dtype=self.problem.dtype, device=self.where)
        for i in range(0, len(self.batch), ROWS):
            made = tangent.features(take(self.problem.part.x, slice(i, i + ROWS)))
            rows = matrix[i * self.outputs : (i + ROWS) * self.outputs]
            at = 0
            for name, leaf in self.leaves.items():
                rows[:, at : at + leaf.numel()] = made[name].reshape(len(rows), -1)
                at += leaf.numel()
        return matrix

    def gram(self, memory: int, store: str | os.PathLike[str] | None, progress: bool) -> Gram:
        """`A Aᵀ`, the weighted empirical NTK, computed entry by entry."""
        how: dict[str, Any] = {"memory": memory, "store": store, "progress": progress}
        return kernel("entk", self.problem.model, self.problem.part.x, **self._how(), **how).scaled(self.roots)

    def operator(self) -> Gram:
        """`A Aᵀ` by products alone."""
        return OperatorGram(
            (self.shape[0],) * 2,
            lambda v: self.matvec(self.rmatvec(v)),
            symmetric=True,
            name="entk",
            dtype=torch.float64,
            device=self.where,
        )

    def _how(self) -> dict[str, Any]:
        names = set(self.problem.names)
        return {"params": names.__contains__, "dtype": self.problem.dtype, "device": self.where}


def regression_targets(y: Tensor, outputs: int) -> Float[Tensor, "n c"]:
    """Targets as rows of numbers in float64: class labels become one-hot rows, a single column may be (n,)."""
    if not y.is_floating_point():
        check_class_numbers(y, outputs)
        return one_hot(y, outputs)
    rows = y.detach()[:, None] if y.dim() == 1 else y.detach()
    if rows.shape != (len(y), outputs):
        raise UsageError(f"got targets of shape {tuple(y.shape)} for {outputs} outputs; expected ({len(y)}, {outputs})")
    if not bool(torch.isfinite(rows).all()):
        raise NumericalError("targets hold NaN or infinity; drop those items")
    return rows.to(torch.float64)
