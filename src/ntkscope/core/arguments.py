"""Arguments of public functions, checked where they come in: numbers, arrays, labels, devices, scales, paths.

Lists, arrays and tensors are taken alike. Errors say what was got, what was expected and what to do.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ntkscope.core.errors import NumericalError, UsageError

Real: TypeAlias = int | float
Vector: TypeAlias = Float64[np.ndarray, " n"]
Matrix: TypeAlias = Float64[np.ndarray, "n c"]
Labels: TypeAlias = Int64[np.ndarray, " n"]

LARGEST = 2.0**232  # about 7e69; fourth powers of numbers between its inverse and it are finite and not zero
DTYPES = {"float32": torch.float32, "float64": torch.float64}


# Numbers and words


def number(
    value: Any,
    name: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    expected: str = "",
) -> float:
    """`value` as a finite float in [low, high] and (above, below); neither a bool nor a text.

    >>> number(0, "alpha", above=0)
    Traceback (most recent call last):
    ...
    ntkscope.core.errors.UsageError: got alpha=0; expected a finite number > 0
    """
    plain = _item(value)
    if is_real(plain) and low <= plain <= high and above < plain < below:
        return float(plain)
    limits = {"≥": low, "≤": high, ">": above, "<": below}
    said = " and ".join(f"{sign} {limit:g}" for sign, limit in limits.items() if math.isfinite(limit))
    raise UsageError(f"got {name}={plain!r}; expected {expected or f'a finite number {said}'.rstrip()}")


def whole(value: Any, name: str, *, low: int | None = None, high: int | None = None, expected: str = "") -> int:
    """`value` as an int in [low, high]; 2.0 is 2, while 2.5, True and "2" are refused.

    >>> whole(2.5, "epochs", low=1)
    Traceback (most recent call last):
    ...
    ntkscope.core.errors.UsageError: got epochs=2.5; expected a whole number ≥ 1
    """
    plain = _item(value)
    if is_whole(plain) and (low is None or plain >= low) and (high is None or plain <= high):
        return int(plain)
    limits = [f"{sign} {limit}" for sign, limit in (("≥", low), ("≤", high)) if limit is not None]
    said = " and ".join(limits)
    raise UsageError(f"got {name}={plain!r}; expected {expected or f'a whole number {said}'.rstrip()}")


def is_real(value: Any) -> bool:
    """Whether this is one finite number (a bool is none)."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


def is_whole(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    try:
        operator.index(value)
    except TypeError:
        return is_real(value) and float(value).is_integer()
    return True


def _item(value: Any) -> Any:
    """A tensor or array of one number as that number."""
    return value.item() if isinstance(value, Tensor | np.ndarray | np.generic) and value.shape == () else value


def probability(level: Any) -> float:
    """A confidence level: strictly between 0 and 1."""
    return number(level, "level", above=0, below=1, expected="a probability between 0 and 1, such as 0.95")


def choice(value: Any, name: str, options: Sequence[Any]) -> Any:
    """`value`, one of `options`."""
    if not any(isinstance(value, type(option)) and value == option for option in options):
        raise UsageError(f"got {name}={value!r}; expected one of {', '.join(map(repr, options))}")
    return value


def function(value: Any, name: str, expected: str = "a function") -> Callable[..., Any]:
    if not callable(value):
        raise UsageError(f"got {name} of type {type(value).__name__}; expected {expected}")
    return value


def instance(value: Any, name: str, kind: type, expected: str) -> None:
    """Refuse what is no `kind`."""
    if not isinstance(value, kind):
        raise UsageError(f"got {name} of type {type(value).__name__}; expected {expected}")


def path_of(value: Any, name: str) -> Path:
    """A file or folder named by a text or a path."""
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes) or "\0" in os.fspath(value):
        raise UsageError(f"got {name}={value!r:.200}; expected a path, such as 'folder/name'")
    return Path(value)


def as_dtype(dtype: Any) -> torch.dtype:
    """The floating-point type called "float32" or "float64".

    >>> as_dtype("float64")
    torch.float64
    """
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or found not in DTYPES.values():
        raise UsageError(f"dtype={dtype!r}; expected one of {', '.join(DTYPES)}")
    return found


def as_device(device: Any, auto: bool = True) -> torch.device | None:
    """A device that can be used here; None stays None, and "auto", where it is allowed, is CUDA if there is any, else None."""
    if device is None or (auto and isinstance(device, str) and device == "auto"):
        return torch.device("cuda") if device is not None and torch.cuda.is_available() else None
    try:
        where = torch.device(device)
        if where.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("CUDA is not available")
        torch.zeros(1, device=where).item()  # a meta device has no numbers
    except (RuntimeError, AssertionError, TypeError, ImportError) as error:  # the last: its backend is not installed
        known = "'cpu', 'auto'," if auto else "'cpu'"
        raise UsageError(
            f"got device={str(device)!r}, which cannot be used here ({str(error).splitlines()[0]}); expected {known} or a"
            " device PyTorch finds"
        ) from error
    return where


# Arrays


def plain_array(values: Any, name: str = "values") -> np.ndarray:
    """`values` (a tensor, a Gram, a list or an array) as a NumPy array; rows of different lengths are refused."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).resolve_conj().resolve_neg().numpy()
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"got {name} that is no array ({error}); expected real numbers") from None


def finite(values: Any, name: str, *axes: int) -> np.ndarray:
    """A float64 array with one of these numbers of axes (any, if none is named) and no NaN or infinity in it."""
    array = plain_array(values, name)
    if (axes and array.ndim not in axes) or array.dtype.kind not in "fiub":
        raise _no_array(array, name, axes)
    wide = array.astype(np.float64)
    if not np.isfinite(wide).all():
        raise _not_finite(np.argwhere(~np.isfinite(wide)), name)
    return wide


def tensor_of(values: Any, name: str, *axes: int, keep: bool = False, empty: bool = False, hint: str = "") -> Tensor:
    """`finite` as a tensor on the device it came on, none of its axes empty; `keep` leaves floating-point types as they are.

    >>> tensor_of([[1, 2]], "X", 2)
    tensor([[1., 2.]], dtype=torch.float64)
    """
    array = values.detach() if isinstance(values, Tensor) else plain_array(values, name)
    complex_or_text = array.is_complex() if isinstance(array, Tensor) else array.dtype.kind not in "fiub"
    if complex_or_text or (axes and array.ndim not in axes) or (0 in array.shape and not empty):
        raise _no_array(array, name, axes, ("" if empty else ", none empty") + hint)
    array = from_numpy(array) if isinstance(array, np.ndarray) else array
    wide = array if keep and array.is_floating_point() else array.to(torch.float64)
    if not all_finite(wide):
        raise _not_finite((~torch.isfinite(wide)).nonzero(), name)
    return wide


def from_numpy(values: np.ndarray) -> Tensor:
    """A tensor sharing the array's memory where torch allows that (it must be writable, with positive strides)."""
    values = values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
    shareable = values.flags.writeable and all(stride >= 0 for stride in values.strides)
    try:
        return torch.from_numpy(values if shareable else values.copy())
    except TypeError as error:
        raise UsageError(f"got an array of dtype {values.dtype}; expected a real numeric one") from error


def all_finite(values: Tensor) -> bool:
    """Whether no entry is NaN or infinite, without a mask of the whole."""
    return all(bool(torch.isfinite(rows).all()) for rows in (values.split(1024) if values.ndim else (values,)))


def _no_array(array: Any, name: str, axes: tuple[int, ...], more: str = "") -> UsageError:
    wanted = f" with {' or '.join(map(str, axes))} axes" if axes else ""
    return UsageError(f"got {name} as {array.dtype} of shape {tuple(array.shape)}; expected real numbers{wanted}{more}")


def _not_finite(bad: Any, name: str) -> NumericalError:
    return NumericalError(
        f"got {name} with {len(bad)} NaN or infinite values, the first at {tuple(bad[0].tolist())}; expected finite"
        " numbers: drop those items or find where they come from"
    )


def vector(values: Any, name: str) -> Vector:
    return finite(values, name, 1)


def two_vectors(a: Any, b: Any) -> tuple[Vector, Vector]:
    """Two vectors of one length, at least 2."""
    return _alike(vector(a, "the first argument"), vector(b, "the second argument"))


def _alike(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(left) != len(right) or len(left) < 2:
        raise UsageError(
            f"got {len(left)} and {len(right)} values; expected one of each per item, for at least 2 items"
        )
    return left, right


def order_of(values: Any, name: str) -> Labels:
    """The rank of each value, equal for equal ones, in the values' own type: integers beyond 2⁵³ are not rounded together.

    >>> order_of([2**60 + 1, 2**60, 2**70], "scores").tolist()
    [1, 0, 2]
    """
    array = plain_array(values, name)
    rounded = array.ndim == 1 and len(array) > 0 and array.dtype.kind in "fO"
    if rounded and not isinstance(values, np.ndarray | Tensor):  # a sequence that NumPy may have rounded to floats
        items = list(values)
        if all(isinstance(item, int | np.integer) for item in items):
            place = {item: rank for rank, item in enumerate(sorted(set(map(int, items))))}
            return np.array([place[int(item)] for item in items], dtype=np.int64)
    finite(array, name, 1)
    return np.unique(array, return_inverse=True)[1].astype(np.int64).reshape(-1)


def two_orders(a: Any, b: Any) -> tuple[Labels, Labels]:
    """The ranks of two scores of the same items, at least 2."""
    return _alike(order_of(a, "the first argument"), order_of(b, "the second argument"))


def logits_of(values: Any, name: str = "logits") -> Matrix:
    """Logits (n, c) with at least one item and two classes."""
    logits: Matrix = finite(values, name, 2)
    if logits.shape[0] < 1 or logits.shape[1] < 2:
        raise UsageError(
            f"got {name} of shape {logits.shape}; expected (items, classes) with at least two classes: one logit z of two"
            " classes is the pair (0, z)"
        )
    return logits


def two_logits(a: Any, b: Any) -> tuple[Matrix, Matrix]:
    left, right = logits_of(a, "the surrogate's logits"), logits_of(b, "the network's logits")
    if left.shape != right.shape:
        raise UsageError(f"got logits of shapes {left.shape} and {right.shape}; expected the same items and classes")
    return left, right


def mask_of(values: Any, items: int | None, name: str) -> Bool[np.ndarray, " n"]:
    """A boolean mask, one value per item."""
    mask = plain_array(values, name)
    if mask.ndim != 1 or (items is not None and len(mask) != items) or not np.isin(mask, (0, 1)).all():
        expected = "one boolean per item" if items is None else f"({items},), one boolean per item"
        raise UsageError(f"got {name} as {mask.dtype} of shape {mask.shape}; expected {expected}")
    return mask.astype(bool)


# Labels: whole numbers, booleans (False is 0, True is 1) or, where classes only need to differ, texts


def labels_of(y: Any, items: int | None = None, classes: int | None = None, name: str = "labels") -> Labels:
    """Labels as class numbers, one per item, in 0 … classes - 1."""
    array = plain_array(y, name)
    if array.ndim != 1 or (items is not None and len(array) != items):
        expected = "one label per item" if items is None else f"({items},)"
        raise UsageError(
            f"got {name} of shape {array.shape}{f' for {items} items' if items else ''}; expected {expected}"
        )
    numeric = array.dtype.kind in "iufb" and bool(np.isfinite(array).all())
    with np.errstate(invalid="ignore"):
        labels = array.astype(np.int64) if numeric else None
    if labels is None or (labels != array).any() or labels.min(initial=0) < 0:
        raise UsageError(f"got {name} of dtype {array.dtype}; expected whole numbers from 0: encode them first")
    if classes is not None and labels.max(initial=-1) >= classes:
        raise UsageError(f"got the label {labels.max()} with {classes} classes; expected 0 … {classes - 1}")
    return labels


def column_count(labels: Labels) -> int:
    """How many columns have labels that are numbers of columns: one more than the largest, unless most would be empty."""
    count = int(labels.max(initial=0)) + 1
    if count > len(labels) + 1000:
        raise UsageError(
            f"got the label {count - 1} among {len(labels)} items; expected 0 … c - 1: number the classes from 0"
        )
    return count


def class_numbers(y: Any) -> tuple[np.ndarray, Labels]:
    """The classes that occur, sorted, and each item's place among them; labels may be texts.

    >>> class_numbers(["cat", "ant", "cat"])[1].tolist(), class_numbers([10**6, 7])[1].tolist()
    ([1, 0, 1], [1, 0])
    """
    array = plain_array(y, "labels")
    if array.dtype.kind not in "US":
        array = labels_of(array)
    elif array.ndim != 1:
        raise UsageError(f"got labels of shape {array.shape}; expected one label per item")
    classes, numbers = np.unique(array, return_inverse=True)
    return classes, numbers.astype(np.int64).reshape(-1)


def one_hot(numbers: Labels | Tensor, classes: int, device: torch.device | None = None) -> Tensor:
    """(n, classes) in float64, 1 at each row's class."""
    rows = torch.as_tensor(numbers).to(device=device, dtype=torch.int64)
    return torch.nn.functional.one_hot(rows, classes).to(torch.float64)


# Scale


def unit_of(*arrays: Any) -> float:
    """An even power of two about the largest magnitude in all arrays; 1 between 1e-70 and 1e70, and where all are zero.

    What is homogeneous divides its arguments by it, exactly, so that squares and products neither overflow nor vanish.

    >>> unit_of(np.array([3.0, -1e20])), unit_of(np.array([-1e200])) == 2.0**664
    (1.0, True)
    """
    largest = max((float(abs(array).max()) for array in arrays if np.prod(array.shape)), default=0.0)
    if not largest or 1 / LARGEST <= largest <= LARGEST or not math.isfinite(largest):
        return 1.0
    return 4.0 ** max(-500, (math.frexp(largest)[1] - 1) // 2)


def in_range(rows: Tensor, name: str) -> Tensor:
    """`rows` (n, …), unless the squares of one of them overflow or vanish in its own floating-point type."""
    largest = rows.detach().abs().flatten(1).amax(1) if rows.numel() else rows.new_zeros(0)
    limit = 2.0 ** (math.frexp(torch.finfo(rows.dtype).max)[1] // 2 - 12)
    bad = ((largest > limit) | ((largest < 1 / limit) & (largest > 0))).nonzero().flatten()
    if len(bad):
        if not all_finite(rows):
            raise _not_finite((~torch.isfinite(rows)).nonzero(), name)
        raise NumericalError(
            f"got {name} with magnitudes up to {float(largest[bad[0]]):.3g} at {int(bad[0])}, whose squares leave the range"
            f" of {rows.dtype}; expected them between {1 / limit:.0e} and {limit:.0e}: change the units"
        )
    return rows
