"""A search on a grid for whoever brings none of its own: around the defaults first, then downhill from the best."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

Place = tuple[int, int]


def downhill(error: Callable[[Place], float], start: Place, shape: Place) -> Place:
    """The best of `start` and its eight neighbours, then of that one's nearest four for as long as one is better.

    >>> downhill(lambda p: (p[0] - 5) ** 2 + p[1], (1, 1), (9, 4))
    (5, 0)
    """
    tried: dict[Place, float] = {}

    def look(places: list[Place]) -> None:
        for p in places:
            if p not in tried and 0 <= p[0] < shape[0] and 0 <= p[1] < shape[1]:
                tried[p] = error(p)

    look([(start[0] + i, start[1] + j) for i, j in product((0, -1, 1), repeat=2)])
    while True:
        place = min(tried, key=lambda p: tried[p])
        look([(place[0] + i, place[1] + j) for i, j in ((1, 0), (-1, 0), (0, 1), (0, -1))])
        if min(tried.values()) >= tried[place]:
            return place
