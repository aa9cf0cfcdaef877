"""The image tasks of Samarin, Roth & Belius (2022): MNIST, its digits shifted at random, CIFAR-10; and LeNet for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from ntkscope import data, models
from ntkscope.core import Part, Split, derive_seed
from ntkscope.data.subsets import stratified
from ntkscope.training import Translate
from ntkscope_papers.shared.images import load_images

QUARTER = 4  # digits move by up to a quarter of the image's side: 7 of 28 pixels


@dataclass(frozen=True, eq=False)
class Task:
    """Images with their classes; of a shifted task the test images are shifted, once, and the training images are not yet."""

    name: str
    train: Part
    test: Part
    classes: int
    black: float
    """What enters at the edges of a shifted image, in its own units."""
    shift: int
    """Pixels up to which images are shifted; 0 where they are not."""
    seed: int

    @property
    def augment(self) -> Translate | None:
        """For gradient descent: shifts drawn anew each epoch."""
        return Translate(self.shift, self.black) if self.shift else None

    def fixed(self, epoch: int = 0) -> Part:
        """For solvers, and to measure training accuracy: the training images, shifted once; `epoch` numbers the draw."""
        if not self.shift:
            return self.train
        seed = derive_seed(self.seed, "fixed shifts")
        return data.translate(self.train, self.shift, seed, epoch=epoch, fill=self.black)

    def lenet(self, width: float | int, outputs: int, seed: int) -> nn.Module:
        """LeNet-5 for these images with so many outputs, `width` times as wide, in evaluation mode (which changes nothing)."""
        channels, size = self.train.x.shape[1:3]
        options = {"classes": outputs, "in_channels": channels, "image_size": size, "width": width, "seed": seed}
        return models.build("lenet", **options).eval()

    def take(self, train: int | None, seed: int = 0) -> Task:
        """The task with a stratified sample of the training images."""
        if train is None or train >= len(self.train):
            return self
        kept = torch.from_numpy(stratified(self.train.y.numpy(), train, seed, "task", self.name))
        return Task(self.name, self.train.take(kept), self.test, self.classes, self.black, self.shift, self.seed)


Tasks = Callable[[str], Task]


def tasks_of(known: Mapping[str, tuple[str, bool]], **sizes: Any) -> Tasks:
    """The tasks of an experiment by name, (data set, shifted), each read when it is first asked for: most legs need one."""
    return cache(lambda name: load_task(known[name][0], shifted=known[name][1], **sizes))


def load_task(
    dataset: str,
    *,
    shifted: bool,
    root: str | None,
    train: int | None = None,
    test: int | None = None,
    enlarge: int = 1,
    seed: int = 0,
) -> Task:
    """A data set as a task; `enlarge` makes the 8x8 digits of smoke runs large enough for LeNet."""
    split: Split = load_images(dataset, root=root, train=train, test=test, enlarge=enlarge)
    assert split.test is not None
    shift = split.train.x.shape[2] // QUARTER if shifted else 0
    black = float(split.train.x.min())
    held = split.test
    if shifted:
        held = data.translate(held, shift, derive_seed(seed, "test shifts"), fill=black)
    name = f"{dataset}-shifted" if shifted else dataset
    return Task(name, split.train, held, len(split.classes), black, shift, seed)
