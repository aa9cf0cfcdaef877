"""Chain monomial: a low-rank quadratic target, the sum of products of neighbours on a ring of coordinates."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Split
from ntkscope.core.arguments import whole
from ntkscope.core.checked import Count, Several
from ntkscope.data._quadratic_form import Decay, quadratic_form
from ntkscope.data.registry import DATASETS


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


@DATASETS.register("chain-monomial")
def chain_monomial(
    *,
    root: str | None = None,
    seed: int = 0,
    dimension: Count = 32,
    rank: Several = 5,
    decay: Decay = None,
    unit_labels: bool = True,
    train: Several = 256,
    test: Count = 1024,
    dtype: str | torch.dtype = "float32",
) -> Split:
    """y = Σ_{k=1}^{r} x_{k mod r} x_{(k+1) mod r}, x ~ N(0, I) or with eigenvalues 1 / (1 + k^decay) in a random basis.

    Targets are divided by the standard deviation of the training targets (`unit_labels=False`: left as they are, with
    variance r for r >= 3 and standard normal inputs). The split's extras hold `form`, `covariance`, `eigenvalues`,
    `eigenbasis`, `label_scale` and `egop`, the expected gradient outer product: for isotropic inputs its eigenvalues
    are 4 cos²(2πm/r), so its rank is r, but r - 2 when r is a multiple of 4. `train` = 384 is figure 1's setting, 256
    figure 2's; the test size is not published. Reference: Beaglehole et al. (2024), equation 1, appendix H.

    >>> split = chain_monomial(train=10, test=5)
    >>> tuple(split.train.x.shape), round(float(split.train.y.std(correction=0)), 6)
    ((10, 32), 1.0)
    """
    return quadratic_form(
        chain_form(rank, whole(dimension, "dimension", low=rank, high=2**20)),
        name="chain-monomial",
        seed=seed,
        decay=decay,
        train=train,
        test=test,
        unit_labels=unit_labels,
        dtype=dtype,
        hidden={},
    )
