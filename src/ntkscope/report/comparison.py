"""The page of a comparison."""

from __future__ import annotations

from ntkscope.core import Record
from ntkscope.report.markup import Markup
from ntkscope.report.result import result

COMPARISON = "comparison"


def comparison(record: Record) -> Markup:
    """The page."""
    return result(record)
