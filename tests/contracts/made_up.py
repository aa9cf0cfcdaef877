"""Records made up to fit what was published, and the same with some values changed: verdicts must follow."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from ntkscope.core import Record

Changes = Mapping[
    tuple[str, ...], Any
]  # values by the keys that lead to them, "*" for every item of a list or a mapping
REMOVED = object()


def made_up(rows: Mapping[str, Any], changes: Changes | None = None, arrays: Mapping[str, Any] | None = None) -> Record:
    """What readings see of a record with these results, some of them changed or `REMOVED`."""
    metrics = copy.deepcopy(dict(rows))
    for (*keys, last), value in (changes or {}).items():
        places: list[Any] = [metrics]
        for key in keys:
            places = [one for place in places for one in (_items(place) if key == "*" else [place[key]])]
        for place in places:
            if value is REMOVED:
                del place[last]
            else:
                place[last] = value
    return cast(Record, SimpleNamespace(metrics=metrics, arrays=arrays or {}, seeds={"seed": 0}))


def _items(place: Any) -> list[Any]:
    return list(place.values()) if isinstance(place, Mapping) else list(place)
