"""Results stored as soon as they are computed: what is in the record is not computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ntkscope.core import Record
from ntkscope.core.errors import RecordError
from ntkscope_papers.framework.provenance import noted, watching


def once(record: Record, key: str, compute: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """The result `key` of the record; if it is not there, it is computed and stored with its seconds and where it was made.

    >>> import tempfile
    >>> record = Record.create(tempfile.mkdtemp() + "/run", kind="example")
    >>> once(record, "a", lambda: {"x": 1})["x"], once(record, "a", lambda: {"x": 2})["x"]
    (1, 1)
    """
    if key not in record.metrics:
        with watching() as took:
            value = dict(compute())
        seconds = round(took["seconds"] or 0.0, 3)
        record.put(**{key: {"seconds": seconds, **value}}, **noted(record, key, seconds, took["others"]))
    found: Mapping[str, Any] = record.metrics[key]
    if not isinstance(found, Mapping):
        raise RecordError(f"{record.folder} holds {found!r:.80} as {key}; expected a result: restore it or run again")
    return found


def under(record: Record, prefix: str) -> dict[str, Mapping[str, Any]]:
    """The results whose keys begin with `prefix`, by the rest of their keys, in the order they were made."""
    found = {key.removeprefix(prefix): value for key, value in record.metrics.items() if key.startswith(prefix)}
    return {key: value for key, value in found.items() if isinstance(value, Mapping)}


def summary(values: Iterable[float]) -> dict[str, float]:
    """Mean, standard error of the mean (0 for one value) and count.

    >>> summary([1.0, 3.0])
    {'mean': 2.0, 'sem': 1.0, 'n': 2}
    """
    array = np.array(list(values), dtype=np.float64)
    sem = float(array.std(ddof=1) / len(array) ** 0.5) if len(array) > 1 else 0.0
    return {"mean": float(array.mean()), "sem": sem, "n": len(array)}


def averaged(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Several results as one: numbers are averaged, mappings traversed; keys that some lack and everything else are dropped.

    >>> averaged([{"a": 1, "b": {"c": 2.0}, "d": "x"}, {"a": 3, "b": {"c": 4.0}, "d": "y"}])
    {'a': 2.0, 'b': {'c': 3.0}}
    """
    several = list(results)
    found: dict[str, Any] = {}
    for key, first in several[0].items():
        if not all(key in one for one in several):
            continue
        if isinstance(first, Mapping):
            found[key] = averaged([one[key] for one in several])
        elif isinstance(first, (int, float)) and not isinstance(first, bool):
            found[key] = float(np.mean([one[key] for one in several]))
    return found


def digits(value: float, count: int = 3) -> float:
    """A number for a table: `count` significant digits.

    >>> digits(1234.5), digits(0.00012345, 2)
    (1230.0, 0.00012)
    """
    return float(f"{value:.{count}g}")


def rounded(value: Any, count: int = 3) -> Any:
    """A result for a table: every float in it, arrays included, to `count` significant digits.

    >>> rounded({"a": [1.23456, 2], "b": True}, 4)
    {'a': [1.235, 2], 'b': True}
    """
    if isinstance(value, Mapping):
        return {key: rounded(item, count) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item, count) for item in value]
    if isinstance(value, np.ndarray | Tensor):
        return rounded(value.tolist(), count)
    return digits(value, count) if isinstance(value, float) else value
