"""The heat map: a matrix as an image, with the classes of its rows next to it and a colour scale."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float, UInt8

from ntkscope.report.items import image_uri
from ntkscope.report.markup import Markup, tag
from ntkscope.report.numbers import number
from ntkscope.report.plots.frame import svg

# Nine anchors of matplotlib's "cividis", which looks the same with and without red-green blindness.
CIVIDIS = (
    (0, 34, 78),
    (18, 53, 112),
    (59, 73, 108),
    (87, 93, 109),
    (112, 113, 115),
    (138, 134, 120),
    (166, 157, 117),
    (195, 181, 105),
    (254, 232, 56),
)
LEVELS = 254  # colours less one: with that of what is not finite, as many as a palette holds
_SIDE, _LEFT, _TOP, _WIDTH = 290, 62, 10, 420


def colours(values: Float[np.ndarray, "h w"], low: float | int, high: float | int) -> UInt8[np.ndarray, "h w 3"]:
    """Values between `low` and `high` as pixels; non-finite values are magenta.

    >>> colours(np.array([[0.0, 1.0]]), 0, 1).tolist()
    [[[0, 34, 78], [254, 232, 56]]]
    """
    span = high - low if high > low else 1.0
    place = np.clip((values.astype(np.float64) - low) / span, 0, 1)
    place = np.rint(place * LEVELS) / LEVELS * (len(CIVIDIS) - 1)
    anchors = np.array(CIVIDIS, dtype=np.float64)
    finite = np.isfinite(place)
    place = np.where(finite, place, 0)
    pixels = np.stack([np.interp(place, np.arange(len(anchors)), anchors[:, k]) for k in range(3)], axis=-1)
    pixels[~finite] = (204, 0, 204)
    return np.rint(pixels).astype(np.uint8)


def heatmap(values: np.ndarray, labels: np.ndarray | None, names: Sequence[str], *, describe: str) -> Markup:
    """A square matrix whose rows are ordered by class; colours run between its 1st and 99th percentiles off the diagonal."""
    matrix = np.asarray(values, dtype=np.float64)
    n = len(matrix)
    off = matrix[~np.eye(n, dtype=bool)] if matrix.shape == (n, n) and n > 1 else matrix.ravel()
    off = off[np.isfinite(off)]
    low, high = (float(v) for v in np.percentile(off, [1, 99])) if off.size else (0.0, 1.0)
    image = image_uri(colours(matrix, low, high))
    parts = [
        tag(
            "image", href=image, x=_LEFT, y=_TOP, width=_SIDE, height=_SIDE, class_="pixels", preserveAspectRatio="none"
        )
    ]
    parts += _classes(np.asarray(labels), n, names) if labels is not None and len(labels) == n else []
    strip = image_uri(colours(np.linspace(high, low, 64)[:, None], low, high))
    x = _LEFT + _SIDE + 14
    parts.append(
        tag("image", href=strip, x=x, y=_TOP, width=12, height=_SIDE, class_="pixels", preserveAspectRatio="none")
    )
    for y, value in ((_TOP + 9, high), (_TOP + _SIDE / 2 + 4, (low + high) / 2), (_TOP + _SIDE, low)):
        parts.append(tag("text", number(value, 2), x=x + 17, y=y, class_="tick"))
    return svg(_WIDTH, _TOP + _SIDE + 40, parts, describe=describe)


def _classes(labels: np.ndarray, n: int, names: Sequence[str]) -> list[Markup]:
    """Boundaries and names of runs of equal labels; a name is omitted if it would overlap the previous one."""
    edges = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), n]
    pixel = _SIDE / n
    parts, last_x, last_y = [], -99.0, -99.0
    for start, end in pairwise(edges):
        label = int(labels[start])
        name = names[label] if 0 <= label < len(names) else str(label)
        short = name if len(name) <= 9 else name[:8] + "…"
        middle = (start + end) / 2 * pixel
        if middle - last_y >= 11:
            parts.append(tag("text", short, x=_LEFT - 6, y=_TOP + middle + 4, text_anchor="end", class_="tick"))
            last_y = middle
        room = 7 * max(len(short), 2)
        if middle - last_x >= room:
            parts.append(tag("text", short, x=_LEFT + middle, y=_TOP + _SIDE + 15, text_anchor="middle", class_="tick"))
            last_x = middle
        if start:
            at = start * pixel
            parts.append(
                tag("path", d=f"M{_LEFT + at:.1f} {_TOP}v{_SIDE}M{_LEFT} {_TOP + at:.1f}h{_SIDE}", class_="cut")
            )
    return parts
