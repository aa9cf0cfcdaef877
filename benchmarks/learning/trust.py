"""The trust verdict against the truth: what an X-ray says of a surrogate, and what the surrogate is on 1,000 fresh items.

Networks: an MLP and a small CNN on scikit-learn's digits, an MLP on overlapping Gaussian classes and on the answers of a random
teacher; trained, half-trained, untrained, and trained on shuffled labels; each X-rayed on many and on few of its training
items. The verdict sees the test items of the X-ray. The truth is measured on 1,000 further ones: a surrogate is good if it
agrees with the network on at least 95 % of them and on at least 80 % of the network's errors, bad if it agrees on less than
80 % or on less than half of the errors, and middling otherwise.

    python -m benchmarks.learning.trust --out benchmarks/results/bench
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor, nn

import ntkscope as ns
from benchmarks import machine as this_machine
from benchmarks.outcome import Check, Outcome, table, write
from ntkscope.core import Part, generator
from ntkscope.data.subsets import stratified
from ntkscope.machines import KernelPair, fit_machine, kernel_pairs
from ntkscope.measures.distillation import same_where_wrong
from ntkscope.measures.faithfulness import accuracy, agreement
from ntkscope.xray.context import FIT
from ntkscope.xray.sections.surrogates import SPANNING, Row, most_faithful, rated, spans
from ntkscope.xray.task import CLASSIFICATION
from ntkscope.xray.trust import LEVELS, page_trust

FRESH, TEST = 1000, 200
TRUTHS = ("good", "middling", "bad")
SEEN = ("kernel", "target", "trivial", "agreement", "wrong", "agreement_wrong", "tau", "tau_low", "r2_logits")
KERNELS = ("trntk", "trntk0", "ck", "pntk")
STATES = {"trained": 1.0, "half-trained": 0.1, "untrained": 0.0, "shuffled labels": 3.0}  # of the full training


@dataclass(frozen=True, eq=False)
class Task:
    """A data set and a network for it: `items` training items, X-ray test items, fresh items; `epochs` of full training."""

    name: str
    train: Part
    test: Part
    fresh: Part
    model: Mapping[str, Any]
    epochs: int


@dataclass(frozen=True)
class Judged:
    """One surrogate: its row of the X-ray, the verdict on it, and its figures on fresh items."""

    network: str
    seed: int
    accuracy: float
    items: int
    row: Row
    verdict: str
    why: str
    fresh_agreement: float
    fresh_agreement_wrong: float
    fresh_wrong: int
    truth: str
    explained: bool

    def told(self) -> dict[str, Any]:
        """For the json: without the sentences, and of the row what the verdict saw."""
        row = {name: getattr(self.row, name) for name in SEEN}
        return row | {key: value for key, value in vars(self).items() if key not in ("row", "why")}


def tasks(seed: int) -> Iterator[Task]:
    """The data sets, each cut into training, test and fresh items."""
    split = ns.data.load("digits", seed=seed)
    x, y = torch.cat([split.train.x, split.test.x]), torch.cat([split.train.y, split.test.y])
    cut = _parts(x, y, len(y) - TEST - FRESH)
    yield Task("digits, CNN", *cut, {"name": "small_cnn", "in_channels": 1, "classes": 10, "image_size": 8}, 12)
    flat = _parts(x.flatten(1), y, len(y) - TEST - FRESH)
    yield Task("digits, MLP", *flat, {"name": "mlp", "in_features": 64, "classes": 10, "widths": 64, "depth": 2}, 20)
    draw = generator(seed, "benchmarks", "trust")
    n = 500 + TEST + FRESH
    y = torch.randint(5, (n,), generator=draw)
    x = 1.1 * torch.randn(5, 10, generator=draw)[y] + torch.randn(n, 10, generator=draw)
    model = {"name": "mlp", "in_features": 10, "classes": 5, "widths": 64, "depth": 2}
    yield Task("overlapping classes, MLP", *_parts(x, y, 500), model, 30)
    x = torch.randn(n, 8, generator=draw)
    teacher = ns.models.build("mlp", in_features=8, classes=4, widths=12, depth=2, seed=seed + 1)
    with torch.no_grad():
        logits = teacher(3 * x)
    y = (logits - logits.mean(0)).argmax(1)  # no class is rare
    model = {"name": "mlp", "in_features": 8, "classes": 4, "widths": 128, "depth": 3}
    yield Task("teacher, MLP", *_parts(x, y, 500), model, 60)


def _parts(x: Tensor, y: Tensor, train: int) -> tuple[Part, Part, Part]:
    """Training items, test items, fresh ones, in this order."""
    places = (slice(0, train), slice(train, train + TEST), slice(train + TEST, train + TEST + FRESH))
    return tuple(Part(x[place], y[place]) for place in places)  # type: ignore[return-value]


def network(task: Task, state: str, seed: int) -> nn.Module:
    """The task's network in one of its states."""
    model, part = ns.models.build(**task.model, seed=seed), task.train
    if state == "shuffled labels":
        order = torch.randperm(len(part), generator=generator(seed, "benchmarks", "shuffled"))
        part = Part(part.x, part.y[order])
    batches = STATES[state] * task.epochs * -(-len(part) // 64)
    if batches:
        how: dict[str, Any] = {"optimizer": "adam", "lr": 3e-3, "loss": "cross_entropy", "batch_size": 64}
        ns.training.fit(model, part, **how, steps=max(1, round(batches)), seed=seed, measure=False).final()
    return model.eval()


def outputs(model: nn.Module, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        return model(x).double().numpy()


@dataclass(frozen=True, eq=False)
class Subject:
    """A network in some state, its outputs, and its kernels on training items and on test and fresh ones."""

    task: Task
    state: str
    own: np.ndarray
    theirs: np.ndarray
    pairs: tuple[KernelPair, ...]

    @classmethod
    def of(cls, task: Task, state: str, kernels: tuple[str, ...], seed: int) -> Subject:
        model, others = network(task, state, seed), torch.cat([task.test.x, task.fresh.x])
        pairs = tuple(kernel_pairs({name: {} for name in kernels}, model, task.train.x, others))
        return cls(task, state, outputs(model, task.train.x), outputs(model, others), pairs)


def judged(subject: Subject, items: int, seed: int) -> Iterator[Judged]:
    """Every surrogate of one network, fitted on `items` of its training items, as the X-ray fits and judges them."""
    task, theirs = subject.task, subject.theirs
    rows = stratified(task.train.y.numpy(), items, seed, "benchmarks", "trust")
    labels, y = task.train.y.numpy()[rows], torch.cat([task.test.y, task.fresh.y]).numpy()
    seen, fresh = slice(0, len(task.test)), slice(len(task.test), None)
    how: dict[str, Any] = {"network": subject.own[rows], "classes": theirs.shape[1], "seed": seed}
    found: list[tuple[Row, np.ndarray]] = []
    last = next((pair.take(rows) for pair in subject.pairs if pair.name == SPANNING), None)
    for pair in subject.pairs:
        taken = pair.take(rows)
        scaled = taken.scaled()
        for target in CLASSIFICATION.fits:
            fitted = fit_machine(scaled, labels, target=target, **how, **FIT[target])
            logits = fitted.logits(scaled.test)
            trivial = target == "logits" and last is not None and spans(taken, last)
            row = rated(fitted, logits[seen], theirs[seen], y[seen], trivial=trivial, seed=seed)
            found.append((row, logits[fresh]))
    explained = most_faithful([row for row, _ in found if row.target == "logits"])
    for row, logits in found:
        same, wrong = same_where_wrong(logits, theirs[fresh], y[fresh])
        share, on_errors = agreement(logits, theirs[fresh]), same / wrong if wrong else 1.0
        trust = page_trust(row, len(task.test))
        yield Judged(
            f"{task.name}, {subject.state}",
            seed,
            accuracy(theirs[fresh], y[fresh]),
            len(rows),
            row,
            trust.word,
            trust.why,
            share,
            on_errors,
            wrong,
            truth(share, on_errors),
            row is explained,
        )


def truth(share: float, on_errors: float) -> str:
    """What a surrogate is, by its agreement on fresh items and on the network's errors among them.

    >>> truth(0.97, 0.9), truth(0.97, 0.6), truth(0.97, 0.4), truth(0.7, 0.9)
    ('good', 'middling', 'bad', 'bad')
    """
    if share < 0.8 or on_errors < 0.5:
        return "bad"
    return "good" if share >= 0.95 and on_errors >= 0.8 else "middling"


def confusion(found: list[Judged]) -> list[dict[str, Any]]:
    """Rows: what the surrogates are; columns: what is said of them."""
    words = LEVELS[::-1]
    return [
        {"surrogate is": kind, **{word: sum(j.truth == kind and j.verdict == word for j in found) for word in words}}
        for kind in TRUTHS
    ]


def compare(sizes: tuple[int, ...], seeds: int, kernels: tuple[str, ...], *, only: int | None = None) -> Outcome:
    """All tasks and states, X-rayed on each number of training items."""
    found: list[Judged] = []
    for seed in range(seeds):
        for task in list(tasks(seed))[:only]:
            for state in STATES:
                start = time.perf_counter()
                subject = Subject.of(task, state, kernels, seed)
                for items in sizes:
                    rows = list(judged(subject, items, seed))
                    found += rows
                    main = next(row for row in rows if row.explained)
                    print(
                        f"{main.network}, {items} items (accuracy {100 * main.accuracy:.0f} %): {main.row.kernel},"
                        f" {main.verdict}; fresh: {100 * main.fresh_agreement:.1f} %, on {main.fresh_wrong} errors"
                        f" {100 * main.fresh_agreement_wrong:.0f} %: {main.truth} ({time.perf_counter() - start:.1f} s)",
                        flush=True,
                    )
    pages = [one for one in found if one.explained]
    groups = {
        "pages": pages,
        "of these, networks the thresholds were not set on": [one for one in pages if one.seed > 0],
        "all surrogates": found,
    }
    bad, good = ([one for one in found if one.truth == kind] for kind in ("bad", "good"))
    warned, slandered = sum(j.verdict == LEVELS[0] for j in bad), sum(j.verdict == LEVELS[0] for j in good)
    praised = sum(j.verdict == LEVELS[2] for j in bad)
    measured = only is None
    return Outcome(
        title="Trust: what the X-ray says of a surrogate, and what it is on 1,000 fresh items",
        rows=[{"over": name, **row} for name, some in groups.items() for row in confusion(some)],
        checks=[
            Check(
                "bad surrogates that get 'do not trust'",
                "at least 90 %",
                f"{warned} of {len(bad)}",
                warned >= 0.9 * len(bad) if measured else None,
            ),
            Check(
                "bad surrogates that get 'high'", "none", f"{praised} of {len(bad)}", praised == 0 if measured else None
            ),
            Check(
                "good surrogates that get 'do not trust'",
                "at most 2 %",
                f"{slandered} of {len(good)}",
                slandered <= 0.02 * len(good) if measured else None,
            ),
        ],
        notes=(
            f"{len(pages)} pages: {len(pages) // len(sizes)} networks, each X-rayed on {', '.join(map(str, sizes))} training"
            " items; a page is judged by the surrogate that explanations are of.",
            f"{len(found)} surrogates: every kernel of {', '.join(kernels)}, fitted to logits and to labels.",
            f"The verdict sees {TEST} test items. Thresholds were set on the networks of seed 0 at 400 and 60 items.",
        ),
        details={"surrogates": [one.told() for one in found]},
    )


def run(quick: bool = False) -> Outcome:
    """The comparison; `quick` checks the machinery on one task."""
    return compare((40,), 1, ("trntk",), only=1) if quick else compare((400, 60, 20), 2, KERNELS)


def main(
    out: Annotated[Path, typer.Option(help="Folder for trust.json and bench.md.")] = Path("benchmarks/results/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="One task, few items.")] = False,
) -> None:
    """Calibrate the trust verdict."""
    start = time.perf_counter()
    outcome = run(quick)
    print(table(outcome.rows))
    for check in outcome.checks:
        print(f"{check.what}: {check.measured} ({check.target}): {check.verdict}")
    print(write("trust", outcome, this_machine.describe(), time.perf_counter() - start, out))


if __name__ == "__main__":
    typer.run(main)
