"""The certificate of a store: what was checked while its tiles were computed, added up over all runs."""

from __future__ import annotations

import json

from ntkscope.core import Certificate
from ntkscope.storage._files import Folder

KEY, LARGEST = "certificate.json", 2**20


def read_certificate(folder: Folder) -> Certificate | None:
    """What the runs that filled a store checked; None where no run said so."""
    data = folder.get(KEY, LARGEST)
    if data is None:
        return None
    try:
        return Certificate.from_json(json.loads(bytes(data)))
    except (ValueError, TypeError):  # not written by us: it says nothing
        return None


def add_certificate(folder: Folder, new: Certificate) -> Certificate:
    """Add what a run checked to what earlier ones did; all of it."""
    before = read_certificate(folder)
    total = new if before is None else before + new
    if new.blocks or before is None:
        folder.put(KEY, json.dumps(total.to_json()).encode())
    return total
