"""Translation as augmentation: whole pixels, drawn anew each epoch, the same in any batch and in any ensemble."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ntkscope.core import Part, UsageError, derive_seed
from ntkscope.data import translate
from ntkscope.training import Translate, fit, fit_ensemble

PART = Part(torch.rand(11, 2, 6, 7, generator=torch.Generator().manual_seed(0)), torch.arange(11) % 2)


class Watched(nn.Module):
    """Remembers what it is shown."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.readout = nn.Linear(84, 2)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(x.detach().clone())
        return self.readout(x.flatten(1))


def naive(image: Tensor, down: int, right: int, fill: list[float]) -> Tensor:
    moved = torch.tensor(fill)[:, None, None].expand_as(image).clone()
    height, width = image.shape[1:]
    for i in range(height):
        for j in range(width):
            if 0 <= i - down < height and 0 <= j - right < width:
                moved[:, i, j] = image[:, i - down, j - right]
    return moved


@pytest.mark.parametrize("fill", [0.0, (0.25, -3.0)])
def test_pixels_are_those_of_the_transform_and_of_the_naive_loop(fill: Any) -> None:
    augment, items = Translate(3, fill=fill), torch.tensor([7, 0, 10, 3])
    for epoch in range(3):
        keys = torch.tensor([augment.keys(5, epoch)]).expand(4, -1)
        moved = augment.apply(PART.x[items], items, keys)
        expected = translate(PART, 3, derive_seed(5, "augment"), epoch=epoch, fill=fill)
        assert torch.equal(moved, expected.x[items])
        numbers = [fill] * 2 if isinstance(fill, float) else list(fill)
        for i, item in enumerate(items.tolist()):
            down, right = expected.extras["shift"][item].tolist()
            assert torch.equal(moved[i], naive(PART.x[item], down, right, numbers))


@pytest.mark.parametrize("batch_size", [None, 4])
def test_training_sees_every_image_moved_anew_each_epoch(batch_size: int | None) -> None:
    model, seed, epochs = Watched(), 9, 3
    fit(
        model, PART, lr=0.0, epochs=epochs, batch_size=batch_size, augment=Translate(2), seed=seed, measure=False
    ).final()
    per_epoch = 1 if batch_size is None else 3
    shown = [torch.cat(model.seen[e * per_epoch : (e + 1) * per_epoch]) for e in range(epochs)]
    for epoch, images in enumerate(shown):
        expected = translate(PART, 2, derive_seed(seed, "augment"), epoch=epoch).x
        order = torch.cdist(images.flatten(1), expected.flatten(1)).argmin(1)
        assert sorted(order.tolist()) == list(range(11))
        assert torch.equal(images, expected[order])
    again = Watched()
    fit(
        again, PART, lr=0.0, epochs=epochs, batch_size=batch_size, augment=Translate(2), seed=seed, measure=False
    ).final()
    assert all(torch.equal(a, b) for a, b in zip(model.seen, again.seen, strict=True))
    moved = [translate(PART, 2, derive_seed(seed, "augment"), epoch=epoch).extras["shift"] for epoch in (0, 1)]
    assert not torch.equal(*moved)


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(UsageError, match=r"max_shift=-1"):
        Translate(-1)
    with pytest.raises(UsageError, match="more than 6 pixels each way"):
        fit(Watched(), PART, lr=0.1, steps=1, augment=Translate(6)).final()
    flat = Part(PART.x.flatten(1), PART.y)
    with pytest.raises(UsageError, match=r"got inputs of shape \(\d+, 84\)"):
        fit_ensemble(lambda seed: nn.Linear(84, 2), flat, seeds=2, lr=0.1, steps=1, augment=Translate(1))
