"""Finding wrong labels: surrogate leave-one-out against loss ranking and confident learning, on the same noisy labels.

3,000 MNIST digits, 5 % of whose labels are replaced by another class. A user trains LeNet on what they have: Adam, a tenth
held out, stopped when the held-out loss has not improved for two epochs, best weights kept. Then each candidate ranks
all training points. Confident learning (cleanlab) gets what its documentation asks for: probabilities out of sample by
five-fold cross-validation of the same network trained the same way, and each of its two usual quality scores.
A second block repeats the ranking for a network trained on, without stopping, until it has learned the noise by heart.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ntkscope as ns
from benchmarks.outcome import Check, Outcome
from ntkscope.core import DataNotFound, Part, generator
from ntkscope.data.transforms.label_noise import label_noise
from ntkscope.explain import auroc, mislabelled, precision_at
from ntkscope.measures.faithfulness import standard_error

TARGET, NOISE, FOLDS, PATIENCE, EPOCHS, LONG, BATCH = 0.97, 0.05, 5, 2, 12, 30, 64


@dataclass(frozen=True, eq=False)
class Case:
    """Noisy training data and what was planted in them."""

    part: Part
    planted: np.ndarray
    test: Part
    source: str


def case(n: int, seed: int) -> Case:
    """`n` digits of MNIST with 5 % wrong labels; scikit-learn's small digits where MNIST is not there."""
    try:
        split, source = ns.data.load("mnist", max_train=n, max_test=2000, seed=seed), "MNIST"
    except DataNotFound:
        split, source = ns.data.load("digits", seed=seed), "scikit-learn's digits (MNIST is not here)"
    part = split.train.take(torch.arange(min(n, len(split.train))))
    noisy = label_noise(part, NOISE, 10, seed=seed)
    return Case(noisy, noisy.extras["noisy"].numpy(), split.test, source)


def network(part: Part, seed: int) -> nn.Module:
    size = part.x.shape[-1]
    if size == 8:
        return ns.models.build("small_cnn", image_size=8, classes=10, seed=seed)
    return ns.models.build("lenet", classes=10, image_size=size, seed=seed)


def train(part: Part, seed: int, *, stopped: bool = True, epochs: int = EPOCHS) -> nn.Module:
    """A network trained on `part`: early stopping on a held-out tenth, or all epochs on everything."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # batches of 64 small digits: a second core costs more in waiting than it gives
    try:
        return _train(part, seed, stopped, epochs)
    finally:
        torch.set_num_threads(threads)


def _train(part: Part, seed: int, stopped: bool, epochs: int) -> nn.Module:
    model, random = network(part, seed), generator(seed, "mislabel", "batches")
    order = torch.randperm(len(part), generator=random)
    held, kept = (order[: len(part) // 10], order[len(part) // 10 :]) if stopped else (order[:0], order)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    best, weights, since = float("inf"), copy.deepcopy(model.state_dict()), 0
    for _ in range(epochs):
        model.train()
        for batch in kept[torch.randperm(len(kept), generator=random)].split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(part.x[batch]), part.y[batch]).backward()
            optimizer.step()
        if not stopped:
            continue
        loss = float(nn.functional.cross_entropy(outputs(model, part.x[held]), part.y[held]))
        if loss < best:
            best, weights, since = loss, copy.deepcopy(model.state_dict()), 0
        elif (since := since + 1) >= PATIENCE:
            break
    if stopped:
        model.load_state_dict(weights)
    return model.eval()


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        return torch.cat([model(block) for block in x.split(500)])


def out_of_sample(part: Part, seed: int, epochs: int) -> np.ndarray:
    """Probabilities of each item by a network that was trained without its fold."""
    from sklearn.model_selection import StratifiedKFold

    found = np.zeros((len(part), 10))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(np.zeros(len(part)), part.y.numpy())
    for number, (inside, outside) in enumerate(folds):
        model = train(part.take(torch.from_numpy(inside)), seed + 100 * (number + 1), epochs=epochs)
        logits = outputs(model, part.x[torch.from_numpy(outside)])
        found[outside] = torch.softmax(logits.double(), 1).numpy()
    return found


def candidates(
    case: Case, model: nn.Module, kernels: tuple[str, ...]
) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Rankings a user gets from the trained network alone: higher is more doubtful."""
    x, y = case.part.x, case.part.y

    def by_kernel(name: str) -> np.ndarray:
        return mislabelled(ns.kernel(name, model, x), y).scores

    for name in kernels:
        yield f"ntkscope, {name}", partial(by_kernel, name)
    yield "loss ranking", lambda: nn.functional.cross_entropy(outputs(model, x), y, reduction="none").numpy()


def confident_learning(case: Case, probabilities: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """cleanlab's label quality scores, turned so that higher is more doubtful."""
    from cleanlab.rank import get_label_quality_scores

    for method in ("self_confidence", "normalized_margin"):
        scores = get_label_quality_scores(case.part.y.numpy(), probabilities, method=method)
        yield f"cleanlab, {method}", -scores


def run(quick: bool = False) -> Outcome:
    """Rank, over seeds, and compare."""
    return compare(300, 1, ("ck",), quick=True, epochs=3) if quick else compare(3000, 3, ("trntk", "ck"))


def compare(n: int, seeds: int, kernels: tuple[str, ...], *, quick: bool = False, epochs: int = EPOCHS) -> Outcome:
    """The comparison on `n` digits; `epochs` bounds the training that stops early."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    accuracies: dict[str, list[float]] = {}
    details: list[dict[str, Any]] = []
    source = ""

    def enter(training: str, who: str, scores: np.ndarray, seconds: float, given: Case) -> None:
        k = int(given.planted.sum())
        row = {"auroc": auroc(scores, given.planted), "precision": precision_at(scores, given.planted, k)}
        row["precision_half"] = precision_at(scores, given.planted, max(1, k // 2))
        found.setdefault((training, who), []).append({**row, "seconds": seconds})
        details.append({"training": training, "who": who, "k": k, **found[training, who][-1]})
        print(
            f"  {training}: {who}: AUROC {row['auroc']:.4f}, precision@k {row['precision']:.3f}, {seconds:.1f} s",
            flush=True,
        )

    for seed in range(seeds):
        given = case(n, seed)
        source = given.source
        for training in ("stopped early", "trained on")[: 1 if quick or seed else 2]:
            early = training == "stopped early"
            model = train(given.part, seed, stopped=early, epochs=epochs if early else LONG)
            right = outputs(model, given.test.x).argmax(1) == given.test.y
            accuracies.setdefault(training, []).append(float(right.float().mean()))
            for who, rank in candidates(given, model, kernels):
                start = time.perf_counter()
                scores = rank()
                enter(training, who, scores, time.perf_counter() - start, given)
            if early:
                start = time.perf_counter()
                probabilities = out_of_sample(given.part, seed, epochs)
                seconds = time.perf_counter() - start
                for who, scores in confident_learning(given, probabilities):
                    enter(training, who, scores, seconds, given)
    rows = [
        {
            "network": training,
            "ranking": who,
            "AUROC": shown([r["auroc"] for r in results]),
            "precision at k = planted": shown([r["precision"] for r in results]),
            "at k = planted / 2": shown([r["precision_half"] for r in results]),
            "seconds beyond the trained network": f"{np.median([r['seconds'] for r in results]):.3g}",
            "seeds": len(results),
        }
        for (training, who), results in found.items()
    ]
    worst = {
        who: min(r["auroc"] for r in results)
        for (training, who), results in found.items()
        if training == "stopped early"
    }
    ours = {who: value for who, value in worst.items() if who.startswith("ntkscope")}
    measured = source == "MNIST" and not quick
    return Outcome(
        title="Wrong labels: leave-one-out of the surrogate, loss ranking, confident learning",
        rows=rows,
        checks=[
            Check(
                f"{who}: AUROC for 5 % wrong labels on MNIST, worst seed",
                f"at least {TARGET:g}",
                f"{value:.4f}",
                value >= TARGET if measured else None,
            )
            for who, value in ours.items()
        ],
        notes=(
            f"{source}, {n} training points, LeNet; accuracy on clean test digits "
            + ", ".join(f"{100 * float(np.mean(v)):.2f} % ({k})" for k, v in accuracies.items())
            + ".",
            "± is the standard error over seeds: of the draw of digits, of the noise and of the network.",
            "cleanlab's seconds are those of cross-validation: five more networks. It does not depend on the trained network,"
            " so it stands in the first block only.",
        ),
        details={"runs": details, "noise": NOISE, "folds": FOLDS, "patience": PATIENCE, "accuracies": accuracies},
    )


def shown(values: list[float]) -> str:
    """Mean and standard error, or the one value.

    >>> shown([0.5, 0.7]), shown([0.5])
    ('0.6000 ± 0.1000', '0.5000')
    """
    return f"{np.mean(values):.4f}" + (f" ± {standard_error(values):.4f}" if len(values) > 1 else "")
