"""The feature ansatz in real networks: ρ(WᵀW, WᵀKW) of every layer, with its control's range beside it.

    python -m benchmarks feature_tables      # measures, writes benchmarks/results/bench/feature_tables.json
    python -m benchmarks.kernels.feature_tables      # makes docs/results/feature-tables.md of it

LeNet and MiniLM are trained here, LeNet from weights that are kept, so that it has centred forms too; ResNet-20 and ResNet-56
have their published weights. The control has K's spectrum and Haar-distributed eigenvectors.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ntkscope as ns
from benchmarks.machine import ROOT, THREADS
from benchmarks.outcome import Check, Outcome, table
from ntkscope.core import NumericalError, Part, UsageError
from ntkscope.core.errors import DataNotFound
from ntkscope.data.subsets import stratified
from ntkscope.tangent.matrices.feature_matrices import LayerFeatures
from ntkscope.training.schedules import Triangular
from ntkscope_papers.shared.networks import logits_of
from ntkscope_papers.shared.sentences import build_encoder, sentences

CENTRINGS = ("weights", "both", "tangents")
MEMORY = "2GiB"
TOKENS = 24  # of a sentence; longer ones are cut
RECORD, PAGE = (
    ROOT / "benchmarks" / "results" / "bench" / "feature_tables.json",
    ROOT / "docs" / "results" / "feature-tables.md",
)


@dataclass(frozen=True)
class Size:
    """How many samples the matrices are averaged over, test items, draws of the control, training items and epochs."""

    inputs: int
    test: int
    draws: int = 200
    train: int = 0
    epochs: int = 0


SIZES = {
    "LeNet on MNIST": Size(1000, 10_000, train=60_000, epochs=3),
    "ResNet-20 on CIFAR-10": Size(1000, 2000),
    "ResNet-56 on CIFAR-10": Size(500, 2000),
    "MiniLM on CoLA": Size(200, 500, train=8000, epochs=3),
}
QUICK = Size(20, 20, draws=5, train=64, epochs=1)


@dataclass(frozen=True, eq=False)
class Network:
    """A trained network in evaluation mode, the inputs of its feature matrices, its weights before training if we have them."""

    model: nn.Module
    x: Any
    accuracy: float
    majority: float  # the accuracy of always saying the most frequent class
    said: str
    initial: nn.Module | None = None


# -- the networks ------------------------------------------------------------------------------------------------------


def lenet(size: Size) -> Network:
    split = ns.data.load("mnist", max_train=size.train, max_test=size.test)
    model = ns.models.build("lenet")
    initial = copy.deepcopy(model).eval()
    recipe: dict[str, Any] = {"optimizer": "adam", "lr": 1e-3, "loss": "cross_entropy", "batch_size": 64}
    ns.training.fit(model, split.train, **recipe, epochs=size.epochs, measure=False).final()
    said = f"trained here on {len(split.train):,} digits, {size.epochs} epochs of Adam"
    return _network(model, split.train, split.test, size, said, initial)


def residual(name: str, size: Size) -> Network:
    split = ns.data.load("cifar10", normalise="imagenet")
    weights = Path(os.environ.get("NTKSCOPE_DATA", ""), "resnet_cifar10", f"{name}.safetensors")
    if not weights.is_file():
        raise DataNotFound(
            f"no published weights at {weights}; set NTKSCOPE_DATA to the folder that holds resnet_cifar10"
        )
    model = ns.models.load_weights(ns.models.build(name), weights)
    return _network(model, split.train, split.test, size, "published weights")


def minilm(size: Size) -> Network:
    split = sentences("cola", "minilm", root=None, train=size.train, test=size.test, length=TOKENS)
    model = build_encoder("minilm", 0)
    recipe: dict[str, Any] = {"optimizer": "adamw", "lr": 1e-4, "weight_decay": 0.01, "loss": "cross_entropy"}
    recipe |= {"batch_size": 32, "schedule": Triangular(peak=0.1)}
    ns.training.fit(model, split.train, **recipe, epochs=size.epochs, measure=False).final()
    said = f"fine-tuned here on {len(split.train):,} sentences, {size.epochs} epochs of AdamW"
    return _network(model, split.train, split.test, size, said)


NETWORKS: Mapping[str, Callable[[Size], Network]] = {
    "LeNet on MNIST": lenet,
    "ResNet-20 on CIFAR-10": lambda size: residual("resnet20", size),
    "ResNet-56 on CIFAR-10": lambda size: residual("resnet56", size),
    "MiniLM on CoLA": minilm,
}


def _network(
    model: nn.Module, train: Part, test: Part, size: Size, said: str, initial: nn.Module | None = None
) -> Network:
    model = model.eval()
    train, test = _few(train, size.inputs), _few(test, size.test)
    right = logits_of(model, test.x).argmax(1).cpu() == test.y
    majority = float(torch.bincount(test.y).max()) / len(test)
    return Network(model, train.x, float(right.double().mean()), majority, said, initial)


def _few(part: Part, count: int) -> Part:
    chosen = stratified(part.y.numpy(), min(count, len(part)), 0, "feature tables")
    return part.take(torch.from_numpy(chosen))


# -- what is measured --------------------------------------------------------------------------------------------------


def measured(layer: LayerFeatures, draws: int) -> dict[str, Any]:
    """One row: ρ, its control, and centred forms where initial weights are known; why not, where ρ is undefined."""
    assert layer.weight is not None
    row: dict[str, Any] = {"layer": layer.name, "shape": list(layer.weight.shape), "positions": layer.positions}
    start = time.perf_counter()
    try:
        control = layer.control(draws)
    except NumericalError as error:
        return row | {"seconds": layer.seconds, "undefined": str(error)}
    row |= {
        "rho": control.observed,
        "control": {"mean": control.mean, "low": control.quantiles[0.025], "high": control.quantiles[0.975]},
        "p_value": control.p_value,
        "seconds": layer.seconds,
        "control_seconds": time.perf_counter() - start,
    }
    if layer.initial_weight is not None:
        row["centred"] = {centring: centred(layer, centring) for centring in CENTRINGS}
    return row


def centred(layer: LayerFeatures, centring: str) -> float | None:
    """A centred correlation; None where there is none: tangents of the readout are the same before and after training."""
    try:
        return layer.correlation(centring)
    except NumericalError:
        return None


def of_network(name: str, size: Size) -> dict[str, Any]:
    """The table of one network."""
    start = time.perf_counter()
    network = NETWORKS[name](size)
    made = time.perf_counter() - start
    fm = ns.feature_matrices(network.model, network.x, initial=network.initial, memory=MEMORY)
    layers = []
    for key, layer in fm.items():
        if key != "input":
            layers.append(measured(layer, size.draws))
            print(f"  {name}, {key}: {layers[-1].get('rho', 'undefined')}", flush=True)
    return {
        "network": name,
        "said": network.said,
        "accuracy": network.accuracy,
        "majority": network.majority,
        "inputs": fm.samples,
        "outputs": fm.outputs,
        "draws": size.draws,
        "seconds": {"network": made, "feature matrices": fm.seconds},
        "certificate": str(fm.certificate),
        "left_out": dict(fm.left_out),
        "layers": layers,
    }


def summary(found: Mapping[str, Any]) -> dict[str, Any]:
    """One row for all layers of a network."""
    known = [layer for layer in found["layers"] if "rho" in layer]
    rho = sorted(layer["rho"] for layer in known)
    above = sum(layer["rho"] > layer["control"]["high"] for layer in known)
    below = sum(layer["rho"] < layer["control"]["low"] for layer in known)
    return {
        "network": found["network"],
        "test accuracy": f"{found['accuracy']:.1%}",
        "inputs": found["inputs"],
        "layers": len(known),
        "ρ, median (least–largest)": f"{rho[len(rho) // 2]:.2f} ({rho[0]:.2f}–{rho[-1]:.2f})",
        "above its control's 95 % range": above,
        "below it": below,
        "seconds, all layers": found["seconds"]["feature matrices"],
        "seconds of the control": sum(layer["control_seconds"] for layer in known),
    }


def run(quick: bool = False) -> Outcome:
    """Every network; one whose data are not at hand is said to be missing."""
    torch.set_num_threads(THREADS)
    tables, checks = [], []
    for name in NETWORKS:
        size = QUICK if quick else SIZES[name]
        try:
            found = of_network(name, size)
        except (DataNotFound, UsageError) as error:
            checks.append(Check(f"{name}: every layer's ρ", "measured", str(error), None))
            continue
        tables.append(found)
        gone = [layer["layer"] for layer in found["layers"] if "rho" not in layer]
        said = f"{len(found['layers']) - len(gone)} layers" + (f"; undefined: {', '.join(gone)}" if gone else "")
        checks.append(Check(f"{name}: every layer's ρ", "measured", said, len(gone) < len(found["layers"])))
    notes = [f"{found['network']}: {found['said']}; {found['certificate']}." for found in tables]
    rows = [summary(found) for found in tables]
    title = f"The feature ansatz in real networks, {THREADS} core{'s' * (THREADS > 1)}"
    return Outcome(title, rows, checks, notes, {"tables": tables})


# -- the page ----------------------------------------------------------------------------------------------------------


def page(record: Mapping[str, Any]) -> str:
    """The page of a record: one table for each network, a row for each layer."""
    machine = record["machine"]
    parts = [
        "# Feature matrices of real networks",
        "For every affine layer: ρ(WᵀW, WᵀKW), the correlation of what its weights look for with what the outputs react to"
        " ([feature matrices](../science.md#feature-matrices)). Beside it the 95 % range of the same correlation with K's"
        " eigenvectors replaced by random ones. Only a ρ outside of that range says something about the directions that were"
        " learned; ρ alone is large wherever W or K has few large singular values. K of each layer is averaged over training"
        " inputs and summed over all outputs.",
        table(record["rows"]),
        "Made by `python -m benchmarks feature_tables` and `python -m benchmarks.kernels.feature_tables` on"
        f" {machine['processor']},"
        f" {machine['threads']} thread{'s' * (machine['threads'] > 1)}, torch {machine['torch']}. Seconds of a layer are those"
        " of its covariances; the passes through the network serve all layers.",
    ]
    for found in record["details"]["tables"]:
        parts += section(found)
    return "\n\n".join(parts) + "\n"


def section(found: Mapping[str, Any]) -> list[str]:
    """One network."""
    text = (
        f"{found['said'][0].upper()}{found['said'][1:]}; test accuracy {found['accuracy']:.1%} (largest class"
        f" {found['majority']:.1%}). {found['inputs']:,} inputs,"
        f" {found['outputs']} outputs, {found['draws']} draws of the control;"
        f" {found['seconds']['feature matrices']:.0f} s for all layers. {found['certificate']}."
    )
    parts = [f"## {found['network']}", text, table([line(layer) for layer in found["layers"]])]
    undefined = [f"- `{layer['layer']}`: {layer['undefined']}" for layer in found["layers"] if "undefined" in layer]
    undefined += [f"- `{name}` was left out: {why}" for name, why in found["left_out"].items()]
    return [*parts, "\n".join(undefined)] if undefined else parts


def line(layer: Mapping[str, Any]) -> dict[str, Any]:
    """One row of a network's table."""
    row = {"layer": f"`{layer['layer']}`", "W": " × ".join(map(str, layer["shape"])), "positions": layer["positions"]}
    if "rho" not in layer:
        return row | {"ρ": "undefined", "seconds": layer["seconds"]}
    control = layer["control"]
    row |= {"ρ": f"{layer['rho']:.3f}", "control, 95 %": f"{control['low']:.3f} … {control['high']:.3f}"}
    for centring, value in layer.get("centred", {}).items():
        row[f"ρ, centred: {centring}"] = "undefined" if value is None else f"{value:.3f}"
    return row | {"seconds": layer["seconds"], "seconds of the control": layer["control_seconds"]}


def main(record: Path = RECORD, to: Path = PAGE) -> Sequence[str]:
    """Write the page of the record."""
    to.write_text(page(json.loads(record.read_text())), encoding="utf-8")
    return [str(to)]


if __name__ == "__main__":
    print(*main())
