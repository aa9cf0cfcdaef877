"""`Influence`: what each output at a test item would lose if a training point were removed and the model fitted again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.core import UsageError
from ntkscope.core.arguments import labels_of, plain_array
from ntkscope.explain.ranking import PerItem, Top, item_of, output_of, top_of
from ntkscope.linalg.grams.gram import slices

BLOCK = 2**22  # scores held at a time
Rows = Int64[np.ndarray, " b"]
Directions = Float64[np.ndarray, "b k c"]
Scores = Float64[np.ndarray, "b k n"]


class Influence(PerItem):
    """`S(x, i)_c`: output c at test item x minus what it would be without training point i. Positive: the point supports it.

    Computed when asked for, never (n_test, n_train, c) at once unless `.values` is requested. Abstract: `influence` makes one.
    """

    method: str

    @property
    @abstractmethod
    def logits(self) -> Float64[np.ndarray, "m c"]:
        """The outputs at the test items: the network's where they were given, else the surrogate's own."""

    @abstractmethod
    def along(self, rows: Rows, directions: Directions) -> Scores:
        """`Σ_c v_c S(x, i)_c` of some test items, each along directions v of its own."""

    @abstractmethod
    def without(self, points: Any) -> Float64[np.ndarray, "m c"]:
        """The change of the outputs of every test item when these training points are removed together."""

    def item(self, index: int) -> Float64[np.ndarray, "n c"]:
        """The influence of every training point on one test item, (n_train, c)."""
        row = np.array([item_of(index, len(self))])
        return np.ascontiguousarray(self.along(row, np.eye(self.shape[2])[None])[0].T)

    def top(self, index: int, k: int = 10, output: int | None = None, *, opposing: bool = False) -> Top:
        """The k training points whose removal lowers one output of a test item most, by default that of the largest logit.

        `opposing=True`: those whose removal raises it most.
        """
        row = item_of(index, len(self))
        chosen = output_of(output, self.logits[row])
        values = self.along(np.array([row]), np.eye(self.shape[2])[None, [chosen]])[0, 0]
        return top_of(values, k, chosen, opposing=opposing)

    def __iter__(self) -> Iterator[Float64[np.ndarray, "n c"]]:
        c = self.shape[2]
        for rows in self._blocks(c):
            yield from self.along(rows, np.broadcast_to(np.eye(c), (len(rows), c, c)).copy()).transpose(0, 2, 1)

    def margins(self, y: Any) -> Float64[np.ndarray, "m n"]:
        """The influence on the margin `z_y - log Σ_{c≠y} exp z_c` of each test item, y its label; 8 · n_test · n_train bytes.

        To first order: the scores along `e_y - softmax of the other outputs`, at `.logits`. This is what the linear
        datamodeling score judges.
        """
        directions = margin_directions(self.logits, y)
        found = np.empty(self.shape[:2])
        for rows in self._blocks(1):
            found[rows] = self.along(rows, directions[rows, None])[:, 0]
        return found

    def _blocks(self, directions: int) -> Iterator[Rows]:
        """The test items in runs whose scores along so many directions fit in a block."""
        step = max(1, BLOCK // max(1, self.shape[1] * directions))
        return (np.arange(len(self))[rows] for rows in slices(len(self), step))

    def _points(self, points: Any) -> Int64[np.ndarray, " k"]:
        return points_of(points, self.shape[1])

    def __repr__(self) -> str:
        m, n, c = self.shape
        return f"Influence({self.method}, {m} test items × {n} training points × {c} outputs)"


@final
@dataclass(frozen=True, eq=False, repr=False)
class MeanInfluence(Influence):
    """The mean over several checkpoints of one model, or over several models, fitted on the same points."""

    members: tuple[Influence, ...]

    @property
    def method(self) -> str:  # type: ignore[override]
        return f"mean of {len(self.members)}: {self.members[0].method}"

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.members[0].shape

    @property
    def logits(self) -> Float64[np.ndarray, "m c"]:
        return self._mean(member.logits for member in self.members)

    def along(self, rows: Rows, directions: Directions) -> Scores:
        return self._mean(member.along(rows, directions) for member in self.members)

    def without(self, points: Any) -> Float64[np.ndarray, "m c"]:
        return self._mean(member.without(points) for member in self.members)

    def margins(self, y: Any) -> Float64[np.ndarray, "m n"]:
        """The mean of the members' margins, each at its own outputs."""
        return self._mean(member.margins(y) for member in self.members)

    def _mean(self, arrays: Iterator[np.ndarray]) -> np.ndarray:
        """One array at a time: two are held, however many members there are."""
        total = next(arrays).copy()
        for array in arrays:
            total += array
        return total / len(self.members)


def average(influences: Sequence[Influence]) -> Influence:
    """The mean of influences on the same test items and training points, one per checkpoint.

    A single network's influence carries the noise of its own training; the mean of a few estimates the mean retraining better.

    Examples:
        >>> K = np.array([[2.0, 1.0], [1.0, 2.0]])
        >>> one, other = (ns.explain.influence(K, K[:1], [0, 1], alpha=alpha) for alpha in (1.0, 2.0))
        >>> both = average([one, other])
        >>> np.allclose(both.item(0), (one.item(0) + other.item(0)) / 2)
        True
    """
    members = tuple(influences)
    shapes = {member.shape for member in members}
    if len(shapes) != 1:
        raise UsageError(
            f"got {len(members)} influences of shapes {sorted(shapes)}; expected at least one, all of one shape (test items,"
            " training points, outputs)"
        )
    return members[0] if len(members) == 1 else MeanInfluence(members)


def points_of(points: Any, n: int) -> Int64[np.ndarray, " k"]:
    """Training points as different whole numbers; a boolean mask is taken too."""
    chosen = np.atleast_1d(plain_array(points))
    if chosen.dtype == bool and chosen.shape == (n,):
        chosen = np.flatnonzero(chosen)
    whole = chosen.ndim == 1 and (chosen.dtype.kind in "iu" or not len(chosen))
    if not whole or (len(chosen) and not -n <= chosen.min() <= chosen.max() < n):
        raise UsageError(
            f"got points of dtype {chosen.dtype} and shape {chosen.shape}; expected numbers of training points,"
            f" 0 … {n - 1}, or a mask of shape ({n},)"
        )
    numbers = chosen.astype(np.int64) % max(1, n)
    if len(np.unique(numbers)) < len(numbers):
        raise UsageError(
            "got a training point twice; expected each point at most once: a point is removed or it is not"
        )
    return numbers


def margin_directions(logits: Float64[np.ndarray, "m c"], y: Any) -> Float64[np.ndarray, "m c"]:
    """`e_y - softmax` of the other outputs: the gradient of `z_y - log Σ_{c≠y} exp z_c` by the outputs.

    >>> margin_directions(np.array([[5.0, 1.0], [0.0, 9.0]]), [0, 0]).tolist()
    [[1.0, -1.0], [1.0, -1.0]]
    """
    labels = labels_of(y, len(logits))
    m, c = logits.shape
    if c < 2 or (m and labels.max() >= c):
        raise UsageError(
            f"got labels up to {labels.max(initial=0)} with {c} outputs; expected at least two outputs, one per class"
        )
    rows = np.arange(m)
    others = logits.astype(np.float64).copy()
    others[rows, labels] = -np.inf
    others = np.exp(others - others.max(1, keepdims=True))
    directions = -others / others.sum(1, keepdims=True)
    directions[rows, labels] = 1.0
    return directions
