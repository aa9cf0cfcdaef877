"""`ntkscope demo`: the main job on data that ship inside scikit-learn; the same as `ntkscope xray --demo`."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

import ntkscope as ns
from ntkscope.cli import BEGAN
from ntkscope.cli._common import show, stoppable
from ntkscope.core import UsageError
from ntkscope.core.files.printable import printable

MODEL: dict[str, Any] = {"name": "small_cnn", "in_channels": 1, "classes": 10, "image_size": 8}
TRAINING: dict[str, Any] = {"optimizer": "adam", "lr": 3e-3, "loss": "cross_entropy", "batch_size": 64}
EPOCHS = 15
TIME = "5m"  # a limit for slow machines; two cores need about a minute
KERNELS = ("trntk", "ck", "em", "pntk", "proj-pntk")
WEIGHTS, INITIAL = "weights.safetensors", "initial_weights.safetensors"


def demo(
    out: Annotated[Path | None, typer.Option(help="Folder for the record; under runs/ if left out.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training data.", min=1)] = EPOCHS,
    seed: Annotated[int, typer.Option(help="Seed of the split, the weights and the order of batches.")] = 0,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Train again on random halves too: can the kernel foretell it? Minutes more."),
    ] = False,
) -> None:
    """Train a small CNN on scikit-learn's digits, X-ray it, and make the page."""
    with stoppable():
        folder = demo_folder(seed) if out is None else out
        record = demo_xray(folder, seed=seed, epochs=epochs, replay=replay, began=BEGAN.get())
    show(record)


def demo_xray(folder: Path, *, seed: int, epochs: int = EPOCHS, replay: bool = False, **options: Any) -> ns.Record:
    """A small CNN trained on the digits and X-rayed; its weights before and after lie beside the record.

    `replay`: hand the training over too. `options` go to `ns.xray` in place of the demo's own.
    """
    split = ns.data.load("digits", seed=seed)
    model = ns.models.build(**MODEL, seed=seed)
    if (folder / "record.json").exists() and ns.Record.open(folder).kind != "xray":
        raise UsageError(f"{folder} already holds a record of another kind; choose another folder with --out")
    initial = copy.deepcopy(model)  # a network of ours, without hooks
    given: dict[str, Any] = {"budget": TIME, "kernels": KERNELS, **options}
    if (folder / WEIGHTS).exists() and not replay:
        typer.echo(f"the trained network is in {folder} already")
        ns.models.load_weights(model, folder / WEIGHTS)
    else:
        typer.echo(f"training {MODEL['name']} on {len(split.train):,} digits for {epochs} epochs")
        store = folder / "fit" if replay else None
        how = {**TRAINING, "epochs": epochs, "seed": seed, "progress": True, "measure": False}
        training = ns.training.fit(model, split.train, store=store, **how)
        training.final()
        folder.mkdir(parents=True, exist_ok=True)
        ns.models.save_weights(initial, folder / INITIAL)
        ns.models.save_weights(model, folder / WEIGHTS)
        if replay:
            given["training"] = training
    return ns.xray(
        model,
        split.train,
        split.test,
        folder,
        initial=initial,
        seed=seed,
        classes=split.classes,
        name=MODEL["name"],
        data_name="digits",
        say=typer.echo,
        **given,
    )


def demo_folder(seed: int, runs: Path = Path("runs")) -> Path:
    """The last demo that was stopped half-way, which is resumed; else a new folder."""
    for folder in sorted(runs.glob(f"demo-{seed}-*"), reverse=True):
        if not (folder / "record.json").exists():
            continue
        try:
            document = ns.Record.open(folder).to_json()
        except ns.NtkscopeError as error:
            typer.echo(f"not resumed: {printable(str(error))}", err=True)
            continue
        idle = datetime.now().astimezone() - datetime.fromisoformat(document["updated"])
        if document["status"] == "interrupted" or (document["status"] == "running" and idle > timedelta(minutes=1)):
            return folder
        break
    return runs / f"demo-{seed}-{datetime.now():%Y%m%d-%H%M%S}"
