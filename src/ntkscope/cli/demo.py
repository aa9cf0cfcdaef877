"""`ntkscope demo`: the most that exists so far, on data that ship inside scikit-learn."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import ntkscope as ns


def demo(
    out: Annotated[Path | None, typer.Option(help="Folder for the record; a new one under runs/ if left out.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training data.", min=1)] = 15,
    seed: Annotated[int, typer.Option(help="Seed of the split, the weights and the order of batches.")] = 0,
) -> None:
    """Train a small CNN on scikit-learn's digits, write its record and print it."""
    folder = Path("runs", f"demo-{datetime.now():%Y%m%d-%H%M%S}") if out is None else out
    typer.echo(str(train_digits(folder, epochs=epochs, seed=seed)))


def train_digits(folder: Path, *, epochs: int, seed: int) -> ns.Record:
    """A small CNN trained on the digits; its record, with the weights in `weights.safetensors` beside it."""
    config: dict[str, Any] = {
        "data": {"name": "digits"},
        "model": {"name": "small_cnn", "in_channels": 1, "classes": 10, "image_size": 8},
        "training": {"optimizer": "adam", "lr": 3e-3, "loss": "cross_entropy", "epochs": epochs, "batch_size": 64},
    }
    seeds = {"data": seed, "model": seed, "training": seed}
    with ns.Record.create(folder, kind="demo", name="small CNN on digits", config=config, seeds=seeds) as record:
        with record.stage("load", total=1) as stage:
            split = ns.data.load(**config["data"], seed=seed)
            stage.advance()
        model = ns.models.build(**config["model"], seed=seed)
        record.put(
            data_fingerprint=split.fingerprint,
            train_items=len(split.train),
            test_items=len(split.test),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
        )
        curves: dict[str, list[float]] = {"train_loss": [], "train_accuracy": [], "test_loss": [], "test_accuracy": []}
        every_epoch = ns.training.Every(1, "epoch")
        with record.stage("train", total=epochs, progress="auto") as stage:
            for snapshot in ns.training.fit(model, split.train, **config["training"], seed=seed, snapshots=every_epoch):
                test = ns.training.evaluate(model, split.test, loss=config["training"]["loss"])
                for key in ("loss", "accuracy"):
                    curves[f"train_{key}"].append(snapshot.metrics[key])
                    curves[f"test_{key}"].append(test[key])
                stage.advance(round(snapshot.epoch) - stage.done)
                stage.message(f"test accuracy {test['accuracy']:.3f}")
        for name, values in curves.items():
            record.array(name, np.array(values))
        record.put(**{name: values[-1] for name, values in curves.items()})
        ns.models.save_weights(model, folder / "weights.safetensors")
    return record
