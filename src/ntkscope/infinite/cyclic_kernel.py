"""The Triton kernel of `cyclic`: all layers of one pair of images at one cyclic shift, in one warp's registers.

A lane owns a column and holds all its rows, so neighbours above and below are registers of its own, those beside it are a
shuffle away, and no covariance is ever written to memory. Importable without Triton; `covariances` is then missing.
"""

# Triton joins tuples by +, does not unpack them, and gives them the type of what they hold.
# ruff: noqa: RUF005
# mypy: ignore-errors

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

STEP = 8  # numbers per step in the table `steps`

if find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def covariances(
        x1, x2, root1, root2, inverse1, inverse2, steps, rows, columns, out, channels, count,
        H: tl.constexpr, W: tl.constexpr, WRAP: tl.constexpr, TANGENT: tl.constexpr, WARPS: tl.constexpr,
    ):  # fmt: skip
        """Sums over positions of Σ and Θ before the global mean, for `WARPS` warps' cyclic shifts of one pair."""
        PACK: tl.constexpr = 32 // W  # shifts in one warp, for images narrower than it
        PI: tl.constexpr = 3.141592653589793
        lane = tl.arange(0, 32)[:, None] + tl.zeros([1, WARPS], tl.int32)
        warp = tl.program_id(0) * WARPS + tl.arange(0, WARPS)[None, :]
        part, w = lane // W, lane % W
        shift = warp * PACK + part
        inside = (part < PACK) & (shift < H * W)
        shift = tl.where(inside, shift, 0)
        down, right = shift // W, shift % W
        there = (w + right) % W
        before = tl.where(part < PACK, tl.where(w == 0, lane + (W - 1), lane - 1), lane)
        behind = tl.where(part < PACK, tl.where(w == W - 1, lane - (W - 1), lane + 1), lane)
        if WRAP:
            linked_before = tl.full([32, WARPS], 1.0, tl.float32)
            linked_behind = linked_before
        else:  # no neighbour beyond the edge, be it that of the first image or of the second, shifted one
            linked_before = tl.where((w == 0) | (w == W - right), 0.0, 1.0)
            linked_behind = tl.where((w == W - 1) | (w == W - 1 - right), 0.0, 1.0)
        cut = (H - down).to(tl.float32)  # the row without a neighbour above

        pair = tl.program_id(1)
        i, j = tl.load(rows + pair), tl.load(columns + pair)
        here1 = x1 + i * channels * (H * W) + w
        here2 = x2 + j * channels * (2 * H * W) + down * W + there
        cov = ()
        for _ in tl.static_range(H):
            cov = cov + (tl.zeros([32, WARPS], tl.float32),)
        for _ in range(channels):
            summed = ()
            for h in tl.static_range(H):
                summed = summed + (cov[h] + tl.load(here1 + h * W) * tl.load(here2 + h * W),)
            cov = summed
            here1 += H * W
            here2 += 2 * H * W
        ntk = ()
        for _ in tl.static_range(H):
            ntk = ntk + (tl.zeros([32, WARPS], tl.float32),)

        at1 = i * count * (H * W) + w
        at2 = j * count * (2 * H * W) + down * W + there
        for step in range(count):
            linear = tl.load(steps + step * 8)
            jump = tl.load(steps + step * 8 + 1)
            offset = tl.load(steps + step * 8 + 2)
            ratio = tl.load(steps + step * 8 + 3)
            constant = tl.load(steps + step * 8 + 4)
            vertical = tl.load(steps + step * 8 + 5)
            horizontal = tl.load(steps + step * 8 + 6)
            end = cut + tl.load(steps + step * 8 + 7)  # plus nothing: compared anew in every step, not held
            to_before, to_behind = linked_before * horizontal, linked_behind * horizontal
            values = ()
            slopes = ()
            for h in tl.static_range(H):
                inverse = tl.load(inverse1 + at1 + h * W) * tl.load(inverse2 + at2 + h * W)
                norm = tl.load(root1 + at1 + h * W) * tl.load(root2 + at2 + h * W)
                cosine = cov[h] * inverse
                u = tl.minimum(tl.abs(cosine), 1.0)
                t = 1.0 - u
                s = tl.sqrt(t)
                # sin θ − θ cos θ = s t R(t) and θ = s P(t) for cos θ = u; both to 1.5e-8, in relation to themselves
                R = 2.40819687e-4 * t - 1.95111006e-4
                R = R * t + 7.63355969e-4
                R = R * t + 1.64746072e-3
                R = R * t + 7.59522115e-3
                R = R * t + 4.71391837e-2
                R = R * t + 9.42809055e-1
                bulge = s * t * R
                aligned = cosine > 0
                value = norm * (tl.where(aligned, PI * u, 0.0) + bulge) + linear * cov[h]
                beside = tl.gather(value, before, 0) * to_before + tl.gather(value, behind, 0) * to_behind
                values = values + (value + beside,)
                if TANGENT:
                    P = 1.25344574e-3 * t - 2.13553969e-3
                    P = P * t + 3.53593082e-3
                    P = P * t + 1.34556170e-3
                    P = P * t + 8.26281751e-3
                    P = P * t + 2.64669151e-2
                    P = P * t + 1.17853631e-1
                    P = P * t + 1.41421354
                    angle = s * P
                    slope = ntk[h] * (jump * tl.where(aligned, PI - angle, angle) + linear)
                    beside = tl.gather(slope, before, 0) * to_before + tl.gather(slope, behind, 0) * to_behind
                    slopes = slopes + (slope + beside,)
            cov = ()
            made = ()
            for h in tl.static_range(H):
                total = values[h] + offset
                if TANGENT:
                    tangent = slopes[h] + constant
                if WRAP:
                    total += vertical * (values[(h + H - 1) % H] + values[(h + 1) % H])
                    if TANGENT:
                        tangent += vertical * (slopes[(h + H - 1) % H] + slopes[(h + 1) % H])
                else:
                    if h > 0:
                        above = tl.where(end == h, 0.0, vertical)
                        total += above * values[h - 1]
                        if TANGENT:
                            tangent += above * slopes[h - 1]
                    if h < H - 1:
                        below = tl.where(end == h + 1, 0.0, vertical)
                        total += below * values[h + 1]
                        if TANGENT:
                            tangent += below * slopes[h + 1]
                cov = cov + (total,)
                if TANGENT:
                    made = made + (tangent + ratio * total,)
            if TANGENT:
                ntk = made
            at1 += H * W
            at2 += 2 * H * W

        place = (pair * tl.num_programs(0) + tl.program_id(0)) * 2
        total = tl.zeros([32, WARPS], tl.float64)
        for h in tl.static_range(H):
            total += cov[h].to(tl.float64)
        tl.store(out + place, tl.sum(tl.where(inside, total, 0.0)))
        if TANGENT:
            total = tl.zeros([32, WARPS], tl.float64)
            for h in tl.static_range(H):
                total += ntk[h].to(tl.float64)
            tl.store(out + place + 1, tl.sum(tl.where(inside, total, 0.0)))


def launch(grid: tuple[int, int], tensors: tuple[Any, ...], numbers: dict[str, Any], options: dict[str, int]) -> None:
    """Run the kernel; `options` are the launch's own: num_warps, maxnreg."""
    covariances[grid](*tensors, **numbers, num_stages=1, **options)
