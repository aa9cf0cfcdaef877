"""The words of the tables: what an argument is, how valid ones are drawn, and how a result follows them.

A `Case` names a public function, an `Argument` for each of its parameters, and how the result moves when they do. The laws in
`test_laws.py` need nothing else, so a new public function is one line in the table of its room.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from ntkscope.linalg import Gram

Sizes = Mapping[str, int]
Draw = Callable[[np.random.Generator, Sizes], Any]

SIZES: Sizes = {"n": 12, "m": 7, "p": 5, "q": 4, "c": 3, "k": 4, "u": 9, "v": 9, "w": 30, "t": 11}
INVARIANT: Mapping[str, tuple[str | None, ...]] = {}


@dataclass(frozen=True)
class Argument:
    """One parameter. `axes`: what lies along each axis ("n" twice for a kernel); `degree`: the result's degree in it.

    `bad`: values that must be refused; `odd`: values that may be refused or taken, never with another error. `meaning`: numbers
    that are not finite and yet mean something there. `square`: whether another shape must be refused. `tensor`: whether
    it is given as a tensor, since nothing else is promised.
    """

    draw: Draw
    kind: str
    axes: tuple[str, ...] = ()
    degree: float | Mapping[str, float] | None = None
    bad: tuple[Any, ...] = ()
    odd: tuple[Any, ...] = ()
    meaning: tuple[float, ...] = ()
    square: bool = False
    tensor: bool = False

    def may_be(self, *values: Any) -> Argument:
        """The same argument where these values are documented: they are no longer among those that must be refused."""
        kept = tuple(bad for bad in self.bad if not any(bad is value or _same(bad, value) for value in values))
        return replace(self, bad=kept)


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and isinstance(a, (int, float, str, list)) and (a == b or (a != a and b != b))


@dataclass(frozen=True)
class Case:
    """A public function under law.

    `items`: the axes of the result, by field (fields that are not named do not depend on the order; None: no law).
    `low`, `high`: the range of every number in the result, or of the fields in `ranges`. `free`: fields that may be NaN or
    infinite, as documented; `noise`: fields of the size of rounding, and seconds, which no two results share. `of`: what of
    the result the laws are about. `estimator`: scikit-learn's own checks may refuse, too. `reader`: there is nothing to
    read, so ordinary arguments are refused.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Argument]
    items: Mapping[str, tuple[str | None, ...]] | None = None
    low: float = -np.inf
    high: float = np.inf
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()
    of: Callable[[Any], Any] = lambda result: result
    name: str = ""
    rtol: float = 1e-6
    estimator: bool = False
    reader: bool = False

    def __str__(self) -> str:
        return self.name

    def draw(self, seed: int, sizes: Sizes = SIZES) -> dict[str, Any]:
        random = np.random.default_rng(seed)
        return {name: argument.draw(random, sizes) for name, argument in self.arguments.items()}


def public_name(function: Callable[..., Any]) -> str:
    """Where users find it: `linalg.lsmr` for what a room exports, `measures.kendall.kendall` for what its module does."""
    name = function.__name__
    _, room, *modules = function.__module__.split(".")
    exported = getattr(sys.modules[f"ntkscope.{room}"], name, None) is function
    return f"{room}.{name}" if exported or not modules else f"{room}.{modules[-1]}.{name}"


def case(function: Callable[..., Any], /, *, options: Mapping[str, Any] | None = None, **arguments: Argument) -> Case:
    """A row of a table: the parameters by name, what the `Case` says beside them in `options`."""
    chosen = dict(options or {})
    chosen.setdefault("name", public_name(function))
    return Case(function, arguments, **chosen)


# --- Arrays. Each takes `degree`: how the result scales with it (0: not at all; None: no law, yet no inf or NaN). ---

NOT_ARRAYS: tuple[Any, ...] = (None, "x", object(), 1j, {}, [[1.0], [1.0, 2.0]])


def array(draw: Draw, *axes: str, **more: Any) -> Argument:
    return Argument(draw, "array", axes, bad=NOT_ARRAYS, **more)


def _normal(*axes: str) -> Draw:
    return lambda random, sizes: random.normal(size=[sizes[axis] for axis in axes])


def matrix(rows: str = "n", columns: str = "p", **more: Any) -> Argument:
    return array(_normal(rows, columns), rows, columns, **more)


def vector(axis: str = "n", **more: Any) -> Argument:
    return array(_normal(axis), axis, **more)


def positive_vector(axis: str = "n", **more: Any) -> Argument:
    return array(lambda random, sizes: random.uniform(0.5, 2.0, sizes[axis]), axis, **more)


def block(*axes: str, **more: Any) -> Argument:
    return array(_normal(*axes), *axes, **more)


def _features(random: np.random.Generator, n: int) -> np.ndarray:
    return random.normal(size=(n, n + 3))


def kernel(axis: str = "n", **more: Any) -> Argument:
    """Symmetric, positive definite, well conditioned."""

    def draw(random: np.random.Generator, sizes: Sizes) -> np.ndarray:
        factor = _features(random, sizes[axis])
        return factor @ factor.T / factor.shape[1] + np.eye(sizes[axis])

    return array(draw, axis, axis, **{"square": True, **more})


def symmetric(axis: str = "p", **more: Any) -> Argument:
    """Symmetric and positive definite, of features."""
    return kernel(axis, **more)


def cross_kernel(rows: str = "m", columns: str = "n", **more: Any) -> Argument:
    """Test items with training items."""
    return matrix(rows, columns, **more)


def labels(axis: str = "n", classes: str = "c", *, odd: Sequence[Any] = ()) -> Argument:
    """Every class at least once where there are items enough."""

    def draw(random: np.random.Generator, sizes: Sizes) -> np.ndarray:
        return random.permutation(np.arange(sizes[axis]) % sizes[classes])

    return Argument(draw, "labels", (axis,), bad=(None, object(), 1j, {}), odd=tuple(odd))


def targets(axis: str = "n") -> Argument:
    """Labels where floats, and integers below 0, are documented to be numbers to predict."""
    return replace(labels(axis), kind="labels or targets")


def columns(axis: str = "n", classes: str = "c") -> Argument:
    """Labels that number the columns of a result: those with gaps have more columns."""
    return replace(labels(axis, classes), kind="labels of columns")


def flags(axis: str = "n") -> Argument:
    """One truth value an item, both there."""

    def draw(random: np.random.Generator, sizes: Sizes) -> np.ndarray:
        return random.permutation(np.arange(sizes[axis]) % 2 == 0)

    return Argument(draw, "flags", (axis,), bad=(None, object(), 1j, {}, "x"))


# --- Numbers: a valid value, and what must be refused. ---

NO_NUMBERS: tuple[Any, ...] = ("x", object(), 1j, [1.0, 2.0], {}, float("nan"), None, True)
INFINITE = (float("inf"), float("-inf"))


def _fixed(value: Any) -> Draw:
    return lambda random, sizes: value


def finite(value: float, **more: Any) -> Argument:
    return Argument(_fixed(value), "number", bad=(*NO_NUMBERS, *INFINITE), **more)


def positive(value: float, **more: Any) -> Argument:
    return Argument(_fixed(value), "number", bad=(*NO_NUMBERS, *INFINITE, -1.0, 0.0), **more)


def nonnegative(value: float, **more: Any) -> Argument:
    return Argument(_fixed(value), "number", bad=(*NO_NUMBERS, *INFINITE, -1.0), **more)


def share(value: float, **more: Any) -> Argument:
    """Within (0, 1), where 0 and 1 may or may not count."""
    return Argument(_fixed(value), "number", bad=(*NO_NUMBERS, *INFINITE, -1.0, 2.0), odd=(0.0, 1.0), **more)


def count(value: int | str, *, least: int = 1) -> Argument:
    """A whole number from `least` on; a string is the size of that axis."""
    draw: Draw = _fixed(value) if isinstance(value, int) else lambda random, sizes: sizes[value]
    return Argument(draw, "count", bad=(*NO_NUMBERS, *INFINITE, 2.5, least - 1, -7))


def seed(value: int = 0) -> Argument:
    return Argument(_fixed(value), "count", bad=("x", object(), 1j, [1.0, 2.0], {}, float("nan"), None, *INFINITE, 2.5))


def whole(value: int) -> Argument:
    return Argument(_fixed(value), "count", bad=(*NO_NUMBERS, *INFINITE, 2.5))


def switch(value: bool = False) -> Argument:
    return Argument(_fixed(value), "switch", bad=("no", object(), float("nan"), [], np.arange(3)))


def choice(value: str) -> Argument:
    return Argument(_fixed(value), "choice", bad=("no such", "", 3, object(), [], {}, float("nan"), b"x"))


def other(draw: Draw, *, bad: Sequence[Any] = (), odd: Sequence[Any] = (), axes: tuple[str, ...] = ()) -> Argument:
    """What no law varies but the wrong types in `bad`."""
    return Argument(draw, "other", axes, bad=tuple(bad), odd=tuple(odd))


def given(value: Any, *, bad: Sequence[Any] = (), odd: Sequence[Any] = ()) -> Argument:
    return other(_fixed(value), bad=bad, odd=odd)


# --- Results as numbers. ---


def numbers(result: Any, at: str = "") -> dict[str, np.ndarray]:
    """Every number of a result by its place: fields of dataclasses, entries of mappings and sequences, whole arrays."""
    if isinstance(result, (bool, np.bool_, str, bytes, type(None))):
        return {}
    if isinstance(result, Gram):
        result = result.dense()
    if isinstance(result, Tensor):
        result = result.detach().cpu().numpy()
    if isinstance(result, (int, float, complex, np.number, np.ndarray)):
        values = np.asarray(result)
        return {at: values} if values.dtype.kind in "iufc" else {}
    if isinstance(result, nn.Module):
        result = result.state_dict()
    if is_dataclass(result) and not isinstance(result, type):
        result = {part.name: getattr(result, part.name) for part in fields(result) if part.name[0] != "_"}
    if isinstance(result, Mapping):
        parts = [(str(key), value) for key, value in result.items()]
    elif isinstance(result, (tuple, list)):
        parts = [(str(place), value) for place, value in enumerate(result)]
    else:
        return {}
    return {place: array for key, value in parts for place, array in numbers(value, f"{at}.{key}".lstrip(".")).items()}
