"""Things a person names on the command line: `package.module:factory`, or the name of something built in."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ntkscope as ns
from ntkscope.cli.run import setting
from ntkscope.core import UsageError


def imported(name: str, what: str) -> Callable[..., Any]:
    """The function `package.module:factory` names; modules in the current folder are found."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"--{what} {name!r} came; expected package.module:factory, or a built-in name")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--{what} {name!r}: no module {error.name!r} in {here} or among the installed ones; start from its folder"
        ) from error
    finally:
        sys.path.remove(here)
    try:
        factory: Callable[..., Any] = getattr(module, attribute)
    except AttributeError as error:
        raise UsageError(f"--{what} {name!r}: {module_name} has no {attribute!r}") from error
    return factory


def options(texts: Sequence[str] | None) -> dict[str, Any]:
    """`key=value` texts as keyword arguments."""
    return dict(setting(text) for text in texts or [])


def model_of(name: str, given: dict[str, Any]) -> Any:
    """A built-in architecture by its name, or whatever a factory makes."""
    return imported(name, "model")(**given) if ":" in name else ns.models.build(name, **given)


def data_of(name: str, given: dict[str, Any], root: str | None, seed: int) -> tuple[Any, Any, tuple[str, ...]]:
    """Training data, test data and class names: a built-in data set, or what a factory makes: a Split or a pair."""
    if ":" not in name:
        split = ns.data.load(name, root=root, seed=seed, **given)
        return split.train, split.test, split.classes
    made = imported(name, "data")(**given)
    if isinstance(made, ns.Split):
        return made.train, made.test, made.classes
    if isinstance(made, tuple) and len(made) in (2, 3):
        train, test, *names = made
        return train, test, tuple(names[0]) if names else ()
    raise UsageError(
        f"--data {name!r} made a {type(made).__name__}; expected a Split, (train, test) or (train, test, class names)"
    )


def tokenizer_of(name: str | None) -> Any:
    """A tokenizer from a folder that `save_pretrained` wrote, or from a factory; nothing is downloaded."""
    if name is None:
        return None
    if ":" in name and not Path(name).exists():
        return imported(name, "tokenizer")()
    if not Path(name).is_dir():
        raise UsageError(
            f"--tokenizer {name!r} came; expected a folder that save_pretrained wrote, or package.module:factory"
        )
    try:
        transformers = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise UsageError("--tokenizer needs the package transformers; run: pip install 'ntkscope[text]'") from error
    return transformers.AutoTokenizer.from_pretrained(name, local_files_only=True)
