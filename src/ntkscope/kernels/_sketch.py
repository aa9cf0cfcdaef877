"""What a random projection of all gradients of a model is made of."""

from __future__ import annotations

from dataclasses import dataclass

from ntkscope.linalg.sketches.sketch import KINDS
from ntkscope.linalg.sketches.sparse import SparseSketch


@dataclass(frozen=True)
class Sketch:
    """One projection of all gradients of a model; `kronecker`: the parameters whose projection is factored."""

    kind: str
    dim: int
    seed: int
    sparsity: int = 1
    kronecker: frozenset[str] = frozenset()

    @property
    def dense(self) -> bool:
        return self.kind in KINDS

    def sparse(self, name: str, numbers: int) -> SparseSketch:
        """The sparse projection of the parameter called `name`."""
        return SparseSketch(self.seed, name, numbers, self.dim, self.sparsity)
