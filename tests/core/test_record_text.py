"""A record's text is JSON of the document, whatever it holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntkscope.core.records.record_schema import record_text

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(), values, min_size=1))
def test_it_reads_back_as_what_was_written(document: dict[str, Any]) -> None:
    assert json.loads(record_text(document)) == document


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_json_cannot_say_is_refused_at_every_depth(number: float, depth: int) -> None:
    value: Any = number
    for _ in range(depth):
        value = {"x": [value]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        record_text({"metrics": value})
