"""Label noise: some labels replaced by other ones, and the mask of which."""

from __future__ import annotations

import torch

from ntkscope.core import Part, generator
from ntkscope.core.checked import Several, Share
from ntkscope.data._validation import check_labels
from ntkscope.data.transforms._items import chosen


def label_noise(part: Part, fraction: Share, classes: Several, seed: int = 0) -> Part:
    """round(fraction · n) random items get another class, uniform over the `classes` - 1 that are not their own.

    `extras["noisy"]` is the mask of these items and `extras["clean_y"]` the labels before. O(n).

    Examples:
        >>> noisy = label_noise(Part(torch.zeros(10, 1), torch.zeros(10, dtype=torch.int64)), 0.3, classes=3)
        >>> int(noisy.extras["noisy"].sum()), bool((noisy.y[noisy.extras["noisy"]] != 0).all())
        (3, True)
    """
    check_labels(part.y, classes)
    mask = chosen(len(part), fraction, torch.ones(len(part), dtype=torch.bool), seed, "label noise", "items")
    steps = torch.randint(1, classes, (len(part),), generator=generator(seed, "label noise", "labels"))
    y = torch.where(mask, (part.y + steps) % classes, part.y)
    return Part(part.x, y, {"clean_y": part.y, **part.extras, "noisy": mask})
