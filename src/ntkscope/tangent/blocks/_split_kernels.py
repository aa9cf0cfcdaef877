"""The GPU programs of `split_products`: numbers in two halves, and sums of three products of them."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def unit(largest):
    """The power of two that brings a positive number to [2¹⁴, 2¹⁵), and its inverse; 1 for zero and what is not finite."""
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 255
    shift = tl.where((largest == 0.0) | (exponent == 255), 0, tl.minimum(141 - exponent, 126))
    return ((127 + shift) << 23).to(tl.float32, bitcast=True), ((127 - shift) << 23).to(tl.float32, bitcast=True)


@triton.jit
def split(value):
    """Numbers below 2¹⁵ in two halves."""
    high = value.to(tl.float16)
    return high, (value - high.to(tl.float32)).to(tl.float16)


@triton.jit
def add_product(total, high, low, other_high, other_low):
    """Tensor cores cut off what they add, so they add the products of one step, float32 units the rest."""
    few = tl.dot(low, other_high)
    few = tl.dot(high, other_low, few)
    return total + tl.dot(high, other_high, few)


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
    scale, inverse = unit(largest)
    tl.store(scales + row * parts + part, inverse)
    high += row * padded
    low += row * padded
    for at in range(begin, end, BLOCK):
        k = at + tl.arange(0, BLOCK)
        if PART > BLOCK:
            value = tl.load(x + k, k < inner, 0.0)
        one, other = split(value * scale)
        tl.store(high + k, one, k < end)
        tl.store(low + k, other, k < end)


@triton.jit
def halve_columns(
    x, high, low, scales, inner, padded, group_stride, step_stride, rows, STEP: tl.constexpr, COLUMNS: tl.constexpr
):
    """What `halve` does, of rows that lie side by side in memory; the inner axis is one part."""
    row, k = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, STEP)
    group = tl.program_id(0).to(tl.int64)
    x += group * group_stride + row[None, :]
    largest = tl.zeros((COLUMNS,), tl.float32)
    for at in range(0, inner, STEP):
        there = x + (at + k)[:, None].to(tl.int64) * step_stride
        value = tl.load(there, (at + k < inner)[:, None] & (row < rows)[None, :], 0.0)
        largest = tl.maximum(largest, tl.max(tl.abs(value), 0))
    scale, inverse = unit(largest)
    tl.store(scales + group * rows + row, inverse, row < rows)
    into = (group * rows + row[:, None]) * padded + k[None, :]
    for at in range(0, padded, STEP):
        there = x + (at + k)[:, None].to(tl.int64) * step_stride
        value = tl.load(there, (at + k < inner)[:, None] & (row < rows)[None, :], 0.0)
        one, other = split(tl.trans(value * scale[None, :]))
        tl.store(high + into + at, one, (row < rows)[:, None])
        tl.store(low + into + at, other, (row < rows)[:, None])


@triton.jit
def halve_images(
    x, sizes, high, low, channels, height, width, above, before, padded_channels, padded_height, padded_width,
    x_image, x_channel, x_row, x_column, WIDE: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """One line of an image in halves, channels innermost, zeros around it; `sizes`: the largest number of each image."""
    image, line = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column, channel = tl.arange(0, WIDE), tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    y, z = (line - above).to(tl.int64), (column - before).to(tl.int64)
    scale, _ = unit(tl.load(sizes + image))
    inside = (z >= 0) & (z < width) & (y >= 0) & (y < height)
    there = x + image * x_image + y * x_row + z[None, :] * x_column + channel[:, None].to(tl.int64) * x_channel
    value = tl.load(there, inside[None, :] & (channel < channels)[:, None], 0.0) * scale
    one, other = split(tl.trans(value))
    into = ((image * padded_height + line) * padded_width + column[:, None]) * padded_channels + channel[None, :]
    kept = (column < padded_width)[:, None] & (channel < padded_channels)[None, :]
    tl.store(high + into, one, kept)
    tl.store(low + into, other, kept)


@triton.jit
def multiply(
    left_high, left_low, left_scales, right_high, right_low, right_scales, bias, out,
    rows, columns, padded, parts, diagonal, BIASED: tl.constexpr,
    PART: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of one part of a product; zeros where it lies below the diagonal, (i, i - diagonal)."""
    high_tiles, wide_tiles = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    tile, many = tl.program_id(0) % (high_tiles * wide_tiles), tl.program_id(0) // (high_tiles * wide_tiles)
    group, part = many // parts, many % parts
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
            total = add_product(total, a, low_a, b, low_b)
            left += STEP
            right += STEP
        total *= tl.load(left_scales + left_row * parts + part)[:, None]
        total *= tl.load(right_scales + right_row * parts + part)[None, :]
        if BIASED:
            total += tl.load(bias + column % columns)[None, :]
    place = (many.to(tl.int64) * rows + row[:, None]) * columns + column[None, :]
    tl.store(out + place, total, (row[:, None] < rows) & (column[None, :] < columns))


@triton.jit
def convolve(
    x_high, x_low, sizes, high, low, scales, out, rows, outs, padded, channels, wide, image_numbers,
    out_wide, positions, out_image, out_channel, out_row, out_column,
    TAPS: tl.constexpr, TAPS_WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One tile (positions of images, channels) of a convolution with stride 1 of what `halve_images` made."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real, k = row < rows, tl.arange(0, STEP)
    row = tl.where(real, row, 0)
    image, place = (row // positions).to(tl.int64), row % positions
    y, z = place // out_wide, place % out_wide
    left = (image * image_numbers + (y * wide + z) * channels)[:, None] + k[None, :]
    right = (column % outs)[None, :] * padded + k[:, None]
    chunks = channels // STEP
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, TAPS * chunks):
        tap, at = step // chunks, step % chunks * STEP
        there = left + ((tap // TAPS_WIDE * wide + tap % TAPS_WIDE) * channels + at)
        halves = right + (tap * channels + at)
        total = add_product(
            total, tl.load(x_high + there), tl.load(x_low + there), tl.load(high + halves), tl.load(low + halves)
        )
    _, inverse = unit(tl.load(sizes + image))
    total = total * inverse[:, None] * tl.load(scales + column % outs)[None, :]
    into = (image * out_image + y * out_row + z * out_column)[:, None] + column[None, :] * out_channel
    tl.store(out + into, total, real[:, None] & (column < outs)[None, :])
