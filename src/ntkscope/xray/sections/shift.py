"""Shift: whether the test items, or others that were given, come from where the training items come from; and memorisation.

A trained network has seen its training items and represents them differently from items it has not seen. Items are compared by
vectors that do not depend on the training (their inputs, the initial network's last stage), so a difference is one of the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import scipy.stats
import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from ntkscope.core import Inputs, UsageError, generator, numpy_generator
from ntkscope.core.model.tree import length, take, tensors
from ntkscope.explain import shift as shift_of
from ntkscope.explain.two_sample.c2st import auc_interval
from ntkscope.explain.two_sample.pooled import FEWEST
from ntkscope.explain.two_sample.shift import COMBINED, NO_SHIFT, SHIFT
from ntkscope.measures.uncertainty import holm, wilson_interval
from ntkscope.tangent import activations
from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.task import CLASSIFICATION
from ntkscope.xray.workload import Workload

LEVEL, PERMUTATIONS = 0.05, 499
MOST = 1000  # items of a sample; more would cost time and find shifts that are too small to matter
UNTOLD = "too few items"
MEMORISED, GENERALISES, UNCLEAR = "memorised", "no memorisation found", "cannot be told from the shift"
GAP = 0.05  # of accuracy, beyond which it counts as memorisation
TEST, COMPARED = "test items", "items to compare"
WIDEST = 4096  # numbers per item; wider inputs are added up in so many sums with random signs
WORDS = 1024  # the same for counts of tokens
Vectors = Float64[np.ndarray, "n p"]


@dataclass(frozen=True)
class Seen(Result):
    """Two samples through one embedding: p of each test, how well a linear classifier tells them apart (on all of it, and on
    two components), and how many training items would count as the other sample if weighted to look like it."""

    embedding: str
    width: int
    p: Mapping[str, float]
    auc: float
    auc_low: float
    auc_high: float
    plane_auc: float
    effective: float | None


@dataclass(frozen=True)
class Judged(Result):
    """One sample beside the training items. `p`: the smallest over embeddings, corrected for their number; `why`: what was
    in the way of an embedding."""

    other: str
    train: int
    items: int
    verdict: str
    p: float | None
    seen: tuple[Seen, ...]
    why: tuple[str, ...]


@dataclass(frozen=True)
class Memorisation(Result):
    """How much better the network knows its training items: accuracies and their difference with its interval, and how often
    a training item has the larger margin (1/2: no difference)."""

    train: float
    test: float
    gap: float
    low: float
    high: float
    margin_auc: float
    margin_low: float
    margin_high: float
    p: float
    verdict: str


@dataclass(frozen=True)
class Shifts(Result):
    """Every sample that was compared with the training items, and memorisation, None where there are no classes."""

    judged: tuple[Judged, ...]
    memorisation: Memorisation | None
    level: float
    permutations: int


def run(context: Context) -> Finding[Shifts]:
    samples = {TEST: context.test.x}
    if context.compared is not None:
        samples[COMPARED] = context.compared
    judged = tuple(_judged(context, number, name, x) for number, (name, x) in enumerate(samples.items()))
    memorisation = _memorisation(context, judged[0]) if context.task is CLASSIFICATION else None
    return Finding(Shifts(judged, memorisation, LEVEL, PERMUTATIONS), _confidence(judged))


def _judged(context: Context, number: int, name: str, other: Inputs) -> Judged:
    train, test = _sampled(context.train.x, context.seed, "train"), _sampled(other, context.seed, name)
    n, m = length(train), length(test)
    if min(n, m) < FEWEST:
        return Judged(name, n, m, UNTOLD, None, (), (f"a test needs at least {FEWEST} items in each sample",))
    seen: list[Seen] = []
    why: list[str] = []
    ways: dict[str, Callable[[Inputs], Float64[np.ndarray, "n p"]]] = {"inputs": input_vectors}
    initial = context.initial
    if initial is not None:
        ways["initial network"] = lambda x: initial_vectors(initial, x, context.device)
    for way, vectors in ways.items():
        try:
            seen.append(_seen(way, vectors(train), vectors(test), context, f"shift.plane.{number}.{len(seen)}"))
        except UsageError as error:
            why.append(f"{way}: {error}")
    if not seen:
        return Judged(name, n, m, UNTOLD, None, (), tuple(why))
    p = min(holm([each.p[COMBINED] for each in seen]))
    return Judged(name, n, m, SHIFT if p <= LEVEL else NO_SHIFT, p, tuple(seen), tuple(why))


def _sampled(x: Inputs, seed: int, name: str) -> Inputs:
    """At most `MOST` of the items, drawn at random."""
    n = length(x)
    if n <= MOST:
        return x
    return take(x, np.sort(numpy_generator(seed, "xray", "shift", name).permutation(n)[:MOST]))


def _seen(way: str, a: np.ndarray, b: np.ndarray, context: Context, array: str) -> Seen:
    found = shift_of(None, a, b, permutations=PERMUTATIONS, level=LEVEL, seed=context.seed)
    context.keep(array, found.plane.astype(np.float32))
    try:
        effective: float | None = found.ratio.effective
    except UsageError:
        effective = None
    auc, low, high = found.effects["auc"]
    return Seen(way, a.shape[1], dict(found.p), auc, low, high, found.effects["auc_pc12"][0], effective)


def _memorisation(context: Context, test: Judged) -> Memorisation:
    """The accuracies' difference (interval after Newcombe 1998), and the margins of both samples beside each other."""
    sides = ((context.network_train_outputs, context.y_train), (context.network_logits, context.y_test))
    right = [int((logits.argmax(1) == labels).sum()) for logits, labels in sides]
    counts = [len(labels) for _, labels in sides]
    ends = [wilson_interval(k, n) for k, n in zip(right, counts)]
    shares = [k / n for k, n in zip(right, counts)]
    gap = shares[0] - shares[1]
    low = gap - math.hypot(shares[0] - ends[0][0], ends[1][1] - shares[1])
    high = gap + math.hypot(ends[0][1] - shares[0], shares[1] - ends[1][0])
    of_train, of_test = (margins(logits, labels) for logits, labels in sides)
    both = np.concatenate([of_train, of_test])
    trained = np.arange(len(both)) < len(of_train)
    area = auc_interval(both, trained, np.arange(len(both)))
    p = float(scipy.stats.mannwhitneyu(of_train, of_test, alternative="greater").pvalue)
    if low <= GAP or p > LEVEL:
        verdict = GENERALISES
    else:
        verdict = UNCLEAR if test.verdict == SHIFT else MEMORISED
    return Memorisation(shares[0], shares[1], gap, low, high, *area, p, verdict)


def margins(logits: Float64[np.ndarray, "n c"], labels: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """The label's logit minus the largest of the others; above 0 where the network agrees with the label.

    >>> margins(np.array([[3.0, 1.0], [0.0, 2.0]]), np.array([0, 0])).tolist()
    [2.0, -2.0]
    """
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    return logits[rows, labels] - others.max(1)


def _confidence(judged: tuple[Judged, ...]) -> str:
    if all(each.verdict == UNTOLD for each in judged):
        return "There are too few items to tell, or none of their vectors could be compared."
    return (
        f"Exact tests by {PERMUTATIONS} rearrangements of items; all of a sample together raise a false alarm in"
        f" {100 * LEVEL:.0f} % of samples without any shift (Holm). They assume independent items. No shift found does not show"
        " that there is none."
    )


def cost(work: Workload) -> float:
    """One pass over a kernel of all items for all rearrangements, and a decomposition, for each of at most two embeddings."""
    items = min(work.train, MOST) + min(work.test, MOST)
    ways = 2 if work.initial_train else 1
    return ways * (0.05 + (2.0 * PERMUTATIONS * items**2 + 11.0 * items**3) * work.rates.double)


def input_vectors(x: Inputs) -> Vectors:
    """Each item's inputs as one vector: its numbers, or how often each token occurs in it.

    >>> input_vectors({"a": torch.ones(2, 3), "b": torch.zeros(2, 1, 2)}).shape
    (2, 5)
    """
    if isinstance(x, Mapping) and isinstance(x.get("input_ids"), Tensor):
        return _counts(x["input_ids"], x.get("attention_mask"))
    leaves = tensors(x)
    numbers = [leaf.reshape(len(leaf), -1) for leaf in leaves if leaf.is_floating_point()]
    if numbers:
        return _narrowed(torch.cat([leaf.detach().cpu().double() for leaf in numbers], dim=1))
    ids = [leaf for leaf in leaves if leaf.dim() == 2 and not leaf.is_complex()]
    if not ids:
        raise UsageError("the inputs are neither numbers nor tokens; expected one of them")
    return _counts(ids[0], None)


def initial_vectors(initial: nn.Module, x: Inputs, device: torch.device | None) -> Vectors:
    """What the last stage of the initial network puts out, averaged over positions."""
    own = next((p.device for p in initial.parameters()), torch.device("cpu"))
    found = activations(initial, x, reduce="mean", device=device or own)
    rows = list(found.values())[-1]
    assert isinstance(rows, Tensor)
    return rows.double().cpu().numpy()


def _narrowed(rows: Tensor) -> Vectors:
    if rows.shape[1] <= WIDEST:
        return np.asarray(rows.numpy())
    draw = generator(0, "fixed vectors", rows.shape[1])
    places = torch.randint(WIDEST, (rows.shape[1],), generator=draw)
    signs = torch.randint(2, (rows.shape[1],), generator=draw, dtype=torch.float64) * 2 - 1
    sums = torch.zeros(len(rows), WIDEST, dtype=torch.float64).index_add_(1, places, rows * signs)
    return np.asarray(sums.numpy())


def _counts(ids: Tensor, mask: Tensor | None) -> Vectors:
    """Counts of tokens that are not padding, several tokens per count where there are many."""
    ids = ids.detach().cpu().long()
    weights = torch.ones_like(ids, dtype=torch.float64) if mask is None else mask.detach().cpu().double()
    draw = generator(0, "fixed vectors", "tokens")
    largest = int(ids.max()) + 1
    places = torch.arange(largest) if largest <= WORDS else torch.randint(WORDS, (largest,), generator=draw)
    found = torch.zeros(len(ids), WORDS, dtype=torch.float64)
    return np.asarray(found.scatter_add_(1, places[ids.clamp(min=0)], weights).numpy())


SECTION = register(
    Section(
        name="shift",
        place=4,
        title="Shift",
        meaning=(
            "Whether the test items come from the same distribution as the training items, seen through vectors that do not"
            " depend on the training: the inputs themselves, and the network before it was trained. A network that knows its"
            " training items by heart treats them differently without any shift; that is told apart, as memorisation."
        ),
        formula=(
            "Three statistics T: the area under the ROC curve of a ridge classifier of one sample against the other on items it"
            " was not fitted on; the unbiased squared maximum mean discrepancy under a Gaussian kernel; the largest"
            " Kolmogorov–Smirnov distance over principal components. p = (1 + #{T_r ≥ T}) / (1 + R) over R rearrangements r of"
            " the items, corrected after Holm. Memorisation, of classifiers: the share right of training items minus that of"
            " test items; margin: the label's logit minus the largest other."
        ),
        run=run,
        result=Shifts,
        cost=cost,
    )
)
