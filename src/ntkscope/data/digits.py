"""The 8x8 handwritten digits that ship inside scikit-learn."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int64
from sklearn.datasets import load_digits
from torch import Tensor

from ntkscope.core import Part, Split, generator
from ntkscope.core.arguments import Real, as_dtype
from ntkscope.core.checked import Tolerance
from ntkscope.data.registry import DATASETS


def stratified(y: Int64[Tensor, " n"], fraction: Real, seed: int) -> tuple[Int64[Tensor, " a"], Int64[Tensor, " b"]]:
    """Two ascending index sets that part `y`, the second with round(`fraction` · n_c) items of each class c.

    >>> rest, held = stratified(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), 0.25, seed=0)
    >>> len(rest), len(held)
    (6, 2)
    """
    held = torch.zeros(len(y), dtype=torch.bool)
    for label in y.unique():
        items = (y == label).nonzero().flatten()
        order = torch.randperm(len(items), generator=generator(seed, "split", int(label)))
        held[items[order[: round(fraction * len(items))]]] = True
    return (~held).nonzero().flatten(), held.nonzero().flatten()


@DATASETS.register("digits")
def digits(
    *, root: str | None = None, seed: int = 0, test_fraction: Tolerance = 0.2, dtype: str | torch.dtype = "float32"
) -> Split:
    """1,797 grey images (n, 1, 8, 8) of the ten digits, pixels 0..16 divided by 16, split class by class.

    `seed` chooses which items are test items; `extras["index"]` of each part is an item's number in the source.
    `root` is not used: the images come with scikit-learn. Reference: E. Alpaydin and C. Kaynak (1998), UCI repository.

    >>> split = digits()
    >>> tuple(split.train.x.shape), tuple(split.test.x.shape), float(split.train.x.max())
    ((1438, 1, 8, 8), (359, 1, 8, 8), 1.0)
    """
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images.astype(np.float64)).reshape(-1, 1, 8, 8).div(16).to(as_dtype(dtype))
    y = torch.from_numpy(labels.astype(np.int64))
    rest, held = stratified(y, test_fraction, seed)
    train, test = (Part(x[index], y[index], {"index": index}) for index in (rest, held))
    return Split(train, test, classes=tuple("0123456789"), name="digits")
