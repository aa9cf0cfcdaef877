"""A name for a record that another record does not have: what a review of it refers to."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ntkscope.core.records.record import Record

LENGTH = 16


def record_id(record: Record) -> str:
    """Sixteen hexadecimal digits made of what ran and when it began; resuming a record does not change them.

    >>> import tempfile
    >>> from ntkscope.core import Record
    >>> record = Record.create(tempfile.mkdtemp() + "/r", kind="example")
    >>> first = record_id(record)
    >>> record.finish()
    >>> len(first), first == record_id(record)
    (16, True)
    """
    written = record.to_json()
    told = {key: written.get(key) for key in ("kind", "name", "config", "seeds", "started")}
    return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:LENGTH]
