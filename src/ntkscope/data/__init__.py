"""Data sets, each a `Split`: real ones read from disk, the papers' synthetic ones computed from a seed.

>>> split = load("digits", seed=0)
>>> len(split.train), len(split.test), len(split.classes)
(1438, 359, 10)
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from ntkscope.core import Split, UsageError
from ntkscope.core.checked import check_room
from ntkscope.core.registry import import_parts
from ntkscope.data._validation import validate
from ntkscope.data.registry import DATASETS
from ntkscope.data.transforms import Trigger, badnets, label_noise, one_vs_rest, stamp, translate

__all__ = [
    "DATASETS",
    "Trigger",
    "badnets",
    "label_noise",
    "load",
    "one_vs_rest",
    "options_of",
    "stamp",
    "translate",
]

import_parts(__name__, __path__)


def options_of(name: str) -> dict[str, Any]:
    """The options of data set `name` with their defaults, beyond `root` and `seed`.

    Examples:
        >>> sorted(options_of("digits"))
        ['dtype', 'test_fraction']
    """
    parameters = inspect.signature(DATASETS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("root", "seed")}


def load(name: str, *given: Any, root: str | os.PathLike[str] | None = None, seed: int = 0, **options: Any) -> Split:
    """The data set `name`: same name, seed and options, same bytes; checked for NaN and for labels out of range.

    `root` is where real data lie (default: $NTKSCOPE_DATA); computed data sets ignore it. The split's `options` hold
    the seed and every option, defaults included, so a record can say how the data were made.

    Examples:
        >>> load("digits", sede=1)
        Traceback (most recent call last):
        ...
        ntkscope.core.errors.UsageError: data set 'digits' has no option 'sede'; its options: dtype, test_fraction
    """
    loader, defaults = DATASETS[name], options_of(name)
    if given:
        raise UsageError(
            f"got {given[0]!r} after the name of the data set; expected root= before the place of its files"
        )
    unknown = [option for option in options if option not in defaults]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(loader).parameters.values()):
        wrong = ", ".join(repr(option) for option in unknown)
        raise UsageError(
            f"data set {name!r} has no option {wrong}; its options: {', '.join(sorted(defaults)) or '(none)'}"
        )
    split = validate(loader(root=root, seed=seed, **options))
    return split.replace(name=split.name or name, options={**defaults, **options, **split.options, "seed": seed})


check_room(__name__, classes="Trigger")
