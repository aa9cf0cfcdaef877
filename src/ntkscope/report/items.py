"""Training and test items on a page: a thumbnail from one sheet, a text, or a number."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image

from ntkscope.report.markup import Markup, tag

COLUMNS = 32
PARTS = ("train", "test")
LARGEST = 64  # pixels of a thumbnail's longer side; larger images are scaled down


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
            chosen = [shrunk(np.asarray(images[index])) for index in slots]
            rows = -(-len(chosen) // COLUMNS)
            smooth = "auto" if max(chosen[0].shape[:2]) > 40 else "pixelated"
            rules.append(
                f".thumb.{part}{{background-image:url({png_uri(sheet(chosen))});--cols:{COLUMNS};--rows:{rows};"
                f"image-rendering:{smooth}}}"
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


def png_uri(pixels: UInt8[np.ndarray, "h w c"]) -> str:
    """Pixels with one, three or four channels as the `data:` address of a PNG file."""
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels))
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _images(array: NDArray[Any] | None) -> NDArray[Any] | None:
    known = array is not None and array.ndim == 4 and array.dtype == np.uint8 and array.shape[-1] in (1, 3)
    return array if known else None


def shrunk(pixels: UInt8[np.ndarray, "h w c"]) -> UInt8[np.ndarray, "h w c"]:
    """An image, scaled down if it is large."""
    longest = max(pixels.shape[:2])
    if longest <= LARGEST:
        return pixels
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels))
    size = (max(1, round(pixels.shape[1] * LARGEST / longest)), max(1, round(pixels.shape[0] * LARGEST / longest)))
    return np.asarray(image.resize(size, Image.Resampling.LANCZOS)).reshape(size[1], size[0], -1)
