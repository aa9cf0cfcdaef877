"""scikit-learn's digits."""

from __future__ import annotations

import torch

from contracts.dataset import DatasetContract, given
from ntkscope.core import Split


class TestDigits(DatasetContract):
    name = "digits"
    item_shape = (1, 8, 8)
    classes = 10
    sizes = given(train=1438, test=359)
    value_range = (0.0, 1.0)
    balance = 0.01

    def check_defining_property(self, split: Split) -> None:
        index = torch.cat([split.train.extras["index"], split.test.extras["index"]])
        assert torch.equal(index.sort().values, torch.arange(1797))  # every source image once, in one part
        grey = torch.cat([split.train.x, split.test.x]) * 16
        assert torch.equal(grey, grey.round())
        assert float(grey.max()) == 16
        # stratified: a class's share in the two parts differs by less than one item of the test part
        for label in range(10):
            share = [float((part.y == label).float().mean()) for part in (split.train, split.test)]
            assert abs(share[0] - share[1]) < 1.5 / 359
