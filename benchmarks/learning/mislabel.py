"""Finding wrong labels: surrogate leave-one-out against loss ranking and confident learning, on the same noisy labels.

5 % of 3,000 labels are replaced by another class: of MNIST digits, and of CIFAR-10 images that a user has as features of a
published ResNet-20. The user trains a network on what they have, LeNet on the digits and a linear readout on the features:
Adam, a tenth held out, stopped when the held-out loss has not improved for two epochs, best weights kept. Then each candidate
ranks all training points. `ntkscope, trntk` is the score of an X-ray's label review. Confident learning (cleanlab) gets what
its documentation asks for: probabilities out of sample by five-fold cross-validation of the same network trained the same way,
and each of its two usual quality scores. On digits a second block repeats the ranking for a network trained on, without
stopping, until it has learned the noise by heart. On features, the published network's own logits stand beside them: it was
trained on 50,000 clean labels, a yardstick for what can be asked of its features and 3,000 noisy labels.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import ntkscope as ns
from benchmarks.learning.mislabel_cases import CLASSES, FALLBACK, NOISE, Case, digits, features
from benchmarks.outcome import Check, Outcome
from ntkscope.core import Part, generator
from ntkscope.core.errors import DataNotFound
from ntkscope.explain import auroc, mislabelled, precision_at
from ntkscope.measures.faithfulness import standard_error
from ntkscope.xray.plan import MAIN

TARGET, FOLDS, PATIENCE, EPOCHS, LONG, BATCH = 0.998, 5, 2, 12, 30, 64
EARLY, ON = "stopped early", "trained on"
OURS, CEILING = f"ntkscope, {MAIN}", "trained on 50,000 clean labels"


@dataclass(frozen=True)
class Block:
    """One source of data: how a seed's case is made, over how many seeds, with which of our kernels.

    `folded`: seeds for which confident learning is computed too. `longer`: whether one network is trained until it has learned
    the noise. `measured`: whether the figure of merit is asked of this block.
    """

    name: str
    make: Callable[[int], Case]
    seeds: int
    kernels: tuple[str, ...]
    folded: int
    longer: bool = False
    measured: bool = True
    epochs: int = EPOCHS


@dataclass(frozen=True)
class Ranked:
    """How well one ranking found what was planted, for one seed.

    `auroc_right`: among the items whose true class the clean network predicts alone, where there is such a network.
    """

    source: str
    training: str
    who: str
    auroc: float
    precision: float
    precision_half: float
    seconds: float
    auroc_right: float | None = None


def network(part: Part, seed: int) -> nn.Module:
    size = part.x.shape[-1]
    if part.x.ndim == 2:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Linear(size, CLASSES)
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

    found = np.zeros((len(part), CLASSES))
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
        return mislabelled(ns.kernel(name, model, x).to(torch.float64), y).scores

    for name in kernels:
        yield f"ntkscope, {name}", partial(by_kernel, name)
    yield "loss ranking", lambda: _losses(outputs(model, x), y)
    if case.clean_network is not None:
        yield CEILING, partial(_losses, case.clean_network, y)


def _losses(logits: Tensor, y: Tensor) -> np.ndarray:
    return nn.functional.cross_entropy(logits, y, reduction="none").numpy()


def confident_learning(case: Case, probabilities: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """cleanlab's label quality scores, turned so that higher is more doubtful."""
    from cleanlab.rank import get_label_quality_scores

    for method in ("self_confidence", "normalized_margin"):
        scores = get_label_quality_scores(case.part.y.numpy(), probabilities, method=method)
        yield f"cleanlab, {method}", -scores


def run(quick: bool = False) -> Outcome:
    """Rank, over seeds, and compare."""
    if quick:
        found = [measure(Block("MNIST", partial(digits, 300), 1, ("ck",), folded=1, measured=False, epochs=3))]
    else:
        found = [
            measure(Block("MNIST", partial(digits, 3000), 5, (MAIN, "ck"), folded=1, longer=True)),
            *_with_features(3000, 5),
        ]
    return outcome(found)


def _with_features(n: int, seeds: int) -> Iterator[Measured]:
    """CIFAR-10 features of images the backbone was trained on, and of others; nothing where data or weights are missing."""
    for side in ("train", "test"):
        try:
            yield measure(Block(f"CIFAR-10 {side}", partial(features, side, n), seeds, (MAIN,), folded=1))
        except DataNotFound as error:
            print(f"  CIFAR-10 features: not measured: {error}", flush=True)


@dataclass(frozen=True)
class Measured:
    """A block's rankings, and the accuracies on clean test items of the networks they are of."""

    block: Block
    source: str
    points: int
    ranked: list[Ranked]
    accuracies: dict[str, list[float]]


def measure(block: Block) -> Measured:
    """Every ranking of every seed of `block`."""
    ranked: list[Ranked] = []
    accuracies: dict[str, list[float]] = {}
    source, points = "", 0

    def enter(training: str, who: str, scores: np.ndarray, seconds: float, case: Case) -> None:
        k = int(case.planted.sum())
        whole, half = (precision_at(scores, case.planted, size) for size in (k, max(1, k // 2)))
        right = None
        if case.clean_network is not None:
            known = (case.clean_network.argmax(1) == case.part.extras["clean_y"]).numpy()
            right = auroc(scores[known], case.planted[known])
        ranked.append(Ranked(case.source, training, who, auroc(scores, case.planted), whole, half, seconds, right))
        print(
            f"  {case.source}, {training}: {who}: AUROC {ranked[-1].auroc:.4f}, precision@k {ranked[-1].precision:.3f},"
            f" {seconds:.1f} s",
            flush=True,
        )

    for seed in range(block.seeds):
        case = block.make(seed)
        source, points = case.source, len(case.part)
        for training in (EARLY, ON) if block.longer and not seed else (EARLY,):
            early = training == EARLY
            model = train(case.part, seed, stopped=early, epochs=block.epochs if early else LONG)
            right = outputs(model, case.test.x).argmax(1) == case.test.y
            accuracies.setdefault(training, []).append(float(right.float().mean()))
            for who, rank in candidates(case, model, block.kernels):
                start = time.process_time()
                scores = rank()
                enter(training, who, scores, time.process_time() - start, case)
            if early and seed < block.folded:
                start = time.process_time()
                probabilities = out_of_sample(case.part, seed, block.epochs)
                seconds = time.process_time() - start
                for who, scores in confident_learning(case, probabilities):
                    enter(training, who, scores, seconds, case)
    return Measured(block, source, points, ranked, accuracies)


def outcome(found: list[Measured]) -> Outcome:
    """The table, the promise on the X-ray's own score, and what limits it."""
    grouped: dict[tuple[str, str, str], list[Ranked]] = {}
    for row in (row for each in found for row in each.ranked):
        grouped.setdefault((row.source, row.training, row.who), []).append(row)
    rows = [
        {
            "data": source,
            "network": training,
            "ranking": who,
            "AUROC": shown([r.auroc for r in results]),
            "precision at k = planted": shown([r.precision for r in results]),
            "at k = planted / 2": shown([r.precision_half for r in results]),
            "CPU seconds beyond the trained network": f"{np.median([r.seconds for r in results]):.3g}",
            "seeds": len(results),
        }
        for (source, training, who), results in grouped.items()
    ]
    return Outcome(
        title="Wrong labels: leave-one-out of the surrogate, loss ranking, confident learning",
        rows=rows,
        checks=[_check(each, grouped) for each in found],
        notes=(
            *(
                f"{each.source}: {each.points} training points; accuracy on clean test items "
                + ", ".join(f"{100 * float(np.mean(v)):.2f} % ({k})" for k, v in each.accuracies.items())
                + "."
                for each in found
            ),
            "± is half the 95 % interval of the mean over seeds (Student's t): of the draw of items, of the noise and of the"
            " network.",
            *(_against_clean(each) for each in found if any(row.who == CEILING for row in each.ranked)),
            *(
                (
                    f"“{CEILING}” is the loss under the published ResNet-20's own readout, a yardstick for what can be asked of"
                    " 3,000 noisy labels on its features: an image it puts into a wrong class looks like a wrong label to"
                    " everyone who sees through it. Images it was trained on it hardly ever gets wrong: there the features"
                    " have already seen the clean labels.",
                )
                if any(row.who == CEILING for each in found for row in each.ranked)
                else ()
            ),
            "cleanlab's seconds are those of cross-validation: five more networks, once for each source of data. It does not"
            " depend on the trained network, so it stands in the first block of each only. Seconds are of the processor, all"
            " threads.",
        ),
        details={
            "runs": [row for each in found for row in each.ranked],
            "noise": NOISE,
            "folds": FOLDS,
            "patience": PATIENCE,
            "accuracies": {each.source: each.accuracies for each in found},
        },
    )


def _against_clean(each: Measured) -> str:
    """Our score beside that of the network trained on clean labels: what limits both."""
    by = {who: [row for row in each.ranked if row.who == who and row.training == EARLY] for who in (OURS, CEILING)}
    gaps = [mine.auroc - theirs.auroc for mine, theirs in zip(*by.values(), strict=True)]
    right = [shown([row.auroc_right for row in rows if row.auroc_right is not None]) for rows in by.values()]
    return (
        f"{each.source}: {OURS} minus “{CEILING}” {shown(gaps)}, paired over seeds. Among images whose true class that"
        f" network predicts, AUROC {right[0]} and {right[1]}."
    )


def _check(each: Measured, grouped: dict[tuple[str, str, str], list[Ranked]]) -> Check:
    """The mean AUROC of the X-ray's own score against the target."""
    mine = [r.auroc for r in grouped.get((each.source, EARLY, OURS), ())]
    what = f"{OURS}: AUROC for 5 % wrong labels, {each.source}, mean over seeds"
    if not mine:
        return Check(what, f"at least {TARGET:g}", "", None)
    holds = float(np.mean(mine)) >= TARGET
    measured = f"{shown(mine)}, worst {min(mine):.4f}"
    return Check(
        what, f"at least {TARGET:g}", measured, holds if each.block.measured and FALLBACK not in each.source else None
    )


def shown(values: list[float]) -> str:
    """Mean and half the 95 % interval, or the one value.

    >>> shown([0.5, 0.7, 0.6]), shown([0.5])
    ('0.6000 ± 0.2484', '0.5000')
    """
    if len(values) < 2:
        return f"{np.mean(values):.4f}"
    return f"{np.mean(values):.4f} ± {stats.t.ppf(0.975, len(values) - 1) * standard_error(values):.4f}"
