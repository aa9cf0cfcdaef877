"""High-rank polynomial: a quadratic target that depends on every direction of its inputs."""

from __future__ import annotations

import torch

from ntkscope.core import Split, generator
from ntkscope.core.checked import Count, Several
from ntkscope.data._quadratic_form import Decay, quadratic_form
from ntkscope.data.registry import DATASETS


@DATASETS.register("high-rank-polynomial")
def high_rank_polynomial(
    *,
    root: str | None = None,
    seed: int = 0,
    dimension: Count = 128,
    decay: Decay = None,
    unit_labels: bool = True,
    train: Several = 128,
    test: Count = 1024,
    dtype: str | torch.dtype = "float32",
) -> Split:
    """y = Σ_i (Qx)_i² = |Qx|², Q with standard normal entries; x ~ N(0, I) or with eigenvalues 1 / (1 + k^decay).

    Targets are divided by (not centred: their mean is Tr(QΣQᵀ) / s) the standard deviation s of the training targets.
    The split's extras are those of "chain-monomial" and `Q`. The test size is not published.
    Reference: Beaglehole et al. (2024), appendices C and H.

    >>> split = high_rank_polynomial(dimension=8, train=10, test=5, unit_labels=False)
    >>> x, Q = split.train.x, split.extras["Q"]
    >>> torch.allclose(split.train.y, (x @ Q.T).square().sum(dim=1), rtol=1e-5)
    True
    """
    q = torch.randn(dimension, dimension, generator=generator(seed, "Q"), dtype=torch.float64)
    return quadratic_form(
        q.T @ q,
        name="high-rank-polynomial",
        seed=seed,
        decay=decay,
        train=train,
        test=test,
        unit_labels=unit_labels,
        dtype=dtype,
        hidden={"Q": q},
    )
