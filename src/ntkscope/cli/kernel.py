"""`ntkscope kernel`: a kernel of a trained network on disk, tile by tile, resumable."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

import ntkscope as ns
from ntkscope.cli import _options as opt
from ntkscope.cli._common import certified, stoppable
from ntkscope.cli._factories import options
from ntkscope.cli._subject import Subject, subject_of
from ntkscope.core import Part, UsageError
from ntkscope.core.arguments import as_device
from ntkscope.core.model.tree import length, take
from ntkscope.core.progress import duration
from ntkscope.xray.items import collect_inputs, fitted

PARTS = ("train", "test")
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def kernel(
    name: Annotated[str, typer.Argument(help="A kernel; `ntkscope list kernels` names them.")],
    model: Annotated[str, opt.MODEL],
    data: Annotated[str, opt.DATA],
    store: Annotated[str, typer.Option(help="Folder or fsspec URL for the tiles; one that stopped is resumed.")],
    weights: opt.Weights = None,
    part: Annotated[str, typer.Option(help="The rows: train or test.")] = "train",
    against: Annotated[
        str | None, typer.Option(help="The columns: train or test; the rows themselves unless given.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many rows.", min=1)] = None,
    against_limit: Annotated[int | None, typer.Option(help="Only the first so many columns.", min=1)] = None,
    memory: opt.Memory = opt.MEMORY,
    precision: Annotated[str | None, typer.Option(help="exact, float32, or on a GPU tf32, bf16, fp16.")] = None,
    device: opt.Device = "auto",
    dtype: Annotated[str | None, typer.Option(help="float32 or float64; the model's own unless given.")] = None,
    outputs: Annotated[str | None, typer.Option(help="Outputs by number, with commas; all unless given.")] = None,
    params: opt.ParamGlobs = None,
    scheduler: Annotated[
        str | None, typer.Option(help="A Dask scheduler's address, such as tcp://host:8786; its workers do the work.")
    ] = None,
    certify: opt.Certify = "every",
    tokenizer: opt.Tokenizer = None,
    option: Annotated[list[str] | None, typer.Option(help="key=value for the kernel; repeatable.")] = None,
    model_option: opt.ModelOptions = None,
    data_option: opt.DataOptions = None,
    data_root: opt.DataRoot = None,
    seed: opt.Seed = 0,
) -> None:
    """Compute a kernel into a folder of tiles; stopped or killed, the same command computes only what is missing."""
    checked = certified(certify)
    about = subject_of(model, weights, data, model_option, data_option, data_root, tokenizer, seed)
    network = about.network
    network.made_with = dict(about.made_with)  # part of its identity, by which a store knows it again
    rows, columns = _sides(about, (part, limit), (against, against_limit))
    more = options(option) | ({} if precision is None else {"precision": precision})
    with stoppable():
        gram = ns.kernel(
            name,
            network.eval(),
            rows,
            columns,
            outputs=_numbers(outputs),
            params=params or None,
            dtype=_dtype(dtype),
            device=as_device(device) or "cpu",
            memory=memory,
            store=store,
            executor=scheduler,
            progress=True,
            seed=seed,
            certify=checked,
            **more,
        )
    typer.echo("\n".join(summary(gram, store)))


def summary(gram: ns.Gram, store: str) -> list[str]:
    """What is in the store now, and what this run did for it."""
    n, m = gram.shape
    lines = [f"{gram.name}: {n:,} × {m:,} {str(gram.dtype).removeprefix('torch.')} in {store}{_size(store)}"]
    kept = gram.certificate
    lines.append(f"certificate: {'none was kept' if kept is None else kept}")
    run = gram.meta.get("run")
    if run:
        lines.append(f"tiles: {run['computed']} computed, {run['tiles'] - run['computed']} found")
        spent = [f"{name} {duration(seconds)}" for name, seconds in run["spent"].items() if seconds >= 0.005]
        lines.append(f"time: {duration(run['seconds'])}{': ' if spent else ''}{', '.join(spent)}")
    if sys.platform != "win32":  # which has no such count
        resource = importlib.import_module("resource")
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 2**10)
        lines.append(f"memory: at most {most / 2**20:,.0f} MiB in this process, with Python, model and data")
    return [*lines, f"open it with ntkscope.open_kernel({store!r})"]


def _size(store: str) -> str:
    """The bytes below a local folder, in words; nothing for a URL."""
    folder = Path(store)
    if not folder.is_dir():
        return ""
    return f", {sum(file.stat().st_size for file in folder.rglob('*') if file.is_file()) / 2**20:,.1f} MiB"


def _sides(about: Subject, rows: tuple[str, int | None], columns: tuple[str | None, int | None]) -> tuple[Any, Any]:
    """Inputs of the rows and of the columns; None for columns that are the rows."""
    sides = dict(zip(PARTS, (about.train, about.test)))
    for what, name in (("part", rows[0]), ("against", columns[0])):
        if name is None:
            continue
        if name not in sides:
            raise UsageError(f"got --{what} {name!r}; expected one of {', '.join(PARTS)}")
        if sides[name] is None:
            raise UsageError(f"got --{what} {name}, and the data have no such part; expected one that is there")
    wanted = {name: sides[name] for name in (rows[0], columns[0]) if name is not None}
    if about.tokenizer is not None or any(
        _labelled(sides[name], limit) for name, limit in (rows, columns) if name is not None
    ):
        wanted = dict(zip(wanted, collect_inputs(wanted, fitted(about.tokenizer, about.network, typer.echo))))
    first = _first(wanted[rows[0]], rows[1])
    return first, None if columns[0] is None else _first(wanted[columns[0]], columns[1])


def _labelled(data: Any, limit: int | None) -> bool:
    """Whether inputs have to be told from labels as an X-ray does: (inputs, labels), some of a loader.

    A kernel leaves out the labels of a Part, a mapping, a Dataset or a whole DataLoader by itself.
    """
    return (isinstance(data, tuple | list) and len(data) == 2) or (isinstance(data, DataLoader) and limit is not None)


def _first(items: Any, limit: int | None) -> Any:
    """The first items of one part of the data."""
    if limit is None:
        return items
    if isinstance(items, Part):
        return items.take(list(range(min(limit, len(items)))))
    if isinstance(items, Dataset) and not isinstance(items, Tensor):
        return Subset(items, range(min(limit, len(items))))  # type: ignore[arg-type]
    if isinstance(items, Tensor | tuple | Mapping):
        return take(items, slice(0, min(limit, length(items))))
    raise UsageError(f"got --limit for data of type {type(items).__name__}; expected a Part, a tensor or a Dataset")


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise UsageError(f"got --outputs {text!r}; expected numbers with commas, such as 0,3") from error


def _dtype(name: str | None) -> torch.dtype | None:
    if name is not None and name not in DTYPES:
        raise UsageError(f"got --dtype {name!r}; expected one of {', '.join(DTYPES)}")
    return None if name is None else DTYPES[name]
