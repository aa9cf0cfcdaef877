"""Polynomials of a hidden direction: tasks, and the inputs that all degrees share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ntkscope import data
from ntkscope.core import Part, UsageError, generator
from ntkscope.data.hidden_polynomial import choose_roots, polynomial

PARTS = ("train", "validation", "test")
KINDS = ("isotropic", "correlated", "direct")
BOUND = 2.0  # the largest |v|
AUTHORS = "authors"  # in place of the kind of targets: raw ones, and all settings as in the report's public code
# Width and weight decay, at rate 1, of independent coordinates by degree, as the grid of that code chose them after 20 epochs
# (github.com/Bala-A87/UGRC, Code/configs/nn/hidden-func-poly)
CHOSEN = {3: (512, 0.0), 4: (256, 1e-4), 5: (256, 1e-4), 6: (512, 0.0), 7: (512, 1e-3), 8: (256, 10.0), 9: (128, 100.0)}


@dataclass(frozen=True)
class Task:
    """What a network learns: inputs of a kind ("direct": v itself), the degree, and whether targets are divided by their
    standard deviation ("unit") or not ("raw", "authors")."""

    kind: str
    degree: int
    target: str

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.target}/{self.degree}"


@dataclass(frozen=True, eq=False)
class Draw:
    """The inputs of one seed in single precision, with v in double, by part."""

    x: Mapping[str, Float[Tensor, "n d"]]
    v: Mapping[str, Float64[Tensor, " n"]]
    roots: str
    seed: int

    def clean(self, name: str, task: Task) -> Float64[Tensor, " n"]:
        """The targets of a part."""
        chosen = choose_roots(self.roots, task.degree, (-BOUND, BOUND), self.seed)
        y = polynomial(self.v[name], chosen)
        if task.target == "unit":
            unit = float(polynomial(self.v["train"], chosen).std(correction=0))
            y = y / unit
        return y

    def part(self, name: str, task: Task, noise: float = 0.0) -> Part:
        """A part with its targets; `noise` is added to those of training and validation items with a random sign."""
        y = self.clean(name, task)
        if noise and name != "test":
            coins = torch.rand(len(y), generator=generator(self.seed, name, "coins"), dtype=torch.float64) < 0.5
            y = y + noise * torch.where(coins, 1.0, -1.0)
        x = self.v[name][:, None].float() if task.kind == "direct" else self.x[name]
        return Part(x, y.float())


class Inputs:
    """The inputs of every kind and seed, drawn once. "isotropic" and "direct" share theirs."""

    def __init__(self, config: Any, seed: int) -> None:
        self._config, self._seed = config, seed
        self._draws: dict[tuple[bool, int], Draw] = {}

    def draw(self, kind: str, s: int) -> Draw:
        """Of the s-th seed: those of data set "hidden-polynomial", whatever the degree."""
        if kind not in KINDS:
            raise UsageError(f"got inputs {kind!r}; expected one of {', '.join(KINDS)}")
        config, seed, at = self._config, self._seed + s, (kind == "correlated", s)
        if at not in self._draws:
            sizes = {"train": config.train, "validation": config.validation, "test": config.test}
            options = {"correlated": at[0], "dimension": config.dimension, "bound": BOUND, "dtype": "float64"}
            split = data.load("hidden-polynomial", seed=seed, **sizes, **options)
            assert split.validation is not None
            parts = dict(zip(PARTS, (split.train, split.validation, split.test)))
            x = {name: part.x.float() for name, part in parts.items()}
            v = {name: part.extras["v"] for name, part in parts.items()}
            self._draws[at] = Draw(x, v, config.roots, seed)
        return self._draws[at]

    def parts(self, task: Task, s: int, noise: float = 0.0) -> dict[str, Part]:
        """The parts of a task."""
        drawn = self.draw(task.kind, s)
        return {name: drawn.part(name, task, noise) for name in PARTS}
