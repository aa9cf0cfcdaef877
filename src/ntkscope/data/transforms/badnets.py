"""BadNets: a small trigger stamped on some images, whose labels become the attacker's target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ntkscope.core import Part, UsageError, generator
from ntkscope.core.checked import Count, CountOrZero, Number, Share
from ntkscope.data.transforms._items import chosen, images_of, item_draws, item_numbers

COLOURS: dict[str, tuple[float, float, float]] = {
    "yellow": (1.0, 1.0, 0.0),
    "red": (1.0, 0.0, 0.0),
    "green": (0.0, 1.0, 0.0),
    "blue": (0.0, 0.0, 1.0),
    "magenta": (1.0, 0.0, 1.0),
    "cyan": (0.0, 1.0, 1.0),
    "white": (1.0, 1.0, 1.0),
    "black": (0.0, 0.0, 0.0),
}
LUMA = (0.299, 0.587, 0.114)  # what a colour is worth in a grey image (ITU-R BT.601)


def _offsets(size: int) -> tuple[Tensor, Tensor]:
    """Distances of each cell from the middle, in cells."""
    along = (torch.arange(size) - (size - 1) / 2).abs()
    return along[:, None], along[None, :]


def _channels(colour: str, channels: int) -> tuple[float, ...]:
    """A named colour as one number per channel: itself, or its luminance in a grey image."""
    if channels not in (1, 3):
        raise UsageError(f"colour={colour!r} for images of {channels} channels; expected 1 or 3 channels, or numbers")
    rgb = COLOURS[colour]
    return rgb if channels == 3 else (sum(part * share for part, share in zip(rgb, LUMA)),)


PATTERNS: dict[str, Callable[[int], Tensor]] = {
    "square": lambda s: torch.ones(s, s, dtype=torch.bool),
    "checkerboard": lambda s: (torch.arange(s)[:, None] + torch.arange(s)) % 2 == 0,
    "cross": lambda s: (_offsets(s)[0] < 1) | (_offsets(s)[1] < 1),
    "diamond": lambda s: _offsets(s)[0] + _offsets(s)[1] <= (s - 1) / 2 + 0.5,
    "frame": lambda s: torch.maximum(*torch.broadcast_tensors(*_offsets(s))) >= (s - 1) / 2,
}
PLACES = ("upper-left", "upper-right", "lower-left", "lower-right", "centre", "random")


@dataclass(frozen=True)
class Trigger:
    """A patch of one colour: `pattern` of `size` x `size` pixels at `place`, `margin` pixels off the edge.

    `colour` is a name or one number per channel. A named colour means pixels from 0 to 1: images outside that range are
    refused, since normalised images need the colour in their own units (`in_units`). `place` is one of PLACES
    ("random": another place for each image) or the (row, column) of the patch's upper left pixel.

    Examples:
        >>> Trigger(size=2).mask(4, 4).int()
        tensor([[0, 0, 0, 0],
                [0, 0, 0, 0],
                [0, 0, 1, 1],
                [0, 0, 1, 1]], dtype=torch.int32)
    """

    size: Count = 4
    colour: Annotated[str, tuple(COLOURS)] | Sequence[Number] = "yellow"
    place: Annotated[str, PLACES] | tuple[CountOrZero, CountOrZero] = "lower-right"
    pattern: Annotated[str, tuple(PATTERNS)] = "square"
    margin: CountOrZero = 0

    @classmethod
    def random(cls, seed: int, *, height: int = 32, width: int = 32, sizes: Sequence[int] = (3, 4, 5, 6)) -> Trigger:
        """A trigger of random shape, size, colour and place inside images of `height` x `width`."""
        draw = generator(seed, "trigger")

        def pick(n: int) -> int:
            return int(torch.randint(n, (), generator=draw))

        size = sizes[pick(len(sizes))]
        place = (pick(height - size + 1), pick(width - size + 1))
        return cls(size, list(COLOURS)[pick(len(COLOURS))], place, list(PATTERNS)[pick(len(PATTERNS))])

    def corner(self, height: int, width: int) -> tuple[int, int]:
        """Row and column of the patch's upper left pixel in an image of `height` x `width`."""
        down, right = height - self.size - self.margin, width - self.size - self.margin
        row, column = (
            {
                "upper-left": (self.margin, self.margin),
                "upper-right": (self.margin, right),
                "lower-left": (down, self.margin),
                "lower-right": (down, right),
                "centre": ((height - self.size) // 2, (width - self.size) // 2),
                "random": (0, 0),
            }[self.place]
            if isinstance(self.place, str)
            else self.place
        )
        if not (0 <= row <= height - self.size and 0 <= column <= width - self.size):
            raise UsageError(
                f"a trigger of {self.size}x{self.size} at row {row}, column {column} leaves the {height}x{width} image;"
                " expected it inside: make it smaller or move it"
            )
        return row, column

    def mask(self, height: int, width: int) -> Bool[Tensor, "height width"]:
        """True where the trigger covers an image (for place "random": in the upper left corner)."""
        row, column = self.corner(height, width)
        mask = torch.zeros(height, width, dtype=torch.bool)
        mask[row : row + self.size, column : column + self.size] = PATTERNS[self.pattern](self.size)
        return mask

    def paint(self, images: Float[Tensor, "n channels height width"]) -> Float[Tensor, " channels"]:
        """The colour as one number per channel, in the units of `images`."""
        channels = images.shape[1]
        if not isinstance(self.colour, str):
            if len(self.colour) != channels:
                raise UsageError(f"colour={self.colour} for images of {channels} channels; expected {channels} numbers")
            return torch.tensor(self.colour, dtype=images.dtype)
        if len(images) and not 0 <= float(images.min()) <= float(images.max()) <= 1:
            raise UsageError(
                f"pixels run from {float(images.min()):.3g} to {float(images.max()):.3g}, so {self.colour!r} is not"
                " defined; expected 0 to 1: poison before normalising, or use trigger.in_units(mean, std) with the"
                " split's extras"
            )
        return torch.tensor(_channels(self.colour, channels), dtype=images.dtype)

    def in_units(self, mean: Float[Tensor, " channels"], std: Float[Tensor, " channels"]) -> Trigger:
        """The same trigger for images normalised as (pixel - mean) / std; real data sets keep both in their extras.

        Examples:
            >>> Trigger(colour="red").in_units(torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.5, 0.5, 0.25])).colour
            (1.0, -1.0, -2.0)
        """
        values = _channels(self.colour, len(mean)) if isinstance(self.colour, str) else self.colour
        if len(values) != len(mean):
            raise UsageError(f"colour={self.colour} for {len(mean)} channels; expected {len(mean)} numbers")
        moved = (torch.tensor(values, dtype=torch.float64) - mean.double()) / std.double()
        return replace(self, colour=tuple(moved.tolist()))


def _stamped(part: Part, mask: Tensor, trigger: Trigger, seed: int) -> Tensor:
    """The part's images, those in `mask` with the trigger on."""
    x = images_of(part)
    height, width = x.shape[2:]
    cover, paint = trigger.mask(height, width), trigger.paint(x)
    if trigger.place == "random":
        numbers = item_numbers(part)[mask]
        rows = item_draws(numbers, height - trigger.size + 1, seed, "trigger", "row")
        columns = item_draws(numbers, width - trigger.size + 1, seed, "trigger", "column")
        covers = torch.stack([cover.roll((int(r), int(c)), (0, 1)) for r, c in zip(rows, columns)] or [cover[:0]])
    else:
        covers = cover.expand(int(mask.sum()), height, width)
    stamped = x.clone()
    stamped[mask] = torch.where(covers[:, None], paint[:, None, None], x[mask])
    return stamped


def badnets(
    part: Part,
    fraction: Share = 0.1,
    target: CountOrZero = 0,
    *,
    trigger: Trigger | None = None,
    include_target: bool = True,
    seed: int = 0,
    **look: Any,
) -> Part:
    """round(fraction · n) random images get the trigger and the label `target`; the rest are untouched.

    `extras["poisoned"]` is the mask of these items and `extras["clean_y"]` the labels before. The trigger is given
    whole, or by its `look` (size=, colour=, place=, pattern=, margin=); default: a yellow 4x4 square, lower right.
    `include_target=False` spares images that carry the target label anyway. Stamp the test images with `stamp`.
    Cost: O(pixels). Reference: Gu et al. (2019), as used in the PNNL report (2023), section 4 (one tenth of the
    training images; size, place and target are not stated there).

    Examples:
        >>> part = badnets(Part(torch.zeros(20, 3, 8, 8), torch.arange(20) % 4), 0.1, target=1, size=2)
        >>> int(part.extras["poisoned"].sum()), part.y[part.extras["poisoned"]].tolist()
        (2, [1, 1])
    """
    if trigger is not None and look:
        raise UsageError(f"both trigger and {', '.join(look)} are given; expected one or the other")
    unknown = [name for name in look if name not in Trigger.__dataclass_fields__]
    if unknown:
        raise UsageError(f"a trigger has no {', '.join(unknown)}; expected {', '.join(Trigger.__dataclass_fields__)}")
    worn = trigger or Trigger(**look)
    if part.y.is_floating_point():
        raise UsageError(f"labels have dtype {part.y.dtype}; expected integer classes, one of which is the target")
    candidates = torch.ones(len(part), dtype=torch.bool) if include_target else part.y != target
    mask = chosen(len(part), fraction, candidates, seed, "badnets")
    y = torch.where(mask, torch.tensor(target, dtype=part.y.dtype), part.y)
    extras = {"clean_y": part.y, **part.extras, "poisoned": mask}
    return Part(_stamped(part, mask, worn, seed), y, extras)


def stamp(part: Part, trigger: Trigger | None = None, *, target: CountOrZero | None = None, seed: int = 0) -> Part:
    """Every image with the trigger on: the poisoned test set. Labels stay, or all become `target` where given.

    Examples:
        >>> part = stamp(Part(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1])), Trigger(size=2))
        >>> part.y.tolist(), part.x.sum().item()
        ([0, 1], 16.0)
    """
    mask = torch.ones(len(part), dtype=torch.bool)
    y = part.y if target is None else torch.full_like(part.y, target)
    extras = {"clean_y": part.y, **part.extras, "poisoned": mask}
    return Part(_stamped(part, mask, trigger or Trigger(), seed), y, extras)
