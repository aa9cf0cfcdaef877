"""A network prepared for inputs of one shape: variances of a block of inputs, then covariances of tiles of pairs.

Covariances of all positions of two images are needed where images are pooled: positions², a million numbers per pair for
32 × 32. But convolutions and activations at (p, p + Δ) use only (p + δ, p + δ + Δ): every shift Δ goes through the layers
on its own. So a network whose pooling is one global mean is run shift by shift, on arrays that stay in cache: by shifts of
rows with all pairs of columns at once, or by shifts of both where there are strides, since only shifts that survive them
are needed at all; on a GPU without strides by shifts taken round the image (`cyclic`). Other pooling takes the path with
all positions at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor

from ntkscope.core.machine.threads import spread
from ntkscope.core.sizes import over_budget
from ntkscope.infinite import cyclic
from ntkscope.infinite.field import Block, Field, Shift, shifted
from ntkscope.infinite.layer import Context, Layer, Need, Shape
from ntkscope.infinite.rules.conv import Conv
from ntkscope.infinite.rules.flatten import Flatten
from ntkscope.infinite.rules.pooling import GlobalAvgPool
from ntkscope.infinite.rules.serial import Serial

CACHE = 2**20  # bytes one array of a tile should take on a CPU, so that the few of a layer stay in cache
DEVICE = 2**28  # the same on a GPU, where arrays should be large
ARRAYS = 16  # arrays of a tile's size that are alive at once, two threads' worth
VECTOR_TILE = 384
BLOCK = 256  # images whose variances are held at once


@dataclass(frozen=True)
class Network:
    """Layers laid out flat, the shape of the inputs, and which path pairs take."""

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
        """Check every layer against the shape before it, and choose the path."""
        if shape.spatial and layers.layers and isinstance(layers.layers[0], Flatten):
            layers, shape = Serial(layers.layers[1:]), Flatten().shape(shape, "0")
        layers.shape(shape, "")
        fan_in = dict(layers.affine(shape, ""))
        pooled, wrap = None, False
        for i, each in enumerate(layers.layers):
            if isinstance(each, GlobalAvgPool):
                head = Serial(layers.layers[:i])
                wrap = any(isinstance(e, Conv) and e.circular for e in head.layers) or not head.follows_shifts(False)
                pooled = i if head.follows_shifts(wrap) and _overlaps(head, shape) else None
                break
        single = Need.SAME if layers.need(Need.SAME, True) < Need.FULL else Need.NOTHING
        return Network(layers, shape, tangent, standard, pooled, wrap and pooled is not None, single, fan_in)

    @property
    def parametrization(self) -> str:
        return "standard" if self.standard else "ntk"

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
            allowed = math.isqrt(memory // (ARRAYS * like.element_size()))
            tile = 16 * VECTOR_TILE if like.is_cuda else min(VECTOR_TILE, max(128, -(-samples // 4)))
            return max(samples, 1), max(16, min(tile, allowed))
        if cyclic.applies(self, like):
            tile = min(cyclic.TILE, max(samples, 1))
            return max(tile, min(samples, BLOCK)), tile
        numbers = positions**2 if self.full else positions
        if self.pooled is not None:
            strides = self.strides(Serial(self.layers.layers[: self.pooled]))
            columns = [length for length, stride in zip(self.shape.spatial[1:], strides[1:]) if stride == 1]
            numbers = 2 * positions * math.prod(columns) * (1 if columns else len(self.shape.spatial))
        allowed = min(DEVICE if like.is_cuda else CACHE, memory // ARRAYS) // (numbers * like.element_size())
        if memory < ARRAYS * numbers * like.element_size():
            needed = ARRAYS * numbers * like.element_size()
            raise over_budget(memory, needed, f"for {positions} positions per image")
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
            begun = Field(start, None, self.shape.spatial, (need == Need.FULL,) * len(self.shape.spatial))
            ended = self.layers.propagate(begun, context, "", self.single)
            if ended is not None:
                diagonal = [ended.nngp]
                if self.tangent:
                    diagonal.append(torch.zeros_like(ended.nngp) if ended.ntk is None else ended.ntk)
        return Block(x, noted, diagonal)

    def start(self, one: Block, two: Block) -> Tensor:
        """Covariances of inputs at equal positions: (*spatial, n, m)."""
        return (one.x @ two.x.transpose(-1, -2)).div_(one.x.shape[-1])  # inputs divided before are rounded one by one

    def tile(self, one: Block, two: Block, start: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Both kernels between two sets of inputs; `start` where the covariances of the inputs are known already."""
        context = Context(one.variances, two.variances, self.tangent, self.standard, self.fan_in)
        if self.pooled is not None:
            ended = self._by_shifts(one, two, context)
        else:
            if self.full:
                start = _every_position(one.x, two.x, False)
            elif start is None:
                start = self.start(one, two)
            begun = Field(start, None, self.shape.spatial, (self.full,) * len(self.shape.spatial))
            ended = self.layers.propagate(begun, context, "", Need.SAME)
        assert ended is not None
        if not self.tangent:
            return ended.nngp, None
        return ended.nngp, torch.zeros_like(ended.nngp) if ended.ntk is None else ended.ntk

    def _by_shifts(self, one: Block, two: Block, context: Context) -> Field | None:
        """Σ over shifts of what each adds to the global mean, then the layers behind it."""
        assert self.pooled is not None
        if cyclic.applies(self, one.x):
            return self._behind(Field(*cyclic.mean(self, one, two)), context)
        head = Serial(self.layers.layers[: self.pooled])
        strides = self.strides(head)
        double = (False, *(stride == 1 for stride in strides[1:]))
        groups = list(self._shifts(head, strides, double))
        shares: list[Field | None] = [None] * len(groups)

        def work(k: int) -> None:
            left, right = (shifted(x.flatten(-2), groups[k], s, self.wrap) for s, x in enumerate((one.x, two.x)))
            start = _between(left.unflatten(-1, one.x.shape[-2:]), right.unflatten(-1, two.x.shape[-2:]), double)
            begun = Field(start, None, self.shape.spatial, double, groups[k], self.wrap)
            ended = head.propagate(begun, context, "", Need.SAME)
            shares[k] = None if ended is None else GlobalAvgPool.share(ended)

        spread(range(len(groups)), work, one.x.device)
        return self._behind(reduce(_added, [share for share in shares if share is not None]), context)

    def _behind(self, pooled: Field, context: Context) -> Field | None:
        """The layers behind the global mean."""
        assert self.pooled is not None
        total: Field | None = pooled
        for i, each in enumerate(self.layers.layers[self.pooled + 1 :], start=self.pooled + 1):
            assert total is not None
            total = each.propagate(total, context, str(i), Need.SAME)
        return total

    def strides(self, head: Serial) -> list[int]:
        """The product of the strides of all layers, per dimension."""
        strides = [1] * len(self.shape.spatial)
        for each, _, _ in head.steps(self.shape, ""):
            strides = [s * _step(each, i) for i, s in enumerate(strides)]
        return strides

    def _shifts(self, head: Serial, strides: list[int], double: tuple[bool, ...]) -> Iterator[tuple[Shift, ...]]:
        """Groups of shifts of the inputs that are alike: the signs of one size, or a row of a ring."""
        last = head.shape(self.shape, "").spatial
        single = [1 if doubled else length for length, doubled in zip(last, double)]
        sizes = list(itertools.product(*map(range, single)))
        if self.wrap:
            group = single[-1]
            for k in range(0, len(sizes), group):
                yield tuple(tuple(d * s for d, s in zip(row, strides)) for row in sizes[k : k + group])
            return
        for size in sizes:
            signs = itertools.product(*((1,) if d == 0 else (1, -1) for d in size))
            yield tuple(tuple(d * g * s for d, g, s in zip(size, sign, strides)) for sign in signs)


def _between(left: Tensor, right: Tensor, double: tuple[bool, ...]) -> Tensor:
    """Σ of inputs for each shift: (h, w, shifts, n, c) and (h, w′, shifts, m, c) to (h, w, w′, shifts, n, m)."""
    letters = "hw"[: len(double)]
    primes = "".join(a.upper() if doubled else a for a, doubled in zip(letters, double))
    both = "".join(a + b if a != b else a for a, b in zip(letters, primes))
    return torch.einsum(f"{letters}gnc,{primes}gmc->{both}gnm", left, right).contiguous() / left.shape[-1]


def _overlaps(each: Layer, given: Shape) -> bool:
    """Whether images that overlap behind every convolution overlap before it: none makes images larger by its padding."""
    if isinstance(each, Conv):
        return all(size - t.stride * (t.output - 1) >= 1 for size, t in zip(given.spatial, each.taps(given.spatial)))
    if isinstance(each, Serial):
        return all(_overlaps(inner, before) for inner, before, _ in each.steps(given, ""))
    return all(_overlaps(branch, given) for branch in getattr(each, "branches", ()))


def _step(each: object, dimension: int) -> int:
    """The stride of a layer; a sum has that of its first branch with one."""
    if isinstance(each, Conv):
        return each.stride[dimension] if isinstance(each.stride, tuple) else each.stride
    for branch in getattr(each, "branches", ()):
        layers = branch.layers if isinstance(branch, Serial) else (branch,)
        step = math.prod(_step(inner, dimension) for inner in layers)
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
