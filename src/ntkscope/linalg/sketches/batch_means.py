"""Standard errors of sketched kernels: the columns of the features fall into groups that are independent repeats.

Column k belongs to group `k mod groups`. With `x_g` the part of an entry that group g gives, the entry is `Σ_g x_g`, and
its variance is estimated by `B/(B-1) Σ_g (x_g - x̄)²` from the B groups. For cosines the same is done with the linear part
of the quotient in its three sums (the delta method): `z_g = x_g - K_ij (d_g(i) + d_g(j)) / 2`, d_g the share of group g in
the squared norm.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

GROUPS = 16
HELD = 1 << 23  # float64 numbers of all groups held at a time


def group_count(dim: int) -> int:
    """The largest divisor of `dim` up to 16; 1 means that there is nothing to compare.

    >>> group_count(10240), group_count(100), group_count(101)
    (16, 10, 1)
    """
    return max(k for k in range(1, GROUPS + 1) if dim % k == 0)


def standard_errors(
    left: Float[Tensor, "n p"], right: Float[Tensor, "m p"], groups: int, *, cosines: bool
) -> Float[Tensor, "n m"]:
    """The standard error of every entry of `left rightᵀ`, in float64; as much work as the product itself.

    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    >>> standard_errors(rows, rows, 2, cosines=False).tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """
    found = torch.empty(len(left), len(right), dtype=torch.float64, device=left.device)
    right_shares = torch.stack([right[:, g::groups].double().square().sum(1) for g in range(groups)])
    step = max(1, HELD // max(1, groups * len(right)))
    for start in range(0, len(left), step):
        rows = left[start : start + step]
        parts = torch.stack([(rows[:, g::groups] @ right[:, g::groups].T).double() for g in range(groups)])
        expected = parts.sum(0) / groups
        if cosines:
            shares = torch.stack([rows[:, g::groups].double().square().sum(1) for g in range(groups)])
            expected = expected * ((shares[:, :, None] + right_shares[:, None, :]) * (groups / 2))
        found[start : start + step] = (parts - expected).square_().sum(0)
    return found.mul_(groups / (groups - 1)).sqrt_()
