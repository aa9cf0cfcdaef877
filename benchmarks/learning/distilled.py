"""Distilled against label-fitted: each kernel's surrogate of the network's own logits beside the paper's fit of labels.

    python -m benchmarks.learning.distilled --network digits --network lenet
    python -m benchmarks.learning.distilled --network resnet20 --network minilm --network resnet18 --device cuda --out DIR

One run per network: the same kernel, the same training points, the same test items. Data lie under $NTKSCOPE_DATA.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

import ntkscope as ns
from benchmarks import machine as this_machine
from benchmarks.outcome import Check, Outcome, table, write
from ntkscope.cli.demo import EPOCHS, MODEL, TRAINING
from ntkscope.core import Part
from ntkscope.core.model.tree import map_leaves
from ntkscope.core.script import run_script
from ntkscope.data.subsets import stratified
from ntkscope.machines import KernelPair, fit_machine, kernel_pairs
from ntkscope.training.schedules import Triangular
from ntkscope.xray.sections.surrogates import SPANNING, Row, rated, spans
from ntkscope_papers.engel_2023.surrogate_text import SurrogateText
from ntkscope_papers.shared.images import build_network, load_images, residual_recipe
from ntkscope_papers.shared.networks import logits_of
from ntkscope_papers.shared.sentences import build_encoder, sentences

TANGENT = ("trntk", "trntk0", "pntk", "proj-trntk")
WANTED = {"digits": (0.9, 0.9), "lenet": (0.9, 0.9), "resnet20": (0.75, 0.8)}  # agreement on errors, τ
LABELS: dict[str, Any] = {"alpha": 1e-4, "tol": 1e-6, "max_iter": 500}
FORMED = 20_000  # up to so many training points kernels are formed to be scaled


class Network(StrEnum):
    """The networks, by name."""

    digits = "digits"
    lenet = "lenet"
    resnet20 = "resnet20"
    minilm = "minilm"
    resnet18 = "resnet18"


@dataclass(frozen=True)
class Settings:
    """Where to compute, how much: `points` training points in the kernels, `items` test items; None for the network's own."""

    device: torch.device
    memory: str = "4GiB"
    precision: str = "exact"
    points: int | None = None
    items: int | None = None
    quick: bool = False
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained network in evaluation mode, training points of its kernels, test items, and kernels with their options."""

    model: nn.Module
    train: Part
    test: Part
    kernels: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = field(default=())


# -- the networks ------------------------------------------------------------------------------------------------------


def digits(how: Settings) -> Subject:
    """The demo's CNN on scikit-learn's digits."""
    split = ns.data.load("digits", seed=how.seed)
    model = ns.models.build(**MODEL, seed=how.seed)
    epochs = 1 if how.quick else EPOCHS
    ns.training.fit(model, split.train, **TRAINING, epochs=epochs, seed=how.seed, measure=False).final()
    return Subject(model, _few(split.train, how.points, how), _few(split.test, how.items, how), _exact(how))


def lenet(how: Settings) -> Subject:
    """LeNet on 3,000 digits of MNIST, all of them in the kernels."""
    train, test = (how.points or 3000), (how.items or 3000)
    split = ns.data.load("mnist", max_train=train, max_test=test, seed=how.seed)
    model = ns.models.build("lenet", classes=10, image_size=split.train.x.shape[-1], seed=how.seed)
    recipe: dict[str, Any] = {"optimizer": "adam", "lr": 1e-3, "loss": "cross_entropy", "epochs": 4}
    recipe["batch_size"] = min(64, len(split.train))
    ns.training.fit(
        model.to(how.device), split.train, **recipe, seed=how.seed, device=how.device, measure=False
    ).final()
    return Subject(model, split.train, split.test, _exact(how))


def resnet20(how: Settings) -> Subject:
    """The pretrained ResNet-20 on CIFAR-10, 5,000 training points."""
    split = ns.data.load("cifar10", normalise="imagenet")
    file = Path(os.environ["NTKSCOPE_DATA"], "resnet_cifar10", "resnet20.safetensors")
    model = ns.models.load_weights(ns.models.build("resnet20"), file)
    return Subject(model, _few(split.train, how.points or 5000, how), _few(split.test, how.items, how), _exact(how))


def minilm(how: Settings) -> Subject:
    """MiniLM fine-tuned on CoLA with a two-class readout, as the experiment surrogate-text does it; all sentences."""
    config = SurrogateText.at("smoke") if how.quick else SurrogateText()
    split = sentences(
        config.dataset,
        config.encoder,
        root=None,
        train=config.train_items,
        test=config.test_items,
        length=config.length,
    )
    model = build_encoder(config.encoder, how.seed).to(how.device)
    recipe: dict[str, Any] = {"optimizer": "adamw", "lr": config.lr, "weight_decay": 0.01, "batch_size": config.batch}
    recipe |= {"epochs": config.epochs, "schedule": Triangular(peak=0.1)}
    ns.training.fit(model, split.train, **recipe, seed=how.seed, device=how.device, measure=False).final()
    return Subject(
        model, _few(split.train, how.points or config.points, how), _few(split.test, how.items, how), _exact(how)
    )


def resnet18(how: Settings) -> Subject:
    """ResNet-18 trained here on CIFAR-10; the projected trace-NTK on all 50,000 points, the exact one with --exact-kernel."""
    small = {"train": 300, "test": 100} if how.quick else {"train": None, "test": None}
    split = load_images("digits" if how.quick else "cifar10", root=None, **small)
    model = build_network("resnet18", split, width=0.0625 if how.quick else 1, seed=how.seed).to(how.device)
    epochs, batch, lr = (5, 50, 0.1) if how.quick else (24, 512, 0.4)
    recipe = residual_recipe(epochs=epochs, batch=batch, lr=lr, augment=not how.quick)
    if how.device.type != "cuda":
        recipe |= {"autocast": None, "channels_last": False}
    ns.training.fit(model, split.train, **recipe, seed=how.seed, device=how.device, measure=False).final()
    projected = {"kind": "kronecker", "dim": 64 if how.quick else 10_240, "precision": how.precision}
    kernels: dict[str, Mapping[str, Any]] = {"ck": {}, "proj-trntk": projected}
    notes = (f"proj-trntk: {projected['dim']:,} columns, Kronecker sketch, cosines.",)
    return Subject(model, _few(split.train, how.points, how), _few(split.test, how.items, how), kernels, notes)


SUBJECTS: dict[str, Callable[[Settings], Subject]] = {
    "digits": digits,
    "lenet": lenet,
    "resnet20": resnet20,
    "minilm": minilm,
    "resnet18": resnet18,
}


def _exact(how: Settings) -> dict[str, Mapping[str, Any]]:
    tangent = {"precision": how.precision} if how.precision != "exact" else {}
    return {"ck": {}, "trntk": tangent, "trntk0": tangent, "pntk": tangent}  # what is practically ck is found beside it


def _few(part: Part, count: int | None, how: Settings) -> Part:
    """A stratified sample of `count` items; of very few in a quick run."""
    limit = min(count or len(part), 60) if how.quick else count
    return part.take(torch.from_numpy(stratified(part.y.numpy(), limit, how.seed, "benchmarks", "distilled")))


# -- the comparison ----------------------------------------------------------------------------------------------------


def measured(subject: Subject, how: Settings) -> Iterator[tuple[Row, Mapping[str, Any]]]:
    """Both surrogates of each kernel: their rows of the X-ray's table, and how the fits went."""
    model = subject.model.to(how.device).eval()
    own, theirs = (logits_of(model, part.x).numpy() for part in (subject.train, subject.test))
    y, held = subject.train.y.numpy(), subject.test.y.numpy()
    x, z = (map_leaves(lambda leaf: leaf.to(how.device), part.x) for part in (subject.train, subject.test))
    last = None
    for computed in kernel_pairs(subject.kernels, model, x, z, memory=how.memory, seed=how.seed):
        pair = unit(computed)
        last = pair if pair.name == SPANNING else last
        trivial = last is not None and len(y) <= FORMED and spans(pair, last)
        for target in ("logits", "labels"):
            options = LABELS if target == "labels" else {}
            machine = fit_machine(pair, y, target=target, network=own, classes=theirs.shape[1], **options)
            logits = machine.logits(pair.test)
            row = rated(
                machine, logits, theirs, held, trivial=target == "logits" and (trivial or pair is last), seed=how.seed
            )
            yield row, {"kernel seconds": pair.seconds, "iterations": machine.iterations, "edge": machine.edge}


def unit(pair: KernelPair) -> KernelPair:
    """The pair with a mean training diagonal of 1; a large one, and one that is so already, is not formed for it."""
    mean = float(pair.train.diagonal().double().mean())
    if abs(mean - 1) < 1e-6 or not mean > 0:
        return pair
    if pair.train.shape[0] <= FORMED:
        return pair.scaled()
    rows, columns = (torch.full((size,), mean**-0.5, dtype=torch.float64) for size in pair.test.shape)
    return KernelPair(
        pair.name, pair.train.scaled(columns), pair.test.scaled(rows, columns), pair.seconds, mean, pair.how
    )


def shown(name: str, row: Row, fit: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table."""
    low, high = row.agreement_wrong_low, row.agreement_wrong_high
    return {
        "network": name,
        "kernel": row.kernel,
        "fitted to": row.target + (" (trivial)" if row.trivial else ""),
        "τ": f"{row.tau:.3f} ({row.tau_low:.3f}–{row.tau_high:.3f})",
        "agreement %": f"{100 * row.agreement:.2f}",
        "on errors %": f"{100 * row.agreement_wrong:.1f} ({100 * low:.0f}–{100 * high:.0f})",
        "errors": row.wrong,
        "R² of logits": f"{row.r2_logits:.4f}",
        "ridge": f"{row.alpha:.2g}{', the ' + fit['edge'] + ' tried' if fit['edge'] else ''}",
        "seconds": f"{row.seconds:.3g}",
        "converged": "yes" if row.converged else f"no, {fit['iterations']} iterations",
    }


def check(name: str, rows: list[Row], *, whole: bool) -> list[Check]:
    """Whether the best tangent kernel reaches what was promised for this network."""
    if name not in WANTED:
        return []
    errors, tau = WANTED[name]
    tangent = [row for row in rows if row.kernel in TANGENT and row.target == "logits" and not row.trivial]
    best = max(tangent, key=lambda row: (row.agreement_wrong, row.tau))
    return [
        Check(
            f"{name}: best tangent kernel, fitted to logits",
            f"agreement on errors ≥ {100 * errors:g} %, τ ≥ {tau:g}",
            f"{best.kernel}: {100 * best.agreement_wrong:.1f} %, {best.tau:.3f}",
            best.agreement_wrong >= errors and best.tau >= tau if whole else None,
        )
    ]


def compare(name: str, how: Settings) -> Outcome:
    """One network: every kernel, fitted to logits and to labels."""
    began = time.perf_counter()
    subject = SUBJECTS[name](how)
    trained = time.perf_counter() - began
    found, lines = [], []
    for row, fit in measured(subject, how):
        found.append((row, fit))
        lines.append(shown(name, row, fit))
        print(" | ".join(str(value) for value in lines[-1].values()), flush=True)
    accuracy = 1 - found[0][0].wrong / len(subject.test)
    return Outcome(
        title=f"Surrogates of {name}: fitted to the network's logits, and to the training labels",
        rows=lines,
        checks=check(name, [row for row, _ in found], whole=not how.quick),
        notes=(
            f"{len(subject.train):,} training points, {len(subject.test):,} test items; the network is right on"
            f" {100 * accuracy:.2f} % of them. Network ready after {trained:.1f} s.",
            "Trivial: ck, or a kernel whose centred alignment with it is at least 0.99; logits are an affine function of its"
            " features, so a good fit of them says nothing.",
            *subject.notes,
        ),
        details={"surrogates": [{**row.to_record(), **fit} for row, fit in found]},
    )


def run(quick: bool = False) -> Outcome:
    """The digits network; the others need data or a GPU and are named on this file's own command line."""
    return compare("digits", Settings(torch.device("cpu"), quick=quick))


def main(
    network: Annotated[list[Network], typer.Option(help="May be given several times.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for distilled-NETWORK.json and bench.md.")] = Path(
        "benchmarks/results/bench"
    ),
    points: Annotated[int | None, typer.Option(help="Training points in the kernels.", min=20)] = None,
    items: Annotated[int | None, typer.Option(help="Test items.", min=20)] = None,
    precision: Annotated[str, typer.Option(help="Of tangent kernels: exact; on a GPU tf32, bf16, fp16.")] = "exact",
    memory: Annotated[str, typer.Option(help="For kernels, besides model and data.")] = "4GiB",
    exact_kernel: Annotated[
        bool, typer.Option("--exact-kernel", help="resnet18: the exact trace-NTK in place of the projected one.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few items: tries the machinery, proves nothing.")] = False,
    seed: Annotated[int, typer.Option(help="Of training and samples.")] = 0,
) -> int:
    how = Settings(torch.device(device), memory, precision, points, items, quick, seed)
    if exact_kernel:
        SUBJECTS["resnet18"] = partial(_exactly, SUBJECTS["resnet18"])
    failed = False
    for one in network:
        start = time.perf_counter()
        outcome = compare(one.value, how)
        print(
            table(outcome.rows), *(f"{c.what}: {c.target}; {c.measured}: {c.verdict}" for c in outcome.checks), sep="\n"
        )
        print(write(f"distilled-{one.value}", outcome, this_machine.describe(), time.perf_counter() - start, out))
        failed |= any(c.holds is False for c in outcome.checks)
    return int(failed)


def _exactly(make: Callable[[Settings], Subject], how: Settings) -> Subject:
    made = make(how)
    return Subject(made.model, made.train, made.test, _exact(how))


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks.learning.distilled", __doc__))
