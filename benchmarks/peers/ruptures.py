"""ruptures in its own environment: the one change of each series, by dynamic programming."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import ruptures

from benchmarks.peers import serve


def about() -> dict[str, Any]:
    return {"version": version("ruptures")}


def locate(path: str) -> dict[str, Any]:
    """First index after the change of each row of a file."""
    rows = np.load(path, allow_pickle=False)
    # Every index may be the change: its defaults allow every fifth and segments of two.
    places = [ruptures.Dynp(model="l2", min_size=1, jump=1).fit(row).predict(n_bkps=1)[0] for row in rows]
    return {"places": [int(place) for place in places]}


if __name__ == "__main__":
    serve({"about": about, "locate": locate})
