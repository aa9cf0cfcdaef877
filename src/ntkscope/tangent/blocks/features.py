"""Features of a block of samples, piece by piece, and the exact contractions of two of them.

`FactoredFeature` keeps the two sides of the outer product apart (methods kronecker and positions); `DenseFeature` holds the
gradient itself (methods direct and func). Both have their samples on one axis, so blocks can be joined and cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ntkscope.tangent.blocks import split_products
from ntkscope.tangent.blocks.precision import Precision


class Drawn(NamedTuple):
    """Random sums, or the norm of some of them. The squares of a group's norms, over its `draws`, are a mean square."""

    sums: Tensor
    group: int
    draws: int


@dataclass(frozen=True, eq=False)
class DenseFeature:
    """Gradients (n, heads, numbers), divided by `scale` (n,) where the precision asks for it."""

    values: Tensor
    scale: Tensor | None = None

    @property
    def stored(self) -> Tensor:
        """The numbers (…, heads, …) that a head changes."""
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: slice) -> DenseFeature:
        return DenseFeature(self.values[index], None if self.scale is None else self.scale[index])

    def empty(self, n: int) -> DenseFeature:
        return DenseFeature(_empty(self.values, 0, n), None if self.scale is None else _empty(self.scale, 0, n))

    def combined(self, weights: Tensor, rows: int, along: Tensor | None = None) -> tuple[Tensor, list[Drawn]]:
        """`Σ_ic w_ic g_ic` (numbers,) for the first draw of weights (k, n, heads), and the sums of all draws.

        Each number is read once for all draws.
        """
        k, step = len(weights), max(1, _drawn(self.values) // len(weights))
        if self.values.shape[2] <= step:
            sums = self.sums(weights)
            return sums[0], [Drawn(sums, 0, k)]
        weights, unit = _fitted(weights, self.scale, self.values.dtype)
        drawn, values = weights.flatten(1), self.values.flatten(0, 1)
        first, norms = [], []
        for at in range(0, values.shape[1], step):
            sums = _times(drawn @ values[:, at : at + step], unit)
            first.append(sums[0].clone())
            norms.append(Drawn(_norm(sums), 0, k))
        return torch.cat(first), norms

    def sums(self, weights: Tensor) -> Tensor:
        """`Σ_ic w_ic g_ic` (k, numbers) for every draw of weights (k, n, heads)."""
        weights, unit = _fitted(weights, self.scale, self.values.dtype)
        return _times(weights.flatten(1) @ self.values.flatten(0, 1), unit)

    def some(self, heads: slice) -> DenseFeature:
        """The same for some heads alone."""
        return DenseFeature(self.values[:, heads], self.scale)

    def put(self, start: int, block: DenseFeature) -> None:
        self.values[start : start + len(block)] = block.values
        if self.scale is not None and block.scale is not None:
            self.scale[start : start + len(block)] = block.scale


@dataclass(frozen=True, eq=False)
class FactoredFeature:
    """Activations (g, n, s, i), or indices (1, n, s) of a table, and cotangents (g, n, s, heads, o)."""

    a: Tensor
    b: Tensor
    scale: Tensor | None = None

    @property
    def stored(self) -> Tensor:
        return self.b

    def __len__(self) -> int:
        return self.b.shape[1]

    def __getitem__(self, index: slice) -> FactoredFeature:
        return FactoredFeature(self.a[:, index], self.b[:, index], None if self.scale is None else self.scale[index])

    def empty(self, n: int) -> FactoredFeature:
        return FactoredFeature(
            _empty(self.a, 1, n), _empty(self.b, 1, n), None if self.scale is None else _empty(self.scale, 0, n)
        )

    @property
    def positions(self) -> int:
        return self.b.shape[2]

    def stretched(self, positions: int) -> FactoredFeature:
        """With zeros for further positions, which add nothing."""
        more = positions - self.positions
        if not more:
            return self
        a = torch.nn.functional.pad(self.a, (0, 0, 0, more) if self.a.is_floating_point() else (0, more))
        return FactoredFeature(a, torch.nn.functional.pad(self.b, (0, 0, 0, 0, 0, more)), self.scale)

    def combined(self, weights: Tensor, rows: int, along: Tensor | None = None) -> tuple[Tensor, list[Drawn]]:
        """`Σ_ic w_ic Σ_s b_ics (a_is · v)`, (g, o), or of a table (rows, o), for the first draw of weights (k, n, heads) and of
        vectors v (k, inside) `along` the inside; and the sums of all weights with the first vector, and of the other vectors.
        """
        weights, unit = _fitted(weights, self.scale, self.b.dtype)
        k = len(weights)
        g, n, s, c, o = self.b.shape
        if self.a.is_floating_point():
            assert along is not None
            paired, vectors = torch.cat([weights, weights[1:]]), along.to(self.a.dtype).T
            sums = self.b.new_zeros(g, 2 * k - 1, o, dtype=torch.promote_types(self.b.dtype, torch.float32))
            for at in _chunks(n, g * (2 * k - 1) * s * c, _drawn(self.b)):
                near = (self.a[:, at] @ vectors).permute(0, 3, 1, 2)  # (g, k, some, s)
                near = torch.cat([near[:, :1].expand(g, k, *near.shape[2:]), near[:, 1:]], 1)
                each = near[..., None] * paired[:, at, None]  # (g, 2 k - 1, some, s, c)
                sums += each.flatten(2) @ self.b[:, at].flatten(1, 3)
            sums = _times(sums, unit)
            return sums[:, 0], [Drawn(sums[:, :k], 0, k), Drawn(sums[:, k:], 1, k - 1)]
        first = _times(self._looked_up(weights[0], rows), unit)
        others = [_norm(_times(self._looked_up(draw, rows), unit)) for draw in weights[1:]]
        return first, [Drawn(first, 0, k), *(Drawn(norm, 0, k) for norm in others)]

    def _looked_up(self, weights: Tensor, rows: int) -> Tensor:
        values = torch.einsum("gnsco,nc->gnso", self.b, weights).flatten(0, 2)
        return values.new_zeros(rows, values.shape[1]).index_add_(0, self.a.flatten(), values)

    def some(self, heads: slice) -> FactoredFeature:
        return FactoredFeature(self.a, self.b[:, :, :, heads], self.scale)

    def put(self, start: int, block: FactoredFeature) -> None:
        self.a[:, start : start + len(block)] = block.a
        self.b[:, start : start + len(block)] = block.b
        if self.scale is not None and block.scale is not None:
            self.scale[start : start + len(block)] = block.scale


Feature: TypeAlias = DenseFeature | FactoredFeature

# Numbers of a feature, all samples and heads, up to which it is handled together with others: biases and norms are many, and
# each would cost as many launches as a large matrix.
SMALL = {"cpu": 2**17, "cuda": 2**21}
TOGETHER = 8  # times as many in all


def small(feature: Feature) -> bool:
    """Whether a feature is better handled together with others."""
    if not isinstance(feature, DenseFeature) or feature.scale is not None:
        return False
    return feature.values.numel() <= SMALL.get(feature.values.device.type, SMALL["cpu"])


def bundle(feature: DenseFeature) -> int:
    """Numbers of small features that may be together with one like this."""
    return TOGETHER * SMALL.get(feature.values.device.type, SMALL["cpu"])


def joined(features: Sequence[DenseFeature]) -> DenseFeature:
    """The numbers of several features side by side."""
    return features[0] if len(features) == 1 else DenseFeature(torch.cat([feature.values for feature in features], 2))


# numbers of random sums, or of their coefficients, that are held at once: 16 MiB, and 64 MiB where launches cost more
_DRAWN = {"cpu": 2**22, "cuda": 2**24}

STRIPS = 8  # of the square on a diagonal: what lies below the last sample of a strip is left out
# Columns of a strip, at least: narrower products are slower than what they leave out. H200, float32, 256 samples: 0.122 s in
# strips of 64, 0.102 s whole.
STRIP = {"cpu": 64, "cuda": 256}
STRIP_FLOPS = {"cpu": 2e8, "cuda": 2e10}  # of the square, for each product that is asked for

FEW, PART = 128, 2**14  # rows and columns up to which the inner axis of a product is cut on a GPU, and into what

# float64 numbers held while samples are multiplied with themselves: 8 MiB, and 256 MiB where a launch costs more than them
_SELF_NUMBERS = {"cpu": 2**20, "cuda": 2**25}


def _drawn(values: Tensor) -> int:
    return _DRAWN.get(values.device.type, 2**22)


def _fitted(weights: Tensor, scale: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Weights in the numbers of a feature, with its scales, and a unit by which both are divided where their range is short."""
    if scale is None:
        return weights.to(dtype), None
    weights = weights * scale[:, None]
    unit = weights.abs().amax().clamp_min(torch.finfo(torch.float32).tiny)
    return (weights / unit).to(dtype), unit


def _times(sums: Tensor, unit: Tensor | None) -> Tensor:
    return sums if unit is None else sums.to(torch.promote_types(sums.dtype, torch.float32)) * unit


def _norm(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32))


def _empty(like: Tensor, axis: int, n: int) -> Tensor:
    shape = list(like.shape)
    shape[axis] = n
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def accumulate(
    total: Float[Tensor, "rows columns"],
    left: Feature,
    right: Feature,
    *,
    full: bool,
    precision: Precision,
    workspace: int,
    own: bool = False,
) -> float:
    """Add `<g(x_i), g(x'_j)>` of one piece to `total`: (n, m) summed over heads, or (n·c, m·c) for all pairs (`full`).

    `own`: `right` is the last samples of `left`, and what lies below their diagonal may be left out. `workspace` bytes bound
    what is held besides the features. Gives the floating-point operations of the products.
    """
    if isinstance(left, DenseFeature) and isinstance(right, DenseFeature) and precision.splits(left.values):
        _accumulate_halves(total, _rows(left, full), _rows(right, full), workspace, own)
        return product_flops(left, right, full) - (product_flops(right, right, full) / 2 if own else 0.0)
    size, before, flops = total.shape[0] // len(left), len(left) - len(right), 0.0
    every = slice(0, len(right))
    parts = [
        (slice(0, before if own else len(left)), every)
    ]  # narrow products are slow: strips are of the square alone
    parts += [(slice(before, before + columns.stop), columns) for columns in strips(right, full)] if own else []
    for rows, columns in parts:
        if rows.stop > rows.start:
            into = total[rows.start * size : rows.stop * size, columns.start * size : columns.stop * size]
            _accumulate(into, left[rows], right[columns], full, precision, workspace)
            flops += product_flops(left[rows], right[columns], full)
    return flops


def strips(right: Feature, full: bool) -> list[slice]:
    """The columns of the square between consecutive samples and themselves, cut where that saves more than it costs."""
    kind, width = "cuda" if right.stored.is_cuda else "cpu", len(right)
    worth = product_flops(right, right, full) / STRIP_FLOPS[kind]
    count = max(1, min(STRIPS, int(worth), width // STRIP[kind]))
    step = -(-width // (count * 64)) * 64
    return [slice(at, min(width, at + step)) for at in range(0, width, step)]


def _accumulate_halves(
    total: Float[Tensor, "rows columns"],
    left: Float[Tensor, "rows k"],
    right: Float[Tensor, "columns k"],
    workspace: int,
    own: bool,
) -> None:
    """The same of matrices of gradients, each number in two halves, so many terms at a time as fit the workspace."""
    columns, inner = right.shape
    for rows in _chunks(len(left), 12 * columns, workspace // 2):
        some, shared = left[rows], own and len(left) == rows.stop - rows.start
        numbers, part = len(some) + columns * (not shared), split_products.part_for(1, len(some), columns, inner)
        while part > split_products.SHORTEST and 4 * part * numbers > workspace // 2:
            part //= 2
        each = 4 * part * numbers + 8 * len(some) * columns
        step = part * max(1, workspace // 2 // each)
        for at in range(0, inner, step):
            halves = split_products.halved(some[None, :, at : at + step], part)
            others = halves.last(columns) if shared else split_products.halved(right[None, :, at : at + step], part)
            below = len(left) - columns - rows.start if own else None
            total[rows] += split_products.multiplied(halves, others, below)[0]


def _accumulate(
    total: Float[Tensor, "rows columns"],
    left: Feature,
    right: Feature,
    full: bool,
    precision: Precision,
    workspace: int,
) -> None:
    if isinstance(left, DenseFeature) and isinstance(right, DenseFeature):
        for rows in _chunks(len(left), total.shape[1] * 8 * (total.shape[0] // len(left)), workspace):
            a, b = _rows(left[rows], full), _rows(right, full)
            step = _inner(a, b, workspace)
            for at in range(0, a.shape[1], step):
                values = long_product(a[:, at : at + step], b[:, at : at + step], precision)
                _add(total, rows, values, left[rows], right, full)
        return
    assert isinstance(left, FactoredFeature)
    assert isinstance(right, FactoredFeature)
    heads = left.b.shape[3]
    s, t = left.b.shape[2], right.b.shape[2]
    each = left.b.shape[0] * s * t * 12 * (heads**2 if full else 1)
    for columns in _chunks(len(right), each, workspace):
        part = right[columns]
        for rows in _chunks(len(left), each * len(part), workspace):
            values = _near(left[rows], part, full, precision)
            view = total[:, _span(columns, heads, full)]
            _add(view, rows, values, left[rows], part, full)


def product_flops(left: Feature, right: Feature, full: bool) -> float:
    """Floating-point operations of the matrix products that `accumulate` makes of one piece."""
    pairs = 2.0 * len(left) * len(right)
    if isinstance(left, DenseFeature):
        c, p = left.values.shape[1:]
        return pairs * p * (c * c if full else c)
    assert isinstance(right, FactoredFeature)
    g, _, s, c, o = left.b.shape
    inside = left.a.shape[3] if left.a.is_floating_point() else 0
    return pairs * g * s * right.positions * (inside + o * (c * c if full else c))


def _inner(rows: Tensor, columns: Tensor, workspace: int) -> int:
    """How long an inner axis one product may have; float32 sums of BLAS lose digits on long ones, the total does not.

    A CPU multiplies shorter numbers as float32, of which `workspace` bytes hold so many.
    """
    if not rows.is_cuda and rows.dtype.itemsize < 4:
        return max(2**8, min(2**13, workspace // (4 * (len(rows) + len(columns)))))
    if rows.dtype != torch.float32:
        return max(1, rows.shape[1])
    if not rows.is_cuda:
        return 2**13
    return 2**22 if _few(rows, columns) else 2**19


def _few(rows: Tensor, columns: Tensor) -> bool:
    """Whether a product has so few numbers that a GPU's processors are not all busy unless its inner axis is cut."""
    return rows.is_cuda and rows.dtype == torch.float32 and max(len(rows), len(columns)) <= FEW


def long_product(
    left: Float[Tensor, "rows k"], right: Float[Tensor, "columns k"], precision: Precision, parts: int | None = None
) -> Float[Tensor, "rows columns"]:
    """`left @ rightᵀ`; on a GPU that of few rows and columns in parts of the inner axis, side by side (`parts`: of so many)."""
    if parts is None:
        parts = left.shape[1] // PART if _few(left, right) else 1
    if parts < 2:
        return precision.product(left, right)
    size = left.shape[1] // parts
    a, b = (side[:, : parts * size].unflatten(1, (parts, size)).transpose(0, 1) for side in (left, right))
    values = torch.bmm(a, b.transpose(1, 2)).sum(0, dtype=torch.float64)
    rest = slice(parts * size, None)
    return values + precision.product(left[:, rest], right[:, rest])


def _near(
    left: FactoredFeature, right: FactoredFeature, full: bool, precision: Precision
) -> Float[Tensor, "rows columns"]:
    g, n, s, c, o = left.b.shape
    m, t = right.b.shape[1:3]
    if not full:
        b = _groupwise(left.b.reshape(g, n * s, c * o), right.b.reshape(g, m * t, c * o), precision)
        product = b.mul_(_similarity(left, right, precision))
        if g > 1:
            product = product.sum(0, keepdim=True)
        return product[0] if s * t == 1 else product.reshape(n, s, m, t).sum(3).sum(1)
    b = _groupwise(left.b.reshape(g, n * s * c, o), right.b.reshape(g, m * t * c, o), precision)
    a = _similarity(left, right, precision).reshape(g, n, s, 1, m, t, 1)
    return b.reshape(g, n, s, c, m, t, c).mul_(a).sum((0, 2, 5)).reshape(n * c, m * c)


def _similarity(
    left: FactoredFeature, right: FactoredFeature, precision: Precision
) -> Shaped[Tensor, "g rows columns"]:
    """`a_s · a_t` for every pair of positions, (g, n·s, m·t); for a table, whether the indices are equal."""
    if not left.a.is_floating_point():
        return left.a.reshape(1, -1, 1) == right.a.reshape(1, 1, -1)
    g, n, s, i = left.a.shape
    return _groupwise(left.a.reshape(g, n * s, i), right.a.reshape(g, -1, i), precision)


def _groupwise(
    left: Float[Tensor, "g rows k"], right: Float[Tensor, "g columns k"], precision: Precision
) -> Float[Tensor, "g rows columns"]:
    if precision.splits(left) and 2.0 * left.numel() * right.shape[1] > split_products.WORTH:
        return split_products.product(left, right)
    if len(left) == 1:
        return precision.product(left[0], right[0]).unsqueeze(0)
    if left.dtype in (torch.float32, torch.float64):
        return torch.bmm(left, right.transpose(1, 2))
    return torch.bmm(left.float(), right.float().transpose(1, 2))


def _rows(feature: DenseFeature, full: bool) -> Float[Tensor, "rows numbers"]:
    n, c, p = feature.values.shape
    return feature.values.reshape(n * c, p) if full else feature.values.reshape(n, c * p)


def _add(
    total: Float[Tensor, "rows columns"],
    rows: slice,
    values: Float[Tensor, "some columns"],
    left: Feature,
    right: Feature,
    full: bool,
) -> None:
    if left.scale is not None and right.scale is not None:
        c = values.shape[0] // len(left)
        values = values * left.scale.repeat_interleave(c)[:, None] * right.scale.repeat_interleave(c)[None]
    total[_span(rows, total.shape[0] and values.shape[0] // len(left), full)] += values


def _span(rows: slice, heads: int, full: bool) -> slice:
    return slice(rows.start * heads, rows.stop * heads) if full else rows


def _chunks(n: int, bytes_each: int, workspace: int) -> Iterator[slice]:
    size = max(1, min(n, workspace // max(1, bytes_each)))
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))


def self_products(feature: Feature) -> Float[Tensor, "n c"]:
    """`<g_c(x_i), g_c(x_i)>` for every sample and head, (n, c), float64; a few samples at a time."""
    held = max(1, _SELF_NUMBERS.get(feature.stored.device.type, 2**20) // max(1, _numbers_each(feature)))
    parts = [_self_products(feature[at]) for at in _chunks(len(feature), 1, held)]
    values = torch.cat(parts)
    return values if feature.scale is None else values * feature.scale.double().square()[:, None]


def _numbers_each(feature: Feature) -> int:
    """Float64 numbers that the self product of one sample holds."""
    if isinstance(feature, DenseFeature):
        return 2 * feature.values[0].numel()
    g, _, s, c, o = feature.b.shape
    return g * s * (c * (2 * o + s) + s + feature.a.shape[-1])


def _self_products(feature: Feature) -> Float[Tensor, "n c"]:
    if isinstance(feature, DenseFeature):
        return feature.values.double().square().sum(2)
    if feature.a.is_floating_point():
        a = feature.a.double()
        near = (a @ a.transpose(2, 3)).unsqueeze(2)  # (g, n, 1, s, s)
    else:
        near = (feature.a[..., :, None] == feature.a[..., None, :]).double().unsqueeze(2)
    b = feature.b.transpose(2, 3).double()  # (g, n, c, s, o)
    return (b @ b.transpose(3, 4)).mul_(near).sum((0, 3, 4))
