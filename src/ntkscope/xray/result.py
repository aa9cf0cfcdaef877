"""What a section found, as a type: its fields are what the record holds, and what the section's view on the page reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ntkscope.core.errors import RecordError

S = TypeVar("S")


@dataclass(frozen=True)
class Result:
    """A part of a record, plain data under the names of its fields; a field that is a `Result` too is nested.

    Abstract: a section's result is a frozen dataclass with numbers, texts, `None`, tuples, mappings and other results.

    >>> @dataclass(frozen=True)
    ... class Row(Result):
    ...     name: str
    ...     tau: float | None = None
    >>> Row("ck", 0.5).to_record()
    {'name': 'ck', 'tau': 0.5}
    >>> Row.from_record({"name": "ck", "tau": None})
    Row(name='ck', tau=None)
    >>> Row.from_record({"tau": 0.5})
    Traceback (most recent call last):
    ...
    ntkscope.core.errors.RecordError: got Row without name; expected name, tau: ...
    """

    def to_record(self) -> dict[str, Any]:
        """The fields as nested dicts and lists; a field with the metadata `optional` is left out when empty."""
        values = {field.name: (getattr(self, field.name), field.metadata.get("optional")) for field in fields(self)}
        return {name: _plain(value) for name, (value, optional) in values.items() if value or not optional}

    @classmethod
    def from_record(cls: type[S], value: Any) -> S:
        """The inverse of `to_record`; a `RecordError` if a field is missing or of another type."""
        hints, known = get_type_hints(cls), fields(cls)  # type: ignore[arg-type]
        if not isinstance(value, Mapping):
            raise RecordError(f"got a {type(value).__name__} for {cls.__name__}; expected an object: compute it again")
        needed = [f.name for f in known if f.default is MISSING and f.default_factory is MISSING]
        missing = [name for name in needed if name not in value]
        if missing:
            raise RecordError(
                f"got {cls.__name__} without {', '.join(missing)}; expected {', '.join(f.name for f in known)}: it is of"
                " another version: compute it again"
            )
        found = {
            f.name: _read(hints[f.name], value[f.name], f"{cls.__name__}.{f.name}") for f in known if f.name in value
        }
        return cls(**found)


R = TypeVar("R", bound=Result)


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_record()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _read(kind: Any, value: Any, where: str) -> Any:
    """`value` as the annotation `kind` has it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        (kind,) = (each for each in inner if each is not NoneType)
        return _read(kind, value, where)
    if isinstance(kind, type) and is_dataclass(kind) and issubclass(kind, Result):
        return kind.from_record(value)
    if origin is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise RecordError(f"got a {type(value).__name__} for {where}; expected a list: compute it again")
        return tuple(_read(inner[0], item, where) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise RecordError(f"got a {type(value).__name__} for {where}; expected an object: compute it again")
        return {str(key): _read(inner[1], item, where) for key, item in value.items()}
    wanted = (int, float) if kind is float else kind
    if kind is not Any and (not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool)):
        raise RecordError(f"got {value!r} for {where}; expected a value of type {kind.__name__}: compute it again")
    return value
