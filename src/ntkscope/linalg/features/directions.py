"""Leading eigenvectors of feature matrices, computed on the smaller side and never as a matrix of the larger one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import eigsh
from torch import Tensor

from ntkscope.core import NumericalError

IDENTITY = 1e-6  # of a norm: entries of K are sums of rounded products
WHOLE = 1024  # rows up to which a matrix is decomposed whole; of larger ones a few eigenvectors are asked for


@dataclass(frozen=True, eq=False)
class Directions:
    """Unit eigenvectors, the strongest first, and the share of the trace that each carries."""

    vectors: Float[Tensor, "k d"]
    shares: Float[Tensor, " k"]


def leading_of_matrix(G: Float[Tensor, "d d"], k: int) -> Directions:
    """The k leading eigenvectors of a symmetric, positive semidefinite matrix, such as an AGOP. O(d³), or O(k d²) if large.

    >>> found = leading_of_matrix(torch.diag(torch.tensor([1.0, 3.0])), 1)
    >>> found.vectors.abs().tolist(), found.shares.tolist()
    ([[0.0, 1.0]], [0.75])
    """
    G = ((G + G.T) / 2).double()
    total = float(G.diagonal().sum())
    if not total > 0:
        raise NumericalError("the matrix is zero, so it has no leading eigenvector")
    k = min(k, len(G))
    if len(G) <= WHOLE or k >= len(G) - 1:
        values, vectors = torch.linalg.eigh(G)
    else:
        start = np.random.default_rng(0).normal(size=len(G))
        found = eigsh((G / total).cpu().numpy(), k=k, which="LA", v0=start)
        order = np.argsort(found[0])
        values = torch.from_numpy(found[0][order] * total).to(G)
        vectors = torch.from_numpy(found[1][:, order]).to(G)
    return Directions(vectors.flip(1)[:, :k].T.contiguous(), (values.flip(0)[:k] / total).clamp(0, 1))


def multiple_of_identity(K: Float[Tensor, "d d"]) -> bool:
    """Whether K is a multiple of the identity, as that of a layer whose outputs are the network's own: NFM and AGOP are then
    the same by definition.

    >>> multiple_of_identity(3 * torch.eye(2)), multiple_of_identity(torch.ones(2, 2))
    (True, False)
    """
    apart = K - torch.eye(len(K), dtype=K.dtype, device=K.device) * K.diagonal().mean()
    return float(apart.norm()) <= IDENTITY * float(K.norm())


def leading_of_features(W: Float[Tensor, "out in"], K: Float[Tensor, "out out"] | None, k: int) -> Directions:
    """The k leading eigenvectors of `WᵀKW`; without K, of `WᵀW`. O(in · out · min(in, out) + out³).

    >>> W = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> leading_of_features(W, None, 1).vectors.abs().tolist()
    [[1.0, 0.0, 0.0]]
    >>> leading_of_features(W, torch.diag(torch.tensor([1.0, 9.0])), 1).vectors.abs().tolist()
    [[0.0, 1.0, 0.0]]
    """
    B = W.double()
    if K is not None:
        values, vectors = torch.linalg.eigh(((K + K.T) / 2).double())
        B = (vectors * values.clamp_min(0).sqrt()).T @ B  # BᵀB = WᵀKW
    if B.shape[1] <= B.shape[0]:
        return leading_of_matrix(B.T @ B, k)
    found = leading_of_matrix(B @ B.T, k)
    rows = found.vectors @ B  # each of length √eigenvalue
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    sure = (lengths > 1e-9 * lengths[0]).flatten()  # the others are no eigenvectors but rounding
    return Directions(rows[sure] / lengths[sure], found.shares[sure])
