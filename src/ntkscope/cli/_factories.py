"""Things a person names on the command line: `package.module:factory`, or the name of something built in."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import typer
from torch import nn
from torch.utils.data import DataLoader

import ntkscope as ns
from ntkscope.core import UsageError
from ntkscope.core.errors import DataCorrupt, DataNotFound, UnknownName
from ntkscope.core.files.printable import printable
from ntkscope.core.model.loading import in_order
from ntkscope.data._columns import SUFFIXES, tables
from ntkscope.data.image_folder import by_class


def imported(name: str, what: str) -> Callable[..., Any]:
    """The function `package.module:factory` names; modules in the current folder are found."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"got --{what} {name!r}; expected {_expected(what)}")
    if module_name.endswith(".py"):
        meant = f"{module_name.removesuffix('.py').removeprefix('./').replace('/', '.').lstrip('.')}:{attribute}"
        raise UsageError(f"got --{what} {name!r}, which names a file; expected its module: --{what} {meant}")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        near = difflib.get_close_matches(module_name, [path.stem for path in Path.cwd().glob("*.py")], n=1, cutoff=0.75)
        hint = f"; did you mean --{what} {near[0]}:{attribute}?" if near and error.name == module_name else ""
        raise UsageError(
            f"--{what} {name!r}: no module {error.name!r} in {here} or among the installed ones; start in the folder that holds"
            f" it{hint}"
        ) from error
    except Exception as error:
        raise _theirs(f"--{what} {name!r}: importing {module_name}", error) from error
    finally:
        sys.path.remove(here)
    try:
        factory: Callable[..., Any] = getattr(module, attribute)
    except AttributeError as error:
        near = difflib.get_close_matches(attribute, vars(module), n=1)
        hint = f"; did you mean {module_name}:{near[0]}?" if near else ""
        raise UsageError(f"--{what} {name!r}: {module_name} has no {attribute!r}{hint}") from error
    return factory


def _expected(what: str) -> str:
    """What an option takes."""
    built_in = ", or a built-in name" if what in ("model", "data") else ", a function without arguments"
    return f"package.module:factory{built_in}"


def _made(name: str, what: str, given: dict[str, Any]) -> Any:
    """What the factory makes; its own error is said with its place."""
    factory = imported(name, what)
    _check_call(factory, name, what, given)
    try:
        return factory(**given)
    except ns.NtkscopeError:
        raise
    except Exception as error:
        called = f"called with {', '.join(given)}" if given else "called without options"
        raise _theirs(f"--{what} {name!r}, {called},", error) from error


def _check_call(factory: Any, name: str, what: str, given: dict[str, Any]) -> None:
    """Refuse what cannot make anything, and options that are missing or not taken, with those that would be right."""
    if not callable(factory) or isinstance(factory, nn.Module):
        raise UsageError(
            f"--{what} {name!r} is a {type(factory).__name__} already; expected the class or a function that makes it"
        )
    try:
        taken = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # of some classes written in C
        return
    named = [each for each in taken if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    missing = [each.name for each in named if each.default is each.empty and each.name not in given]
    if missing:
        told = " ".join(f"--{what}-option {each}=VALUE" for each in missing)
        remedy = told if what in ("model", "data") else "a function without arguments that calls it"
        raise UsageError(f"--{what} {name!r} cannot be called without {', '.join(missing)}; expected {remedy}")
    unknown = sorted(set(given) - {each.name for each in named})
    if unknown and not any(each.kind is each.VAR_KEYWORD for each in taken):
        known = ", ".join(each.name for each in named) or "(none)"
        raise UsageError(f"--{what} {name!r} takes no option {', '.join(unknown)}; its options: {known}")


def _theirs(what: str, error: Exception) -> UsageError:
    """An error of a person's own code: what it says and where."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "its own code"
    return UsageError(f"{what} failed at {place} with {type(error).__name__}: {error}; put that right and run again")


def training_of(name: str | None) -> Any:
    """The training that a factory makes again; None without one."""
    return None if name is None else _made(name, "training", {})


def options(texts: Sequence[str] | None) -> dict[str, Any]:
    """`key=value` texts as keyword arguments."""
    return dict(setting(text) for text in texts or [])


def setting(text: str) -> tuple[str, Any]:
    """`key=value` as a name and a Python value; what is no literal is a text.

    >>> setting("seeds=3"), setting("model=resnet18"), setting("kernels=('ck','em')")
    (('seeds', 3), ('model', 'resnet18'), ('kernels', ('ck', 'em')))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise typer.BadParameter(f"got {text!r}, expected key=value, such as seeds=3")
    try:
        return key.strip(), ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the latter of thousands of signs or brackets
        return key.strip(), value


def model_of(name: str, given: dict[str, Any]) -> Any:
    """A built-in architecture by its name, or whatever a factory makes."""
    if ":" in name:
        return _made(name, "model", given)
    try:
        ns.models.MODELS[name]
    except UnknownName as error:
        raise UnknownName(f"{error}{_file_for(name)}") from error
    return ns.models.build(name, **given)


def _file_for(name: str) -> str:
    """What to say instead of the name of a file; nothing if it is not one."""
    code = Path(f"{name.removesuffix('.py')}.py")
    if code.is_file():
        try:
            made = [node.name for node in ast.parse(code.read_bytes()).body if isinstance(node, ast.ClassDef)]
        except (SyntaxError, ValueError):
            made = []
        return f"; of the file {code}, say which class makes the network: --model {code.stem}:{made[-1] if made else 'Net'}"
    if os.path.isfile(name):
        return f"; {name} is a file: if it holds the weights, --model mycnn:Net --weights {name}, where mycnn.py has class Net"
    return ""


def data_of(
    name: str, given: dict[str, Any], root: str | None, seed: int, network: nn.Module | None = None
) -> tuple[Any, Any, tuple[str, ...]]:
    """Training data, test data and class names: a folder or table, a built-in data set, or what a factory makes.

    That is a Split, (train, test), (train, test, class names) or a LightningDataModule. Images of a folder or table get the
    channels that `network` takes.
    """
    kind = name
    if name not in ns.data.DATASETS and os.path.exists(name):
        kind, root = _kind_of(Path(name)), name
    elif os.path.exists(name):
        typer.echo(printable(f"--data {name} is the built-in data set; for what is in the folder: --data ./{name}"))
    if ":" not in kind:
        if kind not in ns.data.DATASETS and (os.sep in kind or Path(kind).suffix in SUFFIXES):
            raise DataNotFound(f"--data {name!r}: no such file or folder in {Path.cwd()}; expected one that exists")
        try:
            ns.data.DATASETS[kind]
        except UnknownName as error:
            near = difflib.get_close_matches(name, os.listdir(), n=1, cutoff=0.75)
            hint = f"; did you mean --data {near[0]}?" if near else ""
            raise UnknownName(f"{error}; nor is there a folder or file of that name in {Path.cwd()}{hint}") from error
        brought = kind in ("image-folder", "table")
        channels = {"channels": channels_of(network)} if brought else {}
        split = ns.data.load(kind, **{"root": root, "seed": seed, **channels, **given})
        if brought:
            typer.echo(printable("\n".join(_described(name, split))))
        return split.train, split.test, split.classes
    made = _made(name, "data", given)
    if isinstance(made, ns.Split):
        return made.train, made.test, made.classes
    if is_datamodule(made):
        try:
            return *loaders_of(made), ()
        except ns.NtkscopeError:
            raise
        except Exception as error:
            raise _theirs(f"--data {name!r}, set up as a Trainer does,", error) from error
    if isinstance(made, tuple) and len(made) in (2, 3):
        train, test, *names = made
        if not names or isinstance(names[0], Iterable):
            return train, test, tuple(names[0]) if names else ()
        raise UsageError(
            f"--data {name!r} made (train, test, {names[0]!r:.80}); expected names of the classes, such as ['cat', 'dog']"
        )
    raise UsageError(
        f"--data {name!r} made a {type(made).__name__}; expected a Split, (train, test),"
        " (train, test, class names) or a LightningDataModule"
    )


def _kind_of(path: Path) -> str:
    """The loader of a folder or table."""
    if not by_class(path) and tables(path):
        return "table"
    if path.is_dir():
        return "image-folder"
    arrays = (
        f", such as: def data(): f = numpy.load({str(path)!r}); return (f['x'], f['y']), (f['x_test'], f['y_test'])"
    )
    raise UsageError(
        f"--data {str(path)!r} is a file that ends in {path.suffix!r}; expected a folder of images, a table"
        f" ({', '.join(SUFFIXES)}), or --data mydata:data, a function in mydata.py that returns training and test items"
        f"{arrays if path.suffix == '.npz' else ''}"
    )


def channels_of(network: nn.Module | None) -> int:
    """The channels of the images a network takes, by its first layer: 3 unless that is for grey ones.

    >>> channels_of(nn.Conv2d(1, 8, 3)), channels_of(nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))), channels_of(None)
    (1, 1, 3)
    """
    for layer in () if network is None else network.modules():
        if isinstance(layer, nn.Conv2d):
            return 1 if layer.in_channels == 1 else 3
        if isinstance(layer, nn.Linear):  # of all pixels of square images
            return 1 if math.isqrt(layer.in_features) ** 2 == layer.in_features else 3
    return 3


def _described(name: str, split: ns.Split) -> list[str]:
    """What was read, so that a wrong guess is seen."""
    lines = [f"{name}: {len(split.train):,} training and {len(split.test):,} test items ({split.options['parts']})"]
    if "label" in split.options:
        lines.append(f"input: {_listed(split.options['input'])}; label: {split.options['label']!r}")
    if split.classes:
        counts = torch.bincount(torch.cat([split.train.y, split.test.y]), minlength=len(split.classes)).tolist()
        lines.append(
            "classes (training and test items): "
            + _listed([f"{number} = {each} ({counts[number]:,})" for number, each in enumerate(split.classes)])
        )
    else:
        y = torch.cat([split.train.y, split.test.y])
        lines.append(f"labels: {'real' if y.is_floating_point() else 'whole'} numbers from {y.min():g} to {y.max():g}")
    if "mean" in split.extras:
        mean, std = (split.extras[key].tolist() for key in ("mean", "std"))
        shape = " x ".join(map(str, split.train.x.shape[1:])) + (" (grey)" if split.train.x.shape[1] == 1 else " (RGB)")
        lines.append(
            f"images of {shape}, pixels in [0, 1]{_normalised(mean, std)}; if the network was trained with others:"
            ' --data-option normalise=unit, or --data-option "normalise=(0.13, 0.31)" for a mean and a standard deviation'
        )
    return lines


def _normalised(mean: Sequence[float], std: Sequence[float]) -> str:
    """How pixels between 0 and 1 were changed.

    >>> _normalised([0.0], [1.0]), _normalised([0.485, 0.456], [0.229, 0.224])
    ('', ' minus 0.485, 0.456, divided by 0.229, 0.224')
    """
    if not any(mean) and all(each == 1.0 for each in std):
        return ""
    shown = [", ".join(f"{each:.4g}" for each in values) for values in (mean, std)]
    return f" minus {shown[0]}, divided by {shown[1]}"


def _listed(names: str | Sequence[str], most: int = 12) -> str:
    """Some names, the first of many."""
    if isinstance(names, str):
        return repr(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def tokenizer_of(name: str | None) -> Any:
    """A tokenizer from a folder that `save_pretrained` wrote, or from a factory; nothing is downloaded."""
    if name is None:
        return None
    if ":" in name and not os.path.exists(name):
        return _made(name, "tokenizer", {})
    if not os.path.isdir(name):
        raise UsageError(
            f"got --tokenizer {name!r}; expected a folder that save_pretrained wrote, or package.module:factory"
        )
    try:
        transformers = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise UsageError('--tokenizer needs the package transformers; run: pip install "ntkscope[text]"') from error
    try:
        return transformers.AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a folder that is damaged, or asks for code of its own, fails in many ways
        raise DataCorrupt(
            f"--tokenizer {name!r} cannot be loaded ({type(error).__name__}: {error}); expected a folder that save_pretrained"
            " wrote, without code of its own (which is never run): write it again with save_pretrained"
        ) from error


def is_datamodule(made: Any) -> bool:
    """Whether it is a LightningDataModule, of `lightning` or `pytorch_lightning`; neither is imported to find out."""
    return _base(made) is not None


def loaders_of(module: Any) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Training and test loader of a LightningDataModule, neither of them shuffling.

    `prepare_data()`, `setup("fit")` and `setup("test")` are called as a Trainer calls them; the validation loader is read
    where there is no test loader.
    """
    base = _base(module)
    module.prepare_data()
    module.setup("fit")
    train = _ordered(module.train_dataloader(), "train_dataloader()")
    for stage in ("test", "val"):
        name = f"{stage}_dataloader"
        if getattr(type(module), name) is not getattr(base, name):
            if stage == "test":
                module.setup("test")
            return train, _ordered(getattr(module, name)(), f"{name}()")
    raise UsageError(
        f"{type(module).__name__} has neither a test_dataloader nor a val_dataloader; expected one: an X-ray needs items the"
        " network was not trained on"
    )


def _base(made: Any) -> type | None:
    return next((each for each in type(made).__mro__ if each.__name__ == "LightningDataModule"), None)


def _ordered(loader: Any, what: str) -> DataLoader[Any]:
    if isinstance(loader, list | tuple) and len(loader) == 1:
        loader = loader[0]
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"{what} gave a {type(loader).__name__}; expected one DataLoader: write a function that returns (train, test)"
            " from the loaders you mean, and pass it as --data package.module:function"
        )
    return in_order(loader)
