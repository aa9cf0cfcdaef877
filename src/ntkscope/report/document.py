"""One HTML file that needs nothing else: style, scripts and data inside, and a policy that lets nothing in from outside."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ntkscope.core import UsageError
from ntkscope.core.arguments import path_of
from ntkscope.core.files.atomic import write_file
from ntkscope.report.markup import Markup, code_script, data_script, join, tag

PAGE = b'<meta name="generator" content="ntkscope">', b"base-uri 'none'; form-action 'none'; img-src data:; style-src"
"""By which a page knows its own kind: the first, and in a page of an earlier version the policy in its head."""
_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("theme.js", "tip.js", "items.js", "table.js", "review.js", "explorer.js", "training.js")


def document(
    title: str,
    body: Sequence[Any],
    *,
    links: Sequence[tuple[str, str]] = (),
    data: Mapping[str, Mapping[str, Any]] | None = None,
    style: str = "",
    foot: Any = None,
) -> Markup:
    """The page with a navigation of `links` (id of a part, its name); only our own scripts run, identified by their hashes."""
    script, digest = code_script("\n".join((_ASSETS / name).read_text(encoding="utf-8") for name in _SCRIPTS))
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline';"
        f" script-src {digest}"
    )
    css = (_ASSETS / "style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        Markup(PAGE[0].decode()),
        # hashes are quoted, and an attribute holds the quotes as they are
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        Markup(f"<style>{css}\n{style}</style>"),
    )
    entries = [tag("li", tag("a", name, href=f"#{part}")) for part, name in links]
    bar = tag(
        "div",
        tag("a", "ntkscope", href="#top", class_="brand"),
        tag("nav", tag("ol", *entries), aria_label="Sections") if entries else tag("span", class_="nav"),
        tag(
            "button",
            "Theme",
            type="button",
            id="theme",
            class_="action",
            aria_label="Theme: system",
            hidden=True,
        ),
        class_="bar",
    )
    inner = tag(
        "body",
        tag("a", "Skip to content", href="#main", class_="skip"),
        tag("div", bar, tag("main", *body, id="main", tabindex="-1"), class_="layout", id="top"),
        tag("footer", foot) if foot is not None else None,
        tag("div", id="tip", role="tooltip", hidden=True),
        *(data_script(name, value) for name, value in (data or {}).items() if value),
        script,
    )
    return join([Markup("<!doctype html>\n"), tag("html", head, inner, lang="en")])


def page_of_parts(
    title: str,
    head: Sequence[Any],
    parts: Mapping[str, tuple[str, Markup | None]],
    *,
    after: Any = None,
    data: Mapping[str, Mapping[str, Any]] | None = None,
    made_from: str = "a record",
) -> Markup:
    """A document of parts by key, each with its title; those without a body are left out, also of the navigation."""
    shown = {key: (name, body) for key, (name, body) in parts.items() if body}
    return document(
        f"{title} – ntkscope",
        [*head, *(part(key, name, body) for key, (name, body) in shown.items()), after],
        links=[(key, name) for key, (name, _) in shown.items()],
        data=data,
        foot=tag("p", f"Made from {made_from} on disk; this file loads nothing from the network."),
    )


def part(key: str, title: str, body: Markup) -> Markup:
    """A part of a page under a heading; the navigation links to its key."""
    head = tag("h2", title, id=f"{key}-title")
    return tag("section", head, body, id=key, aria_labelledby=f"{key}-title", class_="part-of-page")


def save(page: str, out: str | Path, over: bytes | tuple[bytes, ...] = PAGE) -> Path:
    """Write a page atomically, over an earlier one at most; it can be rebuilt from its record, so it is not synced to disk."""
    path = path_of(out, "out")
    if str(out).endswith(("/", os.sep)):
        raise UsageError(f"got the folder {out} for a page; expected a file, such as {path / 'page.html'}")
    write_file(path, page.encode("utf-8", "replace"), over=over, durable=False)
    return path
