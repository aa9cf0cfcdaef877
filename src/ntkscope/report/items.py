"""Training and test items on a page: a thumbnail from one sheet, a text, or a number."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image, features

from ntkscope.report.markup import Markup, tag

COLUMNS = 32
PARTS = ("train", "test")
SIDES = (
    64,
    48,
    32,
)  # pixels of a thumbnail's longer side at most, if as many fit into a sheet; larger images are scaled down
SHEET = 600_000  # bytes of a sheet: beyond, colours are approximate, then thumbnails smaller
TALLEST = 16_383  # pixels of a WebP image


class Items:
    """The items a page shows; only those are embedded, each once, however many views show them."""

    def __init__(
        self,
        array: Callable[[str], NDArray[Any] | None],
        texts: Mapping[str, Any],
        ids: Mapping[str, Any] | None = None,
    ) -> None:
        self._thumbs = {part: _images(array(f"thumbs.{part}")) for part in PARTS}
        self._texts = {part: _listed(texts.get(part)) for part in PARTS}
        self._ids = {part: _listed((ids or {}).get(part)) for part in PARTS}
        self._originals = {part: array(f"originals.{part}") for part in PARTS}
        self._slots: dict[str, dict[int, int]] = {part: {} for part in PARTS}
        self._used: dict[str, dict[int, None]] = {part: {} for part in PARTS}

    def number(self, part: str, index: int) -> int:
        """The position of an item in the data the X-ray was given; its own number if the record does not say."""
        originals = self._originals[part]
        if originals is None or originals.ndim != 1 or not 0 <= index < len(originals):
            return int(index)
        return int(originals[index])

    def identifier(self, part: str, index: int) -> str | None:
        """The user's own id or file path of an item."""
        ids = self._ids[part]
        return str(ids[index]) if 0 <= index < len(ids) and ids[index] is not None else None

    def used(self, part: str) -> list[int]:
        """The items that the page shows so far, in order."""
        return sorted(self._used[part])

    def slot(self, part: str, index: int) -> int | None:
        """The slot of an item in its sheet of thumbnails, assigned on first use."""
        self._used[part][int(index)] = None
        images = self._thumbs[part]
        if images is None or not 0 <= index < len(images):
            return None
        return self._slots[part].setdefault(int(index), len(self._slots[part]))

    def text(self, part: str, index: int, longest: int = 400) -> str | None:
        """The text of an item, truncated if it is very long."""
        texts = self._texts[part]
        if not 0 <= index < len(texts):
            return None
        whole = str(texts[index])
        return whole if len(whole) <= longest else whole[:longest] + "…"

    def show(self, part: str, index: int, *, longest: int = 160) -> Markup:
        """An item as markup: its thumbnail, else its text, else its number."""
        slot = self.slot(part, index)
        if slot is not None:
            place = f"--x:{slot % COLUMNS};--y:{slot // COLUMNS}"
            said = f"{part} item {self.number(part, index)}"
            return tag("span", class_=f"thumb {part}", style=place, role="img", aria_label=said)
        shown = self.text(part, index, longest)
        if shown is not None:
            return tag("bdi", shown, class_="quote")
        return tag("span", f"#{self.number(part, index)}", class_="ordinal")

    def link(self, part: str, index: int, *, longest: int = 160) -> Markup:
        """An item that opens when it is clicked; the link can be shared, `#item-12` or `#train-12`."""
        return tag("a", self.show(part, index, longest=longest), href=self.address(part, index), class_="to-item")

    def address(self, part: str, index: int) -> str:
        """The link to one item of this page."""
        return f"#{'item' if part == 'test' else 'train'}-{self.number(part, index)}"

    def style(self) -> str:
        """CSS with the sheets of the thumbnails used so far."""
        rules = []
        for part, slots in self._slots.items():
            images = self._thumbs[part]
            if images is None or not slots:
                continue
            rows = -(-len(slots) // COLUMNS)
            smooth = "auto" if max(images.shape[1:3]) > 40 else "pixelated"
            address = sheet_uri([np.asarray(images[index]) for index in slots])
            rules.append(
                f".thumb.{part}{{background-image:url({address});--cols:{COLUMNS};--rows:{rows};image-rendering:{smooth}}}"
            )
        return "\n".join(rules)


def sheet(images: list[UInt8[np.ndarray, "h w c"]]) -> UInt8[np.ndarray, "rows columns c"]:
    """Images in the middle of equal squares, `COLUMNS` per row.

    >>> sheet([np.full((2, 4, 1), 9, dtype=np.uint8)] * 2).shape
    (4, 128, 1)
    """
    h, w, channels = images[0].shape
    side = max(h, w)
    rows = -(-len(images) // COLUMNS)
    out = np.zeros((rows * side, COLUMNS * side, channels), dtype=np.uint8)
    for n, image in enumerate(images):
        top = n // COLUMNS * side + (side - h) // 2
        left = n % COLUMNS * side + (side - w) // 2
        out[top : top + h, left : left + w] = image
    return out


def sheet_uri(images: list[UInt8[np.ndarray, "h w c"]]) -> str:
    """A sheet of images as a `data:` address: exact where that is not large, else in WebP."""
    pixels = sheet([shrunk(image, SIDES[0]) for image in images])
    found = image_uri(pixels)
    for side in SIDES:
        if len(found) <= SHEET or max(pixels.shape) > TALLEST or not features.check("webp"):
            break
        pixels = sheet([shrunk(image, side) for image in images])
        found = min(found, image_uri(pixels, format="WEBP", quality=60, method=4), key=len)
    return found


def image_uri(pixels: UInt8[np.ndarray, "h w c"], **options: Any) -> str:
    """Pixels with one, three or four channels as the `data:` address of a PNG file, or of another `format`; up to 256 colours
    are a palette, which takes less than half the bytes."""
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels))
    if not options and image.mode == "RGB" and image.getcolors(256):
        colours, places = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
        image = Image.fromarray(places.reshape(pixels.shape[:2]).astype(np.uint8), "P")
        image.putpalette(colours.tobytes())
    out = io.BytesIO()
    image.save(out, **({"format": "PNG", "optimize": True} | options))
    return f"data:image/{options.get('format', 'png').lower()};base64,{base64.b64encode(out.getvalue()).decode()}"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _images(array: NDArray[Any] | None) -> NDArray[Any] | None:
    known = array is not None and array.ndim == 4 and array.dtype == np.uint8 and array.shape[-1] in (1, 3)
    return array if known else None


def shrunk(pixels: UInt8[np.ndarray, "h w c"], side: int = SIDES[0]) -> UInt8[np.ndarray, "h w c"]:
    """An image, scaled down if it is larger than `side`."""
    longest = max(pixels.shape[:2])
    if longest <= side:
        return pixels
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels))
    size = (max(1, round(pixels.shape[1] * side / longest)), max(1, round(pixels.shape[0] * side / longest)))
    return np.asarray(image.resize(size, Image.Resampling.LANCZOS)).reshape(size[1], size[0], -1)
