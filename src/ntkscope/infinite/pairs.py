"""A network prepared for inputs of one shape: variances of a block of inputs, then covariances of tiles of pairs.

Covariances of all positions of two images are needed where images are pooled: positions², a million numbers a pair for
32 × 32. But convolutions and activations at (p, p + Δ) use only (p + δ, p + δ + Δ): every shift Δ goes through the layers
on its own. So a network whose pooling is one global mean is run shift by shift, on arrays that stay in cache, and only
shifts that survive its strides are run at all. Other pooling takes the road with all positions at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ntkscope.core import MemoryBudgetError
from ntkscope.infinite.field import Field, Shift, shifted
from ntkscope.infinite.layer import Context, Need, Shape
from ntkscope.infinite.rules.conv import Conv
from ntkscope.infinite.rules.flatten import Flatten
from ntkscope.infinite.rules.pooling import GlobalAvgPool
from ntkscope.infinite.rules.serial import Serial
from ntkscope.tangent.plan import show_bytes

CACHE = 2**20  # bytes one array of a tile should take on a CPU, so that the few of a layer stay in cache
DEVICE = 2**28  # the same on a GPU, where arrays should be large
ARRAYS = 8  # arrays of a tile's size that are alive at once
VECTOR_TILE = 512
BLOCK = 256  # images whose variances are held at once


@dataclass(frozen=True)
class Block:
    """Some inputs, positions first, and their variances wherever the network asks for them."""

    x: Tensor
    """(*spatial, n, channels)."""
    variances: dict[str, Tensor]
    diagonal: list[Tensor]
    """K(x, x) of NNGP and NTK; empty where it would cost as much as pairs do."""

    def __len__(self) -> int:
        return self.x.shape[-2]

    def __getitem__(self, chosen: slice) -> Block:
        variances = {path: q[..., chosen] for path, q in self.variances.items()}
        return Block(self.x[..., chosen, :], variances, [])


@dataclass(frozen=True)
class Network:
    """Layers laid out flat, the shape of the inputs, and which road pairs take."""

    layers: Serial
    shape: Shape
    tangent: bool
    standard: bool
    pooled: int | None = None
    """Where the global mean sits, when pairs go shift by shift to it."""
    wrap: bool = False
    single: Need = Need.SAME
    """What the pass over single inputs has to deliver at its end."""
    fan_in: dict[str, int | None] = field(default_factory=dict)

    @staticmethod
    def of(layers: Serial, shape: Shape, tangent: bool, standard: bool) -> Network:
        """Check every layer against the shape before it, and choose the road."""
        if shape.spatial and layers.layers and isinstance(layers.layers[0], Flatten):
            layers, shape = Serial(layers.layers[1:]), Flatten().shape(shape, "0")
        layers.shape(shape, "")
        fan_in = dict(layers.affine(shape, ""))
        pooled, wrap = None, False
        for i, each in enumerate(layers.layers):
            if isinstance(each, GlobalAvgPool):
                head = Serial(layers.layers[:i])
                wrap = any(isinstance(e, Conv) and e.circular for e in head.layers) or not head.follows_shifts(False)
                pooled = i if head.follows_shifts(wrap) else None
                break
        single = Need.SAME if layers.need(Need.SAME, True) < Need.FULL else Need.NOTHING
        return Network(layers, shape, tangent, standard, pooled, wrap and pooled is not None, single, fan_in)

    @property
    def knows_diagonal(self) -> bool:
        return self.single != Need.NOTHING

    @property
    def full(self) -> bool:
        """Whether pairs carry all pairs of positions."""
        return self.pooled is None and self.layers.need(Need.SAME, False) == Need.FULL

    def plan(self, samples: int, memory: int, like: Tensor) -> tuple[int, int]:
        """How many inputs make a block and a tile."""
        positions = math.prod(self.shape.spatial)
        if not self.shape.spatial:
            return max(VECTOR_TILE, min(samples, 4096)), VECTOR_TILE
        numbers = positions**2 if self.full else positions * (4 if self.pooled is not None else 1)
        allowed = min(DEVICE if like.is_cuda else CACHE, memory // ARRAYS) // (numbers * like.element_size())
        if memory < ARRAYS * numbers * like.element_size():
            needed = ARRAYS * numbers * like.element_size()
            raise MemoryBudgetError(
                f"memory={show_bytes(memory)} came for {positions} positions an image; the smallest budget that works is"
                f" {show_bytes(needed)} ({needed} bytes): raise memory="
            )
        tile = max(1, math.isqrt(max(1, allowed)))
        return max(tile, min(samples, BLOCK)), tile

    def block(self, x: Tensor) -> Block:
        """Variances of inputs (n, c, *spatial)."""
        if x.dim() > 2 and not self.shape.spatial:
            x = x.flatten(1)
        x = x.movedim((0, 1), (-2, -1)).contiguous()
        noted: dict[str, Tensor] = {}
        context = Context(noted, None, self.tangent, self.standard, self.fan_in)
        need = self.layers.need(self.single, True)
        diagonal: list[Tensor] = []
        if need != Need.NOTHING:
            start = _every_position(x, x, True) if need == Need.FULL else x.square().mean(-1)
            begun = Field(start, None, self.shape.spatial, need == Need.FULL)
            ended = self.layers.propagate(begun, context, "", self.single)
            if ended is not None:
                diagonal = [ended.nngp]
                if self.tangent:
                    diagonal.append(torch.zeros_like(ended.nngp) if ended.ntk is None else ended.ntk)
        return Block(x, noted, diagonal)

    def tile(self, one: Block, two: Block) -> tuple[Tensor, Tensor | None]:
        """Both kernels between two sets of inputs."""
        context = Context(one.variances, two.variances, self.tangent, self.standard, self.fan_in)
        if self.pooled is not None:
            ended = self._by_shifts(one, two, context)
        else:
            if self.full:
                start = _every_position(one.x, two.x, False)
            else:
                start = one.x @ two.x.transpose(-1, -2) / one.x.shape[-1]
            begun = Field(start, None, self.shape.spatial, self.full)
            ended = self.layers.propagate(begun, context, "", Need.SAME)
        assert ended is not None
        if not self.tangent:
            return ended.nngp, None
        return ended.nngp, torch.zeros_like(ended.nngp) if ended.ntk is None else ended.ntk

    def _by_shifts(self, one: Block, two: Block, context: Context) -> Field | None:
        """Σ over shifts of what each adds to the global mean, then the layers behind it."""
        assert self.pooled is not None
        head, tail = Serial(self.layers.layers[: self.pooled]), self.layers.layers[self.pooled + 1 :]
        total: Field | None = None
        for shifts in self._shifts(head):
            left, right = (shifted(x, shifts, s, self.wrap) for s, x in enumerate((one.x.mT, two.x.mT)))
            start = left.mT @ right / left.shape[-2]
            begun = Field(start, None, self.shape.spatial, False, shifts, self.wrap)
            ended = head.propagate(begun, context, "", Need.SAME)
            assert ended is not None
            share = GlobalAvgPool.share(ended)
            total = share if total is None else _added(total, share)
        for i, each in enumerate(tail, start=self.pooled + 1):
            assert total is not None
            total = each.propagate(total, context, str(i), Need.SAME)
        return total

    def _shifts(self, head: Serial) -> Iterator[tuple[Shift, ...]]:
        """Groups of shifts of the inputs that are alike: the signs of one size, or a row of a ring."""
        last = head.shape(self.shape, "")
        strides = [1] * len(self.shape.spatial)
        stepped = self.shape
        for each, before, _ in head.steps(self.shape, ""):
            stepped = each.shape(before, "")
            strides = [
                s * _step(b, a, each, i) for i, (s, b, a) in enumerate(zip(strides, before.spatial, stepped.spatial))
            ]
        if self.wrap:
            rows = list(itertools.product(*(range(length) for length in last.spatial)))
            group = last.spatial[-1]
            for k in range(0, len(rows), group):
                yield tuple(tuple(d * s for d, s in zip(row, strides)) for row in rows[k : k + group])
            return
        for sizes in itertools.product(*(range(length) for length in last.spatial)):
            signs = itertools.product(*((1,) if size == 0 else (1, -1) for size in sizes))
            yield tuple(tuple(d * g * s for d, g, s in zip(sizes, sign, strides)) for sign in signs)


def _step(before: int, after: int, each: object, axis: int) -> int:
    """The stride of a layer along an axis; a sum has that of its first branch with one."""
    if isinstance(each, Conv):
        return each.stride[axis] if isinstance(each.stride, tuple) else each.stride
    for branch in getattr(each, "branches", ()):
        layers = branch.layers if isinstance(branch, Serial) else (branch,)
        step = math.prod(_step(before, after, inner, axis) for inner in layers)
        if step > 1:
            return step
    return 1


def _added(a: Field, b: Field) -> Field:
    ntk = a.ntk if b.ntk is None else b.ntk if a.ntk is None else a.ntk + b.ntk
    return Field(a.nngp + b.nngp, ntk)


def _every_position(one: Tensor, two: Tensor, single: bool) -> Tensor:
    """Σ(p, p′) of inputs, (h, h′, w, w′, n) of each with itself or (h, h′, w, w′, n, m) of pairs."""
    letters = "hwuv"[: one.dim() - 2]
    primes = letters.upper()
    interleaved = "".join(a + b for a, b in zip(letters, primes))
    ends = ("nc", "nc", "n") if single else ("nc", "mc", "nm")
    return torch.einsum(f"{letters}{ends[0]},{primes}{ends[1]}->{interleaved}{ends[2]}", one, two) / one.shape[-1]
