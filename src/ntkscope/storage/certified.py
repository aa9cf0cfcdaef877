"""The certificate of a store: what was checked while its tiles were computed, added up over all runs."""

from __future__ import annotations

import json

from ntkscope.core import Certificate
from ntkscope.core.errors import StoreError
from ntkscope.core.files.safe_files import parse_json
from ntkscope.core.files.schema import Mismatch, fields, list_of, number, text, whole
from ntkscope.storage._files import Folder
from ntkscope.storage._zarr import CHECKED, attributes_checksum

KEY, LARGEST = "certificate.json", 2**20
_amount = number(0, expected="a number from 0")
_certificate = fields(
    {},
    {
        **dict.fromkeys(("worst", "tolerance", "seconds"), _amount),
        **dict.fromkeys(("checked", "blocks", "alone", "compared"), whole()),
        **dict.fromkeys(("fell_back", "changes"), list_of(text())),
        **dict.fromkeys(("against", "model", CHECKED), text()),
    },
    closed=True,  # so that a damaged name is noticed too
)


def read_certificate(folder: Folder) -> Certificate | None:
    """What the runs that filled a store checked; None if no run recorded it, or if it is not what was written.

    Those of versions before 0.2 have no checksum.
    """
    data = folder.get(KEY, LARGEST)
    if data is None:
        return None
    try:
        value = parse_json(data, folder.name(KEY), StoreError)
        _certificate(value, KEY)
    except (StoreError, Mismatch):  # not written by us: ignore it
        return None
    if value.pop(CHECKED, checksum := attributes_checksum(value)) != checksum:
        return None
    return Certificate.from_json(value)


def add_certificate(folder: Folder, new: Certificate) -> Certificate:
    """Add what a run checked to what earlier runs checked; returns the sum."""
    before = read_certificate(folder)
    total = new if before is None else before + new
    if new.blocks or before is None:
        said = total.to_json()
        folder.put(KEY, json.dumps({**said, CHECKED: attributes_checksum(said)}).encode())
    return total
