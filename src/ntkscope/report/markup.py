"""HTML that cannot be written unescaped: text becomes markup only through `tag`."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from html import escape
from typing import Any

import numpy as np

from ntkscope.core import UsageError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_LINK = re.compile(r"#|data:image/(png|jpeg|webp|svg\+xml);base64,|(?![A-Za-z][A-Za-z0-9+.-]*:)[^/\\\x00-\x20]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta", "wbr"})
# What would end a script element, open a comment in it, or break a line of JavaScript.
_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


class Markup(str):
    """Text that is HTML already; everything else is escaped where it enters a tag."""

    __slots__ = ()


def text(value: object) -> Markup:
    """`value` as escaped HTML; control characters, which HTML does not allow, become U+FFFD.

    >>> text("<b> & co")
    '&lt;b&gt; &amp; co'
    >>> text(tag("b", "<"))
    '<b>&lt;</b>'
    """
    return value if isinstance(value, Markup) else Markup(escape(_CONTROL.sub("\ufffd", str(value)), quote=True))


def join(children: Iterable[Any]) -> Markup:
    """Children one after the other: markup unchanged, texts escaped, `None` skipped, lists flattened."""
    parts = []
    for child in children:
        if child is None or child is False:
            continue
        parts.append(text(child) if isinstance(child, str) or not isinstance(child, Iterable) else join(child))
    return Markup("".join(parts))


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element; `class_` is the attribute `class`, `data_tip` is `data-tip`, `None` and `False` omit an attribute.

    Handlers (`onclick=`) are refused, and so are links other than into the page, to a file next to it, or to an embedded image.

    >>> tag("a", "1 < 2", href="#top", class_="up", title='"')
    '<a href="#top" class="up" title="&quot;">1 &lt; 2</a>'
    >>> tag("a", "here", href="javascript:alert(1)")
    Traceback (most recent call last):
    ...
    ntkscope.core.errors.UsageError: href="javascript:alert(1)" on <a>; expected '#part', a relative path or an image ...
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"element {name!r}; expected letters, digits and '-'")
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        if not _NAME.fullmatch(attribute) or attribute.lower().startswith("on"):
            raise UsageError(f"attribute {attribute!r} on <{name}>; expected a plain attribute, not a handler")
        if attribute in ("href", "src") and not _LINK.match(str(value)):
            raise UsageError(
                f"{attribute}=\"{value}\" on <{name}>; expected '#part', a relative path or an image the page holds"
            )
        parts.append(f" {attribute}" if value is True else f' {attribute}="{text(str(value))}"')
    parts.append(">")
    if name not in _VOID:
        parts += [join(children), f"</{name}>"]
    return Markup("".join(parts))


def folded(words: str, body: Any, kind: str = "folded") -> Markup:
    """What few readers need, and what can be thousands of lines: closed until it is asked for."""
    return tag("details", tag("summary", words), body, class_=kind)


def data_script(name: str, value: Any) -> Markup:
    """`value` as JSON in a script element that does not run; no text in it can break out of the element.

    >>> data_script("d", {"class": "</script>", "p": float("nan"), "x": 1 / 3})
    '<script type="application/json" id="data-d">{"class":"\\\\u003c/script\\\\u003e","p":null,"x":0.33333}</script>'
    """
    body = json.dumps(compact(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    body = _CONTROL.sub("\ufffd", body).translate(_IN_SCRIPT)
    return Markup(f'<script type="application/json" id="data-{text(name)}">{body}</script>')


def code_script(source: str) -> tuple[Markup, str]:
    """Our own JavaScript as a script element, and its hash for the page's content security policy."""
    if "</script" in source.lower():
        raise UsageError("a script that holds '</script' would end too early; write it as '<\\/script'")
    digest = base64.b64encode(sha256(source.encode()).digest()).decode()
    return Markup(f"<script>{source}</script>"), f"'sha256-{digest}'"


def compact(value: Any, digits: int = 5) -> Any:
    """JSON for plots: arrays as lists, floats with a few significant digits, non-finite values as null.

    >>> compact({"v": np.array([1 / 3, np.inf]), "n": np.int64(3)})
    {'v': [0.33333, None], 'n': 3}
    """
    if isinstance(value, Mapping):
        return {str(key): compact(item, digits) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f":
            return value.tolist()
        short = [float(f"{x:.{digits}g}") if math.isfinite(x) else None for x in value.ravel().tolist()]
        return np.array(short, dtype=object).reshape(value.shape).tolist()
    if isinstance(value, (list, tuple)):  # most of a page's data: no call for values that do not change
        return [item if type(item) in (int, str, bool) else compact(item, digits) for item in value]
    if isinstance(value, np.generic):
        return compact(value.item(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value
