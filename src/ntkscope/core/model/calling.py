"""How a model is called: one rule for what goes by position, what by name, and what is a label.

- A tuple goes by position, every member of it.
- A mapping, a dataclass and a namedtuple go by name where `forward` takes those names; labels (`LABEL_KEYS`) that it does not
  take are left out. Otherwise a namedtuple goes by position if it can, and the others are passed whole, labels too.
- Anything else is the only argument.
- Items of a Dataset and batches of a DataLoader are read in the same way, lists as tuples, but a tuple may end in a label,
  which is dropped; `without_labels` says how it is told. Names and `((x, mask), label)` leave no doubt. A loader gives the
  items that it yields: with `drop_last=True`, not those of an incomplete last batch.
- Where labels are asked for (X-rays, probes), the last member of a tuple or the first of `LABEL_KEYS` is the label: `parted`.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core.errors import UsageError
from ntkscope.core.model.tree import Inputs, is_branch, named, tensors

LABEL_KEYS = ("label", "labels", "label_ids", "target", "targets", "y")
# one number per item, no label
COUNTS = re.compile("(t|times?|time_?steps?|len|lens|lengths?)$|.*_(len|lengths?|times?)$")
SWITCHES = {"bool", "int", "str", "None", "NoneType", "Optional", "Union", "typing", "class"}  # annotations, no tensors


def arguments(model: nn.Module, x: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `model` is called with, by position and by name.

    >>> arguments(nn.Bilinear(1, 1, 1), {"input1": 1, "input2": 2, "labels": 3})
    ((), {'input1': 1, 'input2': 2})
    """
    members = named(x)
    if members is None:
        return (x if isinstance(x, tuple) else (x,)), {}
    signature = inspect.signature(model.forward)
    wanted = _by_name(signature, members)
    if wanted is not None:
        return (), wanted
    if isinstance(x, tuple) and _binds(signature, *x):
        return tuple(x), {}
    if not _binds(signature, x):
        surplus = [str(key) for key in members if key not in taken_of(model, members) and key not in LABEL_KEYS]
        remedy = f"leave out {', '.join(surplus)}, or use" if surplus else "expected"
        raise UsageError(
            f"got inputs named {', '.join(map(str, members))} for forward{signature}, which takes them neither by name nor as"
            f" one argument; {remedy} the names of its arguments"
        )
    return (members if isinstance(x, Mapping) else x,), {}


def taken_of(model: nn.Module, members: Mapping[Any, Any]) -> dict[Any, Any]:
    """What `forward` takes of these by name; all of them where it takes any name, or none of theirs.

    >>> taken_of(nn.Bilinear(1, 1, 1), {"input1": 1, "input2": 2, "third": 3})
    {'input1': 1, 'input2': 2}
    """
    takes = inspect.signature(model.forward).parameters
    taken = {key: value for key, value in members.items() if key in takes}
    anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    return dict(members) if anything or not taken else taken


def without_labels(model: nn.Module, items: Sequence[Any], *, batched: bool) -> list[Inputs]:
    """The inputs of a data set's items, or of a loader's batches.

    The last member of a tuple is an argument where `forward` requires that position, and a label where it takes fewer. Where
    the position is optional, text and one whole number per item are labels (but not at a place for lengths or times), and so is
    what neither the mask nor the switch that stands there can be; a mask (boolean, or so named) that has the input's axes is an
    argument. Anything else is refused.
    """
    items = [_tuples(item) for item in items]
    members = named(items[0])
    wanted = None if members is None else _by_name(inspect.signature(model.forward), members)
    if isinstance(items[0], Mapping) and members is not None:
        kept = wanted or [key for key, value in members.items() if key not in LABEL_KEYS or _numbers(value) is not None]
        left = members.keys() - set(kept)
        return [{key: value for key, value in (named(item) or {}).items() if key not in left} for item in items]
    if wanted is not None or not isinstance(items[0], tuple):
        return items
    if _ends_in_label(model, items, batched):
        items = [item[:-1] for item in items]
    return [item[0] if len(item) == 1 else item for item in items]


def parted(item: Any) -> tuple[Inputs, Any]:
    """Inputs and label of a labelled item or batch; None where a mapping has no label, or there is one member alone.

    >>> parted({"x": 1, "y": 2}), parted((1, 2, 3)), parted((1,))
    (({'x': 1}, 2), ((1, 2), 3), (1, None))
    """
    members, item = named(item), _tuples(item)
    key = next((key for key in LABEL_KEYS if key in (members or ())), None)
    if isinstance(item, tuple):
        place = item._fields.index(key) if key and hasattr(item, "_fields") else len(item) - 1
        inputs = item[:place] + item[place + 1 :] or item
        return inputs[0] if len(inputs) == 1 else inputs, item[place] if len(item) > 1 else None
    if members is None or (key is None and not isinstance(item, Mapping)):
        return item, None
    return {name: value for name, value in members.items() if name != key}, members.get(key)


def call(model: nn.Module, x: Inputs) -> Tensor:
    """The outputs of `model` for the inputs `x`."""
    args, kwargs = arguments(model, x)
    return logits(model(*args, **kwargs))


def logits(value: Any) -> Tensor:
    """The tensor of outputs in whatever a model returned: a tensor, or something that carries `logits`."""
    if isinstance(value, Tensor):
        return value
    found = value.get("logits") if isinstance(value, Mapping) else getattr(value, "logits", None)
    if isinstance(found, Tensor):
        return found
    raise UsageError(
        f"the model returned {type(value).__name__}; expected a tensor of shape (n, c), or an object with .logits;"
        " wrap the model in a module whose forward returns the outputs alone"
    )


def _by_name(signature: inspect.Signature, members: Mapping[Any, Any]) -> dict[str, Any] | None:
    """What `forward` takes of these by name; None where it does not take them so."""
    takes = signature.parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    wanted = {key: value for key, value in members.items() if key not in LABEL_KEYS or anything or key in takes}
    return wanted if all(isinstance(key, str) for key in wanted) and _binds(signature, **wanted) else None


def _binds(signature: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _tuples(item: Any) -> Any:
    """The item with lists of members (what a loader makes of tuples) as tuples; lists of numbers or texts are columns."""
    if isinstance(item, Mapping):
        return {key: _tuples(value) for key, value in item.items()}
    if isinstance(item, list) and any(isinstance(member, Tensor | np.ndarray) or is_branch(member) for member in item):
        return tuple(_tuples(member) for member in item)
    return item


def _ends_in_label(model: nn.Module, items: Sequence[tuple[Any, ...]], batched: bool) -> bool:
    """Whether the last member of these items is a label, and not an argument of `forward`."""
    first, count, last = items[0][0], len(items[0]), items[0][-1]
    positions = _positions(model)
    if count <= max(1, sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in positions)):
        return False
    numbers, fields = _numbers(last), getattr(items[0], "_fields", ())
    shape, axes = ([] if t is None else list(t.shape[batched:]) for t in (numbers, next(iter(tensors(first)), None)))
    integers = numbers is not None and not numbers.is_floating_point()
    if numbers is None and not is_branch(last):
        return True
    taken = positions[min(count, len(positions)) - 1] if positions else None
    single = integers and math.prod(shape) == 1
    if taken is None or (fields and fields[-1] in LABEL_KEYS) or (single and not COUNTS.match(taken.name)):
        return True
    if count > len(positions) and taken.kind is not taken.VAR_POSITIONAL:
        return not fields  # a namedtuple is passed whole
    words = set() if taken.annotation is taken.empty else set(re.findall(r"\w+", str(taken.annotation)))
    if (count == 2 and is_branch(first)) or isinstance(taken.default, bool | str) or (words and words <= SWITCHES):
        return True
    if taken.name in LABEL_KEYS[:-1]:  # for the loss; "y" may be another input
        return True
    fits = bool(shape) and set(shape) - {1} <= set(axes)
    if numbers is not None and ((fits and numbers.dtype == torch.bool) or "mask" in taken.name):
        return not fits or (integers and any(bool((torch.as_tensor(item[-1]) // 2 != 0).any()) for item in items))
    what = "members" if numbers is None else f"shape {tuple(shape)} of {numbers.dtype}"
    raise UsageError(
        f"got items of {count} members for forward({', '.join(map(str, positions))}): the last may be the argument"
        f" {taken.name!r} or a label, and its {what} does not tell; expected items that say which: mappings by name, or"
        f" ((…, {taken.name}), label) where it is an argument and ((…,), label) where it is a label"
    )


def _positions(model: nn.Module) -> list[inspect.Parameter]:
    """The arguments that `model.forward` takes by position; those of the only child where it passes on whatever comes."""
    found, inner = list(inspect.signature(model.forward).parameters.values()), list(model.children())
    passed_on = [p.kind for p in found] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    if passed_on and len(inner) == 1:
        return _positions(inner[0])
    return [p for p in found if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]


def _numbers(value: Any) -> Tensor | None:
    """`value` as a tensor, if it is one, an array, a number, or a list of numbers."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return None
