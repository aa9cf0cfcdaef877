"""Arguments checked by their annotations.

`check_room(__name__)` is the last line of a room's `__init__`: from then on the functions it exports refuse what their
annotations exclude. `steps: Count` takes 3 and 3.0, not 0, 2.5, True or "3"; `K: Tensor` takes lists and arrays as well, and
refuses NaN. What no annotation says, such as that two sizes agree, functions check themselves.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from ntkscope.core.arguments import (
    choice,
    from_numpy,
    function,
    instance,
    number,
    path_of,
    plain_array,
    tensor_of,
    whole,
)
from ntkscope.core.errors import NumericalError, UsageError

F = TypeVar("F", bound=Callable[..., Any])
Check: TypeAlias = Callable[[Any, str], Any]
"""Of a value and its argument's name: the value to continue with, or an error."""


def within(**limits: float | str) -> frozenset[tuple[str, float | str]]:
    """Limits of an annotated number, as `number` and `whole` take them: `Annotated[int, within(low=4)]`."""
    return frozenset(limits.items())


Count: TypeAlias = Annotated[int, within(low=1)]
CountOrZero: TypeAlias = Annotated[int, within(low=0)]
Several: TypeAlias = Annotated[int, within(low=2)]
Number: TypeAlias = Annotated[float, within()]
Positive: TypeAlias = Annotated[float, within(above=0)]
NonNegative: TypeAlias = Annotated[float, within(low=0)]
Share: TypeAlias = Annotated[float, within(low=0, high=1)]
Fraction: TypeAlias = Annotated[float, within(low=0, below=1)]
Tolerance: TypeAlias = Annotated[float, within(above=0, below=1)]
Probability: TypeAlias = Annotated[float, within(above=0, below=1, expected="a probability between 0 and 1")]

SUMS, SQUARES = 2.0**1000, 2.0**500  # magnitudes up to which sums, or squares, neither overflow nor vanish
Numbers: TypeAlias = Annotated[Any, SUMS]
"""A list or an array of finite numbers, or a Gram."""
NAMES: dict[Any, str] = {str: "a text", Mapping: "a mapping", torch.nn.Module: "a torch.nn.Module"}
PATHS: set[Any] = {Path, os.PathLike, os.PathLike[str]}  # which texts may name as well


# Functions


def check_room(room: str, squares: str = "", classes: str = "", but: str = "") -> None:
    """Check the arguments of all functions `but` these that a room, or a module it exports, offers, and of these `classes`.

    `squares` names the functions that square their arguments, for which 1e200 is too large. A checked function takes the
    place of the function itself in the room and in its own file; files that imported it before call it unchecked.
    """
    exported: Any = sys.modules[room]
    for name in exported.__all__:
        entry = getattr(exported, name)
        offers: list[Any] = [entry]
        if inspect.ismodule(entry):
            offers = [value for key, value in vars(entry).items() if key[0] != "_"]
            offers = [value for value in offers if getattr(value, "__module__", "") == entry.__name__]
        for offered in offers:
            own = getattr(offered, "__name__", "")
            if isinstance(offered, type) and own in classes.split():
                checked(offered)
            elif inspect.isfunction(offered) and own not in but.split():
                if hasattr(offered, "__wrapped__") and not hasattr(offered, "renamed"):
                    continue  # checked by the room that it is from
                replacement = checked(offered, SQUARES if own in squares.split() else SUMS)
                for home in (exported, sys.modules[offered.__module__]):
                    if getattr(home, own, None) is offered:
                        setattr(home, own, replacement)


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
    words = getattr(offered, "renamed", {})
    if words:  # done here, before the checks
        offered = offered.__wrapped__  # type: ignore[attr-defined]
    checks, names = _checks(offered, limit), list(inspect.signature(offered).parameters)

    @functools.wraps(offered)
    def call(*args: Any, **options: Any) -> Any:
        options = _new_words(options, words)
        positional = [checks[name](value, name) if name in checks else value for name, value in zip(names, args)]
        for name in options:
            if name in checks:
                options[name] = checks[name](options[name], name)
        return offered(*positional, *args[len(names) :], **options)

    return typing.cast(F, call) if checks or words else offered


def renamed(**words: str) -> Callable[[F], F]:
    """A function or class that still takes the old words for its keywords, with a DeprecationWarning.

    >>> @renamed(ridge="alpha")
    ... def fit(alpha: float) -> float:
    ...     return alpha
    >>> with warnings.catch_warnings(record=True):
    ...     fit(ridge=2.0)
    2.0
    """

    def accept(offered: F) -> F:
        if isinstance(offered, type):
            offered.__init__ = accept(offered.__init__)  # type: ignore[misc]
            return offered

        @functools.wraps(offered)
        def call(*args: Any, **options: Any) -> Any:
            return offered(*args, **_new_words(options, words))

        call.renamed = words  # type: ignore[attr-defined]
        return typing.cast(F, call)

    return accept


def _new_words(options: dict[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments under the names that they have today."""
    for old in [name for name in options if name in words]:
        new = words[old]
        if new in options:
            raise UsageError(f"got {old}= and {new}=, the old and the new name of one argument; expected {new}= alone")
        warnings.warn(f"{old}= is now {new}=; the old name goes with version 0.3", DeprecationWarning, stacklevel=3)
        options[new] = options.pop(old)
    return options


def check_options(estimator: Any) -> None:
    """Check what an estimator was made with by the annotations of its `__init__`: scikit-learn leaves that to `fit`."""
    for name, check in _checks(type(estimator).__init__, SUMS).items():
        check(getattr(estimator, name), name)


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Some arguments of a function, each checked by its annotation."""
    checks = _checks(function, SUMS)
    return {name: checks[name](value, name) if name in checks else value for name, value in arguments.items()}


@functools.cache
def _checks(offered: Callable[..., Any], limit: float) -> dict[str, Check]:
    """The check of each parameter that has one; none at all where only type checkers can read the annotations."""
    try:
        hints = typing.get_type_hints(offered, include_extras=True)
    except NameError:
        return {}
    found = {}
    for name, parameter in inspect.signature(offered).parameters.items():
        if name in hints and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            hint = hints[name] | None if parameter.default is None else hints[name]
            infinite = isinstance(parameter.default, float) and math.isinf(parameter.default)
            found[name] = _check(Annotated[float, within(low=-math.inf, high=math.inf)] if infinite else hint, limit)
    return {name: check for name, check in found.items() if check is not None}


# Annotations


def _check(hint: Any, limit: float) -> Check | None:
    """What a value with this annotation is checked by, if anything can be said about it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _check_union(parts, limit)
    if origin is Annotated and isinstance(parts[1], frozenset):
        return functools.partial(whole if parts[0] is int else _real, **dict(parts[1]))
    if origin is Annotated and isinstance(parts[1], float):
        return functools.partial(_array, kinds=(np.ndarray, Tensor), limit=min(parts[1], limit))
    if origin is Annotated:  # the words to choose from
        return functools.partial(choice, options=parts[1])
    if origin is Literal:
        return functools.partial(choice, options=parts)
    if origin is Callable:
        return function
    if origin in (tuple, Sequence):
        repeated = origin is Sequence or parts[-1] is ...
        checks = [_check(part, limit) for part in parts if part is not ...]
        return functools.partial(_items, checks=checks, repeated=repeated, kind=origin)
    if _array_kind(hint):
        return _check_array([hint], limit)
    if hint is Any:
        return functools.partial(ranged, limit=limit) if limit == SQUARES else None
    simple: dict[Any, Check] = {int: whole, float: _real, bool: _switch, types.NoneType: _nothing}
    simple |= dict.fromkeys(PATHS, _path)
    return simple.get(hint) or _check_class(origin or hint)


def _check_union(members: tuple[Any, ...], limit: float) -> Check | None:
    """The first member that takes a value; None where a member would take any."""
    arrays = [member for member in members if _array_kind(member)]
    covered = [*arrays, *([int] if float in members else []), *([str] if PATHS & {*members} else [])]
    others = [member for member in members if member not in covered]
    found = [_check(member, limit) for member in others] + ([_check_array(arrays, limit)] if arrays else [])
    checks = [check for check in found if check is not None]
    return functools.partial(_either, checks=checks) if len(checks) == len(found) else None


def _check_array(hints: list[Any], limit: float) -> Check:
    shape = getattr(hints[0], "dim_str", "...")
    axes = None if len(hints) > 1 or "..." in shape or "*" in shape else len(shape.split())
    kinds = tuple(kind for kind in map(_array_kind, hints) if kind)
    dtypes = getattr(hints[0], "dtypes", ()) if len(hints) == 1 else ()
    return functools.partial(_array, kinds=kinds, axes=axes, dtypes=dtypes, limit=limit)


def _check_class(kind: Any) -> Check | None:
    """Texts, paths, mappings, networks and classes of our own; protocols only where objects can be held to them."""
    testable = isinstance(kind, type) and getattr(
        kind, "_is_runtime_protocol", not getattr(kind, "_is_protocol", False)
    )
    if testable and (kind in NAMES or kind.__module__.startswith(("ntkscope.", "torch.nn."))):
        return functools.partial(_instance, kind=kind)
    return None


def _array_kind(hint: Any) -> type | None:
    """Tensor or ndarray, where the annotation is one, with or without its shape, or a protocol of what tensors can do."""
    kind = getattr(hint, "array_type", hint)
    if kind in (Tensor, np.ndarray):
        return typing.cast(type, kind)
    return Tensor if getattr(kind, "_is_runtime_protocol", False) and isinstance(torch.empty(0), kind) else None


# Values


def _array(
    value: Any,
    name: str,
    kinds: tuple[type, ...],
    axes: int | None = None,
    dtypes: Sequence[str] = (),
    limit: float = SUMS,
) -> Any:
    """A real and finite array in range, one of these kinds and, if float64 is among them, of these dtypes.

    Other matrices with a product, such as Grams, pass unseen.
    """
    if not isinstance(value, Tensor | np.ndarray) and hasattr(value, "shape") and hasattr(value, "__matmul__"):
        return value
    array = value if isinstance(value, Tensor) else plain_array(value, name)
    if not _in_range(array, name, limit) or axes not in (None, array.ndim):
        tensor_of(array, name, *() if axes is None else (axes,), keep=True, empty=True)  # which says what it is
    if not isinstance(value, kinds):
        plain = plain_array(value, name)
        value = plain if kinds[0] is np.ndarray else from_numpy(plain)
    if "float64" in dtypes and str(value.dtype).removeprefix("torch.") not in dtypes:
        return value.double() if isinstance(value, Tensor) else value.astype(np.float64)
    return value


def _in_range(value: Tensor | np.ndarray, name: str, limit: float) -> bool:
    """Whether this array is known to be finite; one too large, or too small, to compute with is refused."""
    floating = value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind == "f"
    if not floating or not math.prod(value.shape):
        return False
    low, high = value.detach().aminmax() if isinstance(value, Tensor) else (value.min(), value.max())
    largest = float(max(-low, high))
    if math.isfinite(largest) and largest and not 1 / limit <= largest <= limit:
        raise NumericalError(
            f"got {name} with magnitudes up to {largest:.3g}; expected them between {1 / limit:.0e} and {limit:.0e}: rescale"
            " by a constant"
        )
    return math.isfinite(largest)


def ranged(value: Any, name: str, limit: float = SUMS) -> Any:
    """`value`, unless it is an array whose magnitudes are beyond `limit`."""
    if isinstance(value, Tensor | np.ndarray):
        _in_range(value, name, limit)
    return value


def _items(value: Any, name: str, checks: list[Check | None], repeated: bool, kind: type) -> Any:
    """A list or tuple, each of its items checked."""
    listed = (
        hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping)
    )
    if not listed or (not repeated and len(value) != len(checks)) or getattr(value, "ndim", 1) != 1:
        raise UsageError(f"got {name}={value!r:.200}; expected {'a list' if repeated else f'{len(checks)} values'}")
    each = checks * len(value) if repeated else checks
    items = [check(one, f"{name}[{k}]") if check else one for k, (one, check) in enumerate(zip(value, each))]
    return tuple(items) if kind is tuple or isinstance(value, tuple) else items


def _either(value: Any, name: str, checks: list[Check]) -> Any:
    """`value` as the first check takes it that does; else what all of them expected."""
    refusals: list[str] = []
    for check in checks:
        try:
            return check(value, name)
        except UsageError as error:
            refusals.append(str(error))
    inner = [refusal for refusal in refusals if refusal.startswith(f"got {name}[")]
    expected = " or ".join(refusal.split("; expected ")[-1] for refusal in refusals)
    raise UsageError(inner[0] if inner else f"{refusals[0].split('; expected ')[0]}; expected {expected}")


def _switch(value: Any, name: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"got {name}={value!r:.200}; expected True or False")
    return bool(value)


def _real(value: Any, name: str, **limits: Any) -> Any:
    """`number`, where an int stays an int, and infinity is taken where it is a limit."""
    if isinstance(value, float) and math.isinf(value) and value in (limits.get("low"), limits.get("high")):
        return value
    found = number(value, name, **limits)
    return value if isinstance(value, int | float) else found


def _path(value: Any, name: str) -> Any:
    path_of(value, name)
    return value


def _nothing(value: Any, name: str) -> None:
    if value is not None:
        raise UsageError(f"got {name}={value!r:.200}; expected None")


def _instance(value: Any, name: str, kind: type) -> Any:
    instance(value, name, kind, NAMES.get(kind) or f"a {kind.__name__}")
    return value
