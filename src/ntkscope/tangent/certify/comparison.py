"""What a block under audit is compared by: random sums of its gradients, ours and autograd's, and the sizes of both; and
samples that are run without the rest of their block.

Sums wait until there are enough of them to be compared in few launches, and are read once: a GPU is not waited for in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ntkscope.core import Certificate
from ntkscope.tangent.blocks.features import Drawn, Feature
from ntkscope.tangent.model.subject import Subject

Squares = tuple[float, float, float, float]
LEAST = 16  # other samples up to which all are run again; of more, an eighth
PENDING = {"cpu": 2**18, "cuda": 2**22}  # numbers of sums that wait to be compared together


class Sizes(NamedTuple):
    """The norms of a parameter's sums: ours, autograd's, their difference, and those of several draws, which say how large such
    sums usually are. `shares`: for each of the latter its group and how many draws that has; the largest mean square counts."""

    name: str
    norms: Sequence[Tensor]
    shares: Sequence[tuple[int, int]] = ((0, 1),)

    @classmethod
    def of(cls, name: str, ours: Tensor, theirs: Tensor) -> Sizes:
        """Of two sums."""
        norms = [torch.linalg.vector_norm(each, dtype=torch.float64) for each in (ours, theirs, ours - theirs)]
        return cls(name, [*norms, norms[1]])

    def squared(self, norms: Sequence[float]) -> Squares:
        """The squares, given the norms as numbers."""
        means: dict[int, float] = {}
        for (group, count), norm in zip(self.shares, norms[3:], strict=True):
            means[group] = means.get(group, 0.0) + norm * norm / max(1, count)
        return norms[0] * norms[0], norms[1] * norms[1], norms[2] * norms[2], max(means.values())


class Table(NamedTuple):
    """The same norms (4, names) of many parameters at once: ours, autograd's, their difference, the mean of several draws."""

    names: Sequence[str]
    norms: Tensor

    @classmethod
    def of(cls, names: Sequence[str], sums: Tensor, theirs: Sequence[Tensor]) -> Table:
        """Of all draws (k, numbers) of our sums, parameter after parameter, the first of which are to be `theirs`."""
        which = _owners(tuple(value.numel() for value in theirs), sums.device)
        whole = torch.cat([value.flatten() for value in theirs])
        usual = torch.linalg.vector_norm(sums, dim=0, dtype=_double(sums)) / len(sums) ** 0.5
        squares = torch.stack([_squared(each) for each in (sums[0], whole, sums[0].to(_double(sums)) - whole, usual)])
        return cls(names, squares.new_zeros(4, len(theirs)).index_add_(1, which, squares).sqrt_())


@lru_cache(maxsize=16)
def _owners(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Whose each number is, of so many of each: sent to a device once, since blocks are alike."""
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(device)


def _double(values: Tensor) -> torch.dtype:
    return torch.complex128 if values.is_complex() else torch.float64


def _squared(values: Tensor) -> Tensor:
    return torch.view_as_real(values).double().square().sum(-1) if values.is_complex() else values.double().square()


class Pair(NamedTuple):
    """Two sums of a parameter that are to be compared, ours and autograd's, and where their sizes are to be noted."""

    name: str
    ours: Tensor
    theirs: Tensor
    drawn: Sequence[Drawn]
    into: list[Sizes | Table]

    @property
    def numbers(self) -> int:
        return 3 * self.theirs.numel() + sum(each.sums.numel() for each in self.drawn)


@dataclass
class Pending:
    """Sums that wait to be compared, of all blocks under audit: however many those are, few numbers wait."""

    pairs: list[Pair] = field(default_factory=list)
    numbers: int = 0

    def add(self, name: str, ours: Tensor, theirs: Tensor, drawn: Sequence[Drawn], into: list[Sizes | Table]) -> None:
        sums = [each._replace(sums=each.sums.to(theirs.dtype)) for each in drawn]
        pair = Pair(name, ours.reshape(theirs.shape).to(theirs.dtype), theirs, sums, into)
        self.pairs.append(pair)
        self.numbers += pair.numbers
        if self.numbers > PENDING.get(theirs.device.type, 0):
            self.compare()

    def compare(self) -> None:
        """Note their sizes."""
        pairs, self.pairs, self.numbers = self.pairs, [], 0
        if not pairs:
            return
        held_out = torch._foreach_sub([pair.ours for pair in pairs], [pair.theirs for pair in pairs])
        sides = [
            [pair.ours, pair.theirs, difference, *(each.sums for each in pair.drawn)]
            for pair, difference in zip(pairs, held_out)
        ]
        norms = iter(torch._foreach_norm([side for several in sides for side in several], 2, torch.float64))
        for pair, several in zip(pairs, sides):  # float64 holds the squares of any float32
            shares = [(each.group, each.draws) for each in pair.drawn]
            pair.into.append(Sizes(pair.name, list(islice(norms, len(several))), shares))


@dataclass
class Check:
    """One block under audit."""

    draws: Tensor  # (DRAWS, n, heads)
    weights: Tensor  # (n, heads): the first draw
    one: int  # the sample that is run alone
    truth: Mapping[str, Tensor] = field(default_factory=dict)  # what autograd gives
    alone: Mapping[str, Tensor] = field(default_factory=dict)  # what autograd gives for the one alone
    block: list[Sizes | Table] = field(default_factory=list)  # how the features compare, piece by piece
    own: list[Sizes | Table] = field(default_factory=list)  # and those of the one
    covered: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # rows that some piece answers for
    _cast: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def weights_for(self, feature: Feature) -> Tensor:
        """All draws in the numbers of a feature, converted once for all pieces; its own scales are applied before."""
        if feature.scale is not None:
            return self.draws
        dtype = feature.stored.dtype
        if dtype not in self._cast:
            self._cast[dtype] = self.draws.to(dtype)
        return self._cast[dtype]


@dataclass
class Account:
    """What was checked of one subject so far. `against`: what it was compared with."""

    subject: Subject = field(init=False)
    worst: float = field(default=0.0, init=False)
    checked: int = field(default=0, init=False)
    blocks: int = field(default=0, init=False)
    alone: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    fell_back: list[str] = field(default_factory=list, init=False)

    against: ClassVar[str] = "autograd"

    @property
    def tolerance(self) -> float:
        raise NotImplementedError

    def certificate(self) -> Certificate:
        counts = self.checked, self.blocks, self.alone
        changes, subject = tuple(sorted(self.subject.changes)), self.subject
        said = self.against, subject.title, subject.compared
        return Certificate(self.worst, self.tolerance, *counts, tuple(self.fell_back), changes, self.seconds, *said)


def squares(sizes: Sequence[Sizes | Table]) -> list[list[tuple[str, Squares]]]:
    """The squared norms of every parameter in each of `sizes`; the device is waited for once."""
    single = [norm for each in sizes if isinstance(each, Sizes) for norm in each.norms]
    tables = [each.norms.flatten() for each in sizes if isinstance(each, Table)]
    several = [*([stacked(single)] if single else []), *tables]
    read = torch.cat(several).tolist() if several else []
    held_out, rest = iter(read[: len(single)]), iter(read[len(single) :])
    found: list[list[tuple[str, Squares]]] = []
    for each in sizes:
        if isinstance(each, Sizes):
            found.append([(each.name, each.squared(list(islice(held_out, len(each.norms)))))])
        else:
            rows = [[norm * norm for norm in islice(rest, len(each.names))] for _ in range(4)]
            found.append([(name, (a, b, c, d)) for name, a, b, c, d in zip(each.names, *rows, strict=True)])
    return found


def stacked(numbers: Sequence[Tensor]) -> Tensor:
    """Single numbers as one float64 tensor; of one dtype they are converted together, which is two launches for all."""
    if len({number.dtype for number in numbers}) == 1:
        return torch.stack(list(numbers)).double()
    return torch.stack([number.double() for number in numbers])


@dataclass(frozen=True)
class Some:
    """Some samples of a block, as slices: a list of indices would be sent to a GPU, and everything before it waited for."""

    parts: tuple[slice, ...]

    def __call__(self, values: Tensor) -> Tensor:
        """A copy of their rows."""
        return torch.cat([values[part] for part in self.parts])

    def count(self, n: int) -> int:
        return sum(len(range(*part.indices(n))) for part in self.parts)

    @classmethod
    def others(cls, one: int, n: int) -> Some:
        """All samples but one; of many, one in eight."""
        if n - 1 <= LEAST:
            return cls((slice(0, one), slice(one + 1, n)))
        return cls((slice((one + 1 + one // 8 % 7) % 8, n, 8),))


class HeldOut(NamedTuple):
    """Some samples that were run without the others: their heads, and the outputs those are made of."""

    rows: Some
    values: Tensor
    outputs: Tensor
