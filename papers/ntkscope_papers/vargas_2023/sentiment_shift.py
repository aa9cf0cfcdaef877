"""Distribution shift between the two parts of Sentiment140: Figures 12 to 15, sections 4 to 7, with MiniLM in place of GPT-2.

P are tweets labelled by their emoticons, M tweets on chosen topics labelled by hand. Both are seen through every layer and
pooling of MiniLM, and through untrained encoders of four sizes; tests and areas under the curve are those of
`ns.explain.shift`. Two ways to make P more like M: tweets whose label a probe of M confirms, and rejection sampling by the
density ratio of Figure 13a.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from ntkscope.core import Record
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.vargas_2023 import shift_claims as claims
from ntkscope_papers.vargas_2023 import shift_legs as measure
from ntkscope_papers.vargas_2023.shift_figures import draw
from ntkscope_papers.vargas_2023.tweet_embeddings import hidden_states, pretrained, untrained
from ntkscope_papers.vargas_2023.tweets import Tweets, balanced, tweets

Both = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class SentimentShift(Experiment):
    """Distribution shift, Figures 12 to 15: tweets labelled by emoticons against tweets labelled by hand, through encoders.

    `items`: tweets of P compared with M; `pool`: tweets of P that are filtered; `blocks`: the encoder's layers; `share`: of
    the tweets that the filter keeps; `filters`: halvings of M; `pairs`: synthetic samples equal in PC1–2.
    """

    name = claims.NAME
    statements = claims_of(claims)
    free = ("draws", "filters", "permutations")

    dataset: str = "sentiment140"
    encoder: str = "minilm"
    blocks: int = 6
    length: int = 48
    items: int = 2000
    pool: int | None = None
    poolings: tuple[str, ...] = ("mean", "cls", "max", "last")
    sizes: tuple[str, ...] = ("2x128", "4x256", "6x384", "12x768")
    std: float = 0.02
    draws: int = 3
    permutations: int = 999
    share: float = 0.69
    filters: int = 10
    pairs: int = 10

    smoke = {
        "dataset": "made-up",
        "encoder": "tiny",
        "blocks": 2,
        "length": 6,
        "items": 60,
        "pool": 200,
        "poolings": ("mean", "cls"),
        "sizes": ("1x8", "2x16"),
        "draws": 1,
        "permutations": 59,
        "filters": 2,
        "pairs": 2,
    }

    def measure(self, run: Run) -> None:
        found = tweets(self.dataset, self.encoder, root=run.root, length=self.length, limit=self.pool)
        run_legs(run.record, legs(self, run.record, found, run.seed, run.device), self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


class Views:
    """Embeddings of P and M, each computed when it is first asked for and shared by the legs of one run."""

    def __init__(self, config: SentimentShift, found: Tweets, seed: int, device: torch.device) -> None:
        self.config, self.found, self.seed, self.device = config, found, seed, device
        (sample,) = balanced(found.processed.y, [config.items // 2], seed, "sample")
        self.sample = found.processed.take(torch.from_numpy(sample))
        self.every = cache(self._every)
        self.whole = cache(self._whole)

    def _every(self) -> dict[tuple[int, str], Both]:
        """The sample of P and M, every layer and pooling."""
        encoder = pretrained(self.config.encoder, self.device)
        first, second = (
            hidden_states(encoder, part.x, poolings=self.config.poolings) for part in (self.sample, self.found.manual)
        )
        return {key: (first[key], second[key]) for key in first}

    def _whole(self) -> Both:
        """All of P and M, last layer, mean over tokens."""
        encoder = pretrained(self.config.encoder, self.device)
        parts = (self.found.processed, self.found.manual)
        first, second = (hidden_states(encoder, part.x, layers=[-1])[-1, "mean"] for part in parts)
        return first, second

    def last(self) -> Both:
        """The sample of P and M, last layer, mean over tokens."""
        return self.every()[self.config.blocks, "mean"]

    def fresh(self, size: str, draw: int) -> Both:
        """The sample of P and M through an untrained encoder."""
        encoder = untrained(self.config.encoder, size, self.config.std, self.seed + draw, self.device)
        first, second = (
            hidden_states(encoder, part.x, layers=[-1])[-1, "mean"] for part in (self.sample, self.found.manual)
        )
        return first, second


def legs(config: SentimentShift, record: Record, found: Tweets, seed: int, device: torch.device) -> list[Leg]:
    views = Views(config, found, seed, device)
    labels = (found.processed.y.numpy(), found.manual.y.numpy())

    def layer(k: int) -> dict[str, Any]:
        """By pooling; below the first block the first token is the same vector for every tweet and says nothing."""
        both = {how: views.every()[k, how] for how in config.poolings}
        varies = {how: bool((np.concatenate(pair) != pair[0][0]).any()) for how, pair in both.items()}
        return {how: measure.seen(*both[how], config.permutations, seed) for how in both if varies[how]}

    def fresh(size: str, d: int) -> dict[str, Any]:
        both = views.fresh(size, d)
        if d == 0:
            measure.keep_plane(record, f"plane-{size}", *both)
        return measure.seen(*both, config.permutations, seed)

    def on_last(function: Callable[..., dict[str, Any]], *more: Any) -> Callable[[], dict[str, Any]]:
        return lambda: function(*views.last(), *more)

    def kept(s: int) -> dict[str, Any]:
        return measure.filtered(*views.whole(), *labels, config.share, seed + s, device, None if s else record)

    return [
        Leg("counts", partial(measure.counts, found)),
        Leg("identity", partial(measure.kernel_identity, config.encoder, found, seed, device)),
        Leg("one-sided", partial(measure.one_sided, config.pairs, config.permutations, seed)),
        *(Leg(f"layer/{k}", partial(layer, k)) for k in range(config.blocks + 1)),
        *(Leg(f"untrained/{size}/{d}", partial(fresh, size, d)) for size in config.sizes for d in range(config.draws)),
        Leg("plane", on_last(measure.plane, record, config.permutations, seed)),
        Leg("linear", on_last(measure.linear_separability, seed)),
        *(Leg(f"filter/{s}", partial(kept, s)) for s in range(config.filters)),
        Leg("subsample", lambda: measure.subsample(*views.whole(), *labels, seed)),
    ]
