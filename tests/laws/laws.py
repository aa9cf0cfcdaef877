"""The laws themselves. Each takes a case and yields what breaks it, one sentence each; nothing is yielded where it holds.

One rule is behind all of them: a call returns numbers that are finite, in their range and follow the law, or it raises an
`NtkscopeError`. A raw error, a `RuntimeWarning` of numpy, a changed argument or a number out of range breaks it.
"""

from __future__ import annotations

import copy
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from laws.table import SIZES, Argument, Case, numbers
from ntkscope.core import NtkscopeError

Arguments = dict[str, Any]
Values = dict[str, np.ndarray]
SECONDS = 20  # of the processor, so that a busy machine does not count
LABELS_OF = ("labels", "labels or targets", "labels of columns")
ARRAYS = ("array", *LABELS_OF, "flags")


class Broken(AssertionError):
    """What came out of a call is neither a result nor a refusal."""


class Refused:
    """A refusal's message."""

    def __init__(self, error: Exception) -> None:
        self.message = str(error)


@contextmanager
def bounded() -> Iterator[None]:
    """No call may take longer than `SECONDS`; no warning of numpy goes unseen."""

    def late(number: int, frame: Any) -> None:
        raise Broken(f"took longer than {SECONDS} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attempt(case: Case, arguments: Arguments) -> Values | Refused:
    """The numbers of a result, or the refusal; anything else is broken."""
    arguments = {name: as_tensor(value) if case.arguments[name].tensor else value for name, value in arguments.items()}
    before = {name: copied(value) for name, value in arguments.items()}
    try:
        with bounded():
            result: Values | Refused = numbers(case.of(case.function(**arguments)))
    except NtkscopeError as error:
        if not str(error).strip():
            raise Broken("refused without a word") from error
        result = Refused(error)
    except Broken:
        raise
    except Exception as error:
        if not (case.estimator and from_scikit_learn(error)):
            raise Broken(f"{type(error).__name__}: {str(error)[:110]}") from error
        result = Refused(error)
    for name, value in before.items():
        if value is not None and not equal(value, arguments[name]):
            raise Broken(f"changed its argument {name}")
    return result


def from_scikit_learn(error: Exception) -> bool:
    """Whether one of scikit-learn's own checks refused."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, (TypeError, ValueError)) and f"{os.sep}sklearn{os.sep}" in frames[-1].filename


def as_tensor(value: Any) -> Any:
    """What functions on tensors alone are given in place of an array."""
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" else value


def copied(value: Any) -> Any:
    """A copy of what can be compared afterwards, None of anything else."""
    return copy.deepcopy(value) if isinstance(value, (np.ndarray, torch.Tensor, list)) else None


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return repr(a) == repr(b)
    return bool(torch.equal(a, b) or torch.equal(a.isnan(), b.isnan())) if isinstance(a, torch.Tensor) else same(a, b)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype.kind == "O" or np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def faults(case: Case, values: Values) -> Iterator[str]:
    """Numbers that are not finite, or out of the range of what they measure."""
    for place, found in values.items():
        free = within(place, case.free)
        if found.dtype.kind == "c":
            yield f"{place or 'the result'} is complex"
            continue
        if not free and not np.isfinite(found).all():
            yield f"{place or 'the result'} = {found.flat[np.flatnonzero(~np.isfinite(found))[0]]}"
        low, high = case.ranges.get(place, (case.low, case.high))
        outside = found[(found < low) | (found > high)]
        if outside.size:
            yield f"{place or 'the result'} = {outside.flat[0]} outside [{low}, {high}]"


def within(place: str, fields: Iterable[str]) -> bool:
    """Whether a place in a result is one of these fields, or lies in one."""
    return any(place == name or place.startswith(f"{name}.") for name in fields)


def differences(case: Case, values: Values, expected: Values, rtol: float) -> Iterator[str]:
    for place, wanted in expected.items():
        if within(place, case.noise):
            continue
        if place not in values:
            yield f"{place} is missing"
        elif values[place].shape != wanted.shape:
            yield f"{place or 'the result'} has shape {values[place].shape}, expected {wanted.shape}"
        elif not close(values[place], wanted, rtol, 1e-6 * (case.ranges.get(place, (0, case.high))[1] == 1)):
            yield f"{place or 'the result'} = {brief(values[place])}, expected {brief(wanted)}"


def close(found: np.ndarray, wanted: np.ndarray, rtol: float, least: float = 0.0) -> bool:
    """Equal to `rtol` of the largest entry, or of `least`; NaN and infinities in the same places.

    An R² or a correlation near zero is 1 minus nearly 1: its last digits are those of the 1."""
    known = np.isfinite(wanted)
    if not np.array_equal(np.where(known, 0.0, wanted), np.where(known, 0.0, found), equal_nan=True):
        return False
    if not known.any():
        return True
    largest = np.abs(wanted[known]).max(initial=0.0)
    unit = max(largest, least) or 1.0  # so that nothing overflows
    return bool(np.abs(found[known] / unit - wanted[known] / unit).max() <= rtol)


def brief(values: np.ndarray) -> str:
    return np.array2string(values.ravel()[:3], precision=6)


def tried(case: Case, arguments: Arguments, what: str) -> tuple[Values | Refused | None, list[str]]:
    """What came out, and what is wrong with it, each with `what` was tried."""
    try:
        result = attempt(case, arguments)
    except Broken as broken:
        return None, [f"{what}: {broken}"]
    if isinstance(result, Refused):
        return result, []
    return result, [f"{what}: {fault}" for fault in faults(case, result)]


def valid(case: Case, seed: int) -> Iterator[str]:
    """Ordinary arguments give a result, twice the same."""
    result, wrong = tried(case, case.draw(seed), "ordinary arguments")
    yield from wrong
    if isinstance(result, Refused):
        if case.reader:
            return
        yield f"ordinary arguments were refused: {result.message[:150]}"
    elif result is not None:
        again, _ = tried(case, case.draw(seed), "again")
        if not isinstance(again, dict) or set(again) != set(result):
            yield "a second call gave another result"


def scale(case: Case, seed: int, exponent: int) -> Iterator[str]:
    """An array times 10^exponent: the result is homogeneous of the degree in the table, or refused."""
    for name, argument in case.arguments.items():
        if argument.kind != "array":
            continue
        for kind in (np.float64, np.float32):
            power = exponent if kind is np.float64 else int(np.sign(exponent)) * 30
            ordinary, scaled = case.draw(seed), case.draw(seed)
            ordinary[name] = ordinary[name].astype(kind)
            factor = kind(2.0 ** round(power * np.log2(10)))  # of two, so that nothing is rounded
            scaled[name] = ordinary[name] * factor
            what = f"{name} × 1e{power} in {kind.__name__}"
            result, wrong = tried(case, scaled, what)
            yield from wrong
            base, _ = tried(case, ordinary, what)
            if wrong or not isinstance(result, dict) or not isinstance(base, dict) or argument.degree is None:
                continue
            degrees = argument.degree if isinstance(argument.degree, Mapping) else dict.fromkeys(base, argument.degree)
            expected = {place: times(base[place], float(factor), degrees[place]) for place in base if place in degrees}
            rtol = case.rtol if kind is np.float64 else max(case.rtol, 1e-3)
            yield from (f"{what}: {one}" for one in differences(case, result, expected, rtol))


def times(values: np.ndarray, factor: float, degree: float) -> np.ndarray:
    """values · factor^degree; what underflows is 0, what overflows infinite."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scaled: np.ndarray = np.asarray(values, dtype=np.float64)
        for _ in range(int(abs(degree))):
            scaled = scaled * factor if degree > 0 else scaled / factor
        return scaled * factor ** (degree - int(degree))


def order(case: Case, seed: int) -> Iterator[str]:
    """Items in another order: the result is the same, in that order where it is about items."""
    if case.items is None:
        return
    arguments = case.draw(seed)
    random = np.random.default_rng(seed + 1)
    shuffles = {axis: random.permutation(size) for axis, size in SIZES.items()}
    moved = dict(arguments)
    axes = {axis for argument in case.arguments.values() for axis in argument.axes}
    movable = {axis for axis in axes if axis in ("n", "m")}
    for name, argument in case.arguments.items():
        if argument.axes and isinstance(arguments[name], np.ndarray):
            moved[name] = shuffled(arguments[name], argument.axes, shuffles, movable)
    result, wrong = tried(case, moved, "items in another order")
    yield from wrong
    base, _ = tried(case, arguments, "items")
    if not isinstance(result, dict) or not isinstance(base, dict):
        return
    expected = {
        place: shuffled(values, case.items.get(place, ()), shuffles, movable)
        for place, values in base.items()
        if not within(place, [name for name, axes in case.items.items() if axes is None])
    }
    yield from (f"items in another order: {one}" for one in differences(case, result, expected, case.rtol))


def shuffled(values: np.ndarray, axes: Any, shuffles: Mapping[str, np.ndarray], movable: set[str]) -> np.ndarray:
    for place, axis in enumerate(axes):
        if axis in movable:
            values = np.take(values, shuffles[axis], axis=place)
    return values


def kinds(case: Case, seed: int) -> Iterator[str]:
    """Lists, arrays, tensors; float32, float64, whole numbers: one result, or a refusal."""
    for name, argument in case.arguments.items():
        if argument.kind not in ARRAYS:
            continue
        ordinary = case.draw(seed)
        given = ordinary[name]
        base, _ = tried(case, ordinary, "")
        forms: dict[str, Any] = {
            "a list": given.tolist(),
            "a tuple": tuple(given.tolist()),
            "a tensor": torch.from_numpy(given.copy()),
            "an array": given.copy(),
            "a transposed view": given.T.copy().T,
            "a tensor with gradient": torch.from_numpy(given.copy()).requires_grad_()
            if argument.kind == "array"
            else given,
        }
        if argument.kind == "flags":
            forms |= {"0 and 1": given.astype(np.int64)}
        if argument.kind.startswith("labels"):
            forms |= {f"labels of {t}": given.astype(t) for t in ("int8", "uint8", "int32")}
        if argument.kind == "labels":
            forms |= {"whole floats": given.astype(float), "objects": given.astype(object)}
        for form, value in forms.items():
            result, wrong = tried(case, {**ordinary, name: value}, f"{name} as {form}")
            yield from wrong
            if isinstance(result, dict) and isinstance(base, dict):
                yield from (f"{name} as {form}: {one}" for one in differences(case, result, base, case.rtol))
        if argument.kind != "array":
            continue
        rounded = np.rint(given * 8)
        whole = {**ordinary, name: rounded}
        base, _ = tried(case, whole, "")
        for kind in (np.int64, np.int32, np.float32, np.float16):
            result, wrong = tried(case, {**ordinary, name: rounded.astype(kind)}, f"{name} as {kind.__name__}")
            yield from wrong
            rtol = case.rtol if kind in (np.int64, np.int32) else max(case.rtol, 1e-3)
            if isinstance(result, dict) and isinstance(base, dict):
                yield from (f"{name} as {kind.__name__}: {one}" for one in differences(case, result, base, rtol))


LABELS: Mapping[str, Callable[[int], Any]] = {
    "strings": lambda c: f"class {c:02d}",
    "negative": lambda c: c - 5,
    "with gaps": lambda c: 7 * c + 3,
    "huge (10⁶)": lambda c: 10**6 + c,
    "huge (10¹²)": lambda c: 10**12 + 10**11 * c,
}


def relabelled(case: Case, seed: int) -> Iterator[str]:
    """Other names of the same classes, in the same order: one result, or a refusal; never memory by the label's size."""
    names = [name for name, argument in case.arguments.items() if argument.kind.startswith("labels")]
    free = {case.arguments[name].kind for name in names} == {"labels"}
    if not names:
        return
    for classes in (SIZES["c"], 2):
        sizes = {**SIZES, "c": classes}
        ordinary = case.draw(seed, sizes)
        base, _ = tried(case, ordinary, "")
        rules = {**LABELS, **({"truth values": bool} if classes == 2 else {})}
        for what, rule in rules.items():
            if what in ("negative", "with gaps") and not free:
                continue
            renamed = {name: np.array([rule(int(c)) for c in ordinary[name]]) for name in names}
            result, wrong = tried(case, {**ordinary, **renamed}, f"{classes} labels that are {what}")
            yield from wrong
            if isinstance(result, dict) and isinstance(base, dict):
                found = {p: v for p, v in result.items() if p in base}
                wanted = {p: base[p] for p in found if base[p].dtype.kind == "f"}
                yield from (f"labels that are {what}: {one}" for one in differences(case, found, wanted, case.rtol))


def wrong_types(case: Case, seed: int) -> Iterator[str]:
    """What an argument cannot be, in each argument in turn, is refused."""
    for name, argument in case.arguments.items():
        for value in argument.bad:
            result, wrong = tried(case, {**case.draw(seed), name: value}, f"{name} = {shown(value)}")
            yield from wrong
            if isinstance(result, dict) and not wrong:
                yield f"{name} = {shown(value)}: taken, gave {next(iter(map(brief, result.values())), 'a result')}"
        for value in argument.odd:
            yield from tried(case, {**case.draw(seed), name: value}, f"{name} = {shown(value)}")[1]
        kind = {"count": np.int64, "number": np.float64}.get(argument.kind)
        if kind is not None:
            changed = case.draw(seed)
            changed[name] = kind(changed[name])
            yield from agrees(case, case.draw(seed), changed, f"{name} as {kind.__name__}")


def agrees(case: Case, ordinary: Arguments, changed: Arguments, what: str) -> Iterator[str]:
    """A number of numpy is a number: the same result, and no refusal."""
    base, _ = tried(case, ordinary, what)
    result, more = tried(case, changed, what)
    yield from more
    if isinstance(result, Refused) and isinstance(base, dict):
        yield f"{what}: refused: {result.message[:100]}"
    elif isinstance(result, dict) and isinstance(base, dict):
        yield from (f"{what}: {one}" for one in differences(case, result, base, case.rtol))


def shown(value: Any) -> str:
    return "object()" if type(value) is object else repr(value)


def not_finite(case: Case, seed: int) -> Iterator[str]:
    """One NaN or infinity in each array in turn is refused, unless the table says it has a meaning."""
    for name, argument in case.arguments.items():
        if argument.kind not in ARRAYS[:-1]:
            continue
        for value in (np.nan, np.inf, -np.inf):
            if any(value is meant or value == meant for meant in argument.meaning):
                continue
            arguments = case.draw(seed)
            spoiled = arguments[name].astype(float)
            if not spoiled.size:
                continue
            for forms in (np.asarray, torch.from_numpy):
                spoiled.flat[seed % spoiled.size] = value
                result, wrong = tried(case, {**arguments, name: forms(spoiled)}, f"{value} in {name}")
                yield from wrong
                if isinstance(result, dict) and not wrong:
                    yield f"{value} in {name}: taken, gave {next(iter(map(brief, result.values())), 'a result')}"


def misfits(case: Case, seed: int) -> Iterator[str]:
    """One item too few in one of the arguments that share an axis is refused; so are axes too many, and nothing at all."""
    shared = [axis for argument in case.arguments.values() for axis in set(argument.axes)]
    for name, argument in case.arguments.items():
        if argument.kind not in ARRAYS:
            continue
        arguments = case.draw(seed)
        given = arguments[name]
        for axis in sorted(set(argument.axes)):
            if shared.count(axis) < 2:
                continue
            short = given
            for place, own in enumerate(argument.axes):
                if own == axis:
                    short = np.take(short, np.arange(given.shape[place] - 1), axis=place)
            yield from must_refuse(case, {**arguments, name: short}, f"{name} with an item too few along {axis}")
        if argument.square:
            yield from must_refuse(case, {**arguments, name: given[:-1]}, f"{name} that is not square")
        odd = {
            "nothing": given[:0],
            "no columns": given[..., :0],
            "three axes more": given[None, None, None],
            "a single number": np.asarray(given.ravel()[0]),
        }
        for what, value in odd.items():
            yield from tried(case, {**arguments, name: value}, f"{name} with {what}")[1]


def must_refuse(case: Case, arguments: Arguments, what: str) -> Iterator[str]:
    result, wrong = tried(case, arguments, what)
    yield from wrong
    if isinstance(result, dict) and not wrong:
        yield f"{what}: taken, gave {next(iter(map(brief, result.values())), 'a result')}"


def degenerate(case: Case, seed: int) -> Iterator[str]:
    """One item, two; constant, zero and repeated data; one class: a refusal, or numbers that are finite and in range."""
    for n in (1, 2, 3):
        yield from tried(case, case.draw(seed, {**SIZES, "n": n, "m": n}), f"n = {n}")[1]
        yield from tried(case, case.draw(seed, {**SIZES, "n": n}), f"n = {n}, m = {SIZES['m']}")[1]
    yield from tried(case, case.draw(seed, {**SIZES, "p": 1}), "one feature")[1]
    yield from tried(case, case.draw(seed, {**SIZES, "c": 1}), "one class")[1]
    yield from tried(case, case.draw(seed, {**SIZES, "c": SIZES["n"]}), "a class an item")[1]
    arrays = [name for name, argument in case.arguments.items() if argument.kind in ("array", "flags")]
    for chosen in [*([name] for name in arrays), arrays]:
        for what, change in DEGENERATE.items():
            arguments = case.draw(seed)
            for name in chosen:
                arguments[name] = change(arguments[name], case.arguments[name])
            yield from tried(case, arguments, f"{what}: {', '.join(chosen)}")[1]


def repeated(values: np.ndarray, argument: Argument) -> np.ndarray:
    """Every item twice."""
    for place, axis in enumerate(argument.axes):
        if axis in ("n", "m"):
            values = np.take(values, np.arange(values.shape[place]) // 2, axis=place)
    return values


DEGENERATE: Mapping[str, Callable[[np.ndarray, Argument], np.ndarray]] = {
    "zeros": lambda values, argument: np.zeros_like(values),
    "ones": lambda values, argument: np.ones_like(values),
    "one value, not exact": lambda values, argument: np.full_like(values, 0.1),
    "smallest numbers": lambda values, argument: np.full_like(values, 5e-324 if values.dtype.kind == "f" else 0),
    "largest numbers": lambda values, argument: np.full_like(values, 1.7e308 if values.dtype.kind == "f" else 1),
    "every item twice": repeated,
}

LAWS: Mapping[str, Callable[..., Iterator[str]]] = {
    "valid": valid,
    "order": order,
    "kinds": kinds,
    "labels": relabelled,
    "wrong types": wrong_types,
    "not finite": not_finite,
    "sizes": misfits,
    "degenerate": degenerate,
}
