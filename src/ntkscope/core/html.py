"""Small pieces of HTML for notebooks: tables and drawings that take their colours from the page, light or dark.

Every text is escaped, nothing refers to another address, and the size of a drawing does not depend on that of the data.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np
from jaxtyping import Float
from PIL import Image

_FIGURE = "display:inline-block;margin:0.5em 1.5em 0.5em 0;vertical-align:top;text-align:center"
_LEAST = 1e-12  # of the largest value: smaller ones are rounding, and would squeeze the others together


def table(title: str, rows: Mapping[str, object] | Iterable[tuple[object, ...]]) -> str:
    """A table of escaped cells; a mapping gives a row, with a head, for each entry.

    >>> table("a < b", {"n": 2})
    '<table><caption>a &lt; b</caption><tr><th>n</th><td>2</td></tr></table>'
    """
    if isinstance(rows, Mapping):
        lines = [f"<th>{_text(name)}</th><td>{_text(value)}</td>" for name, value in rows.items()]
    else:
        lines = ["".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows]
    return f"<table><caption>{_text(title)}</caption>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def few(names: Sequence[str], shown: int = 5) -> str:
    """The first of many names, and how many more there are.

    >>> few("abcdefg", 2)
    'a, b and 5 more'
    """
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def heat_map(title: str, values: Float[np.ndarray, "n m"], size: int = 160) -> str:
    """A matrix as a small picture: red where positive, blue where negative, paler towards zero."""
    scale = float(np.abs(values).max(initial=0.0)) or 1.0
    strength = np.abs(values) / scale
    red, blue = np.array([179, 58, 43]), np.array([43, 94, 179])
    colour = np.where((values >= 0)[..., None], red, blue)
    pixels = 255 + strength[..., None] * (colour - 255)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8), "RGB").save(file, format="png", optimize=True)
    source = base64.b64encode(file.getvalue()).decode()
    style = f"width:{size}px;height:{size * values.shape[0] // values.shape[1]}px;image-rendering:pixelated"
    return _figure(title, f'<img alt="{_text(title)}" src="data:image/png;base64,{source}" style="{style}"/>')


def spectrum(
    title: str, values: Float[np.ndarray, " n"], width: int = 240, height: int = 160, points: int = 120
) -> str:
    """Positive values in descending order on logarithmic axes; at most `points` of them are drawn."""
    ordered = np.sort(values[values > 0])[::-1]
    ordered = ordered[ordered > _LEAST * ordered[0]] if len(ordered) else ordered
    if len(ordered) < 2:
        return ""
    chosen = np.unique(np.geomspace(1, len(ordered), points).round().astype(int))
    across = np.log(chosen) / np.log(len(ordered)) * (width - 60) + 50
    levels = np.log10(ordered)
    span = (levels[0] - levels[-1]) or 1.0
    up = (levels[0] - levels[chosen - 1]) / span * (height - 40) + 10
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up))
    words = [
        (46, 14, "end", f"{ordered[0]:.1e}"),
        (46, height - 27, "end", f"{ordered[-1]:.1e}"),
        (50, height - 8, "middle", "1"),
        (width - 10, height - 8, "middle", str(len(ordered))),
    ]
    labels = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{_text(word)}</text>' for x, y, anchor, word in words
    )
    axes = f'<path d="M50 5V{height - 25}H{width - 5}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
    drawn = (
        f'<svg role="img" aria-label="{_text(title)}" width="{width}" height="{height}" font-size="9" fill="currentColor">'
        f'{axes}<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/>{labels}</svg>'
    )
    return _figure(title, drawn)


def _figure(title: str, drawn: str) -> str:
    return f'<div style="{_FIGURE}">{drawn}<br/><small>{_text(title)}</small></div>'


def _text(value: object) -> str:
    return escape(str(value), quote=True)
