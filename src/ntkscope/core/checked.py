"""Public functions whose arguments are checked by their annotations, as a room exports them.

`check_room` is the last line of a room's `__init__`: from then on its names, and the same names in the files that define
them, are the checked functions. Files of the room that imported one another before call the functions themselves.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from ntkscope.core.arguments import choice, from_numpy, function, instance, number, plain_array, tensor_of, whole
from ntkscope.core.errors import NumericalError, UsageError

F = TypeVar("F", bound=Callable[..., Any])
Check: TypeAlias = Callable[[Any, str], Any]


def within(**edges: float | str) -> frozenset[tuple[str, float | str]]:
    """Of a number that is annotated: `low`, `high`, `above`, `below` and `expected`, as `number` has them."""
    return frozenset(edges.items())


Count: TypeAlias = Annotated[int, within(low=1)]
CountOrZero: TypeAlias = Annotated[int, within(low=0)]
Several: TypeAlias = Annotated[int, within(low=2)]
Positive: TypeAlias = Annotated[float, within(above=0)]
NonNegative: TypeAlias = Annotated[float, within(low=0)]
Share: TypeAlias = Annotated[float, within(low=0, high=1)]
Fraction: TypeAlias = Annotated[float, within(low=0, below=1)]
Tolerance: TypeAlias = Annotated[float, within(above=0, below=1)]
Probability: TypeAlias = Annotated[float, within(above=0, below=1, expected="a probability between 0 and 1")]

SUMS, SQUARES = 2.0**1000, 2.0**500  # magnitudes up to which sums, or squares, neither overflow nor vanish


def check_room(room: str, squares: str = "", classes: str = "") -> None:
    """Check the arguments of every function that the room, or a module that it exports, offers, and of these `classes`.

    `squares` names the functions that square what they are given, so that 1e200 is too large for them.
    """
    exported: Any = sys.modules[room]
    offered: list[Any]
    for name in exported.__all__:
        entry = getattr(exported, name)
        if inspect.ismodule(entry):
            names = [name for name in vars(entry) if not name.startswith("_")]
            offered = [one for one in map(vars(entry).get, names) if getattr(one, "__module__", "") == entry.__name__]
        else:
            offered = [entry]
        for one in offered:
            if isinstance(one, type) and one.__name__ in classes.split():
                checked(one)
            if inspect.isfunction(one) and not hasattr(one, "checks"):
                made = checked(one, SQUARES if one.__name__ in squares.split() else SUMS)
                for home in (exported, sys.modules[one.__module__]):
                    if getattr(home, one.__name__, None) is one:
                        setattr(home, one.__name__, made)


def checked(offered: F, limit: float = SUMS) -> F:
    """A function that checks its arguments by its annotations; a class does so where it is made.

    >>> @checked
    ... def rate(steps: Count, by: Literal["value", "size"] = "value") -> float:
    ...     return 1 / steps
    >>> rate(2.5)
    Traceback (most recent call last):
    ...
    ntkscope.core.errors.UsageError: got steps=2.5; expected a whole number ≥ 1
    """
    if isinstance(offered, type):
        offered.__init__ = checked(offered.__init__, limit)  # type: ignore[misc]
        return offered
    try:
        hints = typing.get_type_hints(offered, include_extras=True)
    except NameError:  # a name that only type checkers import
        return offered
    parameters = inspect.signature(offered).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    found = {p.name: _check(hints.get(p.name), p.default, limit) for p in parameters if p.kind.name[:4] != "VAR_"}
    checks = {name: check for name, check in found.items() if check is not None}

    @functools.wraps(offered)
    def call(*args: Any, **options: Any) -> Any:
        given = [checks[name](value, name) if name in checks else value for name, value in zip(names, args)]
        for name in options:
            if name in checks:
                options[name] = checks[name](options[name], name)
        return offered(*given, *args[len(names) :], **options)

    call.checks = checks  # type: ignore[attr-defined]
    return typing.cast(F, call) if checks else offered


def _check(hint: Any, default: Any, limit: float) -> Check | None:
    """What a parameter with this annotation and default is checked by, if anything can be said."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = [member for member in (typing.get_args(hint) if union else (hint,)) if member is not type(None)]
    check = _of_members(members, default, limit)
    if check is None or (default is not None and len(members) == len(typing.get_args(hint) if union else (hint,))):
        return check
    return lambda value, name: None if value is None else check(value, name)


def _of_members(members: list[Any], default: Any, limit: float) -> Check | None:
    plain = [typing.get_args(member)[0] if typing.get_origin(member) is Annotated else member for member in members]
    said = [m.__metadata__[0] for m in members if typing.get_origin(m) is Annotated]
    limits = dict(edge for edges in said if isinstance(edges, frozenset) for edge in edges)
    literals = [typing.get_args(m) for m in members if typing.get_origin(m) is Literal]
    words = tuple(word for options in (*literals, *said) if isinstance(options, tuple) for word in options)
    arrays = tuple(kind for kind in map(_array_kind, plain) if kind)
    if plain == [Any]:
        return functools.partial(_ranged, limit=limit) if limit == SQUARES else None
    if arrays and all(isinstance(m, type) or _array_kind(m) or typing.get_origin(m) is Literal for m in plain):
        shape = getattr(plain[0], "dim_str", "...")
        axes = None if "..." in shape or "*" in shape or len(plain) > 1 else len(shape.split())
        others = tuple(m for m in plain if isinstance(m, type) and not _array_kind(m))
        return functools.partial(_array, kinds=arrays, others=others, words=words, axes=axes, limit=limit)
    if words and len(members) == 1:
        return functools.partial(choice, options=words)
    if plain == [bool]:
        return _switch
    if plain == [int]:
        return functools.partial(whole, **limits)
    if set(plain) <= {int, float}:
        return None if _not_finite(default) else functools.partial(_number, limits=limits)
    if len(plain) == 1:
        return _of_class(plain[0])
    return None


def _of_class(kind: Any) -> Check | None:
    if typing.get_origin(kind) is collections.abc.Callable:
        return function
    if typing.get_origin(kind) is tuple and ... not in (parts := typing.get_args(kind)):
        return functools.partial(_tuple, checks=[_check(part, inspect.Parameter.empty, SUMS) for part in parts])
    own = isinstance(kind, type) and getattr(kind, "_is_runtime_protocol", not getattr(kind, "_is_protocol", False))
    if own and (kind is str or kind.__module__.startswith(("ntkscope.", "torch.nn."))):
        return lambda value, name: _instance(value, name, kind)
    return None


def _array_kind(hint: Any) -> type | None:
    """Tensor or ndarray, where the annotation is one, with or without its shape, or a protocol of what tensors can do."""
    kind = getattr(hint, "array_type", hint)
    if kind in (Tensor, np.ndarray):
        return typing.cast(type, kind)
    return Tensor if getattr(kind, "_is_runtime_protocol", False) and isinstance(torch.empty(0), kind) else None


def _array(
    value: Any,
    name: str,
    kinds: tuple[type, ...],
    others: tuple[type, ...],
    words: tuple[Any, ...],
    axes: int | None,
    limit: float,
) -> Any:
    """`value` if it is a real, finite array in range, or one of the other kinds; lists become the first kind of array."""
    if not isinstance(value, Tensor | np.ndarray):
        if isinstance(value, others) or (hasattr(value, "shape") and hasattr(value, "__matmul__")):
            return value
        if words and isinstance(value, str):
            return choice(value, name, words)
    array = value if isinstance(value, Tensor) else plain_array(value, name)
    if not _finite(array, name, limit) or axes not in (None, array.ndim):
        tensor_of(array, name, *() if axes is None else (axes,), keep=True, empty=True)  # which says what it is
    if isinstance(value, kinds):
        return value
    return plain_array(value, name) if kinds[0] is np.ndarray else from_numpy(plain_array(value, name))


def _finite(value: Tensor | np.ndarray, name: str, limit: float) -> bool:
    """Whether this array is known to be finite; one too large, or too small, to compute with is refused."""
    if not math.prod(value.shape) or not (
        value.dtype.is_floating_point if isinstance(value, Tensor) else value.dtype.kind == "f"
    ):
        return False
    low, high = value.detach().aminmax() if isinstance(value, Tensor) else (value.min(), value.max())
    largest = float(max(-low, high))
    if math.isfinite(largest) and largest and not 1 / limit <= largest <= limit:
        raise NumericalError(
            f"got {name} with magnitudes up to {largest:.3g}; expected them between {1 / limit:.0e} and {limit:.0e}: rescale"
            " by a constant"
        )
    return math.isfinite(largest)


def _ranged(value: Any, name: str, limit: float) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        _finite(value, name, limit)
    return value


def _tuple(value: Any, name: str, checks: list[Check | None]) -> Any:
    if not isinstance(value, tuple | list) or len(value) != len(checks):
        raise UsageError(f"got {name}={value!r:.200}; expected {len(checks)} values")
    return tuple(check(one, name) if check else one for check, one in zip(checks, value))


def _switch(value: Any, name: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"got {name}={value!r:.200}; expected True or False")
    return bool(value)


def _number(value: Any, name: str, limits: dict[str, Any]) -> Any:
    found = number(value, name, **limits)
    return value if isinstance(value, int | float) else found


def _instance(value: Any, name: str, kind: type) -> Any:
    instance(value, name, kind, "a text" if kind is str else f"a {kind.__name__}")
    return value


def _not_finite(default: Any) -> bool:
    return isinstance(default, float) and not math.isfinite(default)
