"""Beaglehole et al., Figure 3: the start of the centred correlation on the alignment-reversing set, predicted and observed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ntkscope import data
from ntkscope.core import Claim, Record
from ntkscope.data.alignment_reversing import reverse
from ntkscope.linalg import matrix_correlation
from ntkscope.measures import _free_products as free
from ntkscope.measures import early_time as early
from ntkscope_papers.beaglehole_2024.early_identities import normal, relative
from ntkscope_papers.beaglehole_2024.reversing_claims import PUBLISHED, READINGS, draw, read
from ntkscope_papers.framework.claims import Published, verdicts
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs

NAME = "alignment-reversing"
WAYS: dict[str, dict[str, Any]] = {  # how the printed construction is made possible, and the scale of X₁
    "support": {"reading": "support", "unit_norm": True},
    "support-unscaled": {"reading": "support", "unit_norm": False},
    "subsample": {"reading": "subsample", "unit_norm": True},
    "subsample-unscaled": {"reading": "subsample", "unit_norm": False},
}
assert tuple(WAYS) == READINGS


@dataclass(frozen=True)
class AlignmentReversing(Experiment):
    """Beaglehole et al., Figure 3, App. F: ρ of the second derivatives by balance, by free probability and observed.

    `size` is n = d = k. `data_seeds` of the first reading, `other_seeds` of the others; `networks`: the first is the paper's
    single one, all of them make the mean and the moments of R. Balances are not published: powers of √2.
    """

    name = NAME
    free = ["data_seeds", "other_seeds", "readings"]

    size: int = 1024
    balances: tuple[float, ...] = tuple(round(2 ** (-j / 2), 4) for j in range(11, -1, -1))
    data_seeds: int = 10
    other_seeds: int = 3
    networks: int = 30
    readings: tuple[str, ...] = READINGS

    smoke = {
        "size": 96,
        "balances": (0.0625, 0.125, 0.25, 0.5, 1.0),
        "data_seeds": 2,
        "other_seeds": 1,
        "networks": 4,
    }

    def measure(self, run: Run) -> None:
        run_legs(run.record, legs(self, run.seed, run.device), self.legs, progress=run.progress)

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return tuple(PUBLISHED.values())

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return verdicts(self.name, PUBLISHED, read(), self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


@dataclass(frozen=True, eq=False)
class Networks:
    """R = Wᵀ diag(a²) W of every network, made when first used."""

    config: AlignmentReversing
    seed: int
    device: torch.device

    @cached_property
    def matrices(self) -> list[Tensor]:
        size, found = self.config.size, []
        for i in range(self.config.networks):
            W, a = free.draw_network(size, size, self.seed + i, self.device)
            scaled = a[:, None] * W
            found.append(scaled.T @ scaled)
        return found

    @cached_property
    def moments(self) -> tuple[float, ...]:
        """tr[R^p] averaged over them, as appendix H does."""
        size, sums = self.config.size, torch.zeros(4, dtype=torch.float64)
        for R in self.matrices:
            square = R @ R
            sums += torch.stack([R.trace(), (R * R).sum(), (R * square).sum(), (square * square).sum()]).cpu()
        return tuple((sums / size / len(self.matrices)).tolist())


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def one_balance(config: AlignmentReversing, networks: Networks, way: str, balance: float, seed: int) -> dict[str, Any]:
    """Observed and predicted ρ(ẆᵀẆ, ẆᵀKẆ), and how far the two expected matrices are from the identity."""
    size = config.size
    split = data.load(NAME, seed=seed, balance=balance, n=size, dimension=size, dtype="float64", **WAYS[way])
    X, y = (t.to(networks.device) for t in (split.train.x, split.train.y))
    S, B = X.T @ (y[:, None] * X), X.T @ X
    A, kept = S @ S, S @ B @ S
    observed = [free.word_traces(A, B, R).correlation for R in networks.matrices]
    predicted = early.quadratic_prediction(X, y, moments=networks.moments)
    eye = torch.eye(size, dtype=X.dtype, device=X.device)
    return {
        "observed": observed,
        "predicted": predicted.correlation,
        "predicted, limits of the moments": early.quadratic_prediction(X, y, width=size).correlation,
        "predicted, exact means": early.expected_traces(X, y, size).correlation,
        "predicted, mean term": early.expected_derivatives(X, y, size).correlation,
        "printed": _number(predicted.printed_correlation),
        "SBS with I": matrix_correlation(kept, eye),
        "S² with I": matrix_correlation(A, eye),
        "SBS with S²": matrix_correlation(kept, A),
    }


def one_data_seed(config: AlignmentReversing, networks: Networks, way: str, seed: int) -> dict[str, Any]:
    return {"balances": {f"{b:g}": one_balance(config, networks, way, b, seed) for b in config.balances}}


def construction(seed: int) -> dict[str, Any]:
    """X₂ᵀX₂ = (X₁ᵀX₁)⁻²: with enough rows, and at n = d with balance 1/4, where the printed matrices do not exist."""
    d = 24
    x1, drawn = normal(seed, "x1", 60, d), normal(seed, "x2", 80, d)
    turned = reverse(x1, drawn) @ (x1.T @ x1)  # V₂ U₁ᵀ: orthonormal columns
    eye = torch.eye(d, dtype=torch.float64)
    few, rest = normal(seed, "few", d // 4, d), normal(seed, "rest", d - d // 4, d)
    gram = few.T @ few
    left = torch.linalg.svd(rest, full_matrices=False)[0]
    on_support = reverse(few, rest) @ gram
    projector = torch.linalg.pinv(few) @ few
    return {
        "enough rows": relative(turned.T @ turned, eye),
        "rank of X₁ᵀX₁ over d, n = d": float(torch.linalg.matrix_rank(gram)) / d,
        "columns of V₂ over d, n = d": left.shape[1] / d,
        "on the support, n = d": relative(on_support.T @ on_support, projector),
    }


def legs(config: AlignmentReversing, seed: int, device: torch.device) -> list[Leg]:
    networks = Networks(config, seed, device)
    found = [Leg("construction", partial(construction, seed))]
    for way in config.readings:
        count = config.data_seeds if way == READINGS[0] else config.other_seeds
        found += [
            Leg(f"{way}/{s - seed}", partial(one_data_seed, config, networks, way, s))
            for s in range(seed, seed + count)
        ]
    return found
