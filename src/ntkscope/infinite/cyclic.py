"""Pooled kernels of convolutions without strides, all layers in a GPU's registers: one cyclic shift of one pair per warp.

Covariances at (p, p + Δ) never meet those of another shift before the global mean. Shifts Δ and Δ − (h, 0), Δ − (0, w),
Δ − (h, w) have disjoint positions which together fill one image: p and p′ = p + Δ, taken round the image. So h·w arrays of
h × w numbers hold all (h·w)² covariances without a gap, and a convolution is a 3 × 3 sum within such an array which does
not reach across the edge of either image; nothing is cut where images are rings.

Σ′ = s A[σ-dual of Σ] + o and Θ′ = s A[Θ · slope] + (w / s) (Σ′ − o) + b with A the sum over taps; the factors s are taken
into the tables of √q of the left images, so a layer costs some fifty instructions per entry of Σ and no memory traffic.
Cosines are enlarged by one rounding unit and not by four as in `relu`: at most one shift in h·w has equal positions, whose
rounding is lost in the mean, while a bias of all entries is not (behind 20 layers 1e-5 of the NTK instead of 4e-5).
Arora et al. (2019), section 4 and appendix I.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor

from ntkscope.infinite.field import Block
from ntkscope.infinite.layer import Context, Shape
from ntkscope.infinite.rules.conv import Conv
from ntkscope.infinite.rules.dense import gradient_scales
from ntkscope.infinite.rules.identity import Identity
from ntkscope.infinite.rules.relu import Kinked
from ntkscope.infinite.rules.serial import Serial

WARP = 32  # the widest and tallest image: one column per lane, one row per register
PAIRS = 4096  # pairs per launch, at most
TILE = 64  # inputs on a side of a tile
OPTIONS = {"WARPS": 4}
LEAST = 1e-18  # as in `relu.arc_cosine`: a smaller deviation is none


@dataclass(frozen=True)
class Step:
    """An activation and the convolution behind it, as one pass; without the one or the other it is the identity."""

    path: str | None
    """Where the activation is, None for none."""
    jump: float
    """s (b − a)² for slopes a, b left and right of zero."""
    linear: float
    """s a b."""
    offset: float
    ratio: float
    constant: float
    """What is added to Θ′ besides ratio · Σ′."""
    vertical: float
    horizontal: float
    """1 where neighbours are summed."""

    def numbers(self) -> list[float]:
        jump = self.jump / (2 * math.pi)
        return [self.linear, jump, self.offset, self.ratio, self.constant, self.vertical, self.horizontal, 0.0]


class Pooled(Protocol):
    """A network that ends in a global mean (`pairs.Network`)."""

    @property
    def layers(self) -> Serial: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def tangent(self) -> bool: ...
    @property
    def standard(self) -> bool: ...
    @property
    def pooled(self) -> int | None: ...
    @property
    def wrap(self) -> bool: ...
    @property
    def fan_in(self) -> dict[str, int | None]: ...


def steps(network: Pooled) -> list[Step] | None:
    """The passes to the global mean, or None if this method does not apply."""
    spatial = network.shape.spatial
    if network.pooled is None or len(spatial) != 2 or max(spatial) > WARP:
        return None
    context = Context({}, {}, network.tangent, network.standard, network.fan_in)
    found: list[Step] = []
    waiting: tuple[str | None, float, float] = (None, 0.0, 1.0)
    given = network.shape
    for i, each in enumerate(network.layers.layers[: network.pooled]):
        after = each.shape(given, str(i))
        if isinstance(each, Conv):
            reach = _reach(each, given, after)
            if reach is None or each.W_std == 0:
                return None
            path, jump, linear = waiting
            count = math.prod(t.size for t in each.taps(spatial))
            weights, biases = gradient_scales(each, context, str(i), count)
            scale, offset = float(each.W_std) ** 2, float(each.b_std) ** 2
            if biases and not offset:  # gradients at positions of variance zero, which have no angle
                return None
            s, ratio = scale / count, weights / scale
            found.append(Step(path, s * jump, s * linear, offset, ratio, biases - ratio * offset, *reach))
            waiting = (None, 0.0, 1.0)
        elif isinstance(each, Kinked):
            a, b = each.slopes
            factor = each.normaliser() if each.normalize else 1.0
            waiting = (str(i), factor * (b - a) ** 2, factor * a * b)
        elif not isinstance(each, Identity):
            return None
        given = after
    if waiting[0] is not None:
        found.append(Step(*waiting, 0.0, 0.0, 0.0, 0.0, 0.0))
    return found


def _reach(each: Conv, given: Shape, after: Shape) -> tuple[float, float] | None:
    """Whether a convolution sums neighbours above and below, and beside; None if it does something else."""
    reach = []
    for tap in each.taps(given.spatial):
        centred = tap.size in (1, 3) and tap.stride == 1 and tap.before == tap.size // 2
        if not centred or (tap.size == 3 and tap.dilation != 1):
            return None
        reach.append(float(tap.size == 3))
    return (reach[0], reach[1]) if after.spatial == given.spatial else None


def applies(network: Pooled, x: Tensor) -> bool:
    """Whether pairs of these inputs take this path: float32, on a GPU, with Triton installed."""
    usable = x.is_cuda and x.dtype == torch.float32 and not x.requires_grad and torch.version.hip is None
    return usable and find_spec("triton") is not None and steps(network) is not None


def mean(network: Pooled, one: Block, two: Block, **options: int) -> tuple[Tensor, Tensor | None]:
    """Σ and Θ behind the global mean, (n, m); of each pair once, where both sides are the same inputs."""
    from ntkscope.infinite import cyclic_kernel

    passes = steps(network)
    assert passes is not None
    options = {**OPTIONS, **options}
    height, width = network.shape.spatial
    device, channels = one.x.device, one.x.shape[-1]
    n, m = len(one), len(two)
    same = n == m and one.x.data_ptr() == two.x.data_ptr()
    rows, columns = torch.triu_indices(n, n, device=device) if same else _grid(n, m, device)
    left, right = Side.of(one, passes, False), Side.of(two, passes, True)
    numbers = torch.tensor([step.numbers() for step in passes], dtype=torch.float32, device=device)
    warps = options.pop("WARPS")
    programs = -(-height * width // (warps * (WARP // width)))
    sums = torch.empty(len(rows), 2, dtype=torch.float64, device=device)
    for start in range(0, len(rows), PAIRS):
        chosen = slice(start, start + PAIRS)
        i, j = (index[chosen].to(torch.int32).contiguous() for index in (rows, columns))
        out = torch.zeros(len(i), programs, 2, dtype=torch.float64, device=device)
        cyclic_kernel.launch(
            (programs, len(i)),
            (left.x, right.x, left.root, right.root, left.inverse, right.inverse, numbers, i, j, out),
            {
                "channels": channels,
                "count": len(passes),
                "H": height,
                "W": width,
                "WRAP": network.wrap,
                "TANGENT": network.tangent,
                "WARPS": warps,
            },
            {"num_warps": warps, **options},
        )
        sums[chosen] = out.sum(1)
    sums /= (height * width) ** 2
    results = one.x.new_empty(2, n, m)
    for values, part in zip(results, sums.T):
        values[rows, columns] = part.float()
        if same:
            values[columns, rows] = part.float()
    return results[0], results[1] if network.tangent else None


@dataclass(frozen=True)
class Side:
    """What the kernel reads of one side: (n, channels, h, w) and (n, steps, h, w), twice below itself on the right."""

    x: Tensor
    root: Tensor
    inverse: Tensor

    @staticmethod
    def of(block: Block, passes: list[Step], right: bool) -> Side:
        x = block.x.permute(2, 3, 0, 1)  # from (h, w, n, c)
        roots, inverses = [], []
        for step in passes:
            if step.path is None:
                roots.append(x.new_zeros(len(x), *x.shape[2:]))
                inverses.append(roots[-1])
                continue
            root = block.variances[step.path].movedim(-1, 0).double().sqrt()
            inverse = torch.where(root > LEAST, 1 / root, 0)
            roots.append((root if right else root * (step.jump / (2 * math.pi))).float())
            inverses.append((inverse if right else inverse * (1 + torch.finfo(torch.float32).eps)).float())
        tables = [x if right else x / x.shape[1], torch.stack(roots, 1), torch.stack(inverses, 1)]
        return Side(*(torch.cat([t, t], 2).contiguous() if right else t.contiguous() for t in tables))


def _grid(n: int, m: int, device: torch.device) -> tuple[Tensor, Tensor]:
    index: Any = torch.arange(n * m, device=device)
    return index // m, index % m
