"""Recipes: networks that other work needs often, trained from data to weights and a record by one command."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ntkscope import data, models
from ntkscope.core import Part, Record, Split, UsageError
from ntkscope.core.arguments import as_device
from ntkscope.core.progress import duration
from ntkscope.core.script import run_script
from ntkscope.training.evaluation import evaluate
from ntkscope.training.fit import fit

PLAIN = (int, float, str, type(None))


@dataclass(frozen=True)
class Recipe:
    """A data set, a network and the options of `fit` that take it to `target` accuracy on the test part."""

    name: str
    dataset: str
    model: str
    target: float
    epochs: int
    fit: Mapping[str, Any]
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)


def run_recipe(
    recipe: Recipe,
    out: str | Path,
    *,
    root: str | None = None,
    seed: int = 0,
    epochs: int | None = None,
    device: str | None = None,
    limit: int | None = None,
    width: float | int | None = None,
    command: str | None = None,
    progress: bool = False,
) -> Record:
    """Follow `recipe` and leave in `out` a record, `weights.safetensors` and the snapshots to resume from after a kill.

    Accuracy is that of the plain network on the whole test part, in single precision, one pass, nothing averaged.
    `limit` keeps the first items of each part and `width` narrows the network, to try the mechanics.
    """
    out = Path(out)
    where = as_device(device or "auto") or torch.device("cpu")
    options = {**recipe.model_options, **({} if width is None else {"width": width}), "seed": seed}
    length = recipe.epochs if epochs is None else epochs
    on_device = {} if where.type == "cuda" else {"autocast": None}
    how = {**recipe.fit, **on_device, "epochs": length, "seed": seed}
    config = {
        "recipe": recipe.name,
        "dataset": recipe.dataset,
        "data_options": dict(recipe.data_options),
        "model": recipe.model,
        "model_options": options,
        "fit": {key: value if isinstance(value, PLAIN) else repr(value) for key, value in how.items()},
        "target": recipe.target,
        "limit": limit,
        "weights": "weights.safetensors",
    }
    shared: dict[str, Any] = {"config": config, "seeds": {"seed": seed}, "device": where}
    if (out / "record.json").exists():
        record = Record.resume(out, **shared)
    else:
        record = Record.create(out, kind="recipe", name=recipe.name, command=command, **shared)
    with record:
        began = time.perf_counter()
        split = _limited(data.load(recipe.dataset, root=root, **recipe.data_options), limit)
        record.put(
            data=dict(split.options),
            data_fingerprint=split.fingerprint,
            seconds_data=round(time.perf_counter() - began, 2),
        )
        model = models.build(recipe.model, **options)
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            began = time.perf_counter()
            trajectory = fit(
                model, split.train, **how, snapshots="final", store=out / "snapshots", device=where, progress=progress
            )
            final = trajectory.final()
            seconds = time.perf_counter() - began
            test = evaluate(model, split.test)
        models.save_weights(model, out / "weights.safetensors")
        record.put(
            seconds_training=round(seconds, 2),
            steps=final.step,
            train_accuracy=final.metrics["accuracy"],
            train_loss=final.metrics["loss"],
            test_accuracy=test["accuracy"],
            test_loss=test["loss"],
            reached=test["accuracy"] >= recipe.target,
            peak_gpu_bytes=torch.cuda.max_memory_allocated() if where.type == "cuda" else 0,
        )
    return record


def main(recipe: Recipe, arguments: Sequence[str] | None = None) -> int:
    """The command line of a recipe; exit status 1 when the target was missed."""
    program = f"ntkscope.training.{recipe.name}"
    typed = sys.argv[1:] if arguments is None else list(arguments)

    def train(
        out: Annotated[Path, typer.Option(help="Folder for the record and the weights.")],
        root: Annotated[str | None, typer.Option(help="Folder of the data sets; $NTKSCOPE_DATA unless given.")] = None,
        seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
        epochs: Annotated[int | None, typer.Option(help="Passes over the data; the recipe's unless given.")] = None,
        target: Annotated[
            float | None, typer.Option(help="Test accuracy wanted, in percent; the recipe's unless given.")
        ] = None,
        device: Annotated[str | None, typer.Option(help="cuda where there is one, unless given.")] = None,
        limit: Annotated[int | None, typer.Option(help="Train and test on this many items only.")] = None,
        width: Annotated[float | None, typer.Option(help="Width factor of the network.")] = None,
    ) -> int:
        record = run_recipe(
            recipe,
            out,
            root=root,
            seed=seed,
            epochs=epochs,
            device=device,
            limit=limit,
            width=width,
            command=shlex.join(["python", "-m", program, *typed]),
            progress=True,
        )
        wanted = 100 * recipe.target if target is None else target
        accuracy = 100 * float(record.metrics["test_accuracy"])
        reached = accuracy >= wanted
        print(
            f"{recipe.model} on {recipe.dataset}: {accuracy:.2f} % test accuracy after {record.metrics['steps']} steps,"
            f" {duration(record.metrics['seconds_training'])} of training on {record.environment['device']};"
            f" {'reached' if reached else 'missed'} the target of {wanted:g} %. Record: {out}"
        )
        return 0 if reached else 1

    about = f"Train {recipe.model} on {recipe.dataset} for {recipe.epochs} epochs, to {100 * recipe.target:g} % test accuracy."
    return run_script(train, arguments, f"python -m {program}", about)


def _limited(split: Split, limit: int | None) -> Split:
    def first(part: Part) -> Part:
        return part if limit is None else part.take(range(min(limit, len(part))))

    if limit is not None and limit < 1:
        raise UsageError(f"limit={limit}; expected at least one item")
    return split.replace(train=first(split.train), test=first(split.test))
