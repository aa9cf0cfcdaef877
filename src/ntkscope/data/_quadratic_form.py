"""Quadratic forms of Gaussian inputs with a chosen spectral decay: what the polynomial tasks of the ansatz share."""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Part, Split, UsageError, generator
from ntkscope.core.arguments import as_dtype
from ntkscope.core.checked import within

Decay: TypeAlias = Annotated[float, within(low=0, high=math.inf)] | None


def spectrum(dimension: int, decay: Decay) -> Float[Tensor, " d"]:
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


def expected_gradient_outer_product(
    form: Float[Tensor, "d d"], covariance: Float[Tensor, "d d"]
) -> Float[Tensor, "d d"]:
    """E[∇y ∇yᵀ] = 4 A Σ A for y = xᵀ A x, A symmetric, x ~ N(0, Σ)."""
    return 4 * form @ covariance @ form


def quadratic_form(
    form: Float[Tensor, "d d"],
    *,
    name: str,
    seed: int,
    decay: Decay,
    train: int,
    test: int,
    unit_labels: bool,
    dtype: str | torch.dtype,
    hidden: dict[str, Tensor],
) -> Split:
    """y = xᵀ A x / s with x ~ N(0, Σ), Σ = U diag(λ) Uᵀ (U random, or I without decay).

    s is the population standard deviation of the training targets when `unit_labels`, else 1; test shares it. The
    split's extras: `form` A, `label_scale` s, `covariance`, `eigenvalues`, `eigenbasis`, and `egop`, the expected
    gradient outer product of the scaled target.
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
        "egop": expected_gradient_outer_product(form, covariance) / scale**2,
    }
    return Split(
        Part(x_train.to(kind), (y_train / scale).to(kind)),
        Part(x_test.to(kind), (y_test / scale).to(kind)),
        name=name,
        extras={key: value.to(kind) for key, value in extras.items()},
    )
