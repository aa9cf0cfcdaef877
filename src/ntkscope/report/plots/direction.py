"""Pictures of a direction in the space of images, patches or windows: signed numbers as colours, on white for zero."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8

from ntkscope.report.items import image_uri
from ntkscope.report.markup import Markup, tag
from ntkscope.report.plots.frame import svg
from ntkscope.report.plots.heatmap import colours

# Blue to white to orange: told apart with and without red-green blindness.
SIGNED = ((5, 56, 110), (84, 150, 205), (247, 247, 245), (228, 138, 60), (140, 62, 6))
LARGEST = 64  # pixels of the longer side; larger pictures are thinned


def signed(values: Float[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """Values as pixels, the largest size as full colour, zero as white.

    >>> signed(np.array([[0.0, 2.0, -2.0]])).tolist()
    [[[247, 247, 245], [140, 62, 6], [5, 56, 110]]]
    """
    largest = float(np.abs(values).max(initial=0.0))
    place = (np.clip(values / largest if largest > 0 else values, -1, 1) + 1) / 2 * (len(SIGNED) - 1)
    anchors = np.array(SIGNED, dtype=np.float64)
    pixels = [np.interp(place, np.arange(len(anchors)), anchors[:, k]) for k in range(3)]
    return np.rint(np.stack(pixels, axis=-1)).astype(np.uint8)


def pixels_of(vector: Float[np.ndarray, " d"], shape: Sequence[int]) -> UInt8[np.ndarray, "h w 3"] | None:
    """A direction as pixels: signed of one channel, colours around grey of three, its size at each pixel of more; None where
    it is no picture.

    >>> pixels_of(np.zeros(12), (3, 2, 2))[0, 0].tolist(), pixels_of(np.zeros(5), (5,)) is None
    ([128, 128, 128], True)
    """
    if len(shape) != 3 or int(np.prod(shape)) != vector.size or not np.isfinite(vector).all():
        return None
    channels, height, width = shape
    values = np.asarray(vector, dtype=np.float64).reshape(channels, height, width)
    step = -(-max(height, width) // LARGEST)
    values = values[:, ::step, ::step]
    if channels == 1:
        return signed(values[0])
    if channels == 3:
        largest = np.abs(values).max() or 1.0
        return np.rint(127.5 + 127.5 * values / largest).astype(np.uint8).transpose(1, 2, 0)
    size = np.sqrt(np.square(values).sum(0))
    return colours(size, 0.0, float(size.max()) or 1.0)


def direction_picture(vector: Float[np.ndarray, " d"], shape: Sequence[int], describe: str) -> Markup | None:
    """The picture as an element; None where the direction is none."""
    pixels = pixels_of(vector, shape)
    if pixels is None:
        return None
    return picture(pixels, describe, "direction")


def picture(pixels: UInt8[np.ndarray, "h w c"], describe: str, kind: str) -> Markup:
    """Pixels as an element that style sheets size by its class, `kind`; each pixel a square."""
    height, width = pixels.shape[:2]
    whole = tag(
        "image", href=image_uri(pixels), width=width, height=height, class_="pixels", preserveAspectRatio="none"
    )
    return svg(width, height, [whole], describe=describe, class_=kind)
