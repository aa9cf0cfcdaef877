"""A notebook as a page: its text, its code, and its outputs as they are stored. Nothing is run."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.site import links


def page(notebook: Path) -> str:
    """The Markdown of a page that shows a notebook."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = [
        part if part.startswith("<div") else links.in_site(part, notebook) for cell in cells for part in shown(cell)
    ]
    return "\n\n".join([*parts, f"[This page as a notebook]({notebook.name}){{ download }}", ""])


def shown(cell: dict[str, Any]) -> list[str]:
    """The parts of one cell.

    >>> shown({"cell_type": "markdown", "source": ["# Hello"]})
    ['# Hello']
    >>> shown({"cell_type": "code", "source": "1 + 1", "outputs": [{"data": {"text/plain": ["2"]}}]})
    ['```python\\n1 + 1\\n```', '<div class="output"><pre><code>2</code></pre></div>']
    """
    source = joined(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    if not source.strip():
        return []
    return [f"```python\n{source}\n```", *filter(None, map(output, cell.get("outputs", [])))]


def output(stored: dict[str, Any]) -> str:
    """One output, on one line: a blank line would end it."""
    data = stored.get("data", {})
    if "text/html" in data:
        body = joined(data["text/html"])
    elif "image/svg+xml" in data:
        body = picture("image/svg+xml", joined(data["image/svg+xml"]).encode("utf-8"))
    elif "image/png" in data:
        body = picture("image/png", base64.b64decode(joined(data["image/png"])))
    else:
        text = html.escape(joined(stored.get("text", data.get("text/plain", "")))).rstrip()
        body = f"<pre><code>{text}</code></pre>" if text else ""
    lines = body.replace("\r", "").replace("\n", "&#10;") if "<pre" in body else " ".join(body.split("\n"))
    return f'<div class="output">{lines}</div>' if body else ""


def picture(kind: str, content: bytes) -> str:
    return f'<img alt="output of the cell above" src="data:{kind};base64,{base64.b64encode(content).decode()}">'


def joined(text: str | Sequence[str]) -> str:
    """A text that a notebook may hold in lines."""
    return text if isinstance(text, str) else "".join(text)
