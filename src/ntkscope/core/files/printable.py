"""Text from files as a terminal may print it: nothing in it moves the cursor, changes a title or hides what follows."""

from __future__ import annotations

import re

# control characters (ESC and CSI among them) but for tab and newline; marks that turn the direction of text; line and
# paragraph separators, which some terminals obey; halves of surrogate pairs, which cannot be printed at all
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""`text` with every character that a terminal would obey rather than show written as an escape.

    >>> printable("loss \x1b[31m0.1\x1b[0m")
    'loss \\x1b[31m0.1\\x1b[0m'
    """
    return _UNPRINTABLE.sub(lambda found: _escape(ord(found[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
