"""The GPU programs of `split_products`: numbers in two halves, and sums of three products of them."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def halve(x, high, low, scales, inner, padded, group_stride, row_stride, rows, PART: tl.constexpr, BLOCK: tl.constexpr):
    """One part of one row: its numbers, times the power of two that brings the largest to [2¹⁴, 2¹⁵), as two float16 each.

    Where a block is the whole part, each number is read once.
    """
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    x += row // rows * group_stride + row % rows * row_stride
    begin, end = part * PART, tl.minimum((part + 1) * PART, padded)
    k = begin + tl.arange(0, BLOCK)
    value = tl.load(x + k, k < inner, 0.0)
    largest = tl.max(tl.abs(value))
    for at in range(begin + BLOCK, end, BLOCK):
        k = at + tl.arange(0, BLOCK)
        largest = tl.maximum(largest, tl.max(tl.abs(tl.load(x + k, k < inner, 0.0))))
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 255
    shift = tl.where((largest == 0.0) | (exponent == 255), 0, tl.minimum(141 - exponent, 126))
    scale = ((127 + shift) << 23).to(tl.float32, bitcast=True)
    tl.store(scales + row * parts + part, ((127 - shift) << 23).to(tl.float32, bitcast=True))
    high += row * padded
    low += row * padded
    for at in range(begin, end, BLOCK):
        k = at + tl.arange(0, BLOCK)
        if PART > BLOCK:
            value = tl.load(x + k, k < inner, 0.0)
        scaled = value * scale
        half = scaled.to(tl.float16)
        tl.store(high + k, half, k < end)
        tl.store(low + k, (scaled - half.to(tl.float32)).to(tl.float16), k < end)


@triton.jit
def multiply(
    left_high, left_low, left_scales, right_high, right_low, right_scales, out, rows, columns, padded, parts, diagonal,
    PART: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of one part of a product; zeros where it lies below the diagonal, (i, i - diagonal)."""
    tile, group, part = tl.program_id(0), tl.program_id(1) // parts, tl.program_id(1) % parts
    high_tiles, wide_tiles = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    first = tile // (GROUP * wide_tiles) * GROUP
    some = tl.minimum(high_tiles - first, GROUP)
    i = first + (tile % (GROUP * wide_tiles)) % some
    j = (tile % (GROUP * wide_tiles)) // some
    row, column = i * ROWS + tl.arange(0, ROWS), j * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    if i * ROWS <= j * COLUMNS + COLUMNS - 1 + diagonal:
        left_row = group.to(tl.int64) * rows + row % rows
        right_row = group.to(tl.int64) * columns + column % columns
        k = part * PART + tl.arange(0, STEP)
        left = left_row[:, None] * padded + k[None, :]
        right = right_row[None, :] * padded + k[:, None]
        for _ in range(0, (tl.minimum(PART, padded - part * PART)) // STEP):
            a, b = tl.load(left_high + left), tl.load(right_high + right)
            low_a, low_b = tl.load(left_low + left), tl.load(right_low + right)
            few = tl.dot(low_a, b)  # tensor cores cut off what they add: only so many products at a time
            few = tl.dot(a, low_b, few)
            total += tl.dot(a, b, few)
            left += STEP
            right += STEP
        total *= tl.load(left_scales + left_row * parts + part)[:, None]
        total *= tl.load(right_scales + right_row * parts + part)[None, :]
    place = (tl.program_id(1).to(tl.int64) * rows + row[:, None]) * columns + column[None, :]
    tl.store(out + place, total, (row[:, None] < rows) & (column[None, :] < columns))
