"""The synthetic data sets: quadratic forms of Gaussian inputs with a chosen spectral decay, and the alignment-reversing set."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Part, Split, UsageError, generator
from ntkscope.core.arguments import as_dtype


def spectrum(dimension: int, decay: float | None) -> Float[Tensor, " d"]:
    """Eigenvalues of the input covariance: all 1 without decay, else λ_k = 1 / (1 + k^decay), k from 1.

    `decay` = 0 gives I/2, `decay` = infinity one eigenvalue 1/2 and the rest 0: both half a projector.

    >>> spectrum(3, 2).tolist()
    [0.5, 0.2, 0.1]
    >>> spectrum(3, float("inf")).tolist()
    [0.5, 0.0, 0.0]
    """
    if decay is None:
        return torch.ones(dimension, dtype=torch.float64)
    return 1 / (1 + torch.arange(1, dimension + 1, dtype=torch.float64) ** float(decay))


def random_basis(dimension: int, seed: int) -> Float[Tensor, "d d"]:
    """A uniformly distributed orthogonal matrix (QR of a Gaussian one, signs fixed); O(d³)."""
    drawn = torch.randn(dimension, dimension, generator=generator(seed, "eigenbasis"), dtype=torch.float64)
    q, r = torch.linalg.qr(drawn)
    return q * r.diagonal().sign()


def quadratic_form(
    form: Float[Tensor, "d d"],
    *,
    name: str,
    seed: int = 0,
    decay: float | None = None,
    train: int = 256,
    test: int = 1024,
    unit_labels: bool = True,
    dtype: str = "float32",
    **hidden: Tensor,
) -> Split:
    """y = xᵀ A x / s with x ~ N(0, Σ), Σ = U diag(λ) Uᵀ: I without decay, else λ_k = 1 / (1 + k^decay), U random.

    s is the population standard deviation of the training targets when `unit_labels`, else 1; test shares it. The
    split's extras: `form` A, `label_scale` s, `covariance`, `eigenvalues`, `eigenbasis`, what is `hidden`, and `egop`, the
    expected gradient outer product of the scaled target, 4 A Σ A / s². The test size is not published.
    """
    kind, dimension = as_dtype(dtype), len(form)
    values = spectrum(dimension, decay)
    basis = torch.eye(dimension, dtype=torch.float64) if decay is None else random_basis(dimension, seed)
    covariance = (basis * values) @ basis.T

    def inputs(part: str, count: int) -> Tensor:
        z = torch.randn(count, dimension, generator=generator(seed, part, "x"), dtype=torch.float64)
        return (z * values.sqrt()) @ basis.T

    def target(x: Tensor) -> Tensor:
        return ((x @ form) * x).sum(dim=1)

    x_train, x_test = inputs("train", train), inputs("test", test)
    y_train, y_test = target(x_train), target(x_test)
    scale = y_train.std(correction=0) if unit_labels else torch.ones((), dtype=torch.float64)
    if not scale > 0:
        raise UsageError(f"the {train} training targets are all equal; expected targets that vary: lower decay")
    extras = {
        **hidden,
        "form": form,
        "label_scale": scale,
        "covariance": covariance,
        "eigenvalues": values,
        "eigenbasis": basis,
        "egop": 4 * form @ covariance @ form / scale**2,
    }
    return Split(
        Part(x_train.to(kind), (y_train / scale).to(kind)),
        Part(x_test.to(kind), (y_test / scale).to(kind)),
        name=name,
        extras={key: value.to(kind) for key, value in extras.items()},
    )


def chain_form(rank: int, dimension: int) -> Float[Tensor, "d d"]:
    """The symmetric A with xᵀ A x = Σ_{k=1}^{r} x_{k mod r} x_{(k+1) mod r}.

    >>> chain_form(3, 4) * 2
    tensor([[0., 1., 1., 0.],
            [1., 0., 1., 0.],
            [1., 1., 0., 0.],
            [0., 0., 0., 0.]], dtype=torch.float64)
    """
    form = torch.zeros(dimension, dimension, dtype=torch.float64)
    for k in range(1, rank + 1):
        form[k % rank, (k + 1) % rank] += 0.5
        form[(k + 1) % rank, k % rank] += 0.5
    return form


def chain_monomial(*, rank: int = 5, dimension: int = 32, **options: Any) -> Split:
    """y = Σ_{k=1}^{r} x_{k mod r} x_{(k+1) mod r}; `options` and extras as of `quadratic_form`.

    For isotropic inputs the eigenvalues of the EGOP are 4 cos²(2πm/r), so its rank is r, but r - 2 when r is a multiple of 4;
    targets left as they are have variance r for r >= 3. `train` = 384 is figure 1's setting, 256 figure 2's.
    Reference: Beaglehole et al. (2024), equation 1, appendix H.

    >>> split = chain_monomial(train=10, test=5)
    >>> tuple(split.train.x.shape), round(float(split.train.y.std(correction=0)), 6)
    ((10, 32), 1.0)
    """
    return quadratic_form(chain_form(rank, dimension), name="chain-monomial", **options)


def high_rank_polynomial(*, dimension: int = 128, train: int = 128, seed: int = 0, **options: Any) -> Split:
    """y = Σ_i (Qx)_i² = |Qx|², Q with standard normal entries, among the extras; the rest as of `quadratic_form`.

    Targets are divided by their standard deviation, not centred. Reference: Beaglehole et al. (2024), appendices C and H.
    """
    q = torch.randn(dimension, dimension, generator=generator(seed, "Q"), dtype=torch.float64)
    return quadratic_form(q.T @ q, name="high-rank-polynomial", train=train, seed=seed, Q=q, **options)


RIDGE, NOISE, OFFSET = 0.5, 1e-2, 1e-5  # ε₁, ε₂ and what is added to every label


def _spiked(count: int, dimension: int, random: torch.Generator) -> Float[Tensor, "n d"]:
    """Rows ~ N(0, 1 1ᵀ + ε₁ I)."""
    shared = torch.randn(count, 1, generator=random, dtype=torch.float64)
    return shared + math.sqrt(RIDGE) * torch.randn(count, dimension, generator=random, dtype=torch.float64)


def reverse(x1: Float[Tensor, "n1 d"], drawn: Float[Tensor, "n2 d"]) -> Float[Tensor, "n2 d"]:
    """X₂ = V₂ S₁⁻¹ U₁ᵀ with X₁ᵀX₁ = U₁ S₁ U₁ᵀ on its support and V₂ the left singular vectors of `drawn`; O(n d²).

    X₂ᵀX₂ = (X₁ᵀX₁)⁻² on the row space of X₁ (the squared pseudo-inverse) when n2 is at least its dimension r. With
    fewer rows it is the best approximation of rank n2: the directions where X₁ᵀX₁ is smallest are kept.
    """
    _, singular, rows = torch.linalg.svd(x1, full_matrices=False)
    rank = int((singular > singular[0] * max(x1.shape) * 2**-52).sum())
    kept = slice(rank - min(rank, len(drawn)), rank)
    inverse = rows[kept] / singular[kept, None].square()
    left = torch.linalg.svd(drawn, full_matrices=False)[0]
    return left[:, : len(inverse)] @ inverse


def _halves(
    n: int, dimension: int, balance: float, reading: str, unit: bool, seed: int, name: str
) -> tuple[Tensor, Tensor]:
    """X₁ and X₂ before the noise."""
    first = max(1, round(balance * n))
    rows = first if reading == "support" else n
    x1 = _spiked(rows, dimension, generator(seed, name, "x1"))
    if unit:
        x1 = x1 / torch.linalg.matrix_norm(x1, 2)
    drawn = _spiked(n - first if reading == "support" else n, dimension, generator(seed, name, "x2"))
    x2 = reverse(x1, drawn)
    if reading == "support":
        return x1, x2
    return x1[:first], x2[torch.randperm(n, generator=generator(seed, name, "subsample"))[: n - first]]


def alignment_reversing(
    *,
    seed: int = 0,
    balance: float = 0.1,
    n: int = 1024,
    dimension: int = 1024,
    reading: str = "support",
    unit_norm: bool = True,
    dtype: str = "float32",
) -> Split:
    """X = [X₁; X₂] + ε₂ Z: γn rows X₁ ~ N(0, 11ᵀ + ε₁ I) with label 1, and rows X₂ with X₂ᵀX₂ = (X₁ᵀX₁)⁻², label 0.

    γ is `balance`. As printed the construction does not
    exist for n = d: γn < d rows leave X₁ᵀX₁ singular and (1 - γ)n rows cannot carry d orthonormal columns. Readings:

    - "support": the inverse is taken on the row space of X₁, where the law holds exactly if (1 - γ)n >= rank X₁ (for
      n = d: γ <= 1/2); beyond, X₂ᵀX₂ is the best approximation the remaining rows allow. n > d inverts everything.
    - "subsample": both halves are built at full size n and γn and (1 - γ)n of their rows kept; the law holds for the
      full halves only. Needs n >= dimension.

    `unit_norm` divides X₁ by its spectral norm. Without it (the text states no scale) S = X₁ᵀX₁ has an eigenvalue
    near γnd, S³ + I is rank-one-like instead of close to I, and the reversal is not seen under "support".
    The test part is an independent draw of the same construction. Extras: `first`, the mask of rows from X₁; the
    split's noise-free training halves `x1` and `x2`. Cost: O(n d²). Reference: Beaglehole et al. (2024), appendix F.

    >>> split = alignment_reversing(n=12, dimension=12, balance=0.25, dtype="float64")
    >>> x1, x2 = split.extras["x1"], split.extras["x2"]
    >>> torch.allclose(x2.T @ x2, torch.linalg.pinv(x1.T @ x1, rtol=1e-9) @ torch.linalg.pinv(x1.T @ x1, rtol=1e-9))
    True
    """
    if reading == "subsample" and n < dimension:
        raise UsageError(f"n={n} < dimension={dimension}; reading 'subsample' inverts a full-rank X₁ᵀX₁: raise n")
    kind = as_dtype(dtype)

    def part(name: str) -> tuple[Part, Tensor, Tensor]:
        x1, x2 = _halves(n, dimension, balance, reading, unit_norm, seed, name)
        x, first = torch.cat([x1, x2]), torch.arange(n) < len(x1)
        x = x + NOISE * torch.randn(x.shape, generator=generator(seed, name, "noise"), dtype=torch.float64)
        return Part(x.to(kind), (first.double() + OFFSET).to(kind), {"first": first}), x1.to(kind), x2.to(kind)

    train, x1, x2 = part("train")
    return Split(train, part("test")[0], name="alignment-reversing", extras={"x1": x1, "x2": x2})
